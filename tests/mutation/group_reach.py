"""Which mutants of a process group each case reaches: a mutant is reached if it would change what a rank reads, receives or
writes.

``python -m tests.mutation.group_reach`` runs the cases once, with the group that is right, and lists the mutants that no
case reaches: these questions are missing. It takes some minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist

from conformance.checks.cases.cases import BehaviourCase
from devices.cell import Outcome
from opinfo.device import Device
from tests.distributed import measure
from tests.distributed.faulty import ENVIRONMENT, Mutant
from tests.mutation import group_mutants

Tensor = torch.Tensor
#: The mutant that changes nothing and notes which others would.
NOTING: Final = "noting"
#: The folder in which ranks note, and in which the file ``case`` names the case that runs.
FOLDER: Final = "FAULTY_GROUP_NOTES"
#: A file that keeps the table for later processes. It is right as long as neither suite nor mutants change.
TABLE: Final = "FAULTY_GROUP_TABLE"
#: Where a fault strikes: in an operand that is read, in a target that is written, or in the results.
READ, WRITTEN, MADE = "an operand is read", "a target is written", "results are made"


def places_of(spec: group_mutants.Spec) -> list[str]:
    """The names under which it is noted that a call runs the mutated code of a mutant, whether or not this changes anything.
    Faults of options have no such place."""
    if spec.kind in (*group_mutants.ROOTS, *group_mutants.REDUCTIONS):
        return []
    if spec.kind in group_mutants.READS:
        place = READ
    else:
        place = WRITTEN if spec.kind in group_mutants.WRITES else MADE
    return [spec._replace(kind=place).name]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    dense = [x.resolve_conj().clone(memory_format=torch.contiguous_format) for x in (one, other)]
    return torch.equal(*[x.view(-1).view(torch.uint8) for x in dense])


class Notes:
    """Notes each mutant that would change something, once for each case."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._case = folder, ""
        self._noted: set[str] = set()
        self._before: dict[str, list[list[Tensor]]] = {}

    def mutant(self) -> Mutant:
        """A mutant that changes nothing and notes what others would change."""
        return Mutant(
            read=self._read, write=self._write, options=self._options, results=self._results
        )

    def _note(self, collective: str, kind: str, conditions: Iterable[str]) -> None:
        for condition in conditions:
            name = group_mutants.Spec(collective, kind, condition).name
            if name not in self._noted:
                self._noted.add(name)
                with (self._folder / f"{os.getpid()}.notes").open("a") as file:
                    file.write(f"{self._case}\t{name}\n")

    def _begin(self) -> None:
        case = (self._folder / "case").read_text()
        if case != self._case:
            self._case = case
            self._noted.clear()

    def _pending(self, collective: str, kind: str, met: list[str]) -> list[str]:
        """The conditions that the operand meets, and with which this kind of mutant was not noted before."""
        specs = {each: group_mutants.Spec(collective, kind, each).name for each in met}
        return [each for each, name in specs.items() if name not in self._noted]

    def _options(self, collective: str, given: Any) -> None:
        self._begin()
        for kind in group_mutants.REDUCTIONS:
            old = getattr(dist.ReduceOp, kind.partition(" ")[0])
            if getattr(given, "reduceOp", None) == old:
                self._note(collective, kind, ["always"])
        if getattr(given, "rootRank", 0):
            self._note(collective, *group_mutants.ROOTS, ["always"])

    def _read(self, collective: str, x: Tensor) -> Tensor:
        self._begin()
        met = [each for each, holds in group_mutants.CONDITIONS.items() if holds(x)]
        self._note(collective, READ, met)
        for kind, read in group_mutants.READS.items():
            pending = self._pending(collective, kind, met)
            if pending and not same(read(x), x):
                self._note(collective, kind, pending)
        return x

    def _write(self, collective: str, target: Tensor, result: Tensor) -> None:
        self._begin()
        met = [each for each, holds in group_mutants.CONDITIONS.items() if holds(target)]
        self._note(collective, WRITTEN, met)
        for kind, write in group_mutants.WRITES.items():
            pending = self._pending(collective, kind, met)
            if not pending:
                continue
            right, wrong = _copy_of_storage(target), _copy_of_storage(target)
            right[1].copy_(result)
            write(wrong[1], result)
            if not torch.equal(right[0], wrong[0]):
                self._note(collective, kind, pending)
        target.copy_(result)

    def _results(self, collective: str, found: list[Tensor], rank: int, size: int) -> None:
        self._begin()
        conditions = {
            each: [place for place, x in enumerate(found) if holds(x)]
            for each, holds in group_mutants.CONDITIONS.items()
        }
        filled = {place for place, x in enumerate(found) if x.numel()}
        self._note(collective, MADE, [each for each, met in conditions.items() if filled & {*met}])
        lists = group_mutants.LISTS if collective in group_mutants.WITH_LISTS else ()
        for kind in (*group_mutants.RESULTS, *group_mutants.OTHERS, *lists):
            whole = kind in group_mutants.LISTS
            names = ["always"] if whole else [each for each, places in conditions.items() if places]
            pending = self._pending(collective, kind, names)
            if not found or not (pending or kind == group_mutants.EARLIER):
                continue
            copies = [x.clone() for x in found]
            spec = group_mutants.Spec(collective, kind, "always")
            before = self._before.setdefault(collective, [])
            group_mutants.change(
                spec, group_mutants.CONDITIONS["always"], copies, rank, size, before
            )
            other = [not same(a, b) for a, b in zip(copies, found)]
            self._note(
                collective,
                kind,
                [each for each in pending if any(other[place] for place in conditions[each])],
            )


def _copy_of_storage(x: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of the bytes of a tensor's storage, and the tensor's view of them."""
    raw = torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage().clone())
    view = torch.empty(0, dtype=x.dtype).set_(
        raw.untyped_storage(), x.storage_offset(), x.shape, x.stride()
    )
    return raw, view.conj() if x.is_conj() else view


@cache
def noting() -> Mutant:
    """The mutant that notes, for the ranks: one for each process, since it remembers earlier calls."""
    return Notes(Path(os.environ[FOLDER])).mutant()


@contextmanager
def collected() -> Iterator[Path]:
    """Lets the groups that are made in a block note what reaches them. Yields the folder of the notes."""
    with TemporaryDirectory() as folder:
        os.environ.update({ENVIRONMENT: NOTING, FOLDER: folder})
        (Path(folder) / "case").write_text("")
        try:
            yield Path(folder)
        finally:
            del os.environ[FOLDER]


def read_notes(folder: Path) -> Iterator[tuple[str, str]]:
    """The notes of all ranks: the case, and the mutant that it reaches."""
    for file in folder.glob("*.notes"):
        for line in file.read_text().splitlines():
            case, _, name = line.partition("\t")
            yield case, name


def table(
    device: Device, cases: Iterable[BehaviourCase], say: Callable[[], None] = lambda: None
) -> dict[str, set[str]]:
    """The mutants that each case reaches."""
    kept = Path(os.environ[TABLE]) if TABLE in os.environ else None
    if kept is not None and kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=dict[str, set[str]])
    found: dict[str, set[str]] = {}
    with collected() as folder:
        for case in cases:
            say()
            (folder / "case").write_text(case.id)
            found[case.id] = set()
            outcome, message = measure.outcome(case, device)
            if outcome is not Outcome.PASS:
                raise RuntimeError(
                    f"{case.id} fails without a mutant, so what it reaches is unknown: {message}"
                )
        for case_id, name in read_notes(folder):
            found[case_id].add(name)
    if kept is not None:
        kept.write_bytes(msgspec.json.encode(found))
    return found


def every_name() -> list[str]:
    """The names of all mutants that a seed can draw."""
    found = []
    for collective in group_mutants.ALL:
        for kind in group_mutants.kinds_of(collective):
            conditions = group_mutants.conditions_of(collective, kind)
            found += [group_mutants.Spec(collective, kind, each).name for each in conditions]
    return found


def main() -> int:
    with measure.opened() as device:
        found = table(device, measure.cases(*measure.CLAUSES))
    reached: set[str] = set().union(*found.values())
    names = every_name()
    missing = [name for name in names if name not in reached]
    print(*missing, sep="\n")
    print(f"{len(missing)} of {len(names)} mutants are reached by no case")
    return 0


if __name__ == "__main__":
    sys.exit(main())
