"""Compares the numerical errors of two runs: the ratio of the largest errors, by op and dtype."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from devices.cell import MOST_ULPS, CellKey
from devices.failure import Word
from reports.diff import DiffFact, environment
from reports.gate import number
from reports.junit import one_line
from reports.model import CellResult, Run

#: Ratios between the two are rounding noise, and count as equal.
_EQUAL: Final = (1 / 1.05, 1.05)


class Measure(Word):
    """What an error is measured in. The two are never compared with each other."""

    ABSOLUTE = "absolute"  # the largest absolute difference from the reference
    ULPS = "ulps"  # units in the last place, of the clauses that measure them


@dataclass(frozen=True, slots=True)
class ErrorRatio:
    """The largest errors of an op and dtype in two runs, over the ``cells`` cells in which both runs measured an error.

    ``ratio`` is the error after divided by the error before: 1 if both are 0, infinity if only the error before is 0.
    ``cell`` is the cell with the largest error after.
    """

    op: str
    dtype: str
    measure: Measure
    cells: int
    before: float
    after: float
    cell: CellKey

    @property
    def ratio(self) -> float:
        if self.before == self.after:
            return 1.0
        return self.after / self.before if self.before else math.inf

    @property
    def weight(self) -> float:
        """How far the ratio is from 1, in either direction."""
        ratio = self.ratio
        return math.inf if ratio in (0.0, math.inf) else abs(math.log(ratio))


@dataclass(frozen=True, slots=True)
class ErrorComparison:
    """The result of comparing the errors of two runs: the differences in environment, and the ratios of all ops, those
    furthest from 1 first."""

    environment: tuple[tuple[str, str, str], ...]
    ratios: tuple[ErrorRatio, ...]


def error_ratios(before: Run, after: Run) -> ErrorComparison:
    """Compares the errors of two runs, of two devices or of one, in the cells in which both measured an error."""
    origins = environment(asdict(before.provenance), asdict(after.provenance))
    found = [
        ratio for measure in Measure for ratio in _by_op(before.results, after.results, measure)
    ]
    found.sort(key=lambda each: (-each.weight, each.op, each.dtype, each.measure))
    return ErrorComparison(origins, tuple(found))


def _by_op(
    before: Mapping[CellKey, CellResult], after: Mapping[CellKey, CellResult], measure: Measure
) -> Iterable[ErrorRatio]:
    pairs: dict[tuple[str, str], list[tuple[float, float, CellKey]]] = {}
    for cell, result in after.items():
        other = before.get(cell)
        if other is None or cell.is_case:
            continue
        was, now = _error(other, measure), _error(result, measure)
        if was is not None and now is not None:
            pairs.setdefault((cell.unit, cell.dtype), []).append((was, now, cell))
    for (op, dtype), errors in pairs.items():
        _, most, cell = max(errors, key=lambda each: (each[1], each[0]))
        least = max(was for was, _, _ in errors)
        yield ErrorRatio(op, dtype, measure, len(errors), least, most, cell)


def _error(result: CellResult, measure: Measure) -> float | None:
    error = result.ulps if measure is Measure.ULPS else result.worst_error
    return None if error is None or math.isnan(error) else error


# -- the texts


def errors_as_text(found: ErrorComparison, *, limit: int = 20) -> str:
    """Returns the comparison as text for a terminal: the environment, a summary, then the ops whose ratio is furthest
    from 1, at most ``limit`` for each measure."""
    lines = ["environment:" if found.environment else "environment: the same"]
    lines += [
        f"  {name}: {one_line(old) or '-'} -> {one_line(new) or '-'}"
        for name, old, new in found.environment
    ]
    for measure in Measure:
        ratios = [each for each in found.ratios if each.measure is measure]
        if ratios:
            lines += _section(measure, ratios, limit)
    if not found.ratios:
        lines.append("no cell has a measured error in both runs")
    return "\n".join(lines)


def _section(measure: Measure, ratios: list[ErrorRatio], limit: int) -> list[str]:
    values = [each.ratio for each in ratios]
    larger = sum(value > _EQUAL[1] for value in values)
    smaller = sum(value < _EQUAL[0] for value in values)
    unit = "in ulps" if measure is Measure.ULPS else "absolute"
    lines = [
        f"largest errors, {unit}: {number(len(ratios), 'op and dtype', 'ops and dtypes')}; AFTER has larger errors in "
        f"{larger:,}, smaller ones in {smaller:,}; median ratio {_short(statistics.median(values))}"
    ]
    shown = [each for each in ratios if not _EQUAL[0] <= each.ratio <= _EQUAL[1]][:limit]
    rows = [("op", "before", "after", "ratio", "cells", "in")]
    rows += [
        (
            *(one_line(f"{each.op}[{each.dtype}]"), _short(each.before), _short(each.after)),
            *(_short(each.ratio), f"{each.cells:,}", one_line(each.cell.clause)),
        )
        for each in shown
    ]
    if not shown:
        return lines
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *numbers, last in rows:
        middle = "  ".join(map(str.rjust, numbers, widths[1:]))
        lines.append(f"  {first.ljust(widths[0])}  {middle}  {last}")
    if (more := larger + smaller - len(shown)) > 0:
        lines.append(f"  and {more:,} more")
    return lines


def _short(value: float) -> str:
    return "NaN" if value >= MOST_ULPS and value != math.inf else f"{value:.3g}"


class ErrorRow(msgspec.Struct):
    """An op and dtype in the document of ``conform diff --errors --json``. ``ratio`` is null if only the error before is
    0."""

    op: str
    dtype: str
    measure: Measure
    cells: int
    before: float
    after: float
    ratio: float | None
    cell: str


class ErrorDocument(msgspec.Struct):
    """The document that ``conform diff --errors --json`` prints."""

    environment: list[DiffFact]
    errors: list[ErrorRow]


def errors_as_data(found: ErrorComparison) -> ErrorDocument:
    """Returns the comparison in the form of the document that ``conform diff --errors --json`` prints."""
    rows = [
        ErrorRow(
            *(each.op, each.dtype, each.measure, each.cells, each.before, each.after),
            None if math.isinf(each.ratio) else each.ratio,
            str(each.cell),
        )
        for each in found.ratios
    ]
    return ErrorDocument([DiffFact(*fact) for fact in found.environment], rows)
