"""What random search found, in the results folder: one line of ``explore.jsonl`` each, and its script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from conformance.aside import AsideDied
from conformance.explore.aside import Effort, Finding, explored
from conformance.explore.turns import Item
from conformance.minimise.aside import Bench
from conformance.minimise.script import write_script
from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.errors import ConformError
from devices.expectations import Matcher, judge

FORMAT = 1
FINDINGS_FILE, EFFORT_FILE = "explore.jsonl", "explore.json"

Say = Callable[[str], None]


class FindingsError(ConformError):
    """Findings that cannot be read."""


@dataclass(frozen=True, slots=True)
class Line:
    """One finding of ``explore.jsonl``. ``expected`` says that the manifest expects it already."""

    finding: Finding
    expected: bool
    repro: str | None  # in the results folder


def explore(
    bench: Bench,
    items: Sequence[Item],
    matcher: Matcher,
    folder: Path,
    seed: int,
    seconds: float,
    say: Say,
) -> None:
    """Search, and write what was found as it comes; the run's own files and its verdict stay as they are."""
    effort, items = Effort(), worth_exploring(items, matcher)
    say(f"exploring for {seconds:g} s, seed {seed} …")
    path, new, known = folder / FINDINGS_FILE, 0, 0
    with path.open("w", encoding="utf-8") as stream:
        try:
            for finding in explored(bench, items, seed, seconds, effort) if items else ():
                line = Line(finding, is_expected(matcher, finding), _script(folder, finding))
                stream.write(json.dumps({"format": FORMAT, "seed": seed, **asdict(line)}) + "\n")
                stream.flush()
                known += line.expected
                new += not line.expected
                if not line.expected:
                    say(told(line))
        except AsideDied as death:
            say(f"exploring ended early, its process {death}")
    summary = {"format": FORMAT, "seed": seed, "new": new, "expected": known, **asdict(effort)}
    (folder / EFFORT_FILE).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    say(
        f"explored {_done(effort, items)} with {effort.checks:,} checks in {effort.seconds:.0f} s: "
        f"{new:,} new findings, {known:,} that the manifest expects"
        + (f"; `conform pin {folder}` pins what is new" if new else "")
    )


def _done(effort: Effort, items: Sequence[Item]) -> str:
    """What was searched."""
    ops = sum(bool(dtype) for _, dtype, _ in items)
    calls = f"{effort.candidates:,} random calls of {ops:,} op-dtype pairs"
    unshown = f" ({effort.unshown:,} of them showed nothing)" if effort.unshown else ""
    programs = f"{effort.programs:,} programs of {len(items) - ops:,} cases{unshown}"
    return " and ".join([calls] * bool(ops) + [programs] * (ops < len(items))) or "nothing"


#: Clauses whose checks write, or let the op write, where a stray write would show.
_WRITING = frozenset(
    f"layout.{name}"
    for name in ("bounds", "out_kept", "out_resize", "inplace", "variants", "overlap_raises")
)


def worth_exploring(items: Sequence[Item], matcher: Matcher) -> list[Item]:
    """The items without the cells that the manifest expects to fail: that they fail in other layouts too
    is no news. Where stray writes are expected, everything that writes is left out: random layouts would
    send them past the guards, and the process would die of it somewhere else."""
    kept: list[Item] = []
    for op, dtype, clauses in items:
        broken = {c for c in clauses if matcher.expect(CellKey(c, op, dtype)) is not None}
        if "layout.bounds" in broken:
            broken |= _WRITING
        if left := [c for c in clauses if c not in broken]:
            kept.append((op, dtype, left))
    return kept


def is_expected(matcher: Matcher, finding: Finding) -> bool:
    """Whether the manifest expects the cell to fail so, in the layout of the minimised example or in one
    that it gives the first or the other tensors."""
    expectation = matcher.expect(finding.cell)
    if expectation is None or finding.example is None:
        return False
    layout = finding.example.layout
    raises = finding.kind.removeprefix("raised ") if finding.kind.startswith("raised ") else None
    for name in dict.fromkeys((layout, *layout.split("/"))):
        seen = Observed(Outcome.FAIL, frozenset({name}), raises, finding.example.message)
        if judge(expectation, seen).verdict in (Verdict.EXPECTED, Verdict.FLAKY):
            return True
    return False


def told(line: Line) -> str:
    """A finding for people, over several lines."""
    finding = line.finding
    head = f"found {finding.cell}: {finding.kind}"
    if finding.example is None and not finding.told:
        return f"{head} (item {finding.number}; an earlier call may have done the harm)"
    lines = [head]
    if finding.example is not None:
        lines += [f"    {text}" for text in finding.example.lines()]
    else:
        lines.append(f"    smallest failing program: {finding.told}")
    if line.repro is not None:
        lines.append(f"    python {line.repro}")
    return "\n".join(lines)


def _script(folder: Path, finding: Finding) -> str | None:
    if not finding.script:
        return None
    clause, op, dtype = finding.cell
    name = "-".join(filter(None, (op, dtype, finding.kind, finding.where)))
    return write_script(folder, Path("explore") / clause, name, finding.script)


def read_findings(folder: Path) -> list[Line]:
    """The findings of a run's folder. Raises FindingsError."""
    path = folder / FINDINGS_FILE
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise FindingsError(
            f"{path}: not found; expected the results folder of a run with --explore"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FindingsError(f"{path}: cannot be read: {error}") from None
    found = []
    for number, text in enumerate(texts, 1):
        try:
            data: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
            if data.pop("format", None) != FORMAT:
                raise msgspec.ValidationError(f"expected format {FORMAT}")
            data.pop("seed", None)
            found.append(msgspec.convert(data, Line))
        except msgspec.MsgspecError as error:
            raise FindingsError(f"{path}:{number}: not a finding: {error}") from None
    return found


def new_among(lines: Iterable[Line]) -> list[Line]:
    """Those that the manifest does not expect."""
    return [line for line in lines if not line.expected]
