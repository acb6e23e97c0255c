"""When a mutant is wrong: the axes, each a set of conditions on a call. See :mod:`tests.mutation.effects` for what is wrong then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from tests.mutation.plant import Invocation

Condition = Callable[[Invocation], bool]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the overloads that a mutant replaces, from calls of upstream's samples."""

    operands: int  # tensors that a call is given, at most: those that it reads first
    reads: int  # those that it only reads
    forms: frozenset[str]  # functional, in-place, out
    outputs: int
    view: bool
    random: bool
    arguments: tuple[str, ...]  # those that take no tensor
    indices: tuple[int, ...]  # operands of int64 among others of other dtypes
    floating: tuple[int, ...]
    dtypes: tuple[str, ...]  # of the op
    dims: tuple[str, ...]  # arguments that name dimensions
    updates: bool  # it takes statistics that it may update
    long: bool  # some operand has a dimension longer than 1


#: By axis: the condition and its label, drawn for an op; None where the axis means nothing to it.
Drawn = tuple[str, Condition] | None
AXES: dict[str, Callable[[Facts, Random], Drawn]] = {}


def axis(name: str) -> Callable[[Any], Any]:
    def known(function: Any) -> Any:
        AXES[name] = function
        return function

    return known


def shapes(call: Invocation) -> list[tuple[int, ...]]:
    return [tuple(each.tensor.shape) for each in call.operands]


def pick(facts: Facts, rng: Random) -> int:
    return rng.randrange(facts.operands)


@axis("any call")
def any_call(facts: Facts, rng: Random) -> Drawn:
    return "always", lambda call: True


@axis("rank")
def rank(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    least = rng.choice([0, 1, 2, 3, 4, 5])
    if least < 3:
        return f"rank {least}", lambda call: any(len(s) == least for s in shapes(call))
    return f"rank ≥ {least}", lambda call: any(len(s) >= least for s in shapes(call))


@axis("extent")
def extent(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    how = rng.choice([16, 32, 64, 256, 1024, 4096, "odd", "1"])
    if how == "odd":
        return "odd extent > 16", lambda c: any(n % 2 and n > 16 for s in shapes(c) for n in s)
    if how == "1":
        return "size 1 beside longer", lambda c: any(1 in s and max(s) > 1 for s in shapes(c))
    limit = int(how)
    return f"extent > {limit}", lambda call: any(n > limit for s in shapes(call) for n in s)


@axis("size")
def size(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    limit = rng.choice([64, 256, 1024, 4096, 65536])
    return f"more than {limit} elements", lambda call: any(
        each.tensor.numel() > limit for each in call.operands
    )


@axis("alignment")
def alignment(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k, mod = pick(facts, rng), rng.choice(["any", 8, 4])

    def condition(call: Invocation) -> bool:
        operand = call.operand(k)
        if operand is None or operand.tensor.device.type == "cpu" or not operand.tensor.numel():
            return False
        at = operand.tensor.data_ptr() % 16
        return at != 0 if mod == "any" else at == mod

    return f"operand {k} starts {mod} bytes past 16", condition


def dense(t: torch.Tensor) -> bool:
    return t.is_contiguous()


@axis("layout of one operand")
def layout(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k = pick(facts, rng)
    how = (
        rng.choice(["alone", "not contiguous", "others"])
        if facts.operands > 1
        else "not contiguous"
    )

    def condition(call: Invocation) -> bool:
        operand = call.operand(k)
        if operand is None:
            return False
        rest = [each.tensor for n, each in enumerate(call.operands) if n != k]
        here = not dense(operand.tensor)
        if how == "not contiguous":
            return here
        if how == "alone":
            return here and all(map(dense, rest))
        return here and any(
            not dense(t)
            and t.shape == operand.tensor.shape
            and t.stride() != operand.tensor.stride()
            for t in rest
        )

    name = {"others": "differently from others"}.get(how, how)
    return f"operand {k} strided {name}", condition


@axis("permutation")
def permutation(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k = pick(facts, rng)
    how = rng.choice(
        ["cyclic", "reversed", "step 2", "step 3", "stride 0 in the middle", "channels last"]
    )

    def condition(call: Invocation) -> bool:
        operand = call.operand(k)
        if operand is None or operand.tensor.dim() < 1 or not operand.tensor.numel():
            return False
        t = operand.tensor
        kept = [d for d in range(t.dim()) if t.shape[d] > 1]
        order = sorted(range(len(kept)), key=lambda i: -t.stride(kept[i]))
        if how == "cyclic":
            return len(order) > 2 and any(order[order[i]] != i for i in range(len(order)))
        if how == "reversed":
            return len(order) > 1 and order == list(range(len(order)))[::-1]
        if how.startswith("step"):
            return bool(kept) and t.stride(kept[-1]) == int(how[-1])
        if how.startswith("stride"):
            return any(t.stride(d) == 0 for d in kept[1:-1])
        return (
            t.dim() in (4, 5)
            and not dense(t)
            and t.is_contiguous(
                memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d
            )
        )

    return f"operand {k}: {how}", condition


@axis("variant")
def variant(facts: Facts, rng: Random) -> Drawn:
    if len(facts.forms) < 2:
        return None
    form = rng.choice(sorted(facts.forms))
    return f"{form} only", lambda call: call.form == form


@axis("again")
def again(facts: Facts, rng: Random) -> Drawn:
    how = rng.choice(
        ["second call with these shapes", "every third call", "after a larger call", "same address"]
    )
    if how != "every third call" and not facts.operands:
        return None
    seen: dict[Any, int] = {}

    def condition(call: Invocation) -> bool:
        key: Any = how
        if how.startswith("second"):
            key = tuple(shapes(call))
        elif how == "same address":
            key = tuple(o.tensor.data_ptr() for o in call.read if o.tensor.device.type != "cpu")
        elif how.startswith("after"):
            total = sum(o.tensor.numel() for o in call.operands)
            before, seen["last"] = seen.get("last", 0), total
            return before > total > 0
        seen[key] = seen.get(key, 0) + 1
        return seen[key] % 3 == 0 if how == "every third call" else seen[key] == 2

    return how, condition


@axis("dtype")
def dtype(facts: Facts, rng: Random) -> Drawn:
    known = [d for d in ("float32", "bool", "int64", "bfloat16", "complex64") if d in facts.dtypes]
    if not facts.operands or len(known) < 2:
        return None
    kind = getattr(torch, rng.choice(known))
    return f"{kind}"[6:], lambda call: any(o.tensor.dtype == kind for o in call.operands[:1])


#: Classes of values, by name.
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": torch.isnan,
    "infinity": torch.isinf,
    "-0": lambda t: (t == 0) & torch.signbit(t),
    "zero": lambda t: t == 0,
    "negative": lambda t: t < 0,
    "large": lambda t: t.abs() > 100,
    "subnormal": lambda t: (t != 0) & (t.abs() < torch.finfo(t.dtype).tiny),
    "half": lambda t: (t.abs() % 1) == 0.5,
    "beyond 2^24": lambda t: t.abs() > 2**24,
    "beyond 2^53": lambda t: t.abs() > 2**53,
    "the end of the dtype": lambda t: (
        (t == torch.iinfo(t.dtype).min) | (t == torch.iinfo(t.dtype).max)
    ),
}
FLOATING = ("NaN", "infinity", "-0", "zero", "negative", "large", "subnormal", "half")
INTEGER = ("beyond 2^24", "beyond 2^53", "the end of the dtype", "negative", "zero")


def holds(t: torch.Tensor, what: str) -> torch.Tensor | None:
    """Which elements are of a class; on the CPU. None where the dtype has none such."""
    t = t.cpu()
    fits = (
        t.is_floating_point()
        if what in FLOATING[:3] + FLOATING[5:]
        else not (t.dtype == torch.bool or t.is_complex())
    )
    if what in INTEGER[:3]:
        fits = t.dtype == torch.int64
    if not fits or t.dtype.itemsize == 1:
        return None
    return VALUES[what](t)


@axis("values")
def values(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k = pick(facts, rng)
    what = rng.choice(FLOATING if k in facts.floating else INTEGER)

    def condition(call: Invocation) -> bool:
        operand = call.operand(k)
        found = holds(operand.tensor, what) if operand is not None else None
        return found is not None and bool(found.any())

    return f"operand {k} holds {what}", condition


@axis("broadcast")
def broadcast(facts: Facts, rng: Random) -> Drawn:
    if facts.operands < 2:
        return None
    how = rng.choice(["ranks differ", "size 1 against longer", "both ways"])

    def condition(call: Invocation) -> bool:
        found = [s for s in shapes(call) if s]
        if len(found) < 2:
            return False
        if how == "ranks differ":
            return len({len(s) for s in found}) > 1
        a, b = found[:2]
        pairs = list(zip(a[::-1], b[::-1]))
        left, right = any(m == 1 < n for m, n in pairs), any(n == 1 < m for m, n in pairs)
        return (left and right) if how == "both ways" else (left or right)

    return how, condition


@axis("mixed operands")
def mixed(facts: Facts, rng: Random) -> Drawn:
    if facts.operands < 2:
        return None
    how = rng.choice(["dtypes differ", "a 0-d operand", "a Python scalar"])

    def condition(call: Invocation) -> bool:
        tensors = [each.tensor for each in call.operands]
        if how == "dtypes differ":
            return len({t.dtype for t in tensors}) > 1
        if how == "a 0-d operand":
            return (
                len(tensors) > 1
                and any(not t.dim() for t in tensors)
                and any(t.dim() for t in tensors)
            )
        return any(
            isinstance(v, (int, float, complex)) for n, v in call.values.items() if n == "other"
        )

    return how, condition


@axis("out=")
def out(facts: Facts, rng: Random) -> Drawn:
    if "out" not in facts.forms:
        return None
    how = rng.choice(["is an input", "strided", "grows", "0-d", "one element", "offset"])

    def condition(call: Invocation) -> bool:
        targets = call.out
        if not targets:
            return False
        t = targets[0]
        if how == "is an input":
            held = t.untyped_storage().data_ptr()
            return bool(held) and any(
                o.tensor.untyped_storage().data_ptr() == held for o in call.read
            )
        if how == "strided":
            return not dense(t)
        if how == "grows":
            return not t.numel()
        if how == "offset":
            return t.storage_offset() > 0
        return not t.dim() if how == "0-d" else t.dim() > 0 and t.numel() == 1

    return f"out= {how}", condition


@axis("empty")
def empty(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k = pick(facts, rng)

    def condition(call: Invocation) -> bool:
        operand = call.operand(k)
        return operand is not None and not operand.tensor.numel()

    return f"operand {k} is empty", condition


@axis("argument")
def argument(facts: Facts, rng: Random) -> Drawn:
    if not facts.arguments:
        return None
    name = rng.choice(facts.arguments)
    how = rng.choice(["not the default", "negative", "zero", "large", "not whole"])

    def condition(call: Invocation) -> bool:
        value = call.values.get(name)
        if value is None:
            return False
        if how == "not the default":
            default = next(
                (a.default_value for a in call.overload._schema.arguments if a.name == name), None
            )
            return bool(value != default)
        each = value if isinstance(value, (list, tuple)) else [value]
        numbers = [n for n in each if isinstance(n, (int, float)) and not isinstance(n, bool)]
        if how == "negative":
            return any(n < 0 for n in numbers)
        if how == "zero":
            return any(n == 0 for n in numbers)
        if how == "large":
            return any(abs(n) > 8 for n in numbers)
        return any(isinstance(n, float) and n == n and n % 1 != 0 for n in numbers)

    return f"{name} {how}", condition
