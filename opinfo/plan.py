"""Plans: the ordered list of all cells, and its hash. Pure functions without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from devices.cell import CellKey
from devices.errors import ConformError
from devices.files import tomllib
from opinfo.exceptions import Exceptions


class UnknownPlan(ConformError):
    """No plan of that name."""


class PlanSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan's own settings, from ``plans.toml``. The dtype ``*`` means all of them."""

    name: str
    dtypes: tuple[str, ...]
    samples: int
    more_cases: bool = False  # cases beyond those that every plan takes

    def takes(self, dtype: str) -> bool:
        return "*" in self.dtypes or dtype in self.dtypes


@cache
def plan_specs() -> dict[str, PlanSpec]:
    data = tomllib.loads(Path(__file__).with_name("plans.toml").read_text(encoding="utf-8"))
    return {name: msgspec.convert({"name": name, **data[name]}, PlanSpec) for name in data}


def plan_spec(name: str) -> PlanSpec:
    """The plan of that name. Raises UnknownPlan."""
    if name not in plan_specs():
        raise UnknownPlan(f"unknown plan {name!r}: expected one of {', '.join(plan_specs())}")
    return plan_specs()[name]


@dataclass(frozen=True, slots=True)
class Excluded:
    """Ops that a clause would apply to but that are skipped, with the reason."""

    clause: str
    reason: str
    cells: tuple[tuple[str, str], ...]  # (op, dtype)


@dataclass(frozen=True)
class Plan:
    """All cells of a run, in order."""

    spec: PlanSpec
    device: str
    cells: tuple[CellKey, ...]
    excluded: tuple[Excluded, ...]
    recipe: Mapping[str, str | int]  # whatever else decides what a cell means
    hash: str
    families: Mapping[str, str] = field(default_factory=dict)  # of ops, for reports


def build(
    spec: PlanSpec,
    device: str,
    subjects: Iterable[Any],
    applies: Callable[[Any], Iterable[str]],
    known: Exceptions,
    recipe: Mapping[str, str | int],
    *,
    fake_only: bool,
    pinned: Iterable[CellKey] = (),
) -> Plan:
    """Plan the cells of ``subjects`` (:class:`opinfo.samples.Traits`, or anything with ``op`` and ``dtype``).

    ``applies`` gives the clauses of one subject; exclusions take cells out again, each with its reason.
    Cells of ``pinned`` examples that the plan would not have come last: that such an example can no longer
    be checked must be seen.
    """
    cells: list[CellKey] = []
    left_out: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for subject in subjects:
        about = known.about(subject.op)
        for clause in applies(subject):
            entry = about.excluded(clause, subject.op, subject.dtype, fake_only=fake_only)
            if entry is None:
                cells.append(CellKey(clause, subject.op, subject.dtype))
            else:
                left_out.setdefault((clause, entry.reason), []).append((subject.op, subject.dtype))
    planned = set(cells)
    cells += [cell for cell in dict.fromkeys(pinned) if cell not in planned]
    excluded = tuple(Excluded(c, reason, tuple(ops)) for (c, reason), ops in left_out.items())
    return Plan(spec, device, tuple(cells), excluded, recipe, plan_hash(cells, recipe))


def plan_hash(cells: Sequence[CellKey], recipe: Mapping[str, str | int]) -> str:
    """Sixteen hex digits over the cells and the recipe: equal hashes mean equal plans."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(recipe):
        digest.update(f"{name}={recipe[name]}\n".encode())
    for cell in cells:
        digest.update("\t".join(cell).encode() + b"\n")
    return digest.hexdigest()
