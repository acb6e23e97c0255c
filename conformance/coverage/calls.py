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
    ``cases`` lists the overloads that cases judge.
    """

    clauses: tuple[str, ...]
    cases: tuple[JudgedByCases, ...]

    def takes(self, clause: str, overload: str) -> bool:
        """Returns True if the cases of a clause judge an overload that they call."""
        return any(
            clause in each.clauses and any(fnmatchcase(overload, glob) for glob in each.overloads)
            for each in self.cases
        )


class CallMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The overloads to which the suite's calls dispatch below autograd and autocast.

    ``judged`` has them by cell without its dtype, such as ``layout.values::add``: the overloads that the judged calls of an
    op, or a case, called. ``reached`` has for each other overload that the suite called some of the cells that did.
    """

    torch: str
    plan: str
    judged: Mapping[str, tuple[str, ...]]
    reached: Mapping[str, tuple[str, ...]]

    def judging(self, cells: Collection[str] | None = None) -> dict[str, list[str]]:
        """Returns for each judged overload the cells that judge it, of those in ``cells`` if that is given."""
        found: dict[str, list[str]] = {}
        for cell, overloads in self.judged.items():
            if cells is None or cell in cells:
                for overload in overloads:
                    found.setdefault(overload, []).append(cell)
        return found


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The map as it is written: names without ``aten::``, and one entry for the clauses of an op with the same calls."""

    torch: str
    plan: str
    ops: dict[str, dict[str, str]]  # op, clauses, overloads
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
    judged = {
        f"{clause}::{op}": _names(overloads)
        for op, groups in file.ops.items()
        for clauses, overloads in groups.items()
        for clause in clauses.split()
    }
    judged |= {case: _names(overloads) for case, overloads in file.cases.items()}
    reached = {f"aten::{name}": tuple(cells.split()) for name, cells in file.reached.items()}
    return CallMap(file.torch, file.plan, judged, reached)


def encoded(calls: CallMap, cases: Collection[str]) -> bytes:
    """Returns the text of the file of a map. ``cases`` are the cells of the map that are cases. Each op, each case and each
    overload has a line of its own."""
    ops: dict[str, dict[str, str]] = {}
    for cell, overloads in sorted(calls.judged.items()):
        clause, _, op = cell.partition("::")
        if cell not in cases:
            ops.setdefault(op, {})[clause] = _text(overloads)
    file = _File(
        calls.torch,
        calls.plan,
        {op: _grouped(clauses) for op, clauses in sorted(ops.items())},
        {cell: _text(calls.judged[cell]) for cell in sorted(cases)},
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
        else:
            lines = ",\n".join(f"{_json(k)}: {_json(v)}" for k, v in value.items())
            parts.append(f"{_json(field)}: {{\n{lines}\n}}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _names(text: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in text.split())


def _text(overloads: Collection[str]) -> str:
    return " ".join(sorted(each.removeprefix("aten::") for each in overloads))


def _grouped(clauses: Mapping[str, str]) -> dict[str, str]:
    groups: dict[str, list[str]] = {}
    for clause, overloads in clauses.items():
        groups.setdefault(overloads, []).append(clause)
    return {" ".join(names): overloads for overloads, names in groups.items()}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
