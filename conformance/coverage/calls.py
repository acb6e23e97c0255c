"""The map from the suite's calls to the aten overloads that they dispatch to, as it was measured on the CPU, and what counts
as a judgement."""

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
    """Overloads whose results the cases of some clauses compare with the CPU's."""

    clauses: tuple[str, ...]
    overloads: tuple[str, ...]  # globs


class JudgedBy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What counts as a judgement of an overload.

    ``clauses`` are those whose judges compare the values that a call of an op computes, or the tensors that it writes to;
    ``values_free`` has globs of the overloads whose result has no values of its own, and ``cases`` lists the overloads that
    cases judge.
    """

    clauses: tuple[str, ...]
    values_free: tuple[str, ...]
    cases: tuple[JudgedByCases, ...]

    def takes(self, clause: str, overload: str) -> bool:
        """Returns True if the cases of a clause judge an overload that they call."""
        return any(
            clause in each.clauses and any(fnmatchcase(overload, glob) for glob in each.overloads)
            for each in self.cases
        )


class CallMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The overloads to which the suite's calls dispatch below autograd and autocast.

    ``units`` has what was measured: ops, and cases with their clause, such as ``optim.foreach::add``. ``judged`` has the
    overloads by cell without its dtype, such as ``layout.values::add``: those whose results the cell's verdict depends on.
    ``reached`` has for each other overload that the suite called some of the cells that did.
    """

    torch: str
    plan: str
    units: tuple[str, ...]
    judged: Mapping[str, tuple[str, ...]]
    reached: Mapping[str, tuple[str, ...]]

    def judging(self, cells: Collection[str] | None = None) -> dict[str, list[str]]:
        """Returns for each judged overload the cells that judge it, of those in ``cells`` if that is given: first those of
        the op's own clauses, in the order of ``judged_by.toml``."""
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
    """The map as it is written: names without ``aten::``, and one entry for the clauses of an op with the same calls.
    Overloads, and the clauses of an entry, are listed once and then referred to by their number. ``nothing`` has the units
    that judge no overload; the others are keys of ``ops`` and ``cases``."""

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
    """Returns what counts as a judgement."""
    return msgspec.toml.decode(_JUDGED_BY_FILE.read_bytes(), type=JudgedBy)


@cache
def call_map() -> CallMap:
    """Returns the map that comes with this package."""
    return decoded(CALLS_FILE.read_bytes())


def decoded(text: bytes) -> CallMap:
    """Returns the map in a file."""
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
    """Returns the text of the file of a map. ``cases`` are the cells of the map that are cases. Each op, each case and each
    overload has a line of its own."""
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
