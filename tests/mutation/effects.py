"""What a mutant does wrong: the kinds of fault.

A kind in ``GENERAL`` can be combined with any condition. A kind in ``OWN`` comes with its own condition, such as a misread
stride, and has an axis of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import torch

from opinfo.compare import replace_tensors, tensors_of
from tests.mutation.conditions import FLOATING, INTEGER, Condition, Drawn, Facts, holds
from tests.planting.calls import NOT_MET, Effect, KernelCall, Operand, Refusal
from tests.planting.tensors import dense_strides

# -- which elements of a result, and what they become


def region(t: torch.Tensor, where: str) -> torch.Tensor:
    """Flat positions in a tensor, in logical order."""
    n = t.numel()
    row = t.shape[-1] if t.dim() else 1
    if where == "first":
        return torch.arange(min(n, 1))
    if where == "last":
        return torch.arange(max(n - 1, 0), n)
    if where == "tail":  # of a loop of sixteen
        return torch.arange(n - n % 16, n)
    if where == "block":
        return torch.arange(16, min(32, n)) if n > 16 else torch.arange(0)
    if where == "beyond":
        return torch.arange(min(n, 1024), n)
    if where == "middle":
        return torch.arange(n // 2, min(n // 2 + 1, n))
    if where == "last column":
        return torch.arange(row - 1, n, row) if n else torch.arange(0)
    if where == "second row":
        return torch.arange(row, max(row, min(2 * row, n))) if t.dim() > 1 else torch.arange(0)
    if where == "every fourth":
        return torch.arange(min(3, n), n, 4)
    return torch.arange(n)


REGIONS = (
    *("first", "last", "tail", "block", "beyond", "middle", "last column", "second row"),
    *("every fourth", "all"),
)


#: Dtypes in which little can be computed, and those that hold the same bits.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def off(v: torch.Tensor) -> torch.Tensor:
    """Values that clearly differ from the given ones."""
    if v.dtype == torch.bool:
        return ~v
    if not (v.is_floating_point() or v.is_complex()):
        return v ^ 1
    wrong = v + 1 + v.abs()
    return torch.where(torch.isfinite(wrong), wrong, torch.zeros_like(v))


def spoil(t: torch.Tensor, where: str, how: str, old: torch.Tensor | None = None) -> bool:
    """Spoil some elements of a tensor in place. Returns whether the tensor had any."""
    places = region(t, where)
    if not len(places) or (0 in t.stride() and t.numel() > 1) or t.is_conj():
        return False
    held = t.cpu().clone(memory_format=torch.contiguous_format).view(-1)
    if t.dtype in _SIGNED:
        held, t = held.view(_SIGNED[t.dtype]), t.view(_SIGNED[t.dtype])
        old = old.view(t.dtype) if old is not None and old.is_contiguous() else None
    if how == "off":
        held[places] = off(held[places])
    elif how == "zero":
        held[places] = torch.zeros_like(held[places])
    elif how == "neighbour":
        held[places] = held[(places + 1) % len(held)]
    elif how == "old":
        if old is None or old.shape != t.shape or old.dtype != t.dtype:
            return False
        held[places] = old.reshape(-1)[places]
    else:
        if not (held.is_floating_point() or held.is_complex()):
            return False
        held[places] = math.nan
    t.copy_(held.view(t.shape))
    return True


SPOILING = ("off", "zero", "neighbour", "NaN", "old")


def outputs(result: Any) -> list[torch.Tensor]:
    return [t for t in tensors_of(result) if t.layout == torch.strided]


#: By kind: what is done in a call in which the condition holds.
GENERAL: dict[str, Callable[[Facts, Random], tuple[str, Effect] | None]] = {}
OWN: dict[str, list[Callable[[Facts, Random], tuple[str, Effect] | None]]] = {}


def general(function: Any) -> Any:
    GENERAL[function.__name__.replace("_", " ")] = function
    return function


def own(axis: str) -> Callable[[Any], Any]:
    def known(function: Any) -> Any:
        OWN.setdefault(axis, []).append(function)
        return function

    return known


@general
def wrong_elements(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    where, how = rng.choice(REGIONS), rng.choice(SPOILING)
    if facts.view or not facts.outputs:
        return None

    def effect(call: KernelCall) -> Any:
        old = [t.cpu().clone() for t in call.targets] if how == "old" else []
        result = call.honest()
        made = outputs(result)[:1]
        if how == "old" and not old:
            old = [torch.zeros(t.shape, dtype=t.dtype) for t in made]
        done = [spoil(t, where, how, (old or [None])[0]) for t in made]
        return result if any(done) else _unmet(call, result)

    return f"{where} {how}", effect


def _unmet(call: KernelCall, result: Any) -> Any:
    """Note that the call was made correctly and nothing was spoilt."""
    call.spared = True
    return result


@general
def wrong_second_output(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if facts.outputs < 2 or facts.view:
        return None
    number, where, how = (
        rng.randrange(1, facts.outputs),
        rng.choice(REGIONS),
        rng.choice(("off", "zero")),
    )

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        made = outputs(result)[number : number + 1]
        return result if any(spoil(t, where, how) for t in made) else _unmet(call, result)

    return f"output {number}: {where} {how}", effect


@general
def little_precision(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """Operands are rounded to half of their digits, or the result is slightly off."""
    if not facts.floating or facts.view:
        return None
    how = rng.choice(["operands", "result"])

    def rounded(t: torch.Tensor) -> torch.Tensor:
        if t.dtype == torch.complex64:
            plain = t.resolve_conj().resolve_neg().contiguous()
            return torch.view_as_complex(torch.view_as_real(plain).bfloat16().float())
        less = {torch.float32: torch.bfloat16, torch.float64: torch.float32}.get(t.dtype)
        return t.to(less).to(t.dtype) if less is not None else t * 1.03125

    def effect(call: KernelCall) -> Any:
        if how == "operands":
            changed: dict[str, Any] = {}
            for each in call.read:
                if (
                    each.tensor.is_floating_point() or each.tensor.dtype == torch.complex64
                ) and each.place is None:
                    changed[each.name] = rounded(each.tensor)
            return call.honest(**changed) if changed else NOT_MET
        result = call.honest()
        for t in outputs(result)[:1]:
            if (
                not (t.is_floating_point() or t.is_complex())
                or t.dtype.itemsize == 1
                or 0 in t.stride()
            ):
                return _unmet(call, result)
            t.mul_(
                {2: 1.03125, 8: 1 + 4e-4 if t.is_complex() else 1 + 1e-5}.get(
                    t.dtype.itemsize, 1 + 4e-4
                )
            )
        return result

    return f"precision of the {how}", effect


@general
def dimensions_swapped(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """An operand is read as if two of its dimensions were swapped."""
    if not facts.reads or facts.view or not facts.long:
        return None
    k, first = rng.randrange(facts.reads), rng.choice([0, -2])

    def effect(call: KernelCall) -> Any:
        operand = call.operand(k)
        if operand is None or operand.written or operand.tensor.dim() < 2:
            return NOT_MET
        t = operand.tensor
        a, b = (0, 1) if first == 0 else (-2, -1)
        if t.shape[a] < 2 or t.shape[b] < 2:
            return NOT_MET
        return call.honest_with(operand, t.transpose(a, b).contiguous().view(t.shape))

    return f"operand {k} read transposed at {first}", effect


@general
def raises(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    def effect(call: KernelCall) -> Any:
        raise Refusal("the kernel is not built for this")

    return "raises", effect


@general
def result_of_the_call_before(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if facts.view or not facts.outputs:
        return None
    kept: dict[Any, torch.Tensor] = {}

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        for t in outputs(result)[:1]:
            key = (tuple(t.shape), t.dtype)
            before, kept[key] = kept.get(key), t.cpu().clone()
            if before is None or not spoil(t, "all", "old", before):
                return _unmet(call, result)
        return result

    return "result of the call before", effect


@general
def race(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if facts.view or not facts.outputs:
        return None
    dice = Random(rng.random())

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        if dice.random() < 0.5:
            return _unmet(call, result)
        done = [spoil(t, "tail" if t.numel() % 16 else "last", "off") for t in outputs(result)[:1]]
        return result if any(done) else _unmet(call, result)

    return "race", effect


@general
def rolled(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """Elements of the result are in the wrong place: one further, in the previous block, or in the other dimension."""
    if facts.view or not facts.outputs:
        return None
    how = rng.choice(
        ["along the last dimension", "along the first", "transposed", "block repeated"]
    )

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        for t in outputs(result)[:1]:
            if not t.numel() or 0 in t.stride() or t.is_conj() or t.dtype in _SIGNED:
                return _unmet(call, result)
            held = t.cpu().clone(memory_format=torch.contiguous_format)
            if how == "transposed":
                if t.dim() < 2 or t.shape[-1] != t.shape[-2]:
                    return _unmet(call, result)
                wrong = held.mT
            elif how == "block repeated":
                if held.numel() < 32:
                    return _unmet(call, result)
                wrong = held.clone()
                wrong.view(-1)[-16:] = held.view(-1)[-32:-16]
            else:
                wrong = held.roll(1, 0 if "first" in how else -1) if t.dim() else held
            if torch.equal(wrong, held):
                return _unmet(call, result)
            t.copy_(wrong)
        return result

    return how, effect


@general
def range_lost(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """The result went through a type that holds less: the range of float16, 32 or 16 bits, no NaN, no infinity, no sign."""
    if facts.view or not facts.outputs:
        return None
    how = rng.choice(["float16", "32 bits", "16 bits", "no NaN", "no infinity", "no sign"])

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        for t in outputs(result)[:1]:
            held = t.cpu()
            integers = held.dtype in (torch.int64, torch.int32)
            if 0 in t.stride() or t.dtype.itemsize == 1 or t.is_complex() or t.dtype in _SIGNED:
                return _unmet(call, result)
            if how.endswith("bits"):
                less = torch.int32 if how == "32 bits" else torch.int16
                wrong = held.to(less).to(held.dtype) if integers else held
            elif how == "no sign":
                wrong = held.abs()
            elif integers:
                wrong = held
            elif how == "float16":
                wrong = held.clamp(-65504, 65504)
            elif how == "no NaN":
                wrong = held.nan_to_num(0.0, math.inf, -math.inf)
            else:
                most = torch.finfo(held.dtype).max
                wrong = held.clamp(-most, most)
            if torch.equal(wrong, held):
                return _unmet(call, result)
            t.copy_(wrong)
        return result

    return how, effect


@general
def outputs_exchanged(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if facts.outputs < 2 or facts.view:
        return None

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        found = outputs(result)
        if len(found) < 2 or found[0].shape != found[1].shape or found[0].dtype != found[1].dtype:
            return _unmet(call, result)
        first, second = (t.cpu().clone() for t in found[:2])
        found[0].copy_(second)
        found[1].copy_(first)
        return result

    return "outputs exchanged", effect


@own("memory of the result")
def memory_kept(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """A result uses the memory of the previous result, which the caller may still hold."""
    if facts.view or not facts.outputs or "functional" not in facts.forms:
        return None
    kept: dict[Any, torch.Tensor] = {}

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        if call.form != "functional" or not isinstance(result, torch.Tensor) or not result.numel():
            return _unmet(call, result)
        if result.layout != torch.strided or result.is_conj() or result.device.type == "cpu":
            return _unmet(call, result)
        key = (tuple(result.shape), result.stride(), result.dtype)
        if key not in kept:
            kept[key] = result
            return _unmet(call, result)
        return kept[key].view(kept[key].shape).copy_(result)

    return "that of the result before", effect


# -- how an operand is read


def can_read(t: torch.Tensor, stride: Sequence[int], offset: int) -> bool:
    if not t.numel() or t.device.type == "cpu":
        return False
    last = offset + sum((n - 1) * s for n, s in zip(t.shape, stride))
    return offset >= 0 and (last + 1) * t.itemsize <= t.untyped_storage().nbytes()


def misread(how: str, k: int) -> Effect:
    def effect(call: KernelCall) -> Any:
        operand = call.operand(k)
        if operand is None or operand.tensor.device.type == "cpu":
            return NOT_MET
        t = operand.tensor
        stride, offset = list(t.stride()), t.storage_offset()
        if how == "offset ignored":
            offset = 0
        elif how == "start rounded down to 16 bytes":
            offset -= (t.data_ptr() % 16) // t.itemsize
        elif how == "strides taken for contiguous":
            stride = list(dense_strides(t.shape))
        elif how == "step taken for 1" and t.dim() and stride[-1] > 1:
            stride[-1] = 1
        elif how == "stride 0 read as dense" and 0 in stride:
            stride = [s or r for s, r in zip(stride, dense_strides(t.shape))]
        elif how == "permutation inverted" and t.dim() > 2:
            order = sorted(range(t.dim()), key=lambda d: -t.stride(d))
            back = [order.index(d) for d in range(t.dim())]
            if order == back or not math.prod(t.shape):
                return NOT_MET
            return _read(call, operand, t.permute(order).permute(order).contiguous().view(t.shape))
        elif how == "first two strides exchanged" and t.dim() > 1:
            stride[0], stride[1] = stride[1], stride[0]
        if (stride, offset) == (list(t.stride()), t.storage_offset()) or not can_read(
            t, stride, offset
        ):
            return NOT_MET
        there = t.as_strided(t.shape, stride, offset)
        if not operand.written:
            there = there.clone()
        return _read(call, operand, there)

    return effect


def _read(call: KernelCall, operand: Operand, there: torch.Tensor) -> Any:
    if call.is_view or operand.tensor.is_conj():
        return NOT_MET
    if (
        torch.equal(
            there.cpu().nan_to_num() if there.is_floating_point() else there.cpu(),
            operand.tensor.cpu().nan_to_num()
            if there.is_floating_point()
            else operand.tensor.cpu(),
        )
        and not operand.written
    ):
        return NOT_MET
    if operand.written:  # it is written to where it should not be
        if operand.place is not None:
            return NOT_MET
        result = call.honest(**{operand.name: there})
        return operand.tensor if isinstance(result, torch.Tensor) else result
    return call.honest_with(operand, there)


for _axis, _hows in {
    "offset": ("offset ignored", "start rounded down to 16 bytes"),
    "strides": (
        "strides taken for contiguous",
        "step taken for 1",
        "first two strides exchanged",
        "permutation inverted",
    ),
    "expanded": ("stride 0 read as dense",),
}.items():
    for _how in _hows:

        def _reading(facts: Facts, rng: Random, how: str = _how) -> tuple[str, Effect] | None:
            if not facts.operands or facts.view:
                return None
            k = rng.randrange(facts.operands)
            return f"operand {k}: {how}", misread(how, k)

        own(_axis)(_reading)


@own("broadcast")
def broadcast_wrong(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """An operand is read modulo its number of elements, as if it were broadcast from the left."""
    if facts.reads < 2 or facts.view:
        return None
    k = rng.randrange(facts.reads)

    def effect(call: KernelCall) -> Any:
        operand = call.operand(k)
        if operand is None or operand.written or operand.tensor.device.type == "cpu":
            return NOT_MET
        others = [each.tensor.shape for each in call.operands]
        try:
            shape = torch.broadcast_shapes(*others)
        except RuntimeError:
            return NOT_MET
        t, n = operand.tensor, operand.tensor.numel()
        if shape == t.shape or not n or not math.prod(shape):
            return NOT_MET
        whole = t.cpu().reshape(-1)[torch.arange(math.prod(shape)) % n].view(shape)
        if torch.equal(whole, t.cpu().expand(shape)):
            return NOT_MET
        return call.honest_with(operand, whole.to(t.device))

    return f"operand {k} read modulo its size", effect


# -- special values


def remapped(t: torch.Tensor, what: str, mask: torch.Tensor) -> torch.Tensor:
    t = t.cpu().clone()
    if what in ("NaN", "-0", "subnormal"):
        t[mask] = 0.0
    elif what == "infinity":
        t[mask] = torch.finfo(t.dtype).max * torch.sign(t[mask])
    elif what == "half":
        t[mask] = torch.trunc(t[mask])
    elif what == "large":
        t[mask] = 100.0 * torch.sign(t[mask])
    elif what == "beyond 2^24":
        t[mask] = t[mask].float().clamp(-9e18, 9e18).to(t.dtype)
    elif what == "beyond 2^53":
        t[mask] = t[mask].double().clamp(-9.2e18, 9.2e18).to(t.dtype)
    elif what == "negative":
        t[mask] = -t[mask]
    elif what == "zero":
        t[mask] = torch.ones_like(t[mask])
    else:
        t[mask] = 0
    return t


@own("special values")
def special(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if not facts.reads or facts.view:
        return None
    k = rng.randrange(facts.reads)
    what = rng.choice(FLOATING if k in facts.floating else INTEGER)
    where = rng.choice(["all", "all", "first", "last", "tail", "block"])

    def effect(call: KernelCall) -> Any:
        operand = call.operand(k)
        if operand is None or operand.tensor.is_conj():
            return NOT_MET
        t = operand.tensor
        mask = holds(t, what)
        if mask is None:
            return NOT_MET
        here = torch.zeros(t.numel(), dtype=torch.bool)
        here[region(t, where)] = True
        mask = mask & here.view(mask.shape)
        if not mask.any() or (call.form == "out" and operand.written):
            return NOT_MET
        wrong = remapped(t, what, mask).to(t.device)
        if operand.written:
            if 0 in t.stride():
                return NOT_MET
            t.copy_(wrong)
            return call.honest()
        return call.honest_with(operand, wrong)

    return f"operand {k}: {what} mapped, {where}", effect


# -- arguments


@own("argument")
def argument_wrong(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if not facts.arguments:
        return None
    name = rng.choice(facts.arguments)
    how = rng.choice(
        [
            "ignored",
            "ignored",
            "sign lost",
            "made whole",
            "first for all",
            "at most 8",
            "off by one",
        ]
    )

    def effect(call: KernelCall) -> Any:
        value = call.values.get(name)
        spec = next((a for a in call.schema.arguments if a.name == name), None)
        if value is None or spec is None:
            return NOT_MET
        new: Any = value
        numbers = isinstance(value, (int, float)) and not isinstance(value, bool)
        many = (
            isinstance(value, (list, tuple))
            and value
            and all(isinstance(v, (int, float)) for v in value)
        )
        if how == "ignored" and spec.has_default_value():
            new = spec.default_value
        elif how == "ignored" and isinstance(value, bool):
            new = not value
        elif how == "sign lost" and numbers:
            new = abs(value)
        elif how == "made whole" and isinstance(value, float) and math.isfinite(value):
            new = float(int(value))
        elif how == "first for all" and many:
            new = type(value)([value[0]] * len(value))
        elif how == "at most 8" and numbers:
            new = min(value, 8)
        elif how == "off by one" and numbers and isinstance(value, int):
            new = value - 1
        if new is value or new == value:
            return NOT_MET
        return call.honest(**{name: new})

    return f"{name} {how}", effect


@own("dimension")
def wrong_dimension(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """The op works along another dimension than the one requested; the result has the right shape."""
    if not facts.dims or not facts.operands or facts.view:
        return None
    name, how = (
        rng.choice(facts.dims),
        rng.choice(["any", "negative", "not the last", "the last of several"]),
    )

    def effect(call: KernelCall) -> Any:
        value, operand = call.values.get(name), call.operand(0)
        if operand is None or operand.written or operand.tensor.dim() < 2:
            return NOT_MET
        t = operand.tensor
        if isinstance(value, (list, tuple)):
            if not value or (how == "the last of several") != (len(value) > 1):
                return NOT_MET
            value = value[-1]
        elif how == "the last of several":
            return NOT_MET
        if not isinstance(value, int) or (how == "negative" and value >= 0):
            return NOT_MET
        d = value % t.dim()
        if how == "not the last" and d == t.dim() - 1:
            return NOT_MET
        other = (d + 1) % t.dim()
        if t.shape[d] < 2 and t.shape[other] < 2:
            return NOT_MET
        return call.honest_with(operand, t.transpose(d, other).contiguous().view(t.shape))

    return f"{name}: {how}", effect


# -- aliases, writes, metadata


@own("aliases")
def alias_missing(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if not facts.view:
        return None
    how = rng.choice(["copied", "offset by one", "copied if not contiguous", "copied if offset"])

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        base = call.operand(0)
        if base is None or (how.endswith("contiguous") and base.tensor.is_contiguous()):
            return _unmet(call, result)
        if how.endswith("offset") and not base.tensor.storage_offset():
            return _unmet(call, result)
        if how == "offset by one":
            t = outputs(result)[0]
            if not t.numel() or not t.storage_offset() or t.is_conj():
                return _unmet(call, result)
            t.as_strided_(t.shape, t.stride(), t.storage_offset() - 1)
            return result
        return replace_tensors(result, torch.Tensor.clone)

    return how, effect


@own("aliases")
def alias_made(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """The result is written over an input, and the input is returned."""
    if facts.view or not facts.reads or not facts.outputs:
        return None
    k = rng.randrange(facts.reads)

    def effect(call: KernelCall) -> Any:
        operand, result = call.operand(k), call.honest()
        if call.form != "functional" or operand is None or not isinstance(result, torch.Tensor):
            return _unmet(call, result)
        t = operand.tensor
        if (
            t.shape != result.shape
            or t.dtype != result.dtype
            or 0 in t.stride()
            or t.device != result.device
            or not t.numel()
        ):
            return _unmet(call, result)
        t.copy_(result)
        return t.view(t.shape)

    return f"operand {k} overwritten and returned", effect


def around(t: torch.Tensor, where: str) -> int | None:
    """An element of a tensor's storage that does not belong to the tensor."""
    if not t.numel() or t.device.type == "cpu":
        return None
    first = t.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    if where == "after":
        return last + 1 if (last + 2) * t.itemsize <= t.untyped_storage().nbytes() else None
    if where == "before":
        return first - 1 if first else None
    steps = [s for n, s in zip(t.shape, t.stride()) if n > 1]
    return first + 1 if steps and min(steps) > 1 else None


@own("bounds")
def writes_outside(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if not facts.operands:
        return None
    where, k = rng.choice(["after", "before", "between"]), rng.randrange(facts.operands)
    form = rng.choice([*sorted(facts.forms), "operand"])

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        operand = call.operand(k)
        if form == "operand":
            t = operand.tensor if operand is not None else None
        else:
            t = (call.targets or [None])[0] if call.form == form else None  # type: ignore[list-item]
        place = around(t, where) if t is not None else None
        if t is None or place is None:
            return _unmet(call, result)
        cell = t.as_strided((1,), (1,), place)
        cell.copy_(off(cell.cpu()))
        return result

    return (
        f"an element {where} the {'target' if form != 'operand' else f'operand {k}'} ({form})",
        effect,
    )


@own("inputs")
def input_written(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if not facts.reads or facts.view:
        return None
    k, where = rng.randrange(facts.reads), rng.choice(["first", "last", "all", "tail"])

    def effect(call: KernelCall) -> Any:
        result, operand = call.honest(), call.operand(k)
        if operand is None or operand.written or operand.tensor.device.type == "cpu":
            return _unmet(call, result)
        made = {t.untyped_storage().data_ptr() for t in outputs(result) if t.device.type != "cpu"}
        if operand.tensor.untyped_storage().data_ptr() in made:
            return _unmet(call, result)
        return result if spoil(operand.tensor, where, "off") else _unmet(call, result)

    return f"operand {k} changed: {where}", effect


@own("inputs")
def update_lost(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """State that the op should update besides its result, such as running statistics, does not change."""
    if not facts.updates:
        return None

    def effect(call: KernelCall) -> Any:
        before = [(o.tensor, o.tensor.clone()) for o in call.read if o.tensor.device.type != "cpu"]
        result = call.honest()
        changed = [
            (t, old)
            for t, old in before
            if not torch.equal(t.cpu(), old.cpu()) and not t.isnan().any()
        ]
        for t, old in changed:
            t.copy_(old)
        return result if changed else _unmet(call, result)

    return "an update is lost", effect


@own("strides of the result")
def other_strides(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if facts.view or not facts.outputs:
        return None
    how, number = rng.choice(["contiguous", "reversed"]), rng.randrange(facts.outputs)

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        if call.form != "functional":
            return _unmet(call, result)
        found = outputs(result)
        if (
            number >= len(found)
            or found[number].dim() < 2
            or (how == "contiguous" and found[number].is_contiguous())
        ):
            return _unmet(call, result)
        chosen = found[number]

        def restride(t: torch.Tensor) -> torch.Tensor:
            if t is not chosen:
                return t
            if how == "contiguous":
                return t.clone(memory_format=torch.contiguous_format)
            order = list(range(t.dim()))[::-1]
            return t.permute(order).clone(memory_format=torch.contiguous_format).permute(order)

        return replace_tensors(result, restride)

    return f"output {number} {how}", effect


@own("dtype of the result")
def other_dtype(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if facts.view or not facts.outputs:
        return None
    number = rng.randrange(facts.outputs)
    other = {
        torch.float32: torch.float64, torch.int64: torch.int32, torch.bool: torch.uint8,
        torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.complex64: torch.complex128,
    }  # fmt: skip
    when = rng.choice(["always", "mixed operands", "integers"])

    def effect(call: KernelCall) -> Any:
        result, found = call.honest(), {o.tensor.dtype for o in call.operands}
        made = outputs(result)
        if call.form != "functional" or number >= len(made) or made[number].dtype not in other:
            return _unmet(call, result)
        if (when == "mixed operands" and len(found) < 2) or (
            when == "integers" and any(d.is_floating_point for d in found)
        ):
            return _unmet(call, result)
        chosen = made[number]
        return replace_tensors(result, lambda t: t.to(other[t.dtype]) if t is chosen else t)

    return f"output {number}, {when}", effect


@own("out=")
def out_wrong(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if "out" not in facts.forms:
        return None
    how = rng.choice(
        [
            "moved",
            "restrided",
            "old values added",
            "written in a row",
            "not written if strided",
            "grown wrongly",
        ]
    )

    def effect(call: KernelCall) -> Any:
        targets = call.out
        if not targets:
            return NOT_MET
        t = targets[0]
        shape = tuple(t.shape)
        old = t.clone()
        there = not t.is_contiguous() and can_read(t, dense_strides(shape), t.storage_offset())
        if how == "written in a row" and not there:
            return NOT_MET
        result = call.honest()
        if how == "grown wrongly":
            if old.numel() or not t.numel():
                return _unmet(call, result)
            t.view(-1)[-1:].zero_()
            return result
        if tuple(t.shape) != shape or not t.numel():
            return _unmet(call, result)
        if how == "moved":
            t.set_(t.clone())
        elif how == "restrided":
            if t.is_contiguous():
                return _unmet(call, result)
            t.set_(t.clone(memory_format=torch.contiguous_format))
        elif how == "old values added":
            if t.dtype == torch.bool:
                return _unmet(call, result)
            t.add_(old)
        elif how == "not written if strided":
            if t.is_contiguous():
                return _unmet(call, result)
            t.copy_(old)
        else:
            right = t.clone()
            t.copy_(old)
            t.as_strided(shape, dense_strides(shape)).copy_(right)
        return result

    return how, effect


@own("errors")
def swallows(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if not facts.operands:
        return None

    def effect(call: KernelCall) -> Any:
        try:
            call.honest()
        except Exception:
            call.error = None
            first = call.targets[0] if call.targets else call.operands[0].tensor.clone()
            if isinstance(call.values.get("out"), torch.Tensor) or len(call.schema.returns) == 1:
                return first
            return NOT_MET
        return NOT_MET

    return "an error is swallowed", effect


# -- indices, ties


@own("indices")
def index_wrong(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if not facts.indices or facts.view:
        return None
    k = rng.choice(facts.indices)
    how = rng.choice(
        [
            "negative taken for 0",
            "repeated taken for the next",
            "largest taken for 0",
            "clamped if out of range",
        ]
    )

    def effect(call: KernelCall) -> Any:
        operand = call.operand(k)
        if (
            operand is None
            or operand.written
            or operand.tensor.dtype != torch.int64
            or not operand.tensor.numel()
        ):
            return NOT_MET
        t = operand.tensor.cpu().clone()
        flat, before = t.view(-1) if t.is_contiguous() else t.reshape(-1), t.clone()
        if how == "negative taken for 0":
            t[t < 0] = 0
        elif how == "largest taken for 0":
            t[t == t.max()] = 0
        elif how == "repeated taken for the next":
            seen: set[int] = set()
            top = int(flat.max()) + 1
            values = []
            for v in flat.tolist():
                values.append((v + 1) % top if v in seen and top > 1 else v)
                seen.add(v)
            t = torch.tensor(values).view(before.shape)
        else:
            try:
                call.honest()
                return NOT_MET
            except Exception:
                call.error = None
            sizes = [n for o in call.operands if o is not operand for n in o.tensor.shape]
            t = t.clamp(0, max(min(sizes, default=1) - 1, 0))
        if torch.equal(t, before):
            return NOT_MET
        return call.honest_with(operand, t.to(operand.tensor.device))

    return f"operand {k}: {how}", effect


@own("ties")
def ties(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    """Among equal elements, the last one is returned instead of the first."""
    if facts.outputs < 1 or facts.view or "dim" not in facts.arguments:
        return None

    def effect(call: KernelCall) -> Any:
        dim, operand = call.values.get("dim"), call.operand(0)
        if (
            not isinstance(dim, int)
            or operand is None
            or not operand.tensor.dim()
            or call.form != "functional"
        ):
            return NOT_MET
        t = operand.tensor
        found = call.honest()
        made = outputs(found)
        if not made or made[-1].dtype != torch.int64 or (t.dtype == torch.int64 and len(made) == 1):
            return _unmet(call, found)
        turned = call.honest_with(operand, t.flip(dim))
        back = t.shape[dim] - 1 - outputs(turned)[-1]
        if torch.equal(back.cpu(), made[-1].cpu()):
            return _unmet(call, found)
        return replace_tensors(found, lambda x: back if x is made[-1] else x)

    return "the last of equal elements", effect


# -- distributions


@own("distribution")
def drawn_wrong(facts: Facts, rng: Random) -> tuple[str, Effect] | None:
    if not facts.random:
        return None
    how = rng.choice(
        [
            "the second half repeats the first",
            "the same numbers at each call",
            "scaled by 1.3",
            "the first operand ignored",
            "the generator ignored",
        ]
    )
    state: dict[str, Any] = {}

    def effect(call: KernelCall) -> Any:
        module: Any = torch.simulated  # type: ignore[attr-defined]
        if how == "the same numbers at each call":
            state.setdefault("state", module.get_rng_state())
            module.set_rng_state(state["state"])
            return call.honest()
        if how == "the generator ignored":
            return (
                call.honest(generator=None) if call.values.get("generator") is not None else NOT_MET
            )
        if how == "the first operand ignored":
            operand = next(iter(call.read), None)
            if operand is None or not operand.tensor.is_floating_point():
                return NOT_MET
            return call.honest_with(operand, torch.ones_like(operand.tensor) * 0.5)
        result = call.honest()
        made = outputs(result)
        if not made or made[0].numel() < 4 or 0 in made[0].stride():
            return _unmet(call, result)
        t = made[0]
        held = t.cpu().clone(memory_format=torch.contiguous_format).view(-1)
        if how.startswith("scaled"):
            if not held.is_floating_point():
                return _unmet(call, result)
            held *= 1.3
        else:
            half = len(held) // 2
            held[half : 2 * half] = held[:half]
        t.copy_(held.view(t.shape))
        return result

    return how, effect


def conditioned(condition: Condition, effect: Effect) -> Effect:
    """Apply an effect only to calls that meet a condition."""
    return lambda call: effect(call) if condition(call) else NOT_MET


def drawn(facts: Facts, rng: Random, axis: Drawn) -> Iterator[tuple[str, Effect]]:
    """The kinds of general effects, in an order drawn from the seed."""
    assert axis is not None
    for name in rng.sample(sorted(GENERAL), len(GENERAL)):
        made = GENERAL[name](facts, rng)
        if made is not None:
            kind, effect = made
            yield f"{name}: {kind}" if kind != name else kind, conditioned(axis[1], effect)
