"""Mutants of a compiler: of the graphs that it is given, of what runs them, and of the guards in front of them.

The device is the CPU with a compiler that runs graphs op by op, and is wrong in one way. The cases of ``compile`` that make no
processes should notice it. The name of a mutant describes it completely: ``kind|detail|part|condition``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase, not_here
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from conformance.suites import planned_cases
from devices import registry
from devices.cell import Outcome
from opinfo.device import Device, open_device
from tests.mutation.compile.reach_table import reaching
from tests.mutation.compile.trial import attempt
from tests.mutation.compiled_probe import compare
from tests.mutation.kernels import Result

#: The name under which the wrong compiler is registered.
NAME: Final = "wrong"
CLAUSES: Final = ("programs", "autograd", "nested", "stride_tags")

# -- what is wrong

#: Ops, and those that take their place.
REPLACED: Final = {
    **{"add": "sub", "sub": "add", "mul": "div", "div": "mul", "sin": "cos", "cos": "sin"},
    **{"exp": "expm1", "tanh": "sin", "sigmoid": "tanh", "gt": "ge", "ge": "gt", "lt": "le"},
    **{"maximum": "minimum", "amax": "amin", "argmax": "argmin", "floor": "ceil", "abs": "neg"},
}
#: Ops that return their first operand as it is.
DROPPED: Final = ("neg", "abs", "tanh", "relu", "exp", "clone", "flip", "sigmoid", "sqrt", "pow")
#: Ops with a dimension, or with a number, that is off by one.
SHIFTED: Final = ("sum", "cumsum", "select", "slice", "cat", "amax", "mul", "add", "unsqueeze")
#: Ops whose operands change places.
EXCHANGED: Final = ("sub", "div", "where", "cat", "bitwise_left_shift", "remainder", "gt", "pow")
#: Ops whose results are rounded to 8 bits.
ROUNDED: Final = ("mul", "add", "sum", "mm", "convolution", "exp", "mean", "var_mean", "addmm")
#: Ops whose operands are read as if they were contiguous, or from the start of their memory.
MISREAD: Final = ("mul", "add", "sum", "mm", "exp", "cat", "sub", "index", "clone", "view")
#: What becomes of the outputs of a graph.
OUTPUTS: Final = {
    "doubled": lambda x: x * 2 if x.is_floating_point() else x,
    "negated": lambda x: -x if x.is_floating_point() else x,
    "zero": torch.zeros_like,
    "contiguous": torch.Tensor.contiguous,
    "transposed in memory": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "without the last element": lambda x: _with_zero(x, -1),
    "without the first element": lambda x: _with_zero(x, 0),
    "rolled": lambda x: x.roll(1, 0) if x.dim() else x,
    "with an offset": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
    "in float64": lambda x: x.double() if x.dtype == torch.float32 else x,
    "without NaN": lambda x: x.nan_to_num(0.0) if x.is_floating_point() else x,
    "without signs of zero": lambda x: x + 0.0 if x.is_floating_point() else x,
    "detached from a gap": lambda x: x.clone(memory_format=torch.contiguous_format),
}
#: Guards that are left out, by the functions of torch that make them. Torch makes other sorts that can be left out without an
#: effect: ``GRAD_MODE`` and ``DETERMINISTIC_ALGORITHMS`` check nothing, because ``GLOBAL_STATE`` does; ``SET_CONTAINS`` and
#: ``DICT_CONTAINS`` stand beside a guard of the whole set or of the value; and nothing asks for ``BOOL_MATCH``.
GUARDS: Final = (
    *("TENSOR_MATCH", "EQUALS_MATCH", "CONSTANT_MATCH", "SHAPE_ENV", "GLOBAL_STATE", "ID_MATCH"),
    *("TYPE_MATCH", "SEQUENCE_LENGTH", "DICT_KEYS_MATCH", "DICT_NOT_CONTAINS", "HASATTR"),
    *("DUPLICATE_INPUT", "CLASS_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH", "TORCH_FUNCTION_STATE"),
)
#: What is wrong with the run of a graph.
RUNS: Final = (
    *("results are remembered by shapes", "inputs are copied", "an input is overwritten"),
    *("random numbers repeat", "random numbers leave the generator as it was"),
    *("sizes are those of the first call", "sizes are one too small", "gradients are recorded"),
    *("two outputs are exchanged", "two outputs share memory", "written inputs are not written"),
)
KINDS: Final[dict[str, Sequence[str]]] = {
    "replaced": tuple(REPLACED),
    "dropped": DROPPED,
    "off by one": SHIFTED,
    "exchanged": EXCHANGED,
    "rounded": ROUNDED,
    "read as contiguous": MISREAD,
    "read from the start": MISREAD,
    "outputs": tuple(OUTPUTS),
    "guard left out": GUARDS,
    "run": RUNS,
}
PARTS: Final = ("forward", "backward", "all")
#: When it is wrong, by the operands of an op, or the inputs of a graph.
CONDITIONS: Final[dict[str, Callable[[Sequence[torch.Tensor]], bool]]] = {
    "always": lambda given: True,
    "some operand is strided": lambda given: any(not x.is_contiguous() for x in given),
    "some operand has an offset": lambda given: any(x.storage_offset() for x in given),
    "some operand is expanded": lambda given: any(0 in x.stride() and x.numel() > 1 for x in given),
    "some operand has rank 3 or more": lambda given: any(x.dim() > 2 for x in given),
    "no operand has rank 2 or more": lambda given: all(x.dim() < 2 for x in given),
    "some operand is no float32": lambda given: any(x.dtype != torch.float32 for x in given),
    "some operand has more than 1,000 elements": lambda given: any(x.numel() > 1000 for x in given),
    "some operand has a dimension of size 1": lambda given: any(1 in x.shape for x in given),
    "some operand has no elements": lambda given: any(x.numel() == 0 for x in given),
}


#: Conditions that no call of an op meets: products are of matrices, and a convolution has dimensions beside those of its kernel.
NEVER_MET: Final = {
    "mm": ("some operand has rank 3 or more", "no operand has rank 2 or more"),
    "addmm": ("some operand has rank 3 or more", "no operand has rank 2 or more"),
    "convolution": ("no operand has rank 2 or more",),
}
#: Ops of one tensor.
ONE_OPERAND: Final = ("sum", "exp", "clone", "view")
#: Ops of integers, which no backward graph has: not even one that computes results again, since no gradient needs them.
FORWARD_ONLY: Final = ("bitwise_left_shift",)


class Spec(NamedTuple):
    """A mutant."""

    kind: str
    detail: str
    part: str
    condition: str

    def can_strike(self) -> bool:
        """Whether some program can have a graph with the mutated code and operands that meet the condition."""
        if self.condition in NEVER_MET.get(self.detail, ()):
            return False
        alone = self.kind.startswith("read") and self.detail in ONE_OPERAND
        if alone and self.condition == "some operand has no elements":  # nothing to misread
            return False
        return self.part != "backward" or self.detail not in FORWARD_ONLY


def names(seed: int, count: int) -> list[str]:
    """The mutants of a seed: of each kind in turn, none of them twice."""
    rng, found = Random(f"compilers {seed}"), list[str]()
    kinds = list(KINDS)
    while len(found) < count:
        kind = kinds[len(found) % len(kinds)]
        whole = kind in ("guard left out",)
        condition = "always" if whole or rng.random() < 0.5 else rng.choice(list(CONDITIONS))
        part = "all" if whole else rng.choice(PARTS)
        spec = Spec(kind, rng.choice(KINDS[kind]), part, condition)
        name = "|".join(spec)
        if name in found:
            kinds = rng.sample(kinds, len(kinds))
        elif spec.can_strike():
            found.append(name)
    return found


def _with_zero(tensor: torch.Tensor, place: int) -> torch.Tensor:
    made = tensor.clone()
    if made.numel():
        made.reshape(-1)[place].zero_() if made.is_contiguous() else made.select(0, place).zero_()
    return made


# -- how graphs are run


@dataclass
class State:
    """The mutant that is on, and how often its code ran and had something to change.

    With ``sham`` everything runs as with the mutant, and nothing is changed: the baseline, because graphs that run op by op
    and guards that a filter sees may fail by themselves.
    """

    spec: Spec | None = None
    sham: bool = False
    reached: int = 0
    first_sizes: dict[int, list[int]] = field(default_factory=dict)
    remembered: dict[Any, Any] = field(default_factory=dict)


_state = State()


def tensors_in(given: Any) -> list[torch.Tensor]:
    return [each for each in pytree.tree_leaves(given) if isinstance(each, torch.Tensor)]


def _met(given: Sequence[Any]) -> bool:
    assert _state.spec is not None
    tensors = tensors_in(list(given))
    return bool(tensors) and CONDITIONS[_state.spec.condition](tensors)


class _Ops(fx.Interpreter):
    """Runs a graph op by op, with a mutant of one op."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        spec = _state.spec
        name = getattr(getattr(target, "overloadpacket", None), "__name__", "")
        if spec is None or name != spec.detail or not _met(args):
            return super().call_function(target, args, kwargs)
        strikes, wrong_target, wrong_args = changed_call(spec.kind, name, target, args)
        _state.reached += strikes
        if _state.sham:
            return super().call_function(target, args, kwargs)
        if spec.kind == "dropped":
            return args[0]
        made = super().call_function(wrong_target, wrong_args, kwargs)
        return pytree.tree_map(_rounded, made) if spec.kind == "rounded" else made


def changed_call(kind: str, name: str, target: Any, args: Any) -> tuple[bool, Any, Any]:
    """Whether a kind of mutant changes a call of the op ``name``, the function that it calls instead, and its arguments."""
    if kind == "replaced":
        return True, getattr(torch, REPLACED[name]), args
    if kind == "exchanged":
        wrong = (args[0][::-1], *args[1:]) if name == "cat" else _exchanged(args)
    elif kind == "off by one":
        wrong = _off_by_one(args)
    elif kind.startswith("read"):
        wrong = pytree.tree_map(_dense if "contiguous" in kind else _at_start, args)
    else:  # the result is wrong, not the arguments
        return True, target, args
    return _unlike(wrong, args), target, wrong


def _unlike(one: Any, other: Any) -> bool:
    """Whether two lists of arguments differ in a number or in which tensors they have."""
    pairs = [*zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)]
    return any(
        a is not b and (isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) or a != b)
        for a, b in pairs
    )


def _exchanged(args: Any) -> Any:
    if len(args) < 2:
        return args
    *first, one, other = args
    return (*first, other, one)


def _off_by_one(args: Any) -> Any:
    for place, each in list(enumerate(args))[:0:-1]:
        if isinstance(each, (int, float)) and not isinstance(each, bool):
            return (*args[:place], each - 1 if each > 0 else each + 1, *args[place + 1 :])
        if isinstance(each, (list, tuple)) and each and isinstance(each[0], int):
            return (*args[:place], [each[0] - 1, *each[1:]], *args[place + 1 :])
    return args


def _dense(each: Any) -> Any:
    if not isinstance(each, torch.Tensor) or each.is_contiguous() or not each.numel():
        return each
    strides = torch.empty(each.shape, device="meta").stride()
    last = each.storage_offset() + each.numel()
    fits = last * each.itemsize <= each.untyped_storage().nbytes()
    return each.as_strided(each.shape, strides) if fits else each


def _at_start(each: Any) -> Any:
    if not isinstance(each, torch.Tensor) or not each.storage_offset():
        return each
    return each.as_strided(each.shape, each.stride(), 0)


def _rounded(each: Any) -> Any:
    floats = isinstance(each, torch.Tensor) and each.dtype in (torch.float32, torch.float64)
    return each.to(torch.bfloat16).to(each.dtype) if floats else each


class _Written(fx.Interpreter):
    """Runs a graph without its writes to inputs."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.copy_.default and _met(args[:1]):
            _state.reached += 1
            if not _state.sham:
                return args[0]
        return super().call_function(target, args, kwargs)


def _run(graph: Any, given: list[Any], part: str) -> list[Any]:
    spec = _state.spec
    if spec is None or spec.kind == "guard left out" or spec.part not in (part, "all"):
        return list(graph.forward(*given))
    if spec.kind not in ("outputs", "run"):
        return list(_Ops(graph).run(*given))
    if spec.detail == "written inputs are not written":
        return list(_Written(graph).run(*given))
    if not _met(given):
        return list(graph.forward(*given))
    if spec.kind == "outputs":
        made = list(graph.forward(*given))
        change = OUTPUTS[spec.detail]
        changed = [change(each) if isinstance(each, torch.Tensor) else each for each in made]
        _state.reached += any(a is not b for a, b in zip(made, changed))
        return made if _state.sham else changed
    return list(graph.forward(*given)) if _state.sham else _RUNS[spec.detail](graph, given)


# Each of these counts a call where it has something to change.


def _remembered(graph: Any, given: list[Any]) -> list[Any]:
    shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in given]
    key = id(graph), tuple(shapes)
    if key in _state.remembered:
        _state.reached += 1
    else:
        _state.remembered[key] = graph, list(graph.forward(*given))
    return list(_state.remembered[key][1])


def _copied(graph: Any, given: list[Any]) -> list[Any]:
    _state.reached += 1
    return list(graph.forward(*pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, given)))


def _overwritten(graph: Any, given: list[Any]) -> list[Any]:
    made = list(graph.forward(*given))
    for each in given[:1]:
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim():
            _state.reached += 1
            each.detach()[..., :1].add_(1)
    return made


def _repeated(graph: Any, given: list[Any]) -> list[Any]:
    _state.reached += 1  # numbers that are drawn afterwards change too
    torch.manual_seed(0)
    return list(graph.forward(*given))


def _restored(graph: Any, given: list[Any]) -> list[Any]:
    before = torch.get_rng_state()
    made = list(graph.forward(*given))
    _state.reached += not torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    return made


def _first_sizes(graph: Any, given: list[Any]) -> list[Any]:
    now = [n for n in given if type(n) is int]
    sizes = _state.first_sizes.setdefault(id(graph), now)
    _state.reached += sizes != now
    rest = iter(sizes)
    return list(graph.forward(*[next(rest) if type(n) is int else n for n in given]))


def _smaller_sizes(graph: Any, given: list[Any]) -> list[Any]:
    _state.reached += any(type(n) is int and n > 0 for n in given)
    return list(graph.forward(*[max(n - 1, 0) if type(n) is int else n for n in given]))


def _recording(graph: Any, given: list[Any]) -> list[Any]:
    made = list(graph.forward(*given))
    floats = [isinstance(each, torch.Tensor) and each.is_floating_point() for each in made]
    _state.reached += any(floats)
    return [
        each.detach().requires_grad_() if changes else each for each, changes in zip(made, floats)
    ]


def equal_outputs(made: Sequence[Any]) -> tuple[int, int] | None:
    """The places of the first two outputs with the same shape and dtype."""
    places = [n for n, each in enumerate(made) if isinstance(each, torch.Tensor)]
    return next(
        (
            (a, b)
            for a in places
            for b in places
            if a < b and made[a].shape == made[b].shape and made[a].dtype == made[b].dtype
        ),
        None,
    )


def _pair(made: list[Any]) -> tuple[int, int] | None:
    pair = equal_outputs(made)
    _state.reached += pair is not None
    return pair


def _outputs_exchanged(graph: Any, given: list[Any]) -> list[Any]:
    made = list(graph.forward(*given))
    if pair := _pair(made):
        made[pair[0]], made[pair[1]] = made[pair[1]], made[pair[0]]
    return made


def _outputs_shared(graph: Any, given: list[Any]) -> list[Any]:
    made = list(graph.forward(*given))
    if pair := _pair(made):
        made[pair[1]] = made[pair[0]].view_as(made[pair[0]])
    return made


_RUNS: Final[dict[str, Callable[[Any, list[Any]], list[Any]]]] = {
    "results are remembered by shapes": _remembered,
    "inputs are copied": _copied,
    "an input is overwritten": _overwritten,
    "random numbers repeat": _repeated,
    "random numbers leave the generator as it was": _restored,
    "sizes are those of the first call": _first_sizes,
    "sizes are one too small": _smaller_sizes,
    "gradients are recorded": _recording,
    "two outputs are exchanged": _outputs_exchanged,
    "two outputs share memory": _outputs_shared,
}


# -- how they are tried


def backend(**options: Any) -> Any:
    """The wrong compiler. The options are those of torch's ``aot_autograd``."""
    aot: Any = importlib.import_module("torch._functorch.aot_autograd")
    common: Any = importlib.import_module("torch._dynamo.backends.common")

    def of(part: str) -> Any:
        def compiled(graph: Any, inputs: Any) -> Any:
            return aot.make_boxed_func(lambda *given: _run(graph, list(given), part))

        return compiled

    return common.aot_autograd(
        fw_compiler=of("forward"),
        bw_compiler=of("backward"),
        keep_inference_input_mutations=True,
        **options,
    )


@cache
def register() -> None:
    """Registers the compiler under its name."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    dynamo.register_backend(backend(), name=NAME)


@contextmanager
def planted(spec: Spec | None, sham: bool = False) -> Iterator[State]:
    """Plants a mutant for a block; None plants nothing. With ``sham`` its code runs and changes nothing."""
    global _state
    before, compile_it = _state, torch.compile
    _state = State(spec, sham)
    if spec is not None and spec.kind == "guard left out":

        def kept(guards: Any) -> list[bool]:
            left_out = [each.guard_type == spec.detail for each in guards]
            _state.reached += sum(left_out)
            return [sham or not each for each in left_out]

        def without(*args: Any, **given: Any) -> Any:
            filtered = {**(given.pop("options", None) or {}), "guard_filter_fn": kept}
            return compile_it(*args, **given, options=filtered)

        torch.compile = without  # type: ignore[assignment]
    try:
        yield _state
    finally:
        _state, torch.compile = before, compile_it


@cache
def device() -> Device:
    """The CPU, whose compiler is the wrong one."""
    register()
    return open_device(replace(registry.get("cpu"), compiler=NAME))


@cache
def cases() -> tuple[BehaviourCase, ...]:
    """The cases that should notice mutants: those of plan quick first, then those of core. Those of ``stride_tags``, which take
    longest and notice least, come last."""
    wanted = {f"compile.{name}" for name in CLAUSES}
    found: dict[str, BehaviourCase] = {}
    for more in (False, True):
        for case in planned_cases(contract.load(), more=more, whole=False):
            here = not not_here(case, device().descriptor.capabilities, 1)
            if case.clause in wanted and here and not case.own_process:
                found.setdefault(case.id, case)
    return tuple(sorted(found.values(), key=lambda case: case.clause == "compile.stride_tags"))


def outcome(case: BehaviourCase) -> Outcome:
    record = CellRecord(case.cell)
    run_case(case, record, device(), DeviceLocator(device="cpu"))
    return record.outcome()


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    """Tries a mutant with the cases that reach it."""
    spec = Spec(*name.split("|"))
    parts = ("forward", "backward") if spec.part == "all" else ()
    same = {"|".join(spec._replace(part=part)) for part in (*parts, spec.part)}
    axis = f"{spec.part}, {spec.condition}"
    found = Result(f"c{number:04d}", "compilers", spec.detail, axis, spec.kind, "")
    tell(found)
    return attempt(
        found,
        reaching(same, cases()),
        partial(planted, spec),
        outcome,
        lambda plant: compare(plant, NAME, Random(f"{seed} {number}"), spec.detail),
        tell,
    )
