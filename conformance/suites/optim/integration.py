"""Checks of the use of optimisers for the clause optim.steps: with a gradient scaler, captured in a graph, saved and
loaded, and with parameter groups and schedules."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch

from conformance.checks.behaviour.graph_capture import captured, replay
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.layouts import DENSE
from conformance.suites.optim.parameters import (
    ALIKE,
    DTYPES,
    MANY,
    STEPS,
    Parameter,
    Placed,
    Reference,
    give_gradients,
    given,
    gradients,
    judge,
    must_be_taken,
    optimiser,
    place_parameters,
    reference,
    start,
    step_once,
)
from conformance.suites.optim.steps import FIXED, MORE, TAKE_TENSORS, WAYS, parameters_of
from devices.failure import Kind
from opinfo.compare import replace_tensors

cases = Cases(Kind.VALUES)


def arguments_of(name: str) -> dict[str, Any]:
    """Return an argument set of an optimiser whose values differ from the defaults."""
    return FIXED.get(name, {}) | (MORE[name][0] if name in MORE else {})


FUSED = {f"{name}_fused": (name, arguments_of(name)) for name in WAYS if "fused" in WAYS[name]}

# -- a scaler


def _infinity(placed_ones: Placed, value: float) -> None:
    """Write ``value`` (an infinity or NaN) to the last element of the last parameter's gradient."""
    grad = placed_ones.tensors[-1].grad
    assert grad is not None
    grad.view(-1)[-1] = value


_SCALED = {"scaled": (ALIKE, ALIKE[:1], MANY), "scaled_dtypes": (DTYPES,)}


@cases(
    "optim.steps",
    over={f"{key}_{form}": (*given, form) for key, given in FUSED.items() for form in _SCALED},
)
def scaled(context: CaseContext, name: str, arguments: dict[str, Any], form: str) -> None:
    """Set grad_scale and found_inf of a fused optimiser, together and found_inf alone: a step must divide the gradients by
    grad_scale. If found_inf is 1, the step must change nothing."""
    must_be_taken(context, "fused")
    for each in (arguments, {**arguments, "lr": {"tensor": 0.05, "there": True}}):
        for parameters in _SCALED[form]:
            _scaled(context, name, each, parameters)


def _scaled(
    context: CaseContext, name: str, arguments: dict[str, Any], parameters: tuple[Parameter, ...]
) -> None:
    found = place_parameters(context, parameters)
    made: Any = optimiser(name, found.tensors, arguments, "fused", context.device)
    numbers = {False: context.to_device(torch.zeros(())), True: context.to_device(torch.ones(()))}
    taken: list[int] = []
    scales = ((4.0, False), (8.0, True), (None, False), (None, True), (0.5, False))
    for step, (scale, skipped) in enumerate(scales):
        give_gradients(context, found, step, scale or 1.0)
        if skipped and step == 1:
            _infinity(found, float("inf"))
        made.grad_scale = None if scale is None else context.to_device(torch.tensor(scale))
        made.found_inf = numbers[skipped]
        made.step()
        taken += [] if skipped else [step]
        at = f"step {step}, {'skipped' if skipped else 'taken'}, grad_scale {scale}"
        want = reference(name, arguments, parameters, taken)
        judge(context, made, found, want, "fused", at)


@cases("optim.steps", over={f"{key}_with_scaler": given for key, given in FUSED.items()})
def with_scaler(context: CaseContext, name: str, arguments: dict[str, Any]) -> None:
    """Step a fused optimiser through torch.amp.GradScaler: steps with finite gradients must equal single-tensor steps
    on the CPU, and steps with an infinity or NaN must be skipped and halve the scale."""
    must_be_taken(context, "fused")
    found = place_parameters(context, ALIKE)
    made = optimiser(name, found.tensors, arguments, "fused", context.device)
    scaler = torch.amp.GradScaler(context.kind, init_scale=64.0, growth_interval=1000)
    taken: list[int] = []
    for step, bad in enumerate((None, float("inf"), None, float("nan"), None)):
        scaler.scale(context.to_device(torch.ones(())))  # creates the scaler's state on the device
        give_gradients(context, found, step, scaler.get_scale())
        if bad is not None:
            _infinity(found, bad)
        scaler.step(made)
        scaler.update()
        taken += [step] if bad is None else []
        want = reference(name, arguments, ALIKE, taken)
        at = f"step {step}, {'finite gradients' if bad is None else f'gradients with {bad}'}"
        judge(context, made, found, want, "fused", at)
    context.same(
        scaler.get_scale(), 16.0, "the scale after an infinity and a NaN is wrong", Kind.STATE
    )


@cases(
    "optim.steps",
    over={
        f"{name}_{way}_not_finite": (name, way, arguments_of(name))
        for name, ways in WAYS.items()
        for way in ways
        if name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop") and way in ("foreach", "fused")
    },
)
def not_finite(context: CaseContext, name: str, way: str, arguments: dict[str, Any]) -> None:
    """Make steps without a scaler, with NaN or infinity in one element of a gradient: the same element of the parameter
    must become non-finite, and all other elements must equal those after single-tensor steps on the CPU."""
    must_be_taken(context, way)
    found = place_parameters(context, ALIKE)
    made = optimiser(name, found.tensors, arguments, way, context.device)
    for step in range(3):
        give_gradients(context, found, step)
        for number, bad in ((1, float("nan")), (3, float("inf"))):
            grad = found.tensors[number].grad
            assert grad is not None
            grad[(0,) * grad.dim()] = bad
        made.step()
    for number in (1, 3):  # the first element must not be finite; judge() checks the others
        tensor = found.tensors[number]
        first = float(context.from_device(tensor.detach())[(0,) * tensor.dim()])
        finite = first == first and abs(first) != float("inf")
        text = "the parameter's element is finite after steps with NaN or infinity in its gradient"
        context.check(not finite, text, found=first, at=f"{way}, parameter {number}")
    want = reference(name, arguments, ALIKE, range(3))
    _forget(found, (1, 3), made, want, context)
    judge(context, made, found, want, way, "gradients that are not finite")


def _forget(
    found: Placed,
    numbers: tuple[int, ...],
    made: torch.optim.Optimizer,
    want: Reference,
    context: CaseContext,
) -> None:
    """For each parameter whose number is given, and for its states, overwrite the first element with the reference's
    value, so that the comparison ignores this element."""
    with torch.no_grad():
        for number in numbers:
            tensor = found.tensors[number]
            place = (0,) * tensor.dim()
            tensor[place] = float(want.last[number][place])
            for key, each in made.state[tensor].items():
                if isinstance(each, torch.Tensor) and each.shape == tensor.shape:
                    each[place] = float(want.state[number][key][place])


# -- a graph


@cases(
    "optim.steps",
    over={
        f"{name}_{way}_replayed": (name, way, arguments_of(name))
        for name, ways in WAYS.items()
        for way in ways
        if way.startswith("capturable")
    },
    requires={"graphs", "streams"},
)
def replayed(context: CaseContext, name: str, way: str, arguments: dict[str, Any]) -> None:
    """Capture a step in a graph and replay the graph four times with new gradients: after each replay, parameters and
    state must equal those of single-tensor steps on the CPU. The capture itself must change neither."""
    must_be_taken(context, way)
    found = place_parameters(context, ALIKE)
    made = optimiser(name, found.tensors, arguments, way, context.device)
    give_gradients(context, found, 0)
    with context.stream():
        made.step()  # makes the state
    context.settle()
    static = [each.grad for each in found.tensors]
    with captured(context) as graph:
        made.step()
    context.settle()
    want = reference(name, arguments, ALIKE, range(1))
    judge(context, made, found, want, way, "after the capture, before any replay")
    for step in range(1, 5):
        give_gradients(context, found, step)
        for tensor, grad in zip(found.tensors, static, strict=True):
            if grad is not None and tensor.grad is not None:
                grad.copy_(tensor.grad)
            tensor.grad = grad
        context.settle()
        replay(context, graph)
        want = reference(name, arguments, ALIKE, range(step + 1))
        judge(context, made, found, want, way, f"replay {step}")


# -- states


def _half_way(
    context: CaseContext, name: str, way: str, arguments: dict[str, Any]
) -> tuple[torch.optim.Optimizer, Placed]:
    found = place_parameters(context, parameters_of(name, "alike"))
    made = optimiser(name, found.tensors, arguments, way, context.device)
    for step in range(3):
        give_gradients(context, found, step)
        step_once(made, found.tensors)
    return made, found


def _on_host(found: Placed) -> Placed:
    """Return contiguous copies of the parameters on the CPU."""
    rows = tuple(
        each._replace(layout=DENSE, grad="none" if each.grad == "none" else DENSE)
        for each in found.parameters
    )
    return Placed(rows, [each.detach().cpu().clone().requires_grad_() for each in found.tensors])


STATES = {
    f"{name}_{way}_state": (name, way, arguments_of(name))
    for name, ways in WAYS.items()
    for way in ways
    if way in ("foreach", "fused", "capturable") or set(ways) == {"single"}
}


@cases("optim.steps", over={key: given for key, given in STATES.items() if given[0] != "LBFGS"})
def state_moves(context: CaseContext, name: str, way: str, arguments: dict[str, Any]) -> None:
    """Load the state_dict of an optimiser into another optimiser on the device, after a copy to the CPU or after
    torch.save and torch.load, and into an optimiser on the CPU. A fused or capturable one also takes a state whose step
    counts are numbers, as earlier versions of torch wrote them, and moves them to the device. Further steps must give the
    same parameters and state as uninterrupted single-tensor steps on the CPU."""
    must_be_taken(context, way)
    first, found = _half_way(context, name, way, arguments)
    state = first.state_dict()
    host = replace_tensors(state, lambda each: each.detach().cpu().clone())
    states = {"copied to the CPU and back": host}
    if context.has("serialization"):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        states["saved and loaded"] = torch.load(file)
    if way in ("fused", "capturable"):
        states["copied to the CPU with numbers as step counts"] = _with_numbers(host)
    want = reference(name, arguments, found.parameters, range(STEPS))
    for at, loaded in states.items():
        there = place_parameters(context, found.parameters)
        again = optimiser(name, there.tensors, arguments, way, context.device)
        again.load_state_dict(copy.deepcopy(loaded))
        with torch.no_grad():
            for new, old in zip(there.tensors, found.tensors, strict=True):
                new.copy_(old)
        for step in range(3, STEPS):
            give_gradients(context, there, step)
            again.step()
        judge(context, again, there, want, way, f"a state that was {at}")
    here = _on_host(found)
    on_host = optimiser(name, here.tensors, arguments, "single", None)
    on_host.load_state_dict(_as_single(host))
    for step in range(3, STEPS):
        grads = gradients(found.parameters, step)
        for tensor, grad in zip(here.tensors, grads, strict=True):
            tensor.grad = None if grad is None else grad.to(tensor.dtype)
        on_host.step()
    judge(context, on_host, here, want, "single", "a state that was copied to the CPU")


def _with_numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state_dict with numbers in the place of tensors that count steps."""
    counted = {
        place: {key: float(value) if key == "step" else value for key, value in each.items()}
        for place, each in state["state"].items()
    }
    return {**state, "state": counted}


def _as_single(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state_dict with foreach, fused and capturable switched off in all groups."""
    groups = [
        {
            key: (False if key in ("fused", "foreach", "capturable") else value)
            for key, value in each.items()
        }
        for each in state["param_groups"]
    ]
    return {**state, "param_groups": groups}


# -- groups, schedules, indices

GROUPS = (Parameter((7, 5)), Parameter((4,)), Parameter((3, 3)), Parameter((2, 9)))


@cases(
    "optim.steps",
    over={
        f"{name}_{way}_groups{'_of_tensor_rates' if on_device else ''}": (name, way, on_device)
        for on_device in (False, True)
        for name in ("SGD", "Adam", "AdamW")
        for way in WAYS[name]
        if way in TAKE_TENSORS or (way != "single" and not on_device)
    },
)
def groups(context: CaseContext, name: str, way: str, on_device: bool) -> None:
    """Step an optimiser with parameter groups of different arguments, add a group between steps, and change the
    learning rates by a schedule: parameters must equal those after single-tensor steps on the CPU. The learning rates
    are numbers or, if ``on_device`` is true, tensors on the device, to which the schedule writes."""
    must_be_taken(context, way)
    finals = []

    def rate(value: float) -> dict[str, Any]:
        return {"lr": {"tensor": value, "there": True} if on_device else value}

    for there in (True, False):
        if there:
            tensors = place_parameters(context, GROUPS).tensors
        else:
            tensors = [each.requires_grad_() for each in start(GROUPS)]
        device = context.device if there else None
        first, added = given(rate(0.5), device), given(rate(0.125), device)
        two = [{"params": tensors[:1], **first}, {"params": tensors[1:3], "weight_decay": 0.25}]
        made = optimiser(name, two, rate(0.25), way if there else "single", device)
        schedule = torch.optim.lr_scheduler.StepLR(made, step_size=2, gamma=0.5)
        for step in range(STEPS):
            if step == 3:
                made.add_param_group({"params": tensors[3:], **added})
                schedule.base_lrs.append(0.125)
            if there:
                give_gradients(context, Placed(GROUPS, tensors), step)
            else:
                for tensor, grad in zip(tensors, gradients(GROUPS, step), strict=True):
                    tensor.grad = grad
            made.step()
            schedule.step()
        finals.append([each.detach() for each in tensors])
    found, want = finals
    for number, (mine, theirs) in enumerate(zip(found, want, strict=True)):
        off = (context.from_device(mine).double() - theirs).abs()
        within = bool((off <= 5e-4).all())  # steps change parameters by about 100 times this
        text = "a parameter of a group differs from its value after single-tensor steps on the CPU"
        where = f"{way}, parameter {number}"
        context.check(
            within, text, expected="a difference of at most 5e-4", found=float(off.max()), at=where
        )


@cases(
    "optim.steps",
    over={
        f"{name}_{way}_indices": (name, way, arguments_of(name))
        for name in ("SGD", "Adam", "AdamW", "Adagrad")
        for way in WAYS[name]
        if way != "single"
    },
    requires={"multi_device"},
    indices=2,
)
def several_indices(context: CaseContext, name: str, way: str, arguments: dict[str, Any]) -> None:
    """Step an optimiser with parameters on two device indices: parameters must stay on their index, and parameters and
    state must equal those of single-tensor steps on the CPU. A fused optimiser gets grad_scale and found_inf, which are
    on one of the indices, in every second step."""
    must_be_taken(context, way)
    found = place_parameters(context, GROUPS, (0, 1))
    made: Any = optimiser(name, found.tensors, arguments, way, context.device)
    for step in range(STEPS):
        scaled = way == "fused" and step % 2 == 1
        give_gradients(context, found, step, 4.0 if scaled else 1.0)
        if way == "fused":
            made.grad_scale = context.to_device(torch.tensor(4.0)) if scaled else None
            made.found_inf = context.to_device(torch.zeros(())) if scaled else None
        made.step()
    where = [each.device.index for each in found.tensors]
    context.same(
        where, [0, 1, 0, 1], "a step moved a parameter to another device index", Kind.STATE
    )
    judge(
        context, made, found, reference(name, arguments, GROUPS, range(STEPS)), way, "two indices"
    )
