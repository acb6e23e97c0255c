"""Mutants of the constraints that Inductor derives from the stride tag of an op: the tag is read as another one, or not at all.

The device is the CPU with Inductor. The name of a mutant describes it completely: ``tag|constraint``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, NamedTuple
from unittest import mock

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from devices import registry
from devices.cell import Outcome
from opinfo.device import Device, open_device
from tests.mutation.compile.listing import all_in_turn, cases_of
from tests.mutation.compile.trial import Counted, Plant, attempt
from tests.mutation.compiled_probe import Answer
from tests.mutation.kernels import Result

FAMILY: Final = "stride_tags"
_CLAUSE: Final = "compile.stride_tags"
#: By tag: the constraints that allow strides which the tag forbids. A stricter constraint would be no fault.
WEAKER: Final[dict[str, tuple[str, ...]]] = {
    "needs_exact_strides": (
        "flexible_layout",
        "needs_fixed_stride_order",
        "needs_contiguous_strides",
    ),
    "needs_contiguous_strides": (
        "flexible_layout",
        "needs_fixed_stride_order",
        "needs_exact_strides",
    ),
    "needs_fixed_stride_order": ("flexible_layout", "needs_contiguous_strides"),
}


class Spec(NamedTuple):
    """A mutant: a tag, and the tag whose constraint takes its place."""

    tag: str
    other: str


def names(seed: int, count: int) -> list[str]:
    """Mutants 0 to count - 1: all of them in an order drawn from the seed, then all again."""
    known = ["|".join((tag, other)) for tag, others in WEAKER.items() for other in others]
    return all_in_turn(FAMILY, known, seed, count)


@contextmanager
def planted(spec: Spec, sham: bool) -> Iterator[Counted]:
    """Plants a mutant for a block."""
    state = Counted(sham)
    lowering: Any = importlib.import_module("torch._inductor.lowering")
    graph: Any = importlib.import_module("torch._inductor.graph")
    tags: Any = importlib.import_module("torch").Tag
    right = lowering.tag_to_layout_constraint

    def constraint(tag: Any) -> Any:
        if tag != getattr(tags, spec.tag):
            return right(tag)
        state.ran += 1
        state.reached += 1
        return right(tag if sham else getattr(tags, spec.other))

    with (
        mock.patch.object(lowering, "tag_to_layout_constraint", constraint),
        mock.patch.object(graph, "tag_to_layout_constraint", constraint),
    ):
        yield state


@cache
def device() -> Device:
    """The CPU, whose compiler is Inductor."""
    return open_device(registry.get("cpu"))


@cache
def cases() -> tuple[BehaviourCase, ...]:
    """The cases of the clause."""
    return cases_of(_CLAUSE, device(), indices=1)


def outcome(case: BehaviourCase) -> Outcome:
    record = CellRecord(case.cell)
    run_case(case, record, device(), DeviceLocator(device="cpu"))
    return record.outcome()


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    spec = Spec(*name.split("|"))
    found = Result(f"c{number:04d}", FAMILY, spec.tag, "always", f"read as {spec.other}", "")
    tell(found)
    own = sorted(cases(), key=lambda case: case.name != spec.tag)
    return attempt(found, own, lambda sham: planted(spec, sham), outcome, probe, tell)


def probe(plant: Plant) -> Answer:
    """No other calls are known than those of the cases: a mutant that none of them notices is live."""
    return Answer("no probe", 0)
