"""Programs in lock-step with the CPU: what is found of them."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.locate.journal import read_journal
from conformance.locate.lock_step import LockStep, Options, locate
from conformance.locate.traces import compare
from conformance.locate.wire import Located, read_located
from conformance.plan.selection import find_descriptor
from opinfo.device import Device, open_device
from tests.planting.calls import KernelCall
from tests.planting.places import replaced
from tests.recordings.tensor_classes import PROGRAMS

ROOT = Path(__file__).parents[2]
CPU = open_device(find_descriptor("cpu", None))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def train(device: str = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    net = Net().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x = torch.randn(5, 4).to(device)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = torch.nn.functional.dropout(net(x), 0.2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def found_in(program: Callable[[], Any], device: Device = CPU, **options: Any) -> Located:
    mode = LockStep(device, Options(**options))
    with mode.judging_program():
        program()
    return mode.located()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [1, 3])
def test_no_call_of_a_right_training_step_is_wrong(window: int, dtype: torch.dtype) -> None:
    found = found_in(lambda: train(dtype=dtype), window=window)
    assert found.fault is None and (window > 1 or found.unjudged == ())
    assert found.judged > 0.6 * found.calls > 40


def wrong_backward(call: KernelCall) -> Any:
    gradient = call.honest()
    return gradient * 1.01


def test_a_wrong_call_has_its_module_and_line_in_backward_too() -> None:
    """The mode calls the overload itself, so that a fault in front of it is seen."""

    class Faulty(LockStep):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if str(func) != "aten.gelu_backward.default":
                return super().__torch_dispatch__(func, types, args, kwargs)

            class Wrong:
                namespace, tags, _schema, name = (
                    *(func.namespace, func.tags, func._schema),
                    func.name,
                )

                def __call__(self, *args: Any, **kwargs: Any) -> Any:
                    return func(*args, **kwargs) * 1.01

                def __str__(self) -> str:
                    return str(func)

            return super().__torch_dispatch__(Wrong(), types, args, kwargs)

    mode = Faulty(CPU)
    with mode.judging_program():
        train()
    fault = mode.located().fault
    assert fault is not None and fault.call.op == "aten.gelu_backward.default"
    assert fault.call.phase == "backward" and fault.call.place.module == "Net.layers.1"
    assert Path(__file__).name in fault.call.place.line


class SameMemory(LockStep):
    """A device whose ``cos`` returns the same memory each time."""

    kept: torch.Tensor | None = None

    def _make(self, func: Any, *given: Any) -> Any:
        if str(func) != "aten.cos.default":
            return super()._make(func, *given)

        class Kept:
            namespace, tags, _schema = func.namespace, func.tags, func._schema

            def __call__(_, x: torch.Tensor) -> torch.Tensor:
                result = func(x)
                self.kept = result if self.kept is None else self.kept.view(-1).copy_(result)
                return self.kept

            def __str__(_) -> str:
                return str(func)

        return super()._make(Kept(), *given)


def test_a_result_in_the_memory_of_an_earlier_result_is_wrong() -> None:
    mode, x = SameMemory(CPU), torch.ones(3)
    with mode.judging_program():
        one = x.cos()
        other = x.cos()
    fault = mode.located().fault
    assert one.data_ptr() == other.data_ptr()
    assert fault is not None and "a result of call 1, which is alive" in fault.message


def test_the_error_grows_most_where_digits_are_lost() -> None:
    def program() -> None:
        x = torch.linspace(1, 2, 50)
        large = x * 1000.1 + 1e6
        (large - 1e6).sqrt()

    growth = found_in(program).growth
    assert growth is not None and growth.call.op == "aten.sub.Tensor"
    assert growth.after > 10 * growth.before


def test_random_numbers_are_the_devices() -> None:
    def program() -> None:
        x = torch.ones(100)
        torch.nn.functional.dropout(x, 0.5).add_(torch.rand(100)).bernoulli_(0.5)

    found = found_in(program)
    assert found.fault is None and (found.error or 0.0) < 1e-6


def test_calls_past_the_limit_are_not_judged() -> None:
    found = found_in(lambda: [torch.ones(3).cos() for _ in range(10)], limit=4)
    assert found.calls == 4


def test_a_program_that_makes_no_call_on_the_device_is_counted_elsewhere() -> None:
    from dataclasses import replace

    other = replace(CPU, torch_device=torch.device("meta"))
    found = found_in(lambda: torch.ones(3).cos(), other)
    assert found.calls == 0 and found.elsewhere == 1


def test_two_runs_find_the_same() -> None:
    assert found_in(train) == found_in(train)


def test_views_and_writes_through_views_are_right() -> None:
    def program() -> None:
        x = torch.zeros(4, 6)
        x[1:3].t()[2:] += 1
        x.view(-1)[::5].mul_(3)
        torch.add(x[:, 0], 1, out=x[:, 1])
        x.unflatten(0, (2, 2)).expand(2, 2, 6).sum()
        torch.view_as_complex(x.view(4, 3, 2)).conj().real.sum()
        torch.add(x[0], 1, out=torch.empty(0))  # is resized
        torch.arange(5.0)
        x.t_().resize_(2, 3)

    assert found_in(program).fault is None


def traced(program: Callable[[], Any]) -> Any:
    mode = LockStep(CPU, Options(trace=True))
    with mode.judging_program():
        program()
    return mode.trace


def test_equal_runs_do_not_part() -> None:
    found = compare(traced(train), traced(train))
    assert found.parting is None and found.first_bits is None and found.equal == found.compared > 50


def test_runs_part_at_the_call_that_differs_and_not_at_those_that_follow() -> None:
    def program() -> torch.Tensor:
        x = torch.linspace(0, 1, 40)
        return torch.special.i0(x.sin() + 1).cos()

    def effect(call: KernelCall) -> Any:
        return call.honest() * 1.001

    right = traced(program)
    with replaced(torch.special, "i0", effect):
        other = traced(program)
    found = compare([each for each in other if each.call.op != "aten.mul.Tensor"], right)
    assert found.parting is not None and found.parting.call.op == "aten.cos.default"


def test_runs_with_other_calls_part_where_they_differ() -> None:
    found = compare(traced(lambda: torch.ones(3).cos()), traced(lambda: torch.ones(3).sin()))
    assert found.parting is not None and "calls aten.sin.default here" in found.parting.why


def test_rounding_is_no_parting() -> None:
    x = torch.linspace(0, 1, 40)
    one, other = traced(lambda: x.double().exp().float()), traced(lambda: x.double().exp().float())
    (call,) = one[-1:]
    nudged = x.exp().nextafter(torch.tensor(9.0))
    assert compare(one, [*other[:-1], *traced(lambda: nudged.clone())]).compared == len(one) - 1
    assert call.call.op == "aten.copy_.default"


def test_the_context_manager_yields_what_was_found(tmp_path: Path) -> None:
    with locate(CPU, results=tmp_path) as found:
        torch.ones(3).cos()
    assert found().judged >= 1 and not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("name", [each for each in PROGRAMS if each != "meta"])
def test_calls_of_other_classes_are_said_and_the_calls_that_they_make_are_judged(
    name: str, window: int
) -> None:
    program, said, _ = PROGRAMS[name]
    found = found_in(program, window=window)
    assert found.fault is None and said in str(found.unjudged)


def test_a_result_that_is_sparse_is_not_judged() -> None:
    found = found_in(lambda: torch.eye(3).to_sparse())
    assert found.fault is None and "layout sparse_coo" in str(found.unjudged)


def test_a_call_that_is_not_judged_may_write_to_what_the_window_has_written() -> None:
    def program() -> None:
        x = torch.ones(3)
        for _ in range(5):
            x.add_(1)
            x.data.add_(torch.eye(3)[:1].to_sparse()[0])

    assert found_in(program, window=3).fault is None


def test_calls_past_the_limit_do_not_change_the_judgement_of_those_before() -> None:
    def program() -> None:
        x = torch.ones(3)
        for number in range(9):
            x.add_(number)

    assert found_in(program, window=4, limit=3).fault is None


def test_tensors_that_are_made_in_inference_mode_may_be_used_after_it() -> None:
    def program() -> None:
        state = torch.ones(4)
        with torch.inference_mode():
            state.sum()
        state[1:].mul_(2)

    assert found_in(program).fault is None


@pytest.mark.parametrize("seed", [0, 3])
def test_the_judge_draws_none_of_the_random_numbers_of_the_program(seed: int) -> None:
    def program() -> list[float]:
        torch.manual_seed(seed)
        x = torch.ones(64)
        torch.nn.functional.dropout(x, 0.0)
        torch.native_dropout(x, 0.0, True)
        x.bernoulli(0.5)
        found: list[float] = torch.rand(3).tolist()
        return found

    seen = list[list[float]]()
    found_in(lambda: seen.append(program()))
    assert seen == [program()]


def test_a_forked_process_is_not_judged(tmp_path: Path) -> None:
    mode = LockStep(CPU, Options(journal=tmp_path / "journal"))
    with mode.judging_program():
        torch.ones(3).cos()
        if (child := os.fork()) == 0:
            torch.ones(3).sin()
            os._exit(0)
        os.waitpid(child, 0)
    entry = read_journal(tmp_path / "journal")
    assert entry is not None and entry.call.op == "aten.cos.default" and entry.is_done


def test_a_fault_is_written_at_once(tmp_path: Path) -> None:
    mode = SameMemory(CPU, Options(located=tmp_path / "located"))
    with mode.judging_program():
        kept = torch.ones(3).cos(), torch.ones(3).cos()
        assert read_located(tmp_path / "located").fault == mode.fault is not None
    assert len(kept) == 2


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "simulated"])
@pytest.mark.parametrize(
    "program", sorted((ROOT / "examples" / "recordings").glob("*.py")), ids=lambda each: each.stem
)
def test_no_call_of_an_example_is_wrong(program: Path, device: str) -> None:
    opened = open_device(find_descriptor(device, None))

    def run() -> None:
        with torch.device(opened.torch_device):
            runpy.run_path(str(program), run_name="__main__")

    found = found_in(run, opened)
    assert found.fault is None and found.calls > 20


@pytest.mark.slow
def test_a_planted_kernel_is_named_twice() -> None:
    from tests.locate.mutants import rows, trained_transformer

    device = open_device(find_descriptor("simulated", None))
    (row,) = rows(trained_transformer(), device, seed=1, wanted=1)
    assert row.named and row.same
