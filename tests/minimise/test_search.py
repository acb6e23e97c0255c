"""The minimiser finds the smallest example that fails alike, the same each time, within its budget."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from conformance.checks.cells import Failed
from conformance.search.minimise.candidates import Candidate, CandidateRunner, Sign
from conformance.search.minimise.shrink import (
    _SETTINGS,
    Search,
    candidate_of,
    same_failure,
    start_of,
)
from conformance.search.minimise.simplify import (
    fewer_dimensions,
    simpler_arguments,
    simpler_layouts,
    simpler_values,
    smaller_sizes,
)
from devices import registry
from devices.failure import Failure, Kind
from opinfo.compare import Arguments
from opinfo.device import Device, open_device
from opinfo.layouts import FreeLayout, Layout
from tests.trials import one_thread
from tests.wrapped.descriptor import DESCRIPTOR
from tests.wrapped.faults import REGISTRY, planted
from tests.wrapped.scripts import exit_status


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with one_thread():
        yield open_device(DESCRIPTOR)


@dataclass(frozen=True, slots=True)
class Case:
    """A planted fault, the clause that it breaks, and the smallest example of it."""

    fault: str
    clause: str
    call: str
    layout: str
    shapes: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return f"{self.fault}-{self.clause}"


STEP, OFFSET = "contiguous+step_inner", "contiguous+offset"
CASES = (
    Case("values.ignore_strides", "values", "torch.exp(t[0])", STEP, ((2,),)),
    Case("values.ignore_storage_offset", "values", "torch.neg(t[0])", OFFSET, ((),)),
    Case("values.refuse_offset", "values", "torch.amax(t[0])", OFFSET, ((),)),
    Case(
        *("values.treat_channels_last_as_contiguous", "values"),
        *("torch.nn.functional.avg_pool2d(t[0], 1)", "channels_last", ((1, 2, 2, 2),)),
    ),
    Case(
        *("expand.read_as_dense", "expanded_read", "torch.mul(t[0], t[1])"),
        *("contiguous+expand_first/contiguous", ((2,), ())),
    ),
    Case(
        *("stride.always_contiguous", "output_strides", "torch.sub(t[0], t[1])"),
        *("transposed/contiguous", ((2, 2), ())),
    ),
    Case("views.wrong_strides", "views", "torch.diagonal(t[0])", "contiguous", ((2, 2),)),
    Case("views.write_lost", "views", "torch.narrow(t[0], 0, 1, 1)", "contiguous", ((2,),)),
    Case("out.ignore_strides", "out_kept", "torch.exp(t[0], out=…)", "out=transposed", ((2, 2),)),
    Case(
        *("out.strided_unwritten", "out_kept", "torch.mm(t[0], t[1], out=…)"),
        *("out=transposed", ((2, 0), (0, 2))),
    ),
    Case(
        *("bounds.write_past_end", "bounds", "torch.maximum(t[0], t[1], out=…)"),
        *("out=contiguous", ((), ())),
    ),
    Case(
        *("inputs.gaps_overwritten", "inputs_intact", "torch.copysign(t[0], t[1])"),
        *(f"{STEP}/contiguous", ((2,), ())),
    ),
    Case("storage.output_past_end", "output_fresh", "torch.cat([t[0]])", "contiguous", ((1,),)),
    Case(
        *("inplace.write_to_copy", "inplace", "torch.Tensor.sub_(t[0], t[1])"),
        *(f"{STEP}/contiguous", ((2,), ())),
    ),
    Case(
        *("overlap.skip_internal_check", "overlap_raises", "torch.add(t[0], t[1], out=…)"),
        *("out=expanded", ((2,), ())),
    ),
    Case(
        *("variants.method_differs", "variants", "torch.Tensor.neg(t[0]), as method"),
        *("method", ((),)),
    ),
    Case("precision.truncate_mantissa", "fp32_precision", "torch.mm(t[0], t[1])", "highest", ((1, 1), (1, 1))),
)  # fmt: skip


def found_with(device: Device, fault: str, clause: str, **budget: Any) -> tuple[Failed, Search]:
    """The smallest failure as a run records it, and what the minimiser makes of it. The time that it may
    take is long, so that a busy machine changes nothing."""
    budget.setdefault("seconds", 600.0)
    runner = CandidateRunner.of(REGISTRY[fault].ops[0], REGISTRY[fault].dtypes[0], device, 16)
    shown = runner.run_all(f"layout.{clause}").smallest
    assert shown is not None
    start = start_of(runner, f"layout.{clause}", shown.failure)
    assert start is not None
    return shown, Search(runner, f"layout.{clause}", *start, **budget).run()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_example_is_minimal_fails_alike_and_its_script_shows_it(
    device: Device, case: Case
) -> None:
    with planted(case.fault):
        shown, found = found_with(device, case.fault, case.clause)
        assert found.failure.repro is not None
        script = found.failure.script()
        on = exit_status(script)
    off = exit_status(script)
    example = found.example
    assert (example.call, example.layout) == (case.call, case.layout)
    assert tuple(t.shape for t in example.tensors) == case.shapes
    assert Sign.of(found.failure.failure) == Sign.of(shown.failure)
    assert found.whole and found.tried < 200
    assert (on[0], off[0]) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["values.ignore_strides", "values.treat_channels_last_as_contiguous"]
)
def test_the_same_failure_gives_the_same_example(device: Device, fault: str) -> None:
    with planted(fault):
        one, two = (found_with(device, fault, "values")[1] for _ in range(2))
    assert one.example == two.example


def test_values_are_the_simplest_that_fail(device: Device) -> None:
    with planted("values.treat_channels_last_as_contiguous"):
        found = found_with(device, "values.treat_channels_last_as_contiguous", "values")[1]
        example = found.example
    # Of zeros or ones the wrong places hold the right values.
    assert example.tensors[0].values == "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]"


def test_a_directed_check_is_shown_as_it_is(device: Device) -> None:
    with planted("beta_zero.multiply_input"):
        found = found_with(device, "beta_zero.multiply_input", "beta_zero")[1]
    example = found.example
    assert example.call.startswith("ignores_input(torch.addmm, poison=")
    assert (example.tensors, example.tried, found.whole) == ((), 0, True)


def test_the_number_of_calls_ends_a_search_and_the_best_so_far_is_kept(device: Device) -> None:
    with planted("stride.ignore_channels_last"):
        whole = found_with(device, "stride.ignore_channels_last", "output_strides")[1]
        part = found_with(device, "stride.ignore_channels_last", "output_strides", calls=25)[1]
    assert (part.tried, part.whole) == (25, False) and whole.whole
    assert part.example.complexity > whole.example.complexity
    assert Sign.of(part.failure.failure) == Sign.of(whole.failure.failure)


def test_time_ends_a_search_too(device: Device) -> None:
    with planted("values.ignore_strides"):
        found = found_with(device, "values.ignore_strides", "values", seconds=0.0)[1]
    assert (found.tried, found.whole) == (0, False)


def test_a_failure_of_another_kind_is_not_the_same(device: Device) -> None:
    runner = CandidateRunner.of("select", "float32", device, 16)
    with planted("views.wrong_offset"):
        shown = runner.run_all("layout.views").smallest
        assert shown is not None and Sign.of(shown.failure) == Sign(Kind.OFFSET, None, "inputs")
        start = start_of(runner, "layout.views", shown.failure)
        assert start is not None
        for other in (Sign(Kind.STRIDES, None, "inputs"), Sign(Kind.OFFSET, None, "target")):
            assert same_failure(runner, "layout.views", other, start[0]) is None
        assert same_failure(runner, "layout.views", Sign.of(shown.failure), start[0]) is not None


def test_a_failure_that_is_gone_has_no_start(device: Device) -> None:
    runner = CandidateRunner.of("exp", "float32", device, 16)
    assert start_of(runner, "layout.values", Failure(kind=Kind.VALUES, layout=STEP)) is None


# -- simpler forms


Aspects = Callable[[Candidate], Any]


@pytest.mark.parametrize(
    "aspect",
    [fewer_dimensions, smaller_sizes, simpler_layouts, simpler_arguments, simpler_values],
)
def test_each_aspect_ends_in_the_call_as_it_is(device: Device, aspect: Aspects) -> None:
    runner = CandidateRunner.of("addmm", "float32", device, 16)
    layout = "transposed+step_inner+offset/reversed"
    current = candidate_of(runner.samples[0], Failure(kind=Kind.VALUES, layout=layout))
    space = aspect(current)
    built = space.build(space.bounds)
    if built is None:  # the largest vector is never asked for
        return
    assert [t.shape for t in built.sample.tensors] == [t.shape for t in current.sample.tensors]
    assert (built.first, built.rest) == (current.first, current.rest)


def test_equal_sizes_shrink_together(device: Device) -> None:
    runner = CandidateRunner.of("mm", "float32", device, 16)
    sample = next(s for s in runner.source_samples if s.rank == 2 and s.numel > 4)
    space = smaller_sizes(Candidate(sample))
    simplest = space.build((0,) * len(space.bounds))
    assert simplest is not None
    assert {n for t in simplest.sample.tensors for n in t.shape} <= {0, 1}


def test_a_free_layout_is_tried_as_every_named_one_first(device: Device) -> None:
    runner = CandidateRunner.of("exp", "float32", device, 16)
    current = Candidate(runner.samples[0], FreeLayout((1, 0), (2,), None, 5))
    space = simpler_layouts(current)
    built = [space.build((n, 0, 0)) for n in range(space.bounds[0] + 1)]
    named = [b.first for b in built if b is not None and isinstance(b.first, Layout)]
    assert named[0] == Layout("contiguous") and len(set(named)) == 72
    assert built[-1] is not None and built[-1].first == current.first and len(built) > 72


def test_importing_the_minimiser_leaves_no_hypothesis_database_behind() -> None:
    assert "hypothesis" in sys.modules
    assert _SETTINGS.database is None and _SETTINGS.derandomize


def test_a_call_that_reads_past_its_arguments_is_no_example() -> None:
    runner = CandidateRunner.of(
        "native_batch_norm", "float32", open_device(registry.get("cpu")), 16
    )
    zeros = torch.zeros(1, 2), torch.zeros(()), torch.zeros(()), torch.zeros(1), torch.zeros(1)
    short = replace(
        runner.samples[0], call=Arguments((*zeros, False, 0.0, 1e-5), {})
    )  # weights of one channel
    pairs = torch.zeros(1, 2), *(torch.zeros(2) for _ in range(4))
    fitting = replace(runner.samples[0], call=Arguments((*pairs, False, 0.0, 1e-5), {}))
    assert not runner.is_defined(short)
    assert runner.is_defined(fitting)
