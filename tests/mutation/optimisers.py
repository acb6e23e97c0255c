"""Mutants of training: of ops on lists of tensors, of fused steps, of the ops that single-tensor steps, scalers and clipping
use, and of the gradients of small networks.

The cases of ``optim`` should notice them. The name of a mutant describes it completely: ``op|kind|detail|condition``.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import torch

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase, not_here
from conformance.suites import planned_cases
from devices.files import cache_root
from opinfo.compare import tensors_of
from opinfo.torch_private import all_overloads
from tests.mutation.items import device, is_refused
from tests.mutation.kernels import Result
from tests.mutation.optimiser_probe import different
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import overload_of, planted
from tests.planting.seen import Names

# -- the ops

FUSED = (
    *("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"),
    *("_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr", "_fused_sgd_.tensor_lr"),
)
#: What steps of single tensors, scalers and clipping are made of.
SINGLE = (
    *("addcdiv_", "addcmul_", "lerp_.Scalar", "mul_.Tensor", "add_.Tensor", "add.Tensor"),
    *("sqrt", "maximum", "maximum.out", "sign", "norm_out", "clamp_", "linalg_vector_norm"),
    *(
        "_amp_foreach_non_finite_check_and_unscale_",
        "_amp_update_scale_",
        "reciprocal",
        "pow.Scalar",
    ),
)
#: What networks are made of, forward and backward.
NETWORK = (
    *("threshold_backward", "gelu_backward", "_log_softmax_backward_data", "nll_loss_backward"),
    *("native_layer_norm_backward", "native_batch_norm_backward", "embedding_dense_backward"),
    *("convolution_backward_overrideable", "native_batch_norm", "native_layer_norm", "addmm", "mm"),
    *("sum.dim_IntList", "_softmax_backward_data", "bmm"),
)


@cache
def list_ops() -> tuple[str, ...]:
    """The overloads of ops on lists, without ``out=`` overloads and those that no Python function calls."""
    found = []
    for packet, names in all_overloads().items():
        short = packet.removeprefix("aten::")
        if packet.startswith("aten::_foreach_") and hasattr(torch, short):
            found += [name.removeprefix("aten::") for name in names if not name.endswith("out")]
    return tuple(sorted(found))


def known(op: str) -> bool:
    packet, _, overload = op.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return found is not None and (overload or "default") in found.overloads()


# -- when


def first_list(call: KernelCall) -> list[torch.Tensor]:
    """The tensors of the call's first list, or its first tensor."""
    for value in call.values.values():
        if isinstance(value, torch.Tensor):
            return [value]
        if isinstance(value, (list, tuple)) and tensors_of(value):
            return tensors_of(value)
    return []


def _finite(t: torch.Tensor) -> bool:
    return bool(torch.isfinite(t.cpu()).all())


CONDITIONS: dict[str, Callable[[KernelCall], bool]] = {
    "any call": lambda call: True,
    "a tensor is empty": lambda call: any(t.numel() == 0 for t in first_list(call)),
    "more than 64 tensors": lambda call: len(first_list(call)) > 64,
    "more than 110 tensors": lambda call: len(first_list(call)) > 110,
    "one tensor": lambda call: len(first_list(call)) == 1,
    "a tensor is not contiguous": lambda call: any(not t.is_contiguous() for t in first_list(call)),
    "a tensor has an offset": lambda call: any(t.storage_offset() for t in first_list(call)),
    "several dtypes": lambda call: len({t.dtype for t in first_list(call)}) > 1,
    "16 bits": lambda call: any(
        t.dtype in (torch.bfloat16, torch.float16) for t in first_list(call)
    ),
    "integers": lambda call: any(not t.is_floating_point() for t in first_list(call)),
    "a tensor has no dimensions": lambda call: any(t.dim() == 0 for t in first_list(call)),
    "more than 65,536 elements": lambda call: any(t.numel() > 65_536 for t in first_list(call)),
    "several indices": lambda call: len({t.device for t in first_list(call)}) > 1,
    "a value is not finite": lambda call: any(not _finite(t) for t in first_list(call)),
}

# -- which tensors and elements of what is written or returned


def _after_an_empty_one(ts: Sequence[torch.Tensor]) -> list[int]:
    return [n for n in range(1, len(ts)) if ts[n - 1].numel() == 0 and ts[n].numel()]


WHICH: dict[str, Callable[[Sequence[torch.Tensor]], list[int]]] = {
    "the last": lambda ts: [len(ts) - 1],
    "the last with elements": lambda ts: [n for n, t in enumerate(ts) if t.numel()][-1:],
    "the first": lambda ts: [0][: len(ts)],
    "the middle one": lambda ts: [len(ts) // 2][: len(ts)],
    "all from the 64th": lambda ts: list(range(64, len(ts))),
    "all from the 110th": lambda ts: list(range(110, len(ts))),
    "what follows an empty one": _after_an_empty_one,
    "those without dimensions": lambda ts: [n for n, t in enumerate(ts) if t.dim() == 0],
    "those that are not contiguous": lambda ts: [
        n for n, t in enumerate(ts) if not t.is_contiguous()
    ],
    "those in channels_last": lambda ts: [
        n
        for n, t in enumerate(ts)
        if t.dim() == 4
        and t.is_contiguous(memory_format=torch.channels_last)
        and not t.is_contiguous()
    ],
    "those of another dtype": lambda ts: [n for n, t in enumerate(ts) if t.dtype != ts[0].dtype],
    "all": lambda ts: list(range(len(ts))),
}
REGIONS: dict[str, Callable[[int], slice]] = {
    "all elements": lambda n: slice(0, n),
    "the last element": lambda n: slice(max(n - 1, 0), n),
    "elements past 65,536": lambda n: slice(65_536, n),
    "the rest of eight": lambda n: slice(n - n % 8, n),
    "elements past 1,024": lambda n: slice(1_024, n),
}
BECOMES = ("unchanged", "zero", "one percent larger", "the neighbour", "negated")


def spoilt(target: torch.Tensor, old: torch.Tensor | None, region: str, becomes: str) -> bool:
    """Spoil elements of a tensor in place. Returns whether the tensor had any."""
    place = REGIONS[region](target.numel())
    held = target.detach().cpu().clone(memory_format=torch.contiguous_format).view(-1)
    part = held[place]
    if not part.numel() or target.dtype == torch.bool:
        return False
    if becomes == "unchanged":
        if old is None or old.shape != target.shape:
            return False
        held[place] = old.cpu().reshape(-1)[place].to(held.dtype)
    elif becomes == "zero":
        held[place] = 0
    elif becomes == "one percent larger":
        held[place] = part * 1.01 if part.is_floating_point() or part.is_complex() else part + 1
    elif becomes == "negated":
        held[place] = -part
    else:
        held[place] = part.roll(1) if part.numel() > 1 else part + 1
    target.detach().copy_(held.view(target.shape))
    return True


def elements(which: str, region: str, becomes: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        before = [t.detach().clone() for t in first_list(call)]
        result = call.honest()
        outs = tensors_of(result) or first_list(
            call
        )  # of several lists that are written, the first
        done = False
        for number in WHICH[which](outs):
            old = before[number] if number < len(before) else None
            done |= spoilt(outs[number], old, region, becomes)
        call.spared = not done
        return result

    return effect


# -- arguments that are misread


def dense(t: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor, read as if the tensor were contiguous."""
    return t.as_strided(t.shape, torch.empty(t.shape, device="meta").stride())


def from_the_start(t: torch.Tensor) -> torch.Tensor:
    return t.as_strided(t.shape, t.stride(), 0)


def lists_of(call: KernelCall) -> dict[str, list[torch.Tensor]]:
    return {
        name: list(value)
        for name, value in call.values.items()
        if isinstance(value, (list, tuple)) and tensors_of(value)
    }


def misread(place: int, how: str) -> Effect:
    """A list whose tensors are misread, or read in another order."""

    def effect(call: KernelCall) -> Any:
        lists = lists_of(call)
        if place >= len(lists):
            return NOT_MET
        name = list(lists)[place]
        tensors = lists[name]
        if how == "in a row":
            changed = [t if t.is_contiguous() else dense(t) for t in tensors]
        elif how == "from the start of its storage":
            changed = [from_the_start(t) for t in tensors]
        elif how == "one further":
            changed = _moved(tensors)
        else:  # after an empty one, one further
            empty = next((n for n, t in enumerate(tensors) if not t.numel()), len(tensors))
            changed = tensors[:empty] + _moved(tensors[empty:])
        if all(a is b for a, b in zip(changed, tensors)):
            return NOT_MET
        if name in call.written and how not in ("in a row", "from the start of its storage"):
            return NOT_MET
        return call.honest(**{name: changed})

    return effect


def _moved(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each tensor is replaced by the next one of its shape."""
    found = list(tensors)
    for n, t in enumerate(tensors):
        later = [u for u in tensors[n + 1 :] if u.shape == t.shape and u.dtype == t.dtype]
        found[n] = later[0] if later else t
    return found


def scalars(how: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        for name, value in call.values.items():
            packed = isinstance(value, torch.Tensor) and name == "scalars"
            plain = isinstance(value, (list, tuple)) and value and not tensors_of(value)
            if not (packed or plain):
                continue
            numbers = value.tolist() if packed else list(value)
            sizes = [t.numel() for t in first_list(call)]
            if how == "one further":
                numbers = [*numbers[1:], numbers[-1]]
            elif how == "the first for all":
                numbers = [numbers[0]] * len(numbers)
            elif how == "none for an empty tensor":
                feed = iter(numbers)
                numbers = [next(feed) if size else numbers[0] for size in sizes]
            else:
                numbers = [float(torch.tensor(float(n)).bfloat16()) for n in numbers[:-1]] + [0.0]
            return call.honest(**{name: torch.tensor(numbers) if packed else numbers})
        return NOT_MET

    return effect


def number(name: str, how: str) -> Effect:
    """A number is ignored, doubled, negated or rounded."""

    def effect(call: KernelCall) -> Any:
        value = call.values.get(name)
        if value is None or isinstance(value, (list, tuple)):
            return NOT_MET
        if isinstance(value, torch.Tensor):
            if value.dim():
                return NOT_MET
            changed: Any = {
                "ignored": torch.ones_like(value),
                "doubled": value * 2,
                "negated": -value,
            }.get(how, value.float().bfloat16().to(value.dtype))
        elif isinstance(value, bool):
            changed = not value if how != "ignored" else False
        else:
            ignored = 1 if name in ("alpha", "value", "scalar", "exponent", "weight") else 0
            changed = {"ignored": ignored, "doubled": value * 2, "negated": -value}.get(
                how, float(torch.tensor(float(value)).bfloat16())
            )
        if name == "ord" and changed == float("-inf"):
            changed = 2
        return call.honest(**{name: changed})

    return effect


def writes_its_first(call: KernelCall) -> Any:
    """An op that should only read writes its results over its first list."""
    result = call.honest()
    for into, made in zip(first_list(call), tensors_of(result)):
        if into.shape == made.shape and into.dtype == made.dtype and 0 not in into.stride():
            into.detach().copy_(made)
    return result


def gives_its_first(call: KernelCall) -> Any:
    """The results use the memory of the first list."""
    result = call.honest()
    if not isinstance(result, (list, tuple)):
        return NOT_MET
    firsts = first_list(call)
    return [
        into if into.shape == m.shape and into.dtype == m.dtype else m
        for into, m in zip(firsts, result)
    ]


def writes_around(call: KernelCall) -> Any:
    """The element after each tensor that is written is overwritten."""
    result = call.honest()
    call.spared = True
    for t in first_list(call):
        end = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1
        if t.numel() and end < t.untyped_storage().nbytes() // t.itemsize:
            t.detach().as_strided((1,), (1,), end).fill_(1)
            call.spared = False
    return result


def last_result(call: KernelCall) -> Any:
    """Every second call repeats the previous call instead of doing its own work."""
    if getattr(last_result, "odd", False):
        last_result.odd = False  # type: ignore[attr-defined]
        outs = [t.detach().clone() for t in first_list(call)]
        result = call.honest()
        if tensors_of(result):
            return NOT_MET
        for into, old in zip(first_list(call), outs):
            into.detach().copy_(old)
        return result
    last_result.odd = True  # type: ignore[attr-defined]
    call.spared = True
    return call.honest()


# -- fused steps


def counted(how: str) -> Effect:
    """The number of steps that corrects the averages is wrong."""

    def effect(call: KernelCall) -> Any:
        steps = call.values.get("state_steps")
        if not steps:
            return NOT_MET
        changed = {
            "one more": [s + 1 for s in steps],
            "one less": [(s - 1).clamp(min=1) for s in steps],
            "never ends": [torch.full_like(s, 1e9) for s in steps],
            "the first": [torch.ones_like(s) for s in steps],
        }[how]
        return call.honest(state_steps=changed)

    return effect


def decay(how: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        by = call.values["weight_decay"]
        if not by:
            return NOT_MET
        lr = call.values["lr"]
        if how == "after the step":
            result = call.honest(weight_decay=0.0)
            for p in call.values["self"]:
                p.detach().mul_(1 - float(lr) * by)
            return result
        if how == "as part of the gradient, or not":
            name = (
                str(call.function)
                .replace("adamw", "@")
                .replace("adam", "adamw")
                .replace("@", "adam")
            )
            other = overload_of(name.removeprefix("aten.").replace(".default", ""))
            args = [call.values[a.name] for a in other._schema.arguments if not a.kwarg_only]
            named = {a.name: call.values[a.name] for a in other._schema.arguments if a.kwarg_only}
            return other(*args, **named) if other is not call.function else NOT_MET
        return call.honest(weight_decay=0.0 if how == "ignored" else 2 * by)

    return effect


def exchanged(first: str, second: str) -> Effect:
    def effect(call: KernelCall) -> Any:
        if first not in call.values or second not in call.values:
            return NOT_MET
        return call.honest(**{first: call.values[second], second: call.values[first]})

    return effect


def dropped(name: str) -> Effect:
    """An optional tensor is ignored."""

    def effect(call: KernelCall) -> Any:
        return NOT_MET if call.values.get(name) is None else call.honest(**{name: None})

    return effect


def scale_multiplies(call: KernelCall) -> Any:
    scale = call.values.get("grad_scale")
    return NOT_MET if scale is None else call.honest(grad_scale=1 / scale)


def inf_zeroes(call: KernelCall) -> Any:
    """If an infinity was found, the state is cleared although no step is taken."""
    found = call.values.get("found_inf")
    result = call.honest()
    if found is None or not float(found):
        call.spared = True
        return result
    for each in list(lists_of(call).values())[2:3]:
        for t in each:
            t.detach().zero_()
    return result


def kept(place: int) -> Effect:
    """A list of the state is not updated."""

    def effect(call: KernelCall) -> Any:
        lists = list(lists_of(call).values())
        if place >= len(lists):
            return NOT_MET
        before = [t.detach().clone() for t in lists[place]]
        result = call.honest()
        for t, old in zip(lists[place], before):
            t.detach().copy_(old)
        return result

    return effect


def eps_inside(call: KernelCall) -> Any:
    """eps is added inside the square root instead of outside."""
    eps = call.values.get("eps")
    squares = lists_of(call).get("exp_avg_sqs") or lists_of(call).get("state_sums")
    if not eps or not squares:
        return NOT_MET
    result = None
    before = [t.detach().clone() for t in squares]
    for t in squares:
        t.detach().add_(eps)
    result = call.honest(eps=0.0)
    beta = call.values.get("beta2", 1.0)
    grads = lists_of(call)["grads"]
    for t, old, g in zip(squares, before, grads):
        t.detach().copy_(old * beta + g * g * (1 - beta) if beta != 1.0 else old + g * g)
    return result


# -- networks


def scaled_output(place: int, by: float) -> Effect:
    def effect(call: KernelCall) -> Any:
        result = call.honest()
        outs = tensors_of(result)
        if place >= len(outs) or not outs[place].numel() or not outs[place].is_floating_point():
            return NOT_MET
        outs[place].detach().mul_(by)
        return result

    return effect


def varying(call: KernelCall) -> Any:
    """Each call differs in its last digits."""
    varying.count = getattr(varying, "count", 0) + 1  # type: ignore[attr-defined]
    result = call.honest()
    for t in tensors_of(result):
        if t.is_floating_point():
            t.detach().mul_(1 + 1e-6 * (varying.count % 37))  # type: ignore[attr-defined]
    return result


# -- breeding


class Spec(NamedTuple):
    op: str
    kind: str
    detail: str
    condition: str

    @property
    def name(self) -> str:
        return "|".join(self)


PLAIN: dict[str, Callable[[KernelCall], Any]] = {
    "writes its first list": writes_its_first,
    "returns its first list": gives_its_first,
    "writes past the end": writes_around,
    "every second call is lost": last_result,
    "the scale multiplies": scale_multiplies,
    "an infinity empties the state": inf_zeroes,
    "eps inside the root": eps_inside,
    "varies from call to call": varying,
}


def effect_of(kind: str, detail: str) -> Effect:
    parts = detail.split("; ")
    if kind == "elements":
        return elements(*parts)
    if kind == "misread":
        return misread(int(parts[0]), parts[1])
    if kind == "scalars":
        return scalars(detail)
    if kind == "number":
        return number(*parts)
    if kind == "counted":
        return counted(detail)
    if kind == "decay":
        return decay(detail)
    if kind == "exchanged":
        return exchanged(*parts)
    if kind == "dropped":
        return dropped(detail)
    if kind == "kept":
        return kept(int(detail))
    if kind == "scaled":
        return scaled_output(int(parts[0]), float(parts[1]))
    return PLAIN[kind]


def _numbers(op: str) -> list[str]:
    """The names of the arguments that are numbers or switches."""
    kinds = ("number", "float", "bool", "Tensor")
    return [
        a.name
        for a in overload_of(op)._schema.arguments
        if str(a.type) in kinds and a.name not in ("self", "scalars", "non_blocking", "input")
    ]


def _takes(op: str) -> set[str]:
    return {argument.name for argument in overload_of(op)._schema.arguments}


def drawn_list(op: str, rng: Random) -> tuple[str, str]:
    schema = overload_of(op)._schema
    kinds = ["elements"] * 4 + ["misread"] * 2
    if any(str(a.type).startswith("List[number]") or a.name == "scalars" for a in schema.arguments):
        kinds += ["scalars"] * 4
    if _numbers(op):
        kinds += ["number"] * 2
    if schema.arguments[0].alias_info is not None:
        kinds += ["writes past the end", "every second call is lost"]
    else:
        kinds += ["writes its first list", "returns its first list"]
    return _detailed(rng.choice(kinds), op, rng)


EXCHANGED = (*("beta1; beta2", "exp_avgs; grads", "lr_decay; weight_decay", "momentum; dampening"),)


def drawn_fused(op: str, rng: Random) -> tuple[str, str]:
    takes = _takes(op)
    kinds = ["elements", "misread", "number", "number", "decay", "dropped", "kept"]
    kinds += ["the scale multiplies", "an infinity empties the state", "exchanged"]
    kinds += ["counted"] * ("state_steps" in takes) + ["eps inside the root"] * ("eps" in takes)
    return _detailed(rng.choice(kinds), op, rng)


def drawn_network(op: str, rng: Random) -> tuple[str, str]:
    return _detailed(
        rng.choice(["elements", "scaled", "scaled", "varies from call to call"]), op, rng
    )


def drawn_single(op: str, rng: Random) -> tuple[str, str]:
    kinds = ["elements", "elements", "number" if _numbers(op) else "elements"]
    return _detailed(rng.choice(kinds), op, rng)


def _detailed(kind: str, op: str, rng: Random) -> tuple[str, str]:
    lists = [a.name for a in overload_of(op)._schema.arguments if "List[Tensor]" in str(a.type)]
    if kind == "elements":
        places = (rng.choice(list(WHICH)), rng.choice(list(REGIONS)), rng.choice(BECOMES))
        return kind, "; ".join(places)
    if kind == "misread":
        hows = (
            "in a row",
            "from the start of its storage",
            "one further",
            "one further after an empty one",
        )
        return kind, f"{rng.randrange(max(1, len(lists)))}; {rng.choice(hows)}"
    if kind == "scalars":
        return kind, rng.choice(
            ("one further", "the first for all", "none for an empty tensor", "the last is 0")
        )
    if kind == "number":
        return (
            kind,
            f"{rng.choice(_numbers(op))}; {rng.choice(('ignored', 'doubled', 'negated', 'rounded'))}",
        )
    if kind == "counted":
        return kind, rng.choice(("one more", "one less", "never ends", "the first"))
    if kind == "decay":
        hows = ["after the step", "ignored", "doubled"]
        return kind, rng.choice(hows + ["as part of the gradient, or not"] * ("adam" in op))
    if kind == "exchanged":
        pairs = [each for each in EXCHANGED if {*each.split("; ")} <= _takes(op)]
        return kind, rng.choice(pairs)
    if kind == "dropped":
        return kind, rng.choice(("found_inf", "grad_scale"))
    if kind == "kept":
        return kind, str(rng.randrange(len(lists)))
    if kind == "scaled":
        return kind, f"{rng.randrange(3)}; {rng.choice((0.0, 0.9, 1.05, -1.0))}"
    return kind, "-"


#: Of ten mutants, how many are of which ops.
SHARES: tuple[
    tuple[int, Callable[[], Sequence[str]], Callable[[str, Random], tuple[str, str]]], ...
] = (
    (5, list_ops, drawn_list),
    (3, lambda: FUSED, drawn_fused),
    (1, lambda: SINGLE, drawn_single),
    (1, lambda: NETWORK, drawn_network),
)


def names(seed: int, count: int) -> list[str]:
    """The names of mutants 0 to count - 1. No name occurs twice.

    A separate process finds out first what the cases call, as workers have limited time for a mutant.
    """
    if not _kept().is_file():
        code = "from tests.mutation.optimisers import reached_by; reached_by()"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return [spec.name for spec, _ in zip(bred(seed), range(count))]


def bred(seed: int) -> Iterator[Spec]:
    rng, found = Random(seed), set()
    while True:
        share = rng.choices(SHARES, [each[0] for each in SHARES])[0]
        op = rng.choice([each for each in share[1]() if known(each)])
        condition = rng.choice(list(CONDITIONS)) if rng.random() < 0.4 else "any call"
        spec = Spec(op, *share[2](op, rng), condition)
        if spec not in found:
            found.add(spec)
            yield spec


def effect(spec: Spec) -> Effect:
    holds, does = CONDITIONS[spec.condition], effect_of(spec.kind, spec.detail)
    return lambda call: does(call) if holds(call) else NOT_MET


# -- trying


def _of_optim() -> list[BehaviourCase]:
    """The cases of ``optim`` that this device can run."""
    descriptor = device().descriptor
    here = descriptor.capabilities, descriptor.device_count()
    cases = planned_cases(contract.load(), more=False)
    return [c for c in cases if c.clause.startswith("optim.") and not not_here(c, *here)]


def _watched(case: BehaviourCase) -> list[str] | None:
    """The ops that a case calls.

    None if the case is refused only while it is watched; an empty list if it is refused in any case.
    """
    with Names() as seen:
        refused = is_refused(case)
    if not refused:
        return sorted(seen.names)
    return [] if is_refused(case) else None


def _kept() -> Path:
    """The file that stores which ops the cases call."""
    folder = Path(importlib.import_module("conformance.suites.optim").__file__ or "").parent
    digest = hashlib.blake2b(torch.__version__.encode(), digest_size=8)
    for source in sorted(folder.glob("*.py")):
        digest.update(source.read_bytes())
    return cache_root() / "mutation" / f"optim-{digest.hexdigest()}.json"


@cache
def reached_by() -> dict[str, list[str] | None]:
    """The ops that each case calls, by the id of the case. Finding out takes a minute; the result is kept until the suite changes."""
    path = _kept()
    if path.is_file():
        return msgspec.json.decode(path.read_bytes(), type=dict[str, list[str] | None])
    found = {case.id: _watched(case) for case in _of_optim()}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_bytes(msgspec.json.encode(found))
    new.replace(path)
    return found


def cases_for(op: str) -> Iterable[BehaviourCase]:
    """The cases that call an op: cases about lists first, then those that call the fewest other ops."""
    reached = reached_by()

    def last(case: BehaviourCase) -> tuple[bool, bool, int]:
        ops = reached[case.id]
        return ops is None, case.clause != "optim.foreach", len(ops or ())

    fit = [case for case in _of_optim() if op in (reached[case.id] or [op])]
    return sorted((case for case in fit if reached[case.id] != []), key=last)


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    spec = Spec(*name.split("|"))
    found = Result(
        f"o{number:04d}", "optim", spec.op, spec.condition, f"{spec.kind}: {spec.detail}", ""
    )
    tell(found)
    failures: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases_for(spec.op):
            found.trying = case.clause
            tell(found)
            with planted([spec.op], effect(spec)) as run:
                refused = is_refused(case)
            found.reached += run.reached
            failures += run.failures[:1]
            if refused and run.reached and found.credit([case.clause]):
                found.note = case.name
                return found
        if found.not_gating:
            return found
        found.note = different(spec.op, lambda: effect(spec), Random(f"{seed} {number}"))
    if found.note:
        found.result = "survived" if found.reached else "not_reached"
    elif failures and not found.reached:
        found.result, found.note = "broken", failures[0]
    else:
        found.result = "equivalent"
    return found
