"""A page for each operator that needs no script: every clause and dtype on every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from markupsafe import Markup

from reports.dashboard import documents, markup
from reports.dashboard.axes import Axis, slices
from reports.dashboard.series import Series, slug
from reports.dashboard.store import Site
from reports.judgement import Tally
from reports.statuses import ABSENT, KIND_OF, KINDS, tally

_LABELS = {kind.name: kind.label for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Table:
    """A device's cells of one operator. ``body`` is made of our own constants and escaped names."""

    series: Series
    counts: Tally
    dtypes: list[str]
    body: Markup


@dataclass(frozen=True, slots=True)
class OpLink:
    """An operator in the index of operators."""

    name: str
    slug: str
    counts: tuple[Tally | None, ...]  # by series


def write(folder: Path, series: Sequence[Series], site: Site, title: str) -> None:
    """Write ``op/<slug>.html`` for each operator of the newest runs, and remove those of others."""
    blocks = [
        {
            op: (pattern, each.latest.codes[start:end])
            for op, pattern, start, end in slices(site.axes[each.latest.axis])
        }
        for each in series
    ]
    template = markup.environment().get_template("op.html")
    written = set()
    writers = [_Writer(site.axes[each.latest.axis]) for each in series]
    for op in sorted({op for of_series in blocks for op in of_series}):
        tables = [
            writer.table(each, *of_series[op])
            for each, of_series, writer in zip(series, blocks, writers, strict=True)
            if op in of_series
        ]
        name = f"{slug(op)}.html"
        written.add(name)
        text = template.render(
            page="op", root="../", site_title=title, op=op, tables=tables, link=slug(op)
        )
        documents.write(folder / "op" / name, text.encode("utf-8"))
    for path in (folder / "op").glob("*.html"):
        if path.name not in written:
            path.unlink()


def index(series: Sequence[Series], axes: Mapping[str, Axis]) -> list[OpLink]:
    """Every operator of the newest runs, with its counts on each device."""
    found: dict[str, dict[int, Tally]] = {}
    for number, each in enumerate(series):
        for op, _, start, end in slices(axes[each.latest.axis]):
            found.setdefault(op, {})[number] = _count(each.latest.codes[start:end])
    return [
        OpLink(op, slug(op), tuple(counts.get(number) for number in range(len(series))))
        for op, counts in sorted(found.items())
    ]


def _count(codes: str) -> Tally:
    return tally({code: codes.count(code) for code in set(codes)})


class _Writer:
    """The tables of one axis: what is the same for all operators of a pattern is made once."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._squares = {
            code: f'<td class="k-{kind}"><i>{_LABELS[kind]}</i>' if code != ABSENT else "<td>"
            for code, kind in KIND_OF.items()
        }
        self._plans: dict[int, tuple[list[str], list[tuple[str, int, list[int] | None]]]] = {}

    def table(self, series: Series, pattern: int, codes: str) -> Table:
        dtypes, rows = self._plan(pattern)
        squares, width = self._squares, len(dtypes)
        parts: list[str] = []
        for head, start, columns in rows:
            parts.append(head)
            if columns is None:
                parts += map(squares.__getitem__, codes[start : start + width])
                continue
            row = ["<td>"] * width
            for offset, column in enumerate(columns):
                row[column] = squares[codes[start + offset]]
            parts += row
        return Table(series, _count(codes), dtypes, Markup("".join(parts)))

    def _plan(self, pattern: int) -> tuple[list[str], list[tuple[str, int, list[int] | None]]]:
        """The dtypes of a pattern, and for each clause its head, its start and its columns."""
        known = self._plans.get(pattern)
        if known is not None:
            return known
        axis = self._axis
        used = sorted({dtype for _, dtypes in axis.patterns[pattern] for dtype in dtypes})
        place = {dtype: column for column, dtype in enumerate(used)}
        rows: list[tuple[str, int, list[int] | None]] = []
        start = 0
        for clause, dtypes in axis.patterns[pattern]:
            name = escape(axis.clauses[clause])
            head = f'<tr><th scope="row"><a href="../contract.html#{name}">{name}</a>'
            rows.append((head, start, None if dtypes == used else [place[d] for d in dtypes]))
            start += len(dtypes)
        self._plans[pattern] = [axis.dtypes[dtype] for dtype in used], rows
        return self._plans[pattern]
