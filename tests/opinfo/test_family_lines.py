"""The families of ``exceptions.toml`` that say which calls must raise, and which need not: the CPU shows
of each op what its family says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.suites.dispatch import index_range, number_range
from conformance.suites.dispatch.fallback import dense_samples
from opinfo.database import DATABASE
from opinfo.exceptions import exceptions, names
from opinfo.samples import Sample, choose, draw
from opinfo.subject import Subject

#: For checks that do not depend on the dtype, the first of these that an op takes.
DTYPES = ("float32", "int64", "bool", "complex64")
#: Samples of an op that are asked.
SAMPLES = 16


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


def test_no_op_whose_schema_declares_a_view_is_declared_again() -> None:
    subjects = DATABASE.subjects()
    assert [op for op in members("views") if subjects[op].declares_view] == []
