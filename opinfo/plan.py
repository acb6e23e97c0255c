"""Functions that build a plan (the ordered list of all cells of a run) and the hash of a plan. The module does not use
torch."""

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
    """The error for a plan name that does not exist."""


class PlanSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a plan, from ``plans.toml``. The dtype ``*`` means every dtype."""

    name: str
    dtypes: tuple[str, ...]
    samples: int
    more_cases: bool = False  # whether it has the additional cases that small plans leave out
    whole: bool = False  # whether checks with a budget take all samples
    recorded: bool = False  # whether it replays a recording, and has no cases

    def takes(self, dtype: str) -> bool:
        return "*" in self.dtypes or dtype in self.dtypes


@cache
def _all_specs() -> dict[str, PlanSpec]:
    data = tomllib.loads(Path(__file__).with_name("plans.toml").read_text(encoding="utf-8"))
    return {name: msgspec.convert({"name": name, **data[name]}, PlanSpec) for name in data}


def plan_specs() -> dict[str, PlanSpec]:
    """Returns the settings of the plans over torch's database, from the smallest plan to the largest."""
    return {name: spec for name, spec in _all_specs().items() if not spec.recorded}


def plan_spec(name: str) -> PlanSpec:
    """Returns the settings of the plan with the given name. Raises UnknownPlan."""
    if name not in _all_specs():
        raise UnknownPlan(f"unknown plan {name!r}: expected one of {', '.join(plan_specs())}")
    return _all_specs()[name]


@dataclass(frozen=True, slots=True)
class Excluded:
    """Cells that a clause would have but that are not planned, and the reason."""

    clause: str
    reason: str
    cells: tuple[tuple[str, str], ...]  # (op, dtype)


@dataclass(frozen=True)
class Plan:
    """A plan: all cells of a run, in order, and the cells that were excluded."""

    spec: PlanSpec
    device: str
    cells: tuple[CellKey, ...]
    excluded: tuple[Excluded, ...]
    recipe: Mapping[
        str, str | int
    ]  # other settings that change what a cell checks, such as the seed of samples
    hash: str
    families: Mapping[str, str] = field(default_factory=dict)  # the family of each op, for reports


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
    variants: Callable[[str, Any], Iterable[str]] = lambda clause, subject: ("",),
) -> Plan:
    """Plans the cells of ``subjects``, which are :class:`opinfo.samples.Traits` or other objects that name a function
    under test (``op``) and a ``dtype``.

    ``applies`` returns the clauses that apply to such an object. ``variants`` returns the variants of a clause for such
    an object; each variant is a cell, and the empty string stands for the cell without a variant. Exclusions remove cells; the plan keeps the removed cells with the reasons.
    ``pinned`` are the cells of pinned examples. Pinned cells that the plan would not have are added at the end, so
    that a run shows if they can no longer be checked.
    """
    cells: list[CellKey] = []
    left_out: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for subject in subjects:
        names = getattr(subject, "names", ()) or (subject.op,)
        about = [(name, known.about(name)) for name in names]
        for clause in applies(subject):
            found = (
                each.excluded(clause, name, subject.dtype, fake_only=fake_only)
                for name, each in about
            )
            entry = next((each for each in found if each is not None), None)
            if entry is None:
                cells += (
                    CellKey(clause, subject.op, subject.dtype, variant)
                    for variant in variants(clause, subject)
                )
            else:
                left_out.setdefault((clause, entry.reason), []).append((subject.op, subject.dtype))
    planned = set(cells)
    cells += [cell for cell in dict.fromkeys(pinned) if cell not in planned]
    excluded = tuple(Excluded(c, reason, tuple(ops)) for (c, reason), ops in left_out.items())
    return Plan(spec, device, tuple(cells), excluded, recipe, plan_hash(cells, recipe))


def plan_hash(cells: Sequence[CellKey], recipe: Mapping[str, str | int]) -> str:
    """Returns sixteen hexadecimal digits of a hash over the cells and the recipe. Equal hashes mean equal plans."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(recipe):
        digest.update(f"{name}={recipe[name]}\n".encode())
    for cell in cells:
        parts = (
            cell if cell.variant else cell[:3]
        )  # hashes of plans without variants stay as they are
        digest.update("\t".join(parts).encode() + b"\n")
    return digest.hexdigest()
