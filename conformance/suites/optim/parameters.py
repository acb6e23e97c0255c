"""Parameters and gradients in many layouts, optimisers for them, and the comparison with single-tensor steps on the
CPU."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.checks.cases.layouts import DENSE, GuardedTensor
from conformance.suites.optim.tensor_lists import values
from devices.failure import Kind
from opinfo.torch_private import optimised_on

#: Number of steps. RAdam starts to rectify at the sixth step.
STEPS = 7

Optimizer = torch.optim.Optimizer

# -- parameters

#: The layout of the gradients of views.
BESIDE = "contiguous+offset"


class Parameter(NamedTuple):
    """A description of a parameter: its shape, layout and dtype, and the layout and the factor of its gradients."""

    shape: tuple[int, ...]
    layout: str = DENSE  # an id of opinfo/layouts.py, or "view": a view of a buffer that all such parameters share
    grad: str = DENSE  # an id of opinfo/layouts.py, or "none" for no gradient
    scale: float = 1.0
    dtype: str = "float32"


#: Each gradient has its parameter's layout, as from autograd. Small gradients make eps matter.
ALIKE = (
    Parameter((7, 5)),
    Parameter((2, 3, 4, 5), "channels_last+offset", "channels_last+offset"),
    Parameter((5, 3), "transposed+offset", "transposed+offset"),
    Parameter((11,), "view", BESIDE),
    Parameter((3, 4), "view", BESIDE),
    Parameter(()),
    Parameter((3,), grad="none"),
    Parameter((6, 5), scale=1e-7),
    Parameter((33,), scale=1e-2),
)
#: Parameters of more than one chunk (65,536 elements), and small ones.
LARGE = (
    Parameter((5,)),
    Parameter((2, 32_800)),
    Parameter((3, 3)),
    Parameter((300, 230), "transposed+offset", "transposed+offset"),
)
#: More parameters than one kernel launch takes, some without elements.
MANY = (*(Parameter((0,) if n % 5 == 2 else (1 + n % 3,)) for n in range(120)), Parameter((4,)))
#: Layouts that autograd does not create but a user may: gradients in another layout, and parameters with gaps.
OTHERS = (
    Parameter((4, 6), DENSE, "transposed+offset"),
    Parameter((2, 3, 4, 5), "channels_last+offset", DENSE),
    Parameter((2, 3, 4, 5), DENSE, "channels_last+offset"),
    Parameter((4, 3), DENSE, "contiguous+expand_first+offset"),
    Parameter((6,), DENSE, "contiguous+step_inner+offset"),
    Parameter((2, 9), "contiguous+step_inner+offset", "contiguous+step_inner+offset"),
    Parameter((5, 3), "contiguous+step_inner+offset", DENSE),
)
#: Parameters of several dtypes in one optimiser.
DTYPES = tuple(
    Parameter(shape, dtype=dtype)
    for shape in ((7, 5), (3,), (2, 2))
    for dtype in ("float32", "float64", "bfloat16")
)
#: Parameters for an optimiser that accepts only matrices.
MATRICES = (
    Parameter((7, 5)),
    Parameter((4, 9), "transposed+offset", "transposed+offset"),
    Parameter((3, 3), "view", BESIDE),
    Parameter((2, 6), "view", BESIDE),
    Parameter((6, 5), scale=1e-2),
)
LISTS = {
    "one": ALIKE[:1],
    "alike": ALIKE,
    "large": LARGE,
    "many": MANY,
    "others": OTHERS,
    "dtypes": DTYPES,
}


def start(parameters: Sequence[Parameter]) -> list[torch.Tensor]:
    """Return the initial values of the parameters, in float64 on the CPU. The values are rounded to bfloat16, so that
    each dtype in the checks can represent them exactly."""
    return [_start(each.shape, number).clone() for number, each in enumerate(parameters)]


@lru_cache(maxsize=512)
def _start(shape: tuple[int, ...], number: int) -> torch.Tensor:
    return values(torch.Size(shape).numel(), 50 + number).view(shape).bfloat16().double()


@lru_cache(maxsize=64)
def gradients(parameters: tuple[Parameter, ...], step: int) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of a step, in float64 on the CPU; None for a parameter without a gradient. The values are
    rounded to bfloat16. Most gradients are negative in every third step, and positive in the other steps."""
    found: list[torch.Tensor | None] = []
    for number, each in enumerate(parameters):
        drawn = values(torch.Size(each.shape).numel(), 1000 + 100 * step + number)
        if step % 3 == 1:
            drawn = -drawn
        drawn = (drawn * each.scale).view(each.shape).bfloat16().double()
        if "expand" in each.grad:
            drawn = drawn[:1].expand(each.shape)
        found.append(None if each.grad == "none" else drawn)
    return tuple(found)


class Placed(NamedTuple):
    """Parameters on a device. ``buffer`` is the tensor of which the parameters with layout "view" are views, or
    None. ``stepped`` are the parameters with gaps between their elements."""

    parameters: tuple[Parameter, ...]
    tensors: list[torch.Tensor]
    buffer: torch.Tensor | None = None
    stepped: Sequence[GuardedTensor] = ()


#: The value of the elements around the views of a buffer.
AROUND = 77.0


def place_parameters(
    context: CaseContext, parameters: tuple[Parameter, ...], indices: Sequence[int] = (0,)
) -> Placed:
    """Create the parameters on the device, with their initial values."""
    lays = context.has("strides") and context.has("storage")
    views = [each for each in parameters if each.layout == "view"]
    length = sum(torch.Size(each.shape).numel() + 1 for each in views) + 1
    buffer = context.to_device(torch.full((length,), AROUND)) if views and lays else None
    tensors, stepped, end = [], [], 1
    for number, (each, first) in enumerate(zip(parameters, start(parameters), strict=True)):
        index = indices[number % len(indices)]
        rounded = first.to(getattr(torch, each.dtype))
        if each.layout == "view" and buffer is not None:
            view = buffer[end : end + first.numel()].view(each.shape)
            end += first.numel() + 1
            there = view.copy_(context.to_device(rounded, index))
        elif each.layout not in (DENSE, "view") and lays:
            guarded = context.guarded(rounded, each.layout, index)
            there = guarded.view
            if "step" in each.layout:
                stepped.append(guarded)
        else:
            there = context.to_device(rounded, index)
        tensors.append(there.detach().requires_grad_())
    return Placed(parameters, tensors, buffer, stepped)


def give_gradients(context: CaseContext, to: Placed, step: int, scale: float = 1.0) -> None:
    """Set the gradient of every parameter for a step, multiplied by ``scale``, a power of two."""
    lays = context.has("strides") and context.has("storage")
    each = zip(to.tensors, to.parameters, gradients(to.parameters, step), strict=True)
    for tensor, parameter, grad in each:
        if grad is None:
            tensor.grad = None
            continue
        given, index = (grad * scale).to(tensor.dtype), tensor.device.index or 0
        if lays and parameter.grad != DENSE:
            tensor.grad = context.lay(given, parameter.grad, index)
        else:
            tensor.grad = context.to_device(given, index)


# -- optimisers

FLAGS: dict[str, dict[str, bool]] = {
    "default": {},
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True, "foreach": False},
    "capturable_foreach": {"capturable": True, "foreach": True},
    "capturable_fused": {"capturable": True, "fused": True},
}


def must_be_taken(context: CaseContext, way: str) -> None:
    """Raise NotDeclared if torch does not support the device type for an optimiser of kind ``way``, such as "foreach",
    "fused" or "capturable"."""
    for part in way.split("_"):
        if part in ("foreach", "fused", "capturable") and not optimised_on(part, context.kind):
            text = f"torch does not list the device type {context.kind!r} for {part} optimisers"
            raise NotDeclared(text)


def given(arguments: dict[str, Any], device: torch.device | None) -> dict[str, Any]:
    """Return the arguments of an optimiser. Each literal that describes a tensor is replaced by that tensor or, if
    ``device`` is None, by a number of the same value."""

    def made(value: Any) -> Any:
        if isinstance(value, dict):
            tensor = torch.tensor(value["tensor"])
            if device is None:
                return tensor.item()
            return tensor.to(device) if value.get("there") else tensor
        return tuple(map(made, value)) if isinstance(value, (tuple, list)) else value

    return {key: made(value) for key, value in arguments.items()}


#: Device types that an optimiser refuses for fused steps although others accept them (torch/optim/adagrad.py:
#: cuda_unsupported).
_NOT_FUSED = {"Adagrad": {"cuda"}}


def optimiser(
    name: str, tensors: Any, arguments: dict[str, Any], way: str, device: torch.device | None
) -> Optimizer:
    """Create an optimiser of torch.optim. ``tensors`` may be parameters or parameter groups. Raises NotDeclared if the
    optimiser has no fused step for the device type although other optimisers do (Adagrad on CUDA)."""
    made = getattr(torch.optim, name)
    takes = _parameters(made)
    flags = {flag: value for flag, value in FLAGS[way].items() if value or flag in takes}
    kind = device.type if device is not None else "cpu"
    if flags.get("fused") and kind in _NOT_FUSED.get(name, ()):
        raise NotDeclared(f"torch.optim.{name} has no fused step for the device type {kind!r}")
    found = made(tensors, **given(arguments, device), **flags)
    assert isinstance(found, Optimizer)
    return found


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def takes_closure(made: Optimizer) -> bool:
    """Return True if the optimiser's step requires a closure that computes the loss."""
    closure = _parameters(type(made).step).get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def step_once(made: Optimizer, tensors: Sequence[torch.Tensor]) -> None:
    """Make one step with the current gradients of the parameters, or with a closure if the optimiser requires one."""

    def loss() -> torch.Tensor:
        for each in tensors:
            each.grad = None
        total = torch.stack([((each - 0.5) ** 4 + (each + 1) ** 2).sum() for each in tensors]).sum()
        total.backward()
        return total

    if takes_closure(made):
        made.step(loss)  # type: ignore[arg-type]
    else:
        made.step()


# -- judging


class Reference(NamedTuple):
    """The parameters before and after single-tensor steps in float64 on the CPU, their changes, and the state of the
    optimiser."""

    first: list[torch.Tensor]
    last: list[torch.Tensor]
    moved: list[torch.Tensor]  # the sum of the absolute changes of all steps
    state: list[dict[str, Any]]


def reference(
    name: str, arguments: dict[str, Any], parameters: tuple[Parameter, ...], steps: Sequence[int]
) -> Reference:
    """Return the result of single-tensor steps on the CPU, for the gradients of the given step numbers."""
    return _reference(name, repr(arguments), parameters, tuple(steps))


@lru_cache(maxsize=512)
def _reference(
    name: str, arguments: str, parameters: tuple[Parameter, ...], steps: tuple[int, ...]
) -> Reference:
    tensors = [each.requires_grad_() for each in start(parameters)]
    made = optimiser(name, tensors, ast.literal_eval(arguments), "single", None)
    first = start(parameters)
    last, moved = first, [torch.zeros_like(each) for each in first]
    for step in steps:
        for tensor, grad in zip(tensors, gradients(parameters, step), strict=True):
            tensor.grad = None if grad is None else grad.clone()
        step_once(made, tensors)
        now = [each.detach().clone() for each in tensors]
        moved = [a + (b - c).abs() for a, b, c in zip(moved, now, last, strict=True)]
        last = now
    return Reference(first, last, moved, [dict(made.state[each]) for each in tensors])


#: Accepted error, relative to the change of a parameter. In float32, one minus a power of 0.999 is accurate to four
#: digits.
UPDATE = 5e-4
#: Accepted errors of optimisers that compute less precisely, relative to the parameter's largest change.
UPDATES = {
    "Muon": 0.05,  # its iteration is in bfloat16
    "LBFGS": 5e-3,  # each step divides by differences of earlier steps
}
#: A capturable RAdam computes in float32 on the device: a difference of about 5 between two numbers near 2,000.
CAPTURABLE_UPDATES = {"RAdam": 0.03}

STEPPED = "a parameter differs from its value after single-tensor steps on the CPU"
STATE = "the optimiser's state differs from its value after single-tensor steps on the CPU"
COUNTED = "the step count in the optimiser's state is wrong"
WHERE_COUNTED = "the step count of a fused or capturable optimiser is not on the parameter's device"
GAPS = "a step changed memory outside its parameters"
READ = "a step changed a gradient"


def allowed_update(name: str, way: str) -> float:
    if way.startswith("capturable"):
        return CAPTURABLE_UPDATES.get(name, UPDATES.get(name, UPDATE))
    return UPDATES.get(name, UPDATE)


def judge(
    context: CaseContext,
    made: Optimizer,
    found: Placed,
    want: Reference,
    way: str,
    at: str,
) -> None:
    """Compare the parameters and the optimiser's state with the reference."""
    update = allowed_update(type(made).__name__, way)
    each = (found.tensors, found.parameters, want.first, want.last, want.moved, want.state)
    for number, row in enumerate(zip(*each, strict=True)):
        tensor, parameter, first, last, changed, state = row
        where = f"{at}, parameter {number} {parameter.shape} {parameter.layout}"
        least = torch.finfo(tensor.dtype).eps
        part = max(update, 32 * least)
        if type(made).__name__ in UPDATES and changed.numel():
            changed = torch.full_like(changed, float(changed.max()))
        allowed = 4 * least * torch.maximum(last.abs(), first.abs()) + part * changed
        context.assert_close(tensor, last, STEPPED, where, atol=allowed, check_dtype=False)
        if not takes_closure(made):
            _judge_state(context, made.state[tensor], state, tensor, way, where, part)
    _judge_gaps(context, found, at)


def _judge_state(
    context: CaseContext,
    found: dict[str, Any],
    want: dict[str, Any],
    tensor: torch.Tensor,
    way: str,
    where: str,
    part: float,
) -> None:
    context.same(
        sorted(found), sorted(want), "the optimiser's state has the wrong keys", Kind.STATE, where
    )
    for key, wanted in want.items():
        mine, at = found[key], f"{where}, {key}"
        if key == "step":
            context.same(float(mine), float(wanted), COUNTED, Kind.COUNT, at)
            if "fused" in way or "capturable" in way:
                where_it_is = mine.device if isinstance(mine, torch.Tensor) else "a number"
                context.same(where_it_is, tensor.device, WHERE_COUNTED, Kind.STATE, at)
        elif isinstance(wanted, torch.Tensor):
            context.same(tuple(mine.shape), tuple(wanted.shape), STATE, Kind.SHAPE, at)
            scale = float(wanted.abs().max()) if wanted.numel() else 0.0
            atol = 1e-6 * scale + part / 50 * scale
            context.assert_close(
                mine, wanted, STATE, at, rtol=part / 5, atol=atol, check_dtype=False
            )
        elif isinstance(wanted, float):
            near = abs(float(mine) - wanted) <= part * abs(wanted)
            context.check(near, STATE, expected=wanted, found=float(mine), at=at)
        else:
            context.same(mine, wanted, STATE, Kind.STATE, at)


def _judge_gaps(context: CaseContext, found: Placed, at: str) -> None:
    """Check that the elements around the views of the buffer, and the bytes around and between the elements of
    parameters with gaps, did not change."""
    if found.buffer is not None:
        inside = torch.zeros(found.buffer.numel(), dtype=torch.bool)
        for tensor, parameter in zip(found.tensors, found.parameters, strict=True):
            if parameter.layout == "view":
                inside[tensor.storage_offset() : tensor.storage_offset() + tensor.numel()] = True
        around = context.from_device(found.buffer)[~inside]
        context.equal(around, torch.full_like(around, AROUND), GAPS, at)
    for each in found.stepped:
        whole = each.outside_intact()
        damage = "" if whole else each.damage()
        context.check(whole, GAPS, found=damage, kind=Kind.VALUES, at=at)
