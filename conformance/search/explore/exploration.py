"""Random search in the controller process: the order of items, the subprocess, and the findings in the results folder.

Call number ``k`` of item ``i`` in pass ``p`` depends only on the seed, ``p``, ``i`` and ``k``; the same is true of
programs. So a longer search finds everything that a shorter one found, and possibly more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, NamedTuple

import msgspec

from conformance.checks.child import Child, ChildDied, ChildLimits, messages
from conformance.contract import Contract
from conformance.plan.planner import undeclared_clauses, untried
from conformance.plan.selection import Item
from conformance.search.confirm import repeat_alone
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

#: Seconds without a message after which the subprocess counts as hung.
_SILENCE = 120.0
#: An item that has killed this many subprocesses gets no more turns.
_DEATHS = 3
#: The number of turns of ops before a case that draws programs has one. The turn of a case takes about as
#: long as two to ten turns of ops.
OPS_BEFORE_A_CASE = 4
_TARGET = "conformance.search.explore.search_worker:serve"


class Finding(msgspec.Struct, frozen=True):
    """A failure that random search found, with its script and the data that is needed to pin it: to keep it as a
    fixed example that every later run of the device checks again.

    A call has ``example``, ``call`` and ``layouts``. A program has ``program``, and ``text``, which describes the
    program and what is wrong. If a finding cannot be written as data, ``unpinnable`` says why. A finding that has
    neither ``example`` nor ``text`` killed the subprocess; ``kind`` says how the subprocess ended.
    """

    cell: CellKey
    kind: str
    where: str  # which check failed
    number: str  # ``pass:item:candidate``, or ``pass:item`` for a program: draws it again
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
    """The properties by which findings are compared: two findings with equal properties count as the same finding."""

    cell: CellKey
    kind: str
    where: str


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``explore.jsonl``. ``expected`` is always False, because cells with a block in the manifest are not
    searched."""

    format: Literal[1] = FORMAT
    seed: int
    finding: Finding
    expected: bool = False
    repro: str | None  # path of the script in the results folder


class Counts(msgspec.Struct):
    """The numbers of calls, checks and programs that a search has run."""

    candidates: int = 0
    checks: int = 0
    unmade: int = 0  # candidates that could not be built
    programs: int = 0
    unshown: int = 0  # programs that proved nothing, e.g. because work finished too early


class Effort(Counts):
    passes: float = 0.0  # passes over all ops and dtypes, or over the cases if no op is selected
    restarts: int = 0
    seconds: float = 0.0
    start_bytes: int = 0  # peak resident memory of the subprocess after its first item
    halfway_bytes: int = 0  # the same after half of the time; must not grow any more
    peak_bytes: int = 0  # the same at the end

    def add(self, counts: Counts, peak_bytes: int) -> None:
        for name in Counts.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.start_bytes = self.start_bytes or peak_bytes
        self.peak_bytes = max(self.peak_bytes, peak_bytes)


class Orders(msgspec.Struct, frozen=True):
    bench: Bench
    items: list[Item]
    seed: int
    position: int  # the number of the first turn
    seconds: float
    seen: list[Sign]
    left_out: list[Item]


class Turn(msgspec.Struct, frozen=True, tag="turn"):
    """A message of the subprocess: a turn (the visit of one item) has begun, or it has ended with the given counts."""

    position: int
    counts: Counts
    peak_bytes: int


class Found(msgspec.Struct, frozen=True, tag="found"):
    """A message of the subprocess: a finding. A program is first sent in the form in which it was found (``shrunk`` is
    False), and then in its smallest form."""

    finding: Finding
    shrunk: bool = True


#: The messages of the subprocess. The last one is None: the time is over.
Message = Turn | Found | None


# -- the order of turns


class Turns:
    """The order in which a search visits its items (an op and dtype, or a case). The order depends only on the items
    and the seed.

    Ops and cases are visited in passes; each pass has an order of its own.
    """

    def __init__(self, items: Sequence[Item], seed: int) -> None:
        self.seed = seed
        self.ops = [item for item in items if not item.is_case]
        self.cases = [item for item in items if item.is_case]

    def at(self, position: int) -> tuple[Item, int, int]:
        """Returns the item that turn number ``position`` visits, the number of the pass over all items, and the place
        of the item in that pass."""
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
        """Returns the number of complete passes over all ops, or over all cases if the search has no ops."""
        if self.ops and self.cases:
            position -= position // (OPS_BEFORE_A_CASE + 1)
        return position / len(self.ops or self.cases)


def drawing_cells(
    cells: Iterable[CellKey], descriptor: Descriptor, contract: Contract
) -> Iterator[CellKey]:
    """Yields the cells whose cases run random programs and are tried on this device. Cases that only run more programs
    of another case (``more``) are left out."""
    undeclared, left_out = undeclared_clauses(descriptor, contract), untried(descriptor, contract)
    for cell in cells:
        case = find_case(cell)
        if case is None or case.drawn is None or case.more:
            continue
        if cell.clause not in undeclared and cell.name not in left_out.get(cell.clause, {}):
            yield cell


#: The clauses whose checks write, or let the op write, to places where a stray write would show.
_WRITING = frozenset(
    f"layout.{name}"
    for name in ("bounds", "out_kept", "out_resize", "inplace", "variants", "overlap_raises")
)


def worth_exploring(items: Sequence[Item], matcher: Matcher) -> list[Item]:
    """Returns the items without the cells that the manifest expects to fail, because further failing layouts of such
    cells add no information. If the manifest expects an op to write outside of its output, all clauses whose checks
    make it write are left out too: in random layouts the op would write past the guard bytes, and the subprocess would
    crash at some later point."""
    kept: list[Item] = []
    for item in items:
        broken = {c.clause for c in item.cells if matcher.expect(c) is not None}
        if "layout.bounds" in broken:
            broken |= _WRITING
        if left := [c for c in item.clauses if c not in broken]:
            kept.append(item._replace(clauses=left))
    return kept


# -- the subprocess


def explored(
    bench: Bench, items: Sequence[Item], seed: int, seconds: float, effort: Effort
) -> Iterator[Finding]:
    """Runs a random search for ``seconds``, not counting the time to load torch. Yields findings and updates
    ``effort``.

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
            child = Child(_TARGET, msgspec.to_builtins(orders), ChildLimits(silence=_SILENCE))
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
                        break  # the subprocess is killed, because unloading torch takes time
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
                text = f"{shrinking.text} (not shrunk: the subprocess {how})"
                yield msgspec.structs.replace(shrinking, text=text)
            item, visit, place = turns.at(position)
            cell = _process(item)
            deaths[cell] += 1
            if deaths[cell] == 1:
                number = f"{visit}:{place}"
                yield Finding(cell, how, "", number, unpinnable="the finding killed the subprocess")
            position += 1
    effort.passes = turns.passes(position)


def _process(item: Item) -> CellKey:
    """Returns the cell for which the death of the subprocess is reported if it dies while it visits the item."""
    unit = f"{item.clauses[0]}::{item.unit}" if item.is_case else item.unit
    return CellKey("process", unit, item.dtype, item.variant)


# -- the results folder


def explore(
    bench: Bench,
    items: Sequence[Item],
    matcher: Matcher,
    folder: Path,
    seed: int,
    seconds: float,
    say: Say,
) -> str:
    """Runs a random search, and writes each finding to the results folder at once. The files of the run and its verdict
    do not change. Returns a line for the user with the number of calls and programs that were tried, and the number of
    new findings."""
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
            say(f"exploring ended early: the subprocess {death}")
    counts = {"format": FORMAT, "seed": seed, "new": new, "expected": 0}
    summary = msgspec.json.encode(counts | msgspec.to_builtins(effort))
    write_whole(folder / EFFORT_FILE, msgspec.json.format(summary, indent=1) + b"\n")
    return (
        f"explored {_describe_effort(effort, items)} with {effort.checks:,} checks in {effort.seconds:.0f} s: "
        f"{new:,} new findings" + (f"; `conform pin {folder}` pins them" if new else "")
    )


def _describe_effort(effort: Effort, items: Sequence[Item]) -> str:
    ops = sum(not item.is_case for item in items)
    calls = f"{effort.candidates:,} random calls of {ops:,} op-dtype pairs"
    unshown = f" ({effort.unshown:,} of them inconclusive)" if effort.unshown else ""
    programs = f"{effort.programs:,} programs of {len(items) - ops:,} cases{unshown}"
    return " and ".join([calls] * bool(ops) + [programs] * (ops < len(items))) or "nothing"


def description(finding: Finding, repro: Path | None) -> str:
    """Returns a finding as text for people, on several lines."""
    head = f"found {finding.cell}: {finding.kind}"
    if finding.example is not None:
        lines = finding.example.lines()
    elif finding.text:
        lines = [f"smallest failing program: {finding.text}"]
    else:
        return f"{head} (in turn {finding.number}, written as pass:item; an earlier call may be the cause)"
    return "\n    ".join([head, *lines, *([f"python {repro}"] if repro is not None else [])])


def _script(folder: Path, finding: Finding) -> str | None:
    if not finding.script:
        return None
    clause, *names = *finding.cell, finding.kind, finding.where
    return write_script(folder, "explore", clause, names, finding.script)


def new_findings(folder: Path) -> list[Line]:
    """Returns the findings in a results folder. Raises ConformError if they cannot be read."""
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
            raise ConformError(f"{path}:{number}: the line is not a finding: {error}") from None
    return found


# -- pinning


def not_pinnable(run: Path, line: Line, *, confirm: bool) -> str | None:
    """Returns the reason why a finding cannot be pinned; None if it can be pinned. If ``confirm`` is true, the script
    of the finding is run and must exit with status 1."""
    if line.finding.unpinnable:
        return line.finding.unpinnable
    if not confirm:
        return None
    if line.repro is None or not (run / line.repro).is_file():
        return "the finding has no repro script"
    return repeat_alone(run / line.repro).why_not or None


def pinned_of(finding: Finding, reason: str | None, torch: str) -> Pinned:
    """Returns a finding as a pinned example. If ``reason`` is None, the reason is the failure message and the version
    of torch."""
    message = finding.example.message if finding.example is not None else finding.text
    return Pinned(
        **finding.cell.as_data(),
        call=finding.call,
        layouts=finding.layouts,
        program=tuple(finding.program),
        kind=finding.kind,
        reason=reason or f"found by random search on torch {torch}: {message or finding.kind}",
        date=date.today().isoformat(),
    )
