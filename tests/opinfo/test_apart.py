"""What a device's module leaves behind is noticed, put back, and reaches calls on the device alone; ``meta`` is the device."""

from __future__ import annotations

import gc
import signal
import warnings
from collections.abc import Iterator
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from opinfo.module_side_effects import LeftBehind
from opinfo.torch_private import (
    FakeTensorMode,
    dispatch_modes,
    function_modes,
    take_modes,
    without_modes,
)


class Doubling(TorchFunctionMode):
    """Makes twice as many elements."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = (2 * args[0],) if func in (torch.zeros, torch.ones) else args
        return func(*args, **(kwargs or {}))


class Counting(TorchDispatchMode):
    """Counts ops."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def left() -> Iterator[LeftBehind]:
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.resetwarnings()
        yield LeftBehind("meta")
    take_modes()


def test_a_module_that_changes_nothing_leaves_nothing(left: LeftBehind) -> None:
    left.look()
    assert left.done == [] and left.sorting is None and function_modes() == []


def test_defaults_are_put_back_and_each_is_reported_once(left: LeftBehind) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("medium")
    torch.manual_seed(5)
    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    gc.disable()
    left.look()
    assert torch.get_default_dtype() is torch.float32 and torch.zeros(1).device.type == "cpu"
    assert torch.is_grad_enabled() and torch.get_float32_matmul_precision() == "highest"
    assert signal.getsignal(signal.SIGALRM) == handler and gc.isenabled()
    assert warnings.filters == []
    torch.set_grad_enabled(False)
    left.look()
    assert left.done == [
        "sets the default device to meta",
        "sets the default dtype to torch.float64",
        "sets gradient mode to False",
        "sets the precision of float32 matmuls to medium",
        "changes the state of torch's random number generator",
        "sets the action for all warnings to ['error']",
        "sets automatic garbage collection to False",
        "installs a handler for SIGALRM",
    ]
    assert left.sorting is None


def test_modes_see_calls_on_the_device_alone(left: LeftBehind) -> None:
    counting = Counting()
    Doubling().__enter__()
    counting.__enter__()
    left.look()
    assert torch.zeros(2).shape == (2,) and counting.count == 0
    assert torch.zeros(2, device="meta").shape == (4,)
    there = torch.zeros(3, device=torch.device("meta", 0))
    assert there.shape == (6,) and counting.count == 2
    assert torch.cat([there, there]).shape == (12,) and counting.count == 3
    with FakeTensorMode():
        assert torch.zeros(2, device="meta").shape == (2,)
    with without_modes():
        assert torch.zeros(2, device="meta").shape == (2,)
    assert function_modes() == [left.sorting] and dispatch_modes() == []
    assert left.done == [
        f"enters the mode {__name__}.{each} and does not leave it"
        for each in ("Doubling", "Counting")
    ]


def test_a_mode_that_the_first_call_enters_is_kept_for_the_next(left: LeftBehind) -> None:
    Counting().__enter__()
    left.look()
    assert left.sorting is not None
    left.sorting.on_device(Doubling().__enter__)
    left.look()
    assert torch.zeros(2).shape == (2,) and torch.zeros(2, device="meta").shape == (4,)
    assert len(left.done) == 2


def test_a_replaced_op_is_the_module_s_on_the_device_alone(left: LeftBehind) -> None:
    zeros, add, seen = torch.zeros, torch.Tensor.add, []

    def noted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(function.__name__)
            return function(*args, **kwargs)

        return call

    torch.zeros, torch.Tensor.add = noted(zeros), noted(add)  # type: ignore[method-assign]
    left.look()
    assert torch.zeros is zeros and torch.Tensor.add is add
    torch.zeros(2).add(1)
    assert seen == []
    torch.zeros(2, device="meta").add(1)
    assert seen == ["zeros", "add"]
    assert left.done == ["replaces torch.zeros, torch.Tensor.add"]


@pytest.mark.parametrize("wrap", [partialmethod, classmethod])
def test_a_replacement_that_only_a_class_can_call_is_called_on_the_device(
    left: LeftBehind, wrap: Any
) -> None:
    seen = []

    def call(*args: Any) -> str:
        seen.append(args)
        return "theirs"

    add = torch.Tensor.add
    torch.Tensor.add = wrap(call)  # type: ignore[method-assign]
    left.look()
    there = torch.ones(2, device="meta")
    assert torch.Tensor.add is add and not seen
    found: Any = there.add(1)
    assert found == "theirs" and seen[0][-2:] == (there, 1)


def test_a_method_that_is_replaced_twice_is_the_second_one_on_the_device(left: LeftBehind) -> None:
    def replace_with(text: str) -> None:
        def to(self: torch.Tensor, *args: Any) -> str:
            return text

        torch.Tensor.to = to  # type: ignore[assignment]
        left.look()

    replace_with("first")
    replace_with("second")
    there = torch.ones(2, device="meta")
    answers: list[Any] = [there.to("meta"), there.to("meta")]
    assert answers == ["second", "second"]
    assert torch.ones(2).to(torch.float64).dtype == torch.float64


def test_a_function_of_the_descriptor_that_is_wrapped_twice_runs(left: LeftBehind) -> None:
    def to(self: torch.Tensor, *args: Any) -> str:
        return "theirs"

    torch.Tensor.to = to  # type: ignore[assignment]
    left.look()
    there = torch.ones(2, device="meta")
    twice = left.on_device(left.on_device(lambda: there.to("meta")))
    answers: list[Any] = [twice(), twice()]
    assert answers == ["theirs", "theirs"]
    assert torch.ones(2).to(torch.float64).dtype == torch.float64


def test_a_function_of_the_descriptor_runs_as_the_module_has_it(left: LeftBehind) -> None:
    Doubling().__enter__()
    left.look()
    assert left.on_device(torch.zeros)(2).shape == (4,)
    assert function_modes() == [left.sorting]
