"""Trials of planted faults: the layout suite on a device, once clean, then with each fault on.

An item is an op and a dtype; its cells are the clauses that apply. The clean run notes which kernels each
item reaches. With a fault on, exactly the items that reach a kernel which it breaks are run again: no other
item can tell the difference.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.suites.layout import SUITE
from devices.cell import CellKey, Outcome
from devices.descriptor import Descriptor
from opinfo.catalog import Op, catalogue
from opinfo.database import DATABASE
from opinfo.device import Device, open_device
from opinfo.exceptions import exceptions
from opinfo.reference import ReferenceCache, StrideReference
from opinfo.samples import Sample, Traits, choose, draw, probe

Item = tuple[str, str]  # op, dtype


class Plantable(Protocol):
    """What a trial needs to know of a fault."""

    @property
    def name(self) -> str: ...
    @property
    def clauses(self) -> tuple[str, ...]: ...
    @property
    def ops(self) -> tuple[str, ...]: ...
    @property
    def dtypes(self) -> tuple[str, ...]: ...
    def allows(self, clause: str, op: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Rig:
    """A device that can be told to misbehave, and what is run on it."""

    descriptor: Descriptor
    items: tuple[Item, ...]
    planted: Callable[[str], AbstractContextManager[None]]  # switches a fault on for a block
    watched: Callable[[], AbstractContextManager[Set[Hashable]]]  # the kernels reached in a block
    places: Callable[[Any], Set[Hashable]]  # the kernels that a fault breaks
    samples: int = 3  # of an op
    more_samples: Mapping[str, int] = field(default_factory=dict)  # of some ops
    checks: tuple[OpCheck, ...] = SUITE.op_checks


@dataclass(frozen=True, slots=True)
class Run:
    """One item on the device: its cells, and the kernels that they reached."""

    cells: dict[CellKey, CellRecord]
    kernels: frozenset[Hashable]

    def summary(self) -> dict[CellKey, tuple[Outcome, int]]:
        """Outcome and number of checks of each cell."""
        return {key: (record.outcome(), record.checks) for key, record in self.cells.items()}


class Subject:
    """An item with what its runs share: samples, traits and stride references."""

    def __init__(self, item: Item, rig: Rig, device: Device, cache: Path) -> None:
        name, self.dtype = item
        self.op: Op = catalogue()[name]
        self.rig, self.device = rig, device
        self.samples: list[Sample] = choose(
            draw(self.op, self.dtype), rig.more_samples.get(name, rig.samples)
        )
        self.traits: Traits = probe(self.op, self.dtype, self.samples, exceptions())
        kind = device.descriptor.torch_type
        self.cache = ReferenceCache(cache, torch.__version__, kind, f"{name}-{self.dtype}")

    def _applicable(self) -> list[str]:
        given = self.rig.descriptor, self.op.id, DATABASE
        return [
            check.clause
            for check in self.rig.checks
            if check.applies(self.traits) and not (check.untried and check.untried(*given))
        ]

    def run(self, *only: str) -> Run:
        """Every clause that applies, once; or only these clauses."""
        known, op, dtype = exceptions(), self.op.id, self.dtype
        fake_only = self.device.fake_only
        clauses = [
            clause
            for clause in self._applicable()
            if known.excluded(clause, op, dtype, fake_only=fake_only) is None
            and (not only or clause in only)
        ]
        recorder = Recorder(op, dtype, clauses)
        strides = StrideReference(self.device.descriptor.torch_type, self.cache)
        context = OpContext(
            self.op, dtype, self.traits, self.samples, self.device, strides, recorder, known
        )
        with self.rig.watched() as kernels, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_checks(context, self.rig.checks)
        self.cache.save()
        return Run({record.key: record for record in recorder.cells.values()}, frozenset(kernels))


@dataclass(frozen=True, slots=True)
class Change:
    """A cell that is not as it was in the clean run: outcome and number of checks, before and after."""

    cell: CellKey
    before: tuple[Outcome, int] | None
    after: tuple[Outcome, int] | None

    def __str__(self) -> str:
        return f"{self.cell.clause} {self.cell.name}: {self.before} became {self.after}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of the cells with one fault on."""

    fault: Plantable
    planted: tuple[Item, ...]  # items that the fault is planted in
    runs: dict[Item, Run]
    changes: tuple[Change, ...]

    def caught(self, clause: str) -> list[CellRecord]:
        """The failed cells of a clause, at ops that the fault is planted in."""
        return [
            record
            for item, run in self.runs.items()
            if item in self.planted
            for key, record in run.cells.items()
            if key.clause == clause and record.outcome() is Outcome.FAIL
        ]

    @property
    def missed(self) -> list[str]:
        """Clauses that the fault breaks, and that did not fail."""
        return [clause for clause in self.fault.clauses if not self.caught(clause)]

    @property
    def untouched(self) -> list[Item]:
        """Items that the fault is planted in, and that failed none of its clauses."""
        caught = [record.key for clause in self.fault.clauses for record in self.caught(clause)]
        failed = {(key.unit, key.dtype) for key in caught}
        return [item for item in self.planted if item not in failed]

    @property
    def strays(self) -> list[Change]:
        """Changed cells outside the fault's radius."""
        return [
            change
            for change in self.changes
            if not self.fault.allows(change.cell.clause, change.cell.unit)
        ]


class Bench:
    """The clean run, and trials against it."""

    def __init__(self, rig: Rig, cache: Path) -> None:
        self.rig = rig
        self.device = open_device(rig.descriptor)
        self._cache = cache

    @cached_property
    def subjects(self) -> dict[Item, Subject]:
        return {item: Subject(item, self.rig, self.device, self._cache) for item in self.rig.items}

    @cached_property
    def clean(self) -> dict[Item, Run]:
        return {item: subject.run() for item, subject in self.subjects.items()}

    def trial(self, fault: Plantable) -> Trial:
        """Run what the fault can reach with the fault on, and compare cell by cell."""
        places = self.rig.places(fault)
        reached = [item for item, run in self.clean.items() if run.kernels & places]
        with self.rig.planted(fault.name):
            runs = {item: self.subjects[item].run() for item in reached}
        changes = [c for item, run in runs.items() for c in _changes(self.clean[item], run)]
        return Trial(fault, tuple(planted_items(self.rig, fault)), runs, tuple(changes))


class Trials(dict[str, Trial]):
    """One trial of each fault, made when it is first asked for."""

    def __init__(self, bench: Bench, faults: Mapping[str, Plantable]) -> None:
        super().__init__()
        self._bench, self._faults = bench, faults

    def __missing__(self, name: str) -> Trial:
        self[name] = self._bench.trial(self._faults[name])
        return self[name]


def not_passing(bench: Bench) -> list[str]:
    """The cells of the clean run that do not pass, and why."""
    return [
        f"{record.key}: {record.outcome().value}: {record.to_outcome().message}"
        for run in bench.clean.values()
        for record in run.cells.values()
        if record.outcome() is not Outcome.PASS
    ]


def planted_items(rig: Rig, fault: Plantable) -> list[Item]:
    """The rig's items that a fault is planted in."""
    return [(op, dtype) for op, dtype in rig.items if op in fault.ops and dtype in fault.dtypes]


def _changes(before: Run, after: Run) -> Iterator[Change]:
    old, new = before.summary(), after.summary()
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield Change(key, old.get(key), new.get(key))


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch with one thread, as runs have it, and with as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
