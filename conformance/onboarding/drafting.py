"""Functions that return the texts of the files that ``conform init`` writes: descriptor.py and expected.toml."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from jinja2 import Environment, StrictUndefined

from conformance.onboarding.primitives import nearest, source, why_none
from conformance.onboarding.questions import Question, Reply, allowance
from devices.cell import CellKey, Outcome
from devices.descriptor import CAPABILITIES, DTYPES, FACTS, FIRST_USE
from devices.lifecycle.text import render
from devices.manifest import Block, CauseKind, ExpectedOutcome
from reports.advice import TRIAGE
from reports.junit import one_line
from reports.model import CellResult

_DESCRIPTOR: Final = Path(__file__).with_name("descriptor.py.jinja")


def descriptor(question: Question, reply: Reply, day: date | None = None) -> str:
    """Returns the text of descriptor.py for a device. ``reply`` has the results of probing the device."""
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"quoted": json.dumps, "one_line": one_line}
    package = question.module.partition(".")[0]

    def comment(text: str, indent: str = "    ") -> str:
        return textwrap.indent("\n".join(textwrap.wrap(one_line(text), 86)), f"{indent}# ")

    def wrapped(names: Iterable[str]) -> str:
        return comment(", ".join(names))

    def fault_comment(name: str) -> str:
        for word, texts in (("wrong", reply.wrong), ("fails", reply.broken)):
            if found := one_line(texts.get(name, "")):
                return f"  # {word}: {textwrap.shorten(found, 80, placeholder='…')}"
        return ""

    def declared(known: Iterable[str], works: Container[str]) -> list[str]:
        """Returns those of the ``known`` names (capabilities or dtypes) that the descriptor declares: names that work,
        and names that exist but gave wrong results or failed. The clauses of the latter fail until they are right."""
        return [e for e in known if e in works or e in reply.wrong or e in reply.broken]

    answers = reply.capabilities
    works = {each for each in CAPABILITIES if answers.get(each)}
    without = {*works, *reply.wrong, *reply.raised}
    busy = next((each for each in reply.busy if each.works), None)
    offered = busy or nearest(reply.busy)
    snippet = source(offered.candidate, question.torch_type).rstrip("\n") if offered else ""
    return environment.from_string(_DESCRIPTOR.read_text("utf-8")).render(
        question=question,
        reply=reply,
        day=day or date.today(),
        package="" if package == "torch" else package,
        # One with a function to call after the import is there once the device is open.
        module="" if question.init else question.module,
        asks=reply.device_count > 1 or "device_name" in reply.facts,
        missing=[fact for fact in FACTS if fact not in reply.facts],
        silent={
            name: why
            for name, why in reply.raised.items()
            if name not in DTYPES and name not in reply.broken
        },
        absent=wrapped(
            each for each in CAPABILITIES if answers.get(each) is False and each not in without
        ),
        capabilities=declared(CAPABILITIES, works),
        dtypes=declared(sorted(DTYPES), reply.dtypes),
        first_use=allowance(reply.first_use) if allowance(reply.first_use) > FIRST_USE else None,
        fault_comment=fault_comment,
        busy=busy is not None,
        offered=offered,
        snippet=snippet if busy else "\n".join(_commented(snippet)),
        found=comment(
            f"{busy.work(question.torch_type)}: {busy.found}."
            if busy
            else f"{why_none(reply.busy, question.torch_type, 'streams' in works)}."
        ),
        unasked=wrapped(each for each in CAPABILITIES if answers.get(each) is None),
    )


def _commented(text: str) -> Iterator[str]:
    """Yields the lines of a Python source, each as a comment."""
    for line in text.splitlines():
        yield f"# {line}".rstrip()


def manifest(
    name: str,
    failing: Mapping[CellKey, CellResult],
    flaky: Mapping[CellKey, CellResult],
    apart: Mapping[CellKey, str],
    runs: int,
    day: date,
    until: date,
    reasons: Mapping[CellKey, str] = MappingProxyType({}),
) -> str:
    """Returns the text of expected.toml, the manifest of expected failures.

    ``failing`` holds the cells that fail in every run. ``flaky`` holds the cells that fail in some runs; the blocks of
    flaky cells expire on the day ``until``. ``apart`` holds the failing cells that no block can describe, each with the
    reason for that. ``reasons`` holds cells with their drafted reasons, one reason for each presumed cause; blocks with
    the same reason follow each other.
    """
    count = "one run" if runs == 1 else f"{runs} runs"
    lines = [
        f"# Expected failures of `{name}`, written by `conform init` on {day.isoformat()} from {count} of plan quick.",
        "# The blocks are grouped by presumed cause. Check each cause, write it into `reason` and `kind`, and split or join",
        "# blocks until each block has one root cause.",
    ]
    blocks: dict[str, list[Block]] = defaultdict(list)
    for group in _groups(failing.values(), reasons):
        block = _block(group, reasons)
        blocks[block.reason].append(block)
    for group in _groups(flaky.values(), reasons):
        block = replace(
            _block(group, reasons), outcome=ExpectedOutcome.FLAKY, expires=until, min_pass_rate=0.0
        )
        blocks[block.reason].append(block)
    order = {reason: place for place, reason in enumerate(dict.fromkeys(reasons.values()))}
    for reason in sorted(blocks, key=lambda each: order.get(each, len(order))):
        lines += ["", f"# {reason.removeprefix(TRIAGE).strip()}"]
        lines += [line for block in _joined(blocks[reason]) for line in ("", render(block))]
    if apart:
        lines += ["", "# No block can describe these cells. The gate is red until they are fixed:"]
        lines += [f"#   {key}: {one_line(why)}" for key, why in apart.items()]
    return "\n".join(lines) + "\n"


def way_of(result: CellResult) -> tuple[object, ...]:
    """Returns the properties by which a block of the manifest describes how a cell fails: the outcome, the layouts and
    the exception type."""
    return result.outcome, result.layouts, result.raises


def at_large(result: CellResult) -> CellResult:
    """Returns the result of a cell without its layouts and exception type, so that its block in the manifest allows any
    layout and any exception."""
    return msgspec.structs.replace(result, layouts=(), raises=None)


def _groups(
    failing: Iterable[CellResult], reasons: Mapping[CellKey, str]
) -> Iterable[list[CellResult]]:
    """Yields groups of failing cells. The cells of a group have the same cause and the same dtypes, and fail in the
    same way.

    The dtypes must be the same because a block of the manifest describes every combination of its ops and dtypes.
    """
    of_op: dict[tuple[object, str], list[CellResult]] = defaultdict(list)
    groups: dict[object, list[CellResult]] = defaultdict(list)
    for result in failing:
        way = (reasons.get(result.key), result.key.clause, way_of(result))
        of_op[way, result.key.unit].append(result)
    for (of, _), results in of_op.items():
        groups[of, tuple(sorted(each.key.dtype for each in results))] += results
    return groups.values()


def _joined(blocks: Iterable[Block]) -> Iterable[Block]:
    """Joins blocks of the manifest that differ only in their clauses."""
    clauses: dict[Block, tuple[str, ...]] = defaultdict(tuple)
    for block in blocks:
        clauses[replace(block, clause=())] += block.clause
    return [replace(block, clause=names) for block, names in clauses.items()]


def _block(group: list[CellResult], reasons: Mapping[CellKey, str]) -> Block:
    first = group[0]
    ops = tuple(dict.fromkeys(result.key.unit for result in group))
    unsupported = first.outcome is Outcome.UNSUPPORTED
    said = f"{TRIAGE} {first.key.unit}: {one_line(first.message)[:200]}"
    return Block(
        line=0,
        clause=(first.key.clause,),
        op=ops,
        dtype=tuple(sorted({result.key.dtype for result in group} - {""})) or ("*",),
        layouts=frozenset(first.layouts) or None,
        outcome=ExpectedOutcome(first.outcome.value),
        raises=first.raises,
        kind=CauseKind.NOT_IMPLEMENTED if unsupported else CauseKind.DEVICE_BUG,
        reason=reasons.get(first.key, said),
    )
