"""Faults in a process group for the CPU are noticed, and the group without a fault passes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from opinfo.device import Device
from tests.distributed import measure
from tests.distributed.faulty import ENVIRONMENT, MUTANTS

#: One of each kind; the others are slow.
FAST = frozenset({"reads_dense", "writes_past", "sum_is_average", "root_is_0", "odd_tail_lost"})
each_mutant = pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in MUTANTS
        if name != "sound"
    ],
)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    before = os.environ.get(ENVIRONMENT)
    with measure.opened() as opened:
        yield opened
    if before is None:
        os.environ.pop(ENVIRONMENT, None)


@pytest.mark.slow
def test_a_sound_group_passes(device: Device) -> None:
    assert measure.first_failure("sound", device, measure.cases(*measure.CLAUSES)) == ""


@each_mutant
def test_a_faulty_group_is_noticed(name: str, device: Device) -> None:
    assert measure.first_failure(name, device, measure.cases(MUTANTS[name].clauses)) != ""


def test_an_exception_on_every_rank_fails_the_case(device: Device) -> None:
    wanted = [
        case for case in measure.cases("distributed.collectives") if case.name == "large_tensors"
    ]
    assert "raised ZeroDivisionError" in measure.first_failure("raises", device, wanted)
