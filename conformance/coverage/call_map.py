"""The map from the suite's checks to the aten overloads that they call, as measured on the CPU, and the rules that say
which of these calls the suite judges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

CALLS_FILE: Final = Path(__file__).with_name("calls.json")
_JUDGED_BY_FILE: Final = Path(__file__).with_name("judged_by.toml")

#: How many cells that reach an overload without a judgement the map names.
MOST_REACHING: Final = 3


class JudgedByCases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cases of ``clauses`` compare the results of ``overloads`` (globs) with results of the CPU."""

    clauses: tuple[str, ...]
    overloads: tuple[str, ...]  # globs


class JudgedBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules that say when the suite judges an overload that it calls, read from ``judged_by.toml``.

    ``clauses`` are the clauses that compare the values of an op's results, or of the tensors that the op writes to.
    ``values_free`` has globs of the overloads whose results may have any values. ``cases`` lists the overloads that
    cases judge.
    """

    clauses: tuple[str, ...]
    values_free: tuple[str, ...]
    cases: tuple[JudgedByCases, ...]

    def takes(self, clause: str, overload: str) -> bool:
        """Returns True if the cases of ``clause`` judge ``overload`` when they call it."""
        return any(
            clause in each.clauses and any(fnmatchcase(overload, glob) for glob in each.overloads)
            for each in self.cases
        )


class CallMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The overloads that the suite's checks call, as dispatched below autograd and autocast.

    ``units`` lists what was measured: ops, and cases with their clause, such as ``optim.foreach::add``. ``judged`` maps
    a cell without its dtype, such as ``layout.values::add``, to the overloads whose results decide the cell's verdict.
    ``reached`` maps each overload that is only called and not judged to some cells that call it.
    """

    torch: str
    plan: str
    units: tuple[str, ...]
    judged: Mapping[str, tuple[str, ...]]
    reached: Mapping[str, tuple[str, ...]]

    def judging(self, cells: Collection[str] | None = None) -> dict[str, list[str]]:
        """Maps each judged overload to the cells that judge it. If ``cells`` is given, only these cells are included.
        Cells of the clauses that ``judged_by.toml`` lists come first, in the order of that file."""
        found: dict[str, list[str]] = {}
        order = {clause: place for place, clause in enumerate(judged_by().clauses)}
        ranked = sorted(
            self.judged, key=lambda cell: order.get(cell.partition("::")[0], len(order))
        )
        for cell, overloads in ((cell, self.judged[cell]) for cell in ranked):
            if cells is None or cell in cells:
                for overload in overloads:
                    found.setdefault(overload, []).append(cell)
        return found


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of ``calls.json``, a compact form of a CallMap. Names are without ``aten::``, and clauses of an op
    that make the same calls share an entry. Overloads, and the clauses of an entry, are listed once and then referred
    to by number. ``nothing`` has the ops and cases that judge no overload; the others are keys of ``ops`` and
    ``cases``."""

    torch: str
    plan: str
    nothing: list[str]
    overloads: list[str]
    clauses: list[str]  # several, separated by blanks
    ops: dict[str, dict[int, str]]  # op, number of its clauses, numbers of overloads
    cases: dict[str, str]
    reached: dict[str, str]


@cache
def judged_by() -> JudgedBy:
    """Returns the rules of ``judged_by.toml``."""
    return msgspec.toml.decode(_JUDGED_BY_FILE.read_bytes(), type=JudgedBy)


@cache
def call_map() -> CallMap:
    """Returns the map in ``calls.json``, which is part of this package."""
    return decoded(CALLS_FILE.read_bytes())


def decoded(text: bytes) -> CallMap:
    """Returns the map that the content of a file such as ``calls.json`` encodes."""
    file = msgspec.json.decode(text, type=_File)

    def named(numbers: str) -> tuple[str, ...]:
        return tuple(f"aten::{file.overloads[int(each)]}" for each in numbers.split())

    judged = {
        f"{clause}::{op}": overloads
        for op, groups in file.ops.items()
        for clauses, numbers in groups.items()
        for overloads in [named(numbers)]
        for clause in file.clauses[clauses].split()
    }
    judged |= {case: named(numbers) for case, numbers in file.cases.items()}
    reached = {f"aten::{name}": tuple(cells.split()) for name, cells in file.reached.items()}
    units = tuple(sorted((*file.nothing, *file.ops, *file.cases)))
    return CallMap(file.torch, file.plan, units, judged, reached)


def encoded(calls: CallMap, cases: Collection[str]) -> bytes:
    """Returns a map as the content of a file such as ``calls.json``, with one line for each op, case and overload.
    ``cases`` lists the cells of the map that are cases and not ops."""
    every = sorted({name for overloads in calls.judged.values() for name in overloads})
    number = {name: place for place, name in enumerate(every)}
    by_op: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for cell, overloads in sorted(calls.judged.items()):
        clause, _, op = cell.partition("::")
        if cell not in cases:
            by_op.setdefault(op, {}).setdefault(overloads, []).append(clause)
    groups = sorted({" ".join(names) for each in by_op.values() for names in each.values()})

    def numbers(overloads: Collection[str]) -> str:
        return " ".join(str(number[name]) for name in overloads)

    file = _File(
        calls.torch,
        calls.plan,
        sorted({*calls.units} - {*by_op} - {*cases}),
        [name.removeprefix("aten::") for name in every],
        groups,
        {
            op: {groups.index(" ".join(names)): numbers(calls_) for calls_, names in each.items()}
            for op, each in sorted(by_op.items())
        },
        {cell: numbers(calls.judged[cell]) for cell in sorted(cases)},
        {
            name.removeprefix("aten::"): " ".join(cells)
            for name, cells in sorted(calls.reached.items())
        },
    )
    parts = []
    for field in file.__struct_fields__:
        value = getattr(file, field)
        if isinstance(value, str):
            parts.append(f"{_json(field)}: {_json(value)}")
        elif isinstance(value, list):
            parts.append(f"{_json(field)}: [\n" + ",\n".join(map(_json, value)) + "\n]")
        else:
            lines = ",\n".join(f"{_json(k)}: {_json(v)}" for k, v in value.items())
            parts.append(f"{_json(field)}: {{\n{lines}\n}}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
