"""optim.train: the networks learn, every parameter moves, and trainings that go another way are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.suites.optim import train
from devices import registry
from opinfo.device import open_device


@pytest.fixture
def context() -> CaseContext:
    return CaseContext(open_device(registry.get("cpu")), "a test")


@pytest.mark.parametrize("name", train.TASKS)
def test_every_parameter_moves_far_more_than_is_allowed(name: str) -> None:
    want = train.expected(name)
    for key, first in want.first.items():
        moved = float((want.run.state[key] - first).abs().max())
        assert moved > 100 * want.state[key], key
    assert all(
        allowed < 1e-3 * loss for loss, allowed in zip(want.run.losses, want.losses, strict=True)
    )


@pytest.mark.parametrize("name", ["convnet", "transformer"])
def test_the_loss_of_a_batch_falls(name: str) -> None:
    losses = train.expected(name).run.losses
    assert all(later < first for first, later in zip(losses, losses[-3:][::-1][1:]))


@pytest.mark.parametrize("name", train.TASKS)
def test_a_training_in_float32_uses_a_hundredth_of_what_is_allowed(
    name: str, context: CaseContext
) -> None:
    want = train.expected(name)
    found = train.on_device(context, train.TASKS[name], {})
    used = [
        abs(a - b) / c for a, b, c in zip(found.losses, want.run.losses, want.losses, strict=True)
    ]
    assert max(used) < 0.05


def _scaled(place: int, by: float) -> Callable[[Any], Any]:
    """A hook that changes the gradient of the parameter in that place."""

    def change(network: torch.nn.Module) -> None:
        each = list(network.parameters())[place]
        each.register_hook(lambda grad: grad * by)

    return change


def _noise(network: torch.nn.Module) -> None:
    """The last bits of a gradient are others in every call."""
    each = next(network.parameters())
    each.register_hook(lambda grad: grad * (1 + 1e-6 * next(_noise_calls)))


_noise_calls = iter(range(1, 10**6))


@pytest.mark.parametrize("name", train.TASKS)
@pytest.mark.parametrize("by", [0.95, 0.0, -1.0])
@pytest.mark.parametrize("place", [0, -1])
def test_a_wrong_gradient_is_noticed(
    name: str, by: float, place: int, context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by > 0 and train.TASKS[name].optimiser != "SGD":
        pytest.skip("Adam does not see by what a gradient is multiplied")
    train.expected(name)
    _broken(monkeypatch, _scaled(place, by))
    with pytest.raises(CheckFailed):
        train.follows(context, name, "default")


@pytest.mark.parametrize("name", train.TASKS)
def test_a_training_that_varies_is_noticed_although_it_is_near(
    name: str, context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    train.twice(context, name)
    _broken(monkeypatch, _noise)
    train.follows(context, name, "default")
    with pytest.raises(CheckFailed):
        train.twice(context, name)


def test_statistics_that_stand_still_are_noticed(
    context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    train.expected("convnet")
    honest = F.batch_norm

    def still(x: torch.Tensor, mean: Any, variance: Any, *rest: Any) -> torch.Tensor:
        return honest(x, mean.clone(), variance.clone(), *rest)

    monkeypatch.setattr(F, "batch_norm", still)
    with pytest.raises(CheckFailed):
        train.follows(context, "convnet", "default")


def _broken(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.nn.Module], None]) -> None:
    made = train.network_of

    def network_of(task: train.Task) -> torch.nn.Module:
        network = made(task)
        change(network)
        return network

    monkeypatch.setattr(train, "network_of", network_of)
