"""The families of ``exceptions.toml`` that say which calls must raise, and which need not: the CPU or the simulated device
shows of each op what its family says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.suites.dispatch import index_range, number_range
from conformance.suites.dispatch.fallback import dense_samples
from conformance.suites.dispatch.refusals import CROSS_DEVICE, ERROR_INPUTS
from opinfo.database import DATABASE
from opinfo.exceptions import Exceptions, exceptions, names
from opinfo.samples import Sample, choose, draw
from opinfo.subject import Subject
from tests.opinfo.lines import CellResult, in_a_fork, run_cells, without_from_family

#: For checks that do not depend on the dtype, the first of these that an op takes.
DTYPES = ("float32", "int64", "bool", "complex64")
#: Samples of an op that are asked.
SAMPLES = 16
CROSS_DEVICE_FAMILIES = ("cross_device.any", "cross_device.indices", "cross_device.first_decides")


def members(family: str) -> list[str]:
    (patterns,) = (each.ops for each in exceptions().families if each.name == family)
    return [
        op
        for op, subject in DATABASE.subjects().items()
        if any(names(pattern, name) for pattern in patterns for name in subject.names)
    ]


def dtype_of(op: Subject) -> str:
    return next(each for each in DTYPES if each in (op.dtypes or op.dtypes_anywhere))


def samples(op: Subject) -> list[Sample]:
    found: Any = SimpleNamespace(common=choose(draw(op, dtype_of(op), limit=60), SAMPLES))
    return dense_samples(found)


def numbers(sample: Sample) -> Iterator[int | str]:
    """The places of a call's arguments that are Python numbers."""
    places: list[tuple[int | str, Any]] = [*enumerate(sample.call.args)]
    places += sample.call.kwargs.items()
    yield from (at for at, value in places if type(value) in (int, float))


def cell_of(op: str, clause: str, device: str, known: Exceptions) -> CellResult | None:
    """The cell of an op in a clause, or None if there is none."""
    dtype = dtype_of(DATABASE.subjects()[op])
    found = in_a_fork(lambda: run_cells(op, [dtype], known, device, lambda each: each == clause))
    return next(iter(found.values()), None)


@pytest.mark.parametrize("op", members(number_range.FAMILY))
def test_the_cpu_refuses_a_number_that_the_dtype_cannot_hold(op: str) -> None:
    about: Any = SimpleNamespace(subject=DATABASE.subjects()[op])
    assert any(
        number_range._cpu_refuses_number(about, sample, {"at": at, "value": 2**40, "dtype": dtype})
        for sample in samples(about.subject)
        for at in numbers(sample)
        for dtype in ("int16",)
    )


@pytest.mark.parametrize("op", members("index_range.numbers"))
def test_the_cpu_refuses_a_python_number_out_of_range(op: str) -> None:
    context: Any = SimpleNamespace(subject=DATABASE.subjects()[op])
    assert any(
        [*index_range._of_number(context, sample, place)]
        for sample in samples(context.subject)
        for place, value in enumerate(sample.call.args)
        if type(value) is int
    )


@pytest.mark.slow
@pytest.mark.parametrize("op", members("index_range"))
def test_a_line_about_indices_adds_checks_of_errors(op: str) -> None:
    without = cell_of(op, ERROR_INPUTS, "cpu", without_from_family(exceptions(), "index_range", op))
    now = cell_of(op, ERROR_INPUTS, "cpu", exceptions())
    assert now is not None and now.outcome == "pass"
    assert now.checks > (without.checks if without is not None else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "op"), [(family, op) for family in CROSS_DEVICE_FAMILIES for op in members(family)]
)
def test_a_right_device_needs_a_line_about_operands_on_other_devices(family: str, op: str) -> None:
    """Without the line, the cell of the simulated device does not pass."""
    now = cell_of(op, CROSS_DEVICE, "simulated", exceptions())
    without = cell_of(op, CROSS_DEVICE, "simulated", without_from_family(exceptions(), family, op))
    assert now is None or now.outcome == "pass"
    assert without is not None and without.outcome == "fail"


def test_no_op_whose_schema_declares_a_view_is_declared_again() -> None:
    subjects = DATABASE.subjects()
    assert [op for op in members("views") if subjects[op].declares_view] == []
