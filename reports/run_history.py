"""A compact history of runs: one line of JSON per run, at most 10 kB, that outlives the records.

A history is a text file that may be kept in git; lines of several branches merge by keeping all. It has what trends and
comparisons over months need: versions, labels, the verdict, counts by clause family, levels, the largest causes, and the
cells that did not pass, as far as they fit.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from devices.files import explained, read_regular
from reports.advice import sentence
from reports.failures import causes_in
from reports.gate import GateResult, Tally, gate, levels_of, not_whole, number
from reports.junit import one_line
from reports.model import Run, RunError, fold, write_file
from reports.run import record_file
from reports.status_letters import LETTERS, PASS, code_of
from reports.summary import verdict_line

FORMAT: Final = 1
#: The largest line, in bytes.
LIMIT: Final = 10_000
#: By convention, the name of the file.
HISTORY_FILE: Final = "history.jsonl"

_CAUSES: Final = 12
_LONGEST: Final = 160
#: The plan says which cells are unsupported by declaration, so a history does not list them.
_DECLARED: Final = frozenset(
    code
    for code, letter in LETTERS.items()
    if (letter.outcome, letter.verdict) == (Outcome.UNSUPPORTED, Verdict.OK)
)


class HistoryError(RunError):
    """The error for a history that cannot be read or written. The text of the error names the file and the line."""


class NotWhole(HistoryError):
    """The error for a run that does not show the result of a whole plan, so it has no place in a history."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Label:
    """Whose run it was: branch, commit and pull request of the project that made the run, and an address, such as that
    of the CI job. Empty texts and 0 stand for unknown."""

    branch: str = ""
    commit: str = ""
    pr: int = 0
    url: str = ""


class HistoryLevel(msgspec.Struct, frozen=True):
    """The result of a run for a level of conformance."""

    level: int
    version: str
    passed: int
    listed: int
    reached: bool


class HistoryCause(msgspec.Struct, frozen=True):
    """A cause of unexpected results: a sentence, the number of its cells, one of them, and whether it gates."""

    sentence: str
    cells: int
    example: str
    gates: bool


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in a history.

    ``record`` is the SHA-256 of the run's record, ``start`` its time in ISO 8601. ``suite_commit`` is the commit of the
    suite; ``label`` is about the project that made the run. ``counts`` has the counts of the gate that are not zero,
    ``families`` the passed and the judged cells of each clause family. ``causes`` are the largest causes, ``more_causes``
    is the number of the others. ``cells`` are the cells that did not pass, encoded, see ``not_passing``; None if they
    did not fit.
    """

    format: int
    record: str
    start: str
    device: str
    plan: str
    plan_hash: str
    torch: str
    suite: str
    device_name: str = ""
    driver: str = ""
    runtime: str = ""
    backend: str = ""
    python: str = ""
    suite_commit: str = ""
    label: Label = Label()
    exit_code: int
    verdict: str
    counts: dict[str, int]
    families: dict[str, tuple[int, int]]
    levels: tuple[HistoryLevel, ...] = ()
    causes: tuple[HistoryCause, ...] = ()
    more_causes: int = 0
    cells: str | None = None

    def not_passing(self) -> dict[CellKey, str] | None:
        """Returns the cells that did not pass, each with its status letter (``reports.status_letters``); None if the row
        does not have them. Cells that are unsupported by declaration are left out. Raises HistoryError if the row was
        damaged."""
        if self.cells is None:
            return None
        try:
            inflate = zlib.decompressobj()
            raw = inflate.decompress(base64.b85decode(self.cells), 64 << 20)
            by_letter = msgspec.json.decode(
                raw, type=dict[str, list[tuple[str, dict[str, list[str]]]]]
            )
        except (ValueError, zlib.error, msgspec.DecodeError) as error:
            raise HistoryError(
                f"the cells of the run of {self.start} are damaged: {error}"
            ) from None
        if unknown := sorted(by_letter.keys() - LETTERS.keys()):
            raise HistoryError(f"the run of {self.start} has the unknown status {unknown[0]!r}")
        return {
            CellKey.of_kind(clause, unit, kind): letter
            for letter, clauses in by_letter.items()
            for clause, units in clauses
            for unit, kinds in units.items()
            for kind in kinds
        }


def row_of(run: Run, label: Label = Label()) -> HistoryRow:
    """Returns the row of a run, of at most 10 kB: first the cells are left out if they do not fit, then the smallest
    causes. Raises NotWhole for a partial run, a shard, and a run without an outcome for each cell."""
    judged = gate(run)
    if reasons := (*not_whole(run), *judged.obstacles):
        raise NotWhole(f"{run.folder}: not added to the history: {reasons[0]}")
    record = record_file(run.folder)
    with explained(HistoryError, record, "cannot be read"):
        sha256 = hashlib.sha256(record.read_bytes()).hexdigest()
    causes = [
        HistoryCause(
            _cut(one_line(sentence(cause))),
            len(cause.results),
            str(cause.example.key),
            cause.gates,
        )
        for cause in causes_in(judged)
    ]
    cells: str | None = _encoded_cells(run)
    for count in range(min(len(causes), _CAUSES), -1, -1):
        made = _row(run, judged, sha256, label, causes[:count], len(causes) - count, cells)
        if len(line_of(made)) > LIMIT and cells is not None:
            cells = None
            made = msgspec.structs.replace(made, cells=None)
        if len(line_of(made)) <= LIMIT:
            return made
    raise HistoryError(
        f"{run.folder}: the run does not fit into {LIMIT:,} bytes, even without causes"
    )


def _row(
    run: Run,
    judged: GateResult,
    sha256: str,
    label: Label,
    causes: Sequence[HistoryCause],
    more: int,
    cells: str | None,
) -> HistoryRow:
    origin, facts = run.provenance, run.plan.facts
    families: dict[str, list[Tally]] = {}
    for clause, tally in judged.tallies.items():
        families.setdefault(run.parsed.clauses[clause].family, []).append(tally)
    sums = {family: Tally.sum(tallies) for family, tallies in families.items()}
    counts = {each.name: getattr(judged.counts, each.name) for each in fields(Tally)}
    return HistoryRow(
        format=FORMAT,
        record=sha256,
        start=origin.start,
        device=origin.device,
        plan=origin.plan,
        plan_hash=origin.plan_hash,
        torch=origin.torch,
        suite=origin.suite_version,
        device_name=origin.device_name,
        driver=origin.driver,
        runtime=str(facts.get("runtime") or ""),
        backend=str(facts.get("backend") or ""),
        python=origin.python,
        suite_commit=origin.suite_commit,
        label=label,
        exit_code=int(judged.exit_code),
        verdict=verdict_line(judged),
        counts={name: count for name, count in counts.items() if count},
        families={family: (each.passed, each.judged) for family, each in sums.items()},
        levels=tuple(
            HistoryLevel(each.level, each.version, each.passed, each.listed, each.reached)
            for each in levels_of(run)
        ),
        causes=tuple(causes),
        more_causes=more,
        cells=cells,
    )


def _encoded_cells(run: Run) -> str:
    by_letter: dict[str, list[CellKey]] = {}
    for cell in run.parsed.cells:
        letter = code_of(run.results.get(cell))
        if letter != PASS and letter not in _DECLARED:
            by_letter.setdefault(letter, []).append(cell)
    raw = msgspec.json.encode({letter: fold(cells) for letter, cells in by_letter.items()})
    return base64.b85encode(zlib.compress(raw, 9)).decode()


def line_of(row: HistoryRow) -> bytes:
    """Returns a row as one line of JSON, without a line break."""
    return msgspec.json.encode(row)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


# -- the file


def read_history(path: Path) -> list[HistoryRow]:
    """Returns the rows of a history, the oldest run first, each run once. Raises HistoryError, with the line, if the file
    cannot be read or was damaged."""
    with explained(HistoryError, path, "cannot be read"):
        lines = read_regular(path).splitlines()
    rows: dict[str, HistoryRow] = {}
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if line.startswith((b"<<<<<<<", b"=======", b">>>>>>>")):
            raise HistoryError(
                f"{path}:{place}: an unresolved conflict of git: keep the lines of both sides"
            )
        try:
            row = msgspec.json.decode(line, type=HistoryRow)
        except msgspec.DecodeError as error:
            raise HistoryError(f"{path}:{place}: expected a run of a history: {error}") from None
        if row.format != FORMAT:
            raise HistoryError(
                f"{path}:{place}: expected format {FORMAT}, found {row.format}: update torch-conformance"
            )
        rows[row.record] = row
    return sorted(rows.values(), key=lambda row: (row.start, row.device, row.plan, row.record))


def add_to_history(path: Path, rows: Iterable[HistoryRow]) -> list[HistoryRow]:
    """Adds the rows that a history does not have yet at its end, and returns them. The other lines stay as they are; a
    file that does not exist is made. Raises HistoryError."""
    known = {row.record for row in read_history(path)} if path.exists() else set()
    new = {row.record: row for row in rows if row.record not in known}
    if new:
        with explained(HistoryError, path, "cannot be read"):
            old = read_regular(path) if path.exists() else b""
        if old and not old.endswith(b"\n"):
            old += b"\n"
        write_file(path, old + b"".join(line_of(row) + b"\n" for row in new.values()))
    return list(new.values())


def history_lines(rows: Sequence[HistoryRow]) -> list[str]:
    """Returns a history as lines of text for a terminal: one line for each run, with what changed since the run before of
    the same device and plan."""
    before: dict[tuple[str, str], HistoryRow] = {}
    lines = []
    for row in rows:
        old = before.get((row.device, row.plan))
        label = " ".join(filter(None, (row.label.branch, row.label.commit[:10])))
        pr = f" #{row.label.pr}" if row.label.pr else ""
        where = f" [{one_line(label)}{pr}]" if label or pr else ""
        changed = f" ({change})" if old is not None and (change := changes_since(old, row)) else ""
        what = f"{row.start[:16]} {row.device} {row.plan} torch {row.torch}"
        lines.append(f"{one_line(what)}{where}: {one_line(row.verdict)}{changed}")
        before[row.device, row.plan] = row
    return lines


def changes_since(old: HistoryRow, new: HistoryRow) -> str:
    """Returns in words which versions changed between two runs, and how many cells newly fail and are fixed; an empty
    text if nothing changed. Without the cells of both rows, the number of passing cells is compared."""
    names = ("torch", "driver", "runtime", "backend", "suite")
    parts = [
        f"{name} {getattr(old, name) or '-'} -> {getattr(new, name) or '-'}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]
    was, now = old.not_passing(), new.not_passing()
    if was is not None and now is not None:
        worse, better = len(now.keys() - was.keys()), len(was.keys() - now.keys())
        parts += [f"{number(worse, 'cell')} newly not passing"] if worse else []
        parts += [f"{number(better, 'cell')} fixed or gone"] if better else []
    elif (more := _passed(new.counts) - _passed(old.counts)) != 0:
        parts.append(f"{abs(more):,} {'more' if more > 0 else 'fewer'} cells pass")
    return ", ".join(parts)


def _passed(counts: Mapping[str, int]) -> int:
    return counts.get("passed", 0)
