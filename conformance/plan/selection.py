"""Selects what a run tests: the device, the cells of the plan, the items and their order, the shard, and the machines
that may take part.

An item is the unit of work of a worker: one op and dtype with the clauses of one suite, or one case of one clause.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec

from conformance.plan.options import REPLAY, Request, matching
from conformance.suites import suite_of
from conformance.version import VERSION
from devices import autoload, registry
from devices.cell import CellKey
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.torch_version import require_torch
from opinfo.plan import Plan
from reports.run import times_of

#: Seconds that pytest adds to the cells of an item.
_ITEM_SECONDS: Final = 0.002


class ItemId(NamedTuple):
    """The id of an item: the name of a suite, and the name of the item in the suite. Converted to text, it is pytest's
    id of the item."""

    suite: str
    name: str

    def __str__(self) -> str:
        return f"{self.suite}-{self.name}"


class Item(NamedTuple):
    """An item: the cells of several clauses with the same unit (an op or a case), dtype and variant. For a case,
    ``unit`` is the name of the case and ``dtype`` is empty."""

    unit: str
    dtype: str
    clauses: list[str]
    variant: str = ""

    @classmethod
    def of(cls, cell: CellKey, *clauses: str) -> Item:
        """Returns an item with the unit, dtype and variant of a cell and with the given clauses."""
        return cls(cell.unit, cell.dtype, [*clauses], cell.variant)

    @property
    def is_case(self) -> bool:
        """True if the unit is a case of a clause and not an op."""
        return not self.dtype

    @property
    def key(self) -> tuple[str, str, str]:
        """The unit (an op or a case), dtype and variant, which all cells of the item have in common."""
        return (self.unit, self.dtype, self.variant)

    @property
    def cells(self) -> list[CellKey]:
        """The cells of the item."""
        return [CellKey(clause, *self.key) for clause in self.clauses]

    @property
    def id(self) -> ItemId:
        """The id of the item."""
        return item_of(self.cells[0])


def item_of(cell: CellKey) -> ItemId:
    """Returns the id of the item that contains a cell."""
    names = (cell.clause, cell.unit) if cell.is_case else (cell.unit, cell.dtype)
    name = "-".join((*names, cell.variant) if cell.variant else names)
    return ItemId(suite_of(cell.clause), name)


def items_of(cells: Iterable[CellKey]) -> list[Item]:
    """Returns the items that contain the given cells, in the order of the cells."""
    grouped: dict[ItemId, Item] = {}
    for cell in cells:
        found = grouped.setdefault(item_of(cell), Item.of(cell))
        found.clauses.append(cell.clause)
    return list(grouped.values())


def named(items: Iterable[Item], last: Iterable[Item]) -> dict[str, Item]:
    """Returns a dictionary of items by their id as text: first ``items``, then the items in ``last``, which run at the
    end, each with exclusive use of the device. The ids of the items in ``last`` also contain the clause, because
    ``items`` may contain the same op and dtype."""
    found = {str(item.id): item for item in items}
    for item in last:
        name = str(item.id)
        found[name if item.is_case else f"{name}@{item.clauses[0]}"] = item
    return found


# -- the order when time is short


def informative_first(
    items: Sequence[Item],
    failed: Collection[CellKey],
    expected: Collection[CellKey],
    families: Mapping[str, str],
) -> list[Item]:
    """Returns the items in an order in which the most informative items run first:

    1. Items with a cell that ``failed`` in the previous run in the results folder, because somebody may be fixing them.
    2. Items with a cell that is ``expected`` to fail, because the device is weak there and a change would be visible.
    3. All other items, one op of every family in turn, where the op with the most clauses comes first. If the time
       limit ends the run, the items that did not run are thus spread over all families.

    Within the first two groups the items keep the order of the plan.
    """
    ranks: tuple[list[Item], list[Item], list[Item]] = ([], [], [])
    for item in items:
        informative = [any(cell in known for cell in item.cells) for known in (failed, expected)]
        ranks[[*informative, True].index(True)].append(item)
    return [*ranks[0], *ranks[1], *_in_turns(ranks[2], families)]


def _in_turns(items: Sequence[Item], families: Mapping[str, str]) -> list[Item]:
    """Returns the items in an order that takes one item of every op family, then a second one of every family, and so
    on."""
    grouped: dict[str, list[Item]] = {}
    for item in items:
        grouped.setdefault(families.get(item.unit, item.unit), []).append(item)
    most_first = (sorted(each, key=lambda item: -len(item.clauses)) for each in grouped.values())
    return [item for turn in zip_longest(*most_first) for item in turn if item is not None]


# -- shards
#
# Every shard divides the plan in the same way, from the same plan and the same times. The longest items are placed first,
# each in the shard with the least work so far (longest processing time first: at most a third longer than the optimum).


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``count`` shards, the parts into which a run is divided. ``number`` counts from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Returns the shard that a text such as ``2/8`` names. Raises ConformError for a text of another form."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConformError(
                f"--shard {text!r}: expected the number of a shard and the number of shards, such as 2/8"
            )
        return cls(int(match[1]), int(match[2]))


class _Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    clauses: frozenset[str]
    items: frozenset[str]


_IDENTITY: Final = msgspec.toml.decode(
    Path(__file__).with_name("identity.toml").read_bytes(), type=_Identity
)


def is_identity(cell: CellKey) -> bool:
    """Returns True if the given cell runs in every shard, so that the results of the shards can be compared."""
    return cell.clause in _IDENTITY.clauses or item_of(cell).name in _IDENTITY.items


def seconds_by_item(
    cells: Sequence[CellKey], seconds: Mapping[CellKey, float]
) -> dict[ItemId, float]:
    """Returns the estimated time of each item in seconds, from the known times of cells. A cell without a known time
    counts as the median of the known times. If no time is known, all cells count equally."""
    usual = median(seconds.values()) if seconds else 1.0
    found: dict[ItemId, float] = {}
    for cell in cells:
        item = item_of(cell)
        found[item] = found.get(item, _ITEM_SECONDS) + max(seconds.get(cell, usual), 0.0)
    return found


def cells_of(
    shard: Shard, cells: Sequence[CellKey], seconds: Mapping[CellKey, float]
) -> list[CellKey]:
    """Returns the cells of a shard, in the order of the plan. Raises ConformError if the run has fewer items than
    shards."""
    numbers = divided(shard.count, cells, seconds)
    return [c for c in cells if is_identity(c) or numbers[item_of(c)] == shard.number]


def divided(
    count: int, cells: Sequence[CellKey], seconds: Mapping[CellKey, float]
) -> dict[ItemId, int]:
    """Returns, for each item that only one shard runs, the number of that shard, from 1. Raises ConformError if the run
    has fewer items than shards."""
    times = seconds_by_item([cell for cell in cells if not is_identity(cell)], seconds)
    if count > max(len(times), 1):
        raise ConformError(
            f"--shard …/{count}: there are only {len(times):,} items to divide; use at most that many shards"
        )
    load = [0.0] * count
    found: dict[ItemId, int] = {}
    for item in sorted(times, key=lambda item: (-times[item], item)):
        lightest = min(range(count), key=load.__getitem__)
        load[lightest] += times[item]
        found[item] = lightest + 1
    return found


# -- the device and its cells


class NothingSelected(ConformError):
    """The error for options that select no cell of the plan."""

    exit_code = 5


def find_descriptor(name: str | None, path: Path | None) -> Descriptor:
    """Returns the descriptor of the device that ``--descriptor`` or ``--device`` names. By default the machine's
    accelerator is chosen, else ``simulated``, else ``cpu``. Raises UnknownDevice or DescriptorError."""
    if path is not None:
        found = registry.load_file(path)
        if name is not None and name != found.name:
            raise ConformError(
                f"--device {name} and --descriptor {path} disagree: the file "
                f"describes {found.name!r}. Give one of them."
            )
        return found
    if name is not None:
        return registry.get(name)
    return registry.installed().default(_accelerator())


#: Prints the accelerator's type, whatever a backend prints before it.
_ASKED: Final = """
import torch
own = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
print("\\n" + (own.type if own else ""))
"""


def _accelerator() -> str | None:
    """Returns the device type of the machine's accelerator; None if the machine has none. If the import of third-party
    backends is postponed in this process, a subprocess finds the type. Raises NoTorch if torch is not installed."""
    require_torch()
    if autoload.is_put_off():
        environment = {**os.environ, **autoload.switched_back()}
        asked = subprocess.run(
            [sys.executable, "-c", _ASKED],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return asked.stdout.splitlines()[-1] or None if asked.returncode == 0 else None
    import torch

    own = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return own.type if own else None


def shard_of(cells: list[CellKey], request: Request) -> list[CellKey]:
    """Returns the cells of the shard that ``--shard`` names, or all cells if the option was not given. Raises
    ConformError, and RunError if the run of ``--shard-times`` cannot be read."""
    if request.shard is None:
        if request.shard_times is not None:
            raise ConformError("--shard-times needs --shard I/N")
        return cells
    shard = Shard.parse(request.shard)
    seconds = times_of(request.shard_times) if request.shard_times is not None else {}
    return cells_of(shard, cells, seconds)


def select(plan: Plan, request: Request, clauses: frozenset[str] | None) -> list[CellKey]:
    """Returns the cells of the plan that the options select. With ``--ops`` or ``--dtypes`` no cells of cases are
    selected. Raises ConformError if a name matches nothing or if no cell is selected."""
    selected = list(plan.cells)
    if request.ops is not None:
        ops = matching("--ops", request.ops, {c.unit for c in plan.cells if not c.is_case})
        selected = [c for c in selected if c.unit in ops and not c.is_case]
    if request.dtypes is not None:
        dtypes = matching("--dtypes", request.dtypes, {c.dtype for c in plan.cells} - {""})
        selected = [c for c in selected if c.dtype in dtypes]
    if clauses is not None:
        selected = [c for c in selected if c.clause in clauses]
    if not selected:
        if not plan.cells and plan.spec.name == REPLAY:
            raise NothingSelected("nothing selected: the recording has no call that can be judged")
        chosen = ", ".join(f"{k} {v}" for k, v in request.selection.items()) or "the whole plan"
        raise NothingSelected(
            f"nothing selected: {chosen} matches no cell of plan {plan.spec.name!r}"
        )
    return selected


def without_units(cells: Iterable[CellKey], units: Collection[str], option: str) -> list[CellKey]:
    """Returns the cells that are not of one of the units, which the option ``option`` leaves out. Raises NothingSelected if
    no cell remains."""
    left = [cell for cell in cells if cell.unit not in units]
    if not left:
        raise NothingSelected(f"nothing selected: {option} leaves out every recorded call")
    return left


# -- machines


class WrongMachine(ConformError):
    """The error for a worker whose machine differs from that of the controller."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties in which all machines of a run must agree. A worker on a machine with different properties is
    refused."""

    torch: str
    driver: str
    device_name: str
    suite: str = msgspec.field(name="torch-conformance")

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Machine:
        """Returns the properties of this machine, from the facts about its device."""
        torch, driver, name = (facts.get(n, "") for n in ("torch", "driver", "device_name"))
        return cls(torch, driver, name, VERSION)

    @property
    def named(self) -> dict[str, str]:
        """The properties by name."""
        found: dict[str, str] = msgspec.to_builtins(self)
        return found

    def check(self, other: Machine) -> None:
        """Raises WrongMachine unless ``other``, the machine of this process, has the same properties as this
        machine."""
        for (name, wanted), found in zip(self.named.items(), other.named.values(), strict=True):
            if found != wanted:
                raise WrongMachine(
                    f"the worker on {platform.node()!r} has {name} {found!r}, but the run has {name} {wanted!r}: "
                    "all workers of a run must have the same versions and device. Install the same versions on that "
                    "machine, or leave it out of --tx"
                )
