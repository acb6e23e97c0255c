"""Random search as the controller sees it: whose turn it is, the subprocess, and the findings in the results folder.

Candidate number ``k`` of item ``i`` in pass ``p`` depends only on the seed, ``p``, ``i`` and ``k``, and so do
programs. A longer search therefore finds what a shorter one found, and more. Only the set of findings grows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, NamedTuple

import msgspec

from conformance.checks.child import Child, ChildDied, Limits, messages
from conformance.checks.clock import ends_within
from conformance.contract import Contract
from conformance.plan.planner import undeclared_clauses, untried
from conformance.plan.selection import Item, is_case
from conformance.search.minimise.tasks import Bench
from conformance.search.repros import Say, write_script
from conformance.suites import find_case
from devices.cell import CellKey
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.files import write_whole
from devices.pinned import Pinned
from devices.verdicts import Matcher
from reports.model import Example

FORMAT: Final = 1
FINDINGS_FILE, EFFORT_FILE = "explore.jsonl", "explore.json"

#: Seconds without a message after which the subprocess is taken to hang.
_SILENCE = 120.0
#: An item that has ended this many subprocesses gets no more turns.
_DEATHS = 3
#: Turns of ops before a case that draws programs has one, which takes about as long as two to ten of theirs.
OPS_BEFORE_A_CASE = 4
#: Seconds that one repro script may take when a finding is confirmed.
_CONFIRM_SECONDS = 120
_TARGET = "conformance.search.explore.hunt:serve"


class Finding(msgspec.Struct, frozen=True):
    """A failure that random search found: minimised, with its script and what pinning needs.

    A call has ``example``, ``call`` and ``layouts``. A program has ``program`` and ``text``, which describes it and
    what is wrong. If neither can be written as data, ``unpinnable`` says why. A finding without example and
    text ended the subprocess: ``kind`` says how.
    """

    cell: CellKey
    kind: str
    where: str  # the sort of check
    number: str  # ``pass:item:candidate``, or ``pass:item`` of a program: draws it again from the same seed
    example: Example | None = None
    script: str = ""
    call: dict[str, Any] = {}
    layouts: dict[str, str] = {}
    unpinnable: str = ""
    text: str = msgspec.field(default="", name="told")
    program: list[Any] = []
    raises: str | None = None

    @property
    def sign(self) -> Sign:
        return Sign(self.cell, self.kind, self.where)


class Sign(NamedTuple):
    """What makes two findings the same."""

    cell: CellKey
    kind: str
    where: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``explore.jsonl``. No finding is ``expected``: cells with a block in the manifest are not searched."""

    format: Literal[1] = FORMAT
    seed: int
    finding: Finding
    expected: bool = False
    repro: str | None  # its path in the results folder


class Counts(msgspec.Struct):
    """What was done."""

    candidates: int = 0
    checks: int = 0
    unmade: int = 0  # candidates that could not be laid out, such as index values that do not fit
    programs: int = 0
    unshown: int = 0  # programs that proved nothing, because no work was in flight in time


class Effort(Counts):
    passes: float = 0.0  # over all ops and dtypes; without any, over the cases that draw programs
    restarts: int = 0
    seconds: float = 0.0
    start_bytes: int = 0  # largest resident memory of the subprocess after its first item …
    halfway_bytes: int = 0  # … after half of the time: nothing should be added after that …
    peak_bytes: int = 0  # … and at the end

    def add(self, counts: Counts, peak_bytes: int) -> None:
        for name in Counts.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.start_bytes = self.start_bytes or peak_bytes
        self.peak_bytes = max(self.peak_bytes, peak_bytes)


class Orders(msgspec.Struct, frozen=True):
    bench: Bench
    items: list[Item]
    seed: int
    position: int  # the turn to begin with
    seconds: float
    seen: list[Sign]
    left_out: list[Item]


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """A message of the subprocess: a turn begins, or has ended with these counts."""

    position: int
    counts: Counts
    peak_bytes: int


class Found(msgspec.Struct, frozen=True, tag="found"):
    """A message of the subprocess: a finding. A program is sent first as it failed, then ``shrunk``."""

    finding: Finding
    shrunk: bool = True


#: None is the last message: the time is over.
Message = Turn | Found | None


# -- whose turn it is


class Turns:
    """The order of turns. It depends only on the items and the seed.

    Ops and cases are visited in passes, each pass in an order of its own.
    """

    def __init__(self, items: Sequence[Item], seed: int) -> None:
        self.seed = seed
        self.ops = [item for item in items if item.dtype]
        self.cases = [item for item in items if not item.dtype]

    def at(self, position: int) -> tuple[Item, int, int]:
        """The item of a turn, the number of its pass, and its place in that pass."""
        items, turn = self.ops or self.cases, position
        if self.ops and self.cases:
            whole, rest = divmod(position, OPS_BEFORE_A_CASE + 1)
            turn = whole * OPS_BEFORE_A_CASE + rest
            if rest == OPS_BEFORE_A_CASE:
                items, turn = self.cases, whole
        visit, place = divmod(turn, len(items))
        order = list(items)
        Random(f"{self.seed}:{visit}").shuffle(order)
        return order[place], visit, place

    def passes(self, position: int) -> float:
        """How often all ops have had their turn, or all cases if there are no ops."""
        if self.ops and self.cases:
            position -= position // (OPS_BEFORE_A_CASE + 1)
        return position / len(self.ops or self.cases)


def drawing_cells(
    cells: Iterable[CellKey], descriptor: Descriptor, contract: Contract
) -> Iterator[CellKey]:
    """The cells whose cases draw programs, and are tried here. Those that draw ``more`` of another case's are left out."""
    undeclared, left_out = undeclared_clauses(descriptor, contract), untried(descriptor, contract)
    for cell in cells:
        case = find_case(cell) if is_case(cell) else None
        if case is None or case.drawn is None or case.more:
            continue
        if cell.clause not in undeclared and case.name not in left_out.get(cell.clause, {}):
            yield cell


#: Clauses whose checks write, or let the op write, where a stray write would show.
_WRITING = frozenset(
    f"layout.{name}"
    for name in ("bounds", "out_kept", "out_resize", "inplace", "variants", "overlap_raises")
)


def worth_exploring(items: Sequence[Item], matcher: Matcher) -> list[Item]:
    """The items without the cells that the manifest expects to fail: that they fail in other layouts too is
    not news. If stray writes are expected, everything that writes is left out: in random layouts it would
    write past the guards, and the subprocess would die of it somewhere else."""
    kept: list[Item] = []
    for op, dtype, clauses in items:
        broken = {c for c in clauses if matcher.expect(CellKey(c, op, dtype)) is not None}
        if "layout.bounds" in broken:
            broken |= _WRITING
        if left := [c for c in clauses if c not in broken]:
            kept.append(Item(op, dtype, left))
    return kept


# -- the subprocess


def explored(
    bench: Bench, items: Sequence[Item], seed: int, seconds: float, effort: Effort
) -> Iterator[Finding]:
    """Search for this many seconds (loading torch not counted); yields findings and fills in ``effort``.

    Raises ChildDied if the subprocess does not start.
    """
    turns = Turns(items, seed)
    position = 0
    seen: list[Sign] = []
    deaths: Counter[CellKey] = Counter()
    while effort.seconds < seconds:
        left_out = [item for item in items if deaths[_process(item)] >= _DEATHS]
        left = seconds - effort.seconds
        orders = Orders(bench, list(items), seed, position, left, seen, left_out)
        up: float | None = None
        shrinking: Finding | None = None
        try:
            child = Child(_TARGET, msgspec.to_builtins(orders), Limits(silence=_SILENCE))
            for message in messages(child):
                up = time.monotonic() if up is None else up
                match msgspec.convert(message, Message):
                    case Turn(position, counts, peak):
                        shrinking = None
                        effort.add(counts, peak)
                        if 2 * (effort.seconds + time.monotonic() - up) < seconds:
                            effort.halfway_bytes = effort.peak_bytes
                    case Found(shrinking, shrunk=False):
                        pass
                    case Found(finding):
                        shrinking = None
                        seen.append(finding.sign)
                        yield finding
                    case None:
                        break  # the subprocess is killed: unloading torch takes time
            effort.seconds += time.monotonic() - up if up is not None else 0.0
            break
        except ChildDied as death:
            if up is None:
                raise
            how = death.ended.how
            effort.seconds += time.monotonic() - up
            effort.restarts += 1
            if shrinking is not None:
                seen.append(shrinking.sign)
                text = f"{shrinking.text} (not shrunk: the process {how})"
                yield msgspec.structs.replace(shrinking, text=text)
            item, visit, place = turns.at(position)
            cell = _process(item)
            deaths[cell] += 1
            if deaths[cell] == 1:
                number = f"{visit}:{place}"
                yield Finding(cell, how, "", number, unpinnable="it ended the process")
            position += 1
    effort.passes = turns.passes(position)


def _process(item: Item) -> CellKey:
    """The cell under which a death of the subprocess is reported."""
    op, dtype, clauses = item
    return CellKey("process", op, dtype) if dtype else CellKey("process", f"{clauses[0]}::{op}", "")


# -- the results folder


def explore(
    bench: Bench,
    items: Sequence[Item],
    matcher: Matcher,
    folder: Path,
    seed: int,
    seconds: float,
    say: Say,
) -> None:
    """Search, and write each finding when it comes. The run's own files and its verdict do not change."""
    effort, items, new = Effort(), worth_exploring(items, matcher), 0
    say(f"exploring for {seconds:g} s, seed {seed} …")
    with (folder / FINDINGS_FILE).open("wb") as stream:
        try:
            for finding in explored(bench, items, seed, seconds, effort) if items else ():
                new += 1
                repro = _script(folder, finding)
                line = Line(seed=seed, finding=finding, repro=repro)
                stream.write(msgspec.json.encode(line) + b"\n")
                stream.flush()
                say(description(finding, folder / repro if repro is not None else None))
        except ChildDied as death:
            say(f"exploring ended early: its process {death}")
    counts = {"format": FORMAT, "seed": seed, "new": new, "expected": 0}
    summary = msgspec.json.encode(counts | msgspec.to_builtins(effort))
    write_whole(folder / EFFORT_FILE, msgspec.json.format(summary, indent=1) + b"\n")
    say(
        f"explored {_done(effort, items)} with {effort.checks:,} checks in {effort.seconds:.0f} s: "
        f"{new:,} new findings" + (f"; `conform pin {folder}` pins them" if new else "")
    )


def _done(effort: Effort, items: Sequence[Item]) -> str:
    ops = sum(bool(item.dtype) for item in items)
    calls = f"{effort.candidates:,} random calls of {ops:,} op-dtype pairs"
    unshown = f" ({effort.unshown:,} of them showed nothing)" if effort.unshown else ""
    programs = f"{effort.programs:,} programs of {len(items) - ops:,} cases{unshown}"
    return " and ".join([calls] * bool(ops) + [programs] * (ops < len(items))) or "nothing"


def description(finding: Finding, repro: Path | None) -> str:
    """A finding for people, over several lines."""
    head = f"found {finding.cell}: {finding.kind}"
    if finding.example is not None:
        lines = finding.example.lines()
    elif finding.text:
        lines = [f"smallest failing program: {finding.text}"]
    else:
        return f"{head} (item {finding.number}; an earlier call may have caused it)"
    return "\n    ".join([head, *lines, *([f"python {repro}"] if repro is not None else [])])


def _script(folder: Path, finding: Finding) -> str | None:
    if not finding.script:
        return None
    clause, *names = *finding.cell, finding.kind, finding.where
    return write_script(folder, "explore", clause, names, finding.script)


def new_findings(folder: Path) -> list[Line]:
    """The findings in a results folder. Raises ConformError."""
    path = folder / FINDINGS_FILE
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        wanted = "expected the results folder of a run with --explore"
        raise ConformError(f"{path}: cannot be read: {error}; {wanted}") from None
    found: list[Line] = []
    for number, text in enumerate(texts, 1):
        try:
            found.append(msgspec.json.decode(text, type=Line))
        except msgspec.MsgspecError as error:
            raise ConformError(f"{path}:{number}: not a finding: {error}") from None
    return found


# -- pinning


def not_pinnable(run: Path, line: Line, *, confirm: bool) -> str | None:
    """Why a finding of a run cannot be pinned; None if it can. To ``confirm`` it, its script must exit 1."""
    if line.finding.unpinnable:
        return line.finding.unpinnable
    if not confirm:
        return None
    if line.repro is None or not (run / line.repro).is_file():
        return "it has no repro script"
    command = [sys.executable, str((run / line.repro).absolute())]
    with tempfile.TemporaryFile("w+") as printed:
        child = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
        in_time = ends_within(child, _CONFIRM_SECONDS)
        if not in_time:
            child.kill()
        status = child.wait()
        printed.seek(0)
        lines = printed.read().strip().splitlines()
    if not in_time:
        return f"its script took more than {_CONFIRM_SECONDS} s"
    if status == 1 and any("FAIL: " in each for each in lines):
        return None
    return f"its script exits {status} in a new process ({lines[-1] if lines else 'no message'})"


def pinned_of(finding: Finding, reason: str | None, torch: str) -> Pinned:
    """A finding as a pinned example. Its reason is how it failed, on which ``torch``, if none is given."""
    message = finding.example.message if finding.example is not None else finding.text
    return Pinned(
        **finding.cell._asdict(),
        call=finding.call,
        layouts=finding.layouts,
        program=tuple(finding.program),
        kind=finding.kind,
        reason=reason or f"found by random search on torch {torch}: {message or finding.kind}",
        date=date.today().isoformat(),
    )
