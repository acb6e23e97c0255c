"""optim.steps: each optimiser and argument set of torch's database is stepped, and wrong steps are noticed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotDeclared
from conformance.suites.optim import clipping, integration, parameters, steps
from devices import registry
from opinfo.catalog import optimisers
from opinfo.device import Device, open_device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(registry.get("cpu"))


@pytest.fixture
def context(device: Device) -> CaseContext:
    return CaseContext(device, "a test")


def test_every_optimiser_of_torch_is_in_the_database_or_takes_sparse_gradients_alone() -> None:
    classes = {
        name
        for name, each in vars(torch.optim).items()
        if inspect.isclass(each) and issubclass(each, torch.optim.Optimizer)
    } - {"Optimizer"}
    assert classes == {each.name for each in optimisers()}
    assert classes - steps.WAYS.keys() == {"SparseAdam"}


def test_every_argument_set_of_the_database_is_stepped() -> None:
    for each in optimisers():
        if each.sparse:
            continue
        taken = [given for sets in steps.WAYS[each.name].values() for given in sets]
        for given in each.arguments:
            plain = {key: value for key, value in given.items() if key != "capturable"}
            assert steps.FIXED.get(each.name, {}) | plain in taken, (each.name, given)


def test_every_way_of_the_database_is_stepped() -> None:
    for each in optimisers():
        if not each.sparse:
            ways = {part for way in steps.WAYS[each.name] for part in way.split("_")}
            assert {*each.implementations} <= ways


def cpu_takes(context: CaseContext, name: str, parameter: parameters.Parameter) -> bool:
    """Whether the CPU makes a step with this parameter, beside one that every optimiser takes."""
    both = (*parameters.LISTS["one"], parameter)
    found = parameters.place_parameters(context, both, (0,))
    try:
        given = steps.WAYS[name]["single"][-1]
        made = parameters.optimiser(name, found.tensors, given, "single", context.device)
        parameters.give_gradients(context, found, 0)
        parameters.step_once(made, found.tensors)
    except (RuntimeError, ValueError, ZeroDivisionError):
        return False
    return True


@pytest.mark.parametrize("name", steps.WAYS)
def test_an_optimiser_is_given_the_parameters_that_it_takes_and_no_others(
    context: CaseContext, name: str
) -> None:
    for which, every in parameters.LISTS.items():
        given = steps.parameters_of(name, which)
        if which == "alike" and name in steps.TAKE_MATRICES:
            assert all(cpu_takes(context, name, each) for each in given)
            assert not all(cpu_takes(context, name, each) for each in every)
        else:
            assert {*given} == {each for each in {*every} if cpu_takes(context, name, each)}


def test_every_argument_matters_far_above_the_tolerance() -> None:
    """Without it, the steps of the sets of our own leave other parameters."""
    for name, sets in steps.MORE.items():
        mine = steps.parameters_of(name, "alike")
        for given in sets:
            given = steps.FIXED.get(name, {}) | given
            count = steps.FEWER.get(name, parameters.STEPS)
            whole = parameters.reference(name, given, mine, range(count))
            for left_out in given:
                if left_out in ("max_iter", "history_size") or left_out in steps.FIXED.get(
                    name, {}
                ):
                    continue
                rest = {key: value for key, value in given.items() if key != left_out}
                try:
                    other = parameters.reference(name, rest, mine, range(count))
                except ValueError:  # another argument needs it: momentum, of nesterov
                    continue
                allowed = parameters.allowed_update(name, "single")
                differs = any(
                    bool(((a - b).abs() > 4 * allowed * moved + 1e-6 * a.abs()).any())
                    for a, b, moved in zip(whole.last, other.last, whole.moved, strict=True)
                )
                # What only the averages of a state show.
                states = zip(whole.state, other.state, strict=True)
                assert differs or any(
                    float(a.get("mu", 0)) != float(b.get("mu", 0)) for a, b in states
                ), (
                    name,
                    left_out,
                )


def test_a_way_that_torch_does_not_list_for_the_device_is_undeclared(context: CaseContext) -> None:
    with pytest.raises(NotDeclared, match="'cpu' for capturable"):
        steps.steps(context, "Adam", "capturable", ({},))


def test_parameters_are_views_of_one_buffer_and_in_channels_last(context: CaseContext) -> None:
    found = parameters.place_parameters(context, parameters.ALIKE)
    assert found.buffer is not None
    views = [
        tensor
        for tensor, each in zip(found.tensors, found.parameters, strict=True)
        if each.layout == "view"
    ]
    start = found.buffer.untyped_storage().data_ptr()
    assert len(views) == 2 and all(v.untyped_storage().data_ptr() == start for v in views)
    last = [t for t in found.tensors if t.dim() == 4]
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in last) and last


Step = Callable[[torch.optim.Optimizer, Callable[[], Any]], None]


def late(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    """The count of steps is one ahead."""
    for state in made.state.values():
        state["step"] += 1
    step()
    for state in made.state.values():
        state["step"] -= 1


def uncounted(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    step()
    for state in made.state.values():
        state["step"].fill_(1)


def decayed_after(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    [group] = made.param_groups
    decay, group["weight_decay"] = group["weight_decay"], 0.0
    step()
    group["weight_decay"] = decay
    with torch.no_grad():
        for each in group["params"]:
            each.mul_(1 - group["lr"] * decay)


def eps_ignored(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    for group in made.param_groups:
        group["eps"] = 0.0
    step()


def all_but_the_last(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    last = made.param_groups[0]["params"][-1]
    before = last.detach().clone()
    step()
    with torch.no_grad():
        last.copy_(before)


def betas_exchanged(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    for group in made.param_groups:
        if not group.get("turned"):
            group["betas"], group["turned"] = group["betas"][::-1], True
    step()


def gradients_changed(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    step()
    for each in made.param_groups[0]["params"]:
        if each.grad is not None:
            each.grad.mul_(0.5)


def not_maximized(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    for group in made.param_groups:
        group["maximize"] = False
    step()


def past_the_end(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    step()
    for each in made.param_groups[0]["params"]:
        end = each.storage_offset() + each.numel()
        if each.is_contiguous() and end * 4 < each.untyped_storage().nbytes():
            each.detach().as_strided((1,), (1,), end).fill_(0)


def one_percent(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    before = [each.detach().clone() for each in made.param_groups[0]["params"]]
    step()
    with torch.no_grad():
        for each, old in zip(made.param_groups[0]["params"], before, strict=True):
            each.add_((each - old) * 0.01)


def average_stays(made: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
    before = [state["exp_avg_sq"].clone() for state in made.state.values()]
    step()
    for state, old in zip(made.state.values(), before):
        state["exp_avg_sq"].copy_(old)


@pytest.mark.parametrize(
    "wrong",
    [late, uncounted, decayed_after, eps_ignored, all_but_the_last, betas_exchanged, gradients_changed]
    + [not_maximized, past_the_end, one_percent, average_stays],
)  # fmt: skip
@pytest.mark.parametrize("way", ["single", "foreach", "fused"])
def test_a_wrong_step_is_noticed(
    wrong: Step, way: str, context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = steps.WAYS["AdamW"][way]
    steps.steps(context, "AdamW", way, sets)
    made = steps.step_once

    def step_once(optimizer: Any, tensors: Any) -> None:
        wrong(optimizer, lambda: made(optimizer, tensors))

    monkeypatch.setattr(steps, "step_once", step_once)
    with pytest.raises(CheckFailed):
        steps.steps(context, "AdamW", way, sets)


@pytest.mark.parametrize("place", [-1, 1, 36])  # of the first element, of strides 18 and 2
def test_a_write_beside_the_elements_of_a_parameter_with_gaps_is_noticed(
    place: int, context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, made = steps.WAYS["AdamW"]["foreach"][-1], steps.step_once
    steps.other_layouts(context, "AdamW", "foreach", arguments)

    def step_once(optimizer: Any, tensors: Any) -> None:
        made(optimizer, tensors)
        [stepped] = [each.detach() for each in tensors if each.shape == (2, 9)]
        stepped.as_strided((1,), (1,), stepped.storage_offset() + place).fill_(0)

    monkeypatch.setattr(steps, "step_once", step_once)
    with pytest.raises(CheckFailed, match="changed memory outside its parameters"):
        steps.other_layouts(context, "AdamW", "foreach", arguments)


@pytest.mark.parametrize("name", ["grad_scale", "found_inf"])
def test_a_fused_step_that_does_not_look_at_the_scaler_is_noticed(
    name: str, context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = integration.arguments_of("AdamW")
    scaled = partial(integration.scaled, form="scaled")
    for check in (scaled, integration.with_scaler):
        check(context, "AdamW", arguments)
    kernel = torch._fused_adamw_

    def deaf(*given: Any, **named: Any) -> Any:
        return kernel(*given, **{**named, name: None})

    monkeypatch.setattr(torch, "_fused_adamw_", deaf)
    for check in (scaled, integration.with_scaler):
        with pytest.raises(CheckFailed):
            check(context, "AdamW", arguments)


def test_a_fused_step_that_skips_nothing_without_a_scale_is_noticed(
    context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = torch._fused_adamw_

    def deaf(*given: Any, **named: Any) -> Any:
        if named["grad_scale"] is None:
            named = {**named, "found_inf": None}
        return kernel(*given, **named)

    monkeypatch.setattr(torch, "_fused_adamw_", deaf)
    with pytest.raises(CheckFailed, match="grad_scale None"):
        integration.scaled(context, "AdamW", integration.arguments_of("AdamW"), form="scaled")


@pytest.mark.parametrize("way", ["single", "foreach"])
def test_a_norm_that_leaves_a_gradient_out_is_noticed(
    way: str, context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    clipping.norm(context, "alike", way)
    clip = clipping.clip_grad_norm_
    monkeypatch.setattr(
        clipping, "clip_grad_norm_", lambda given, *rest, **named: clip(given[:-1], *rest, **named)
    )
    with pytest.raises(CheckFailed):
        clipping.norm(context, "alike", way)
