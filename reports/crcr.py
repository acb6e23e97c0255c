"""Writes the results of a run for PyTorch's Cross-Repository CI Relay: counts of cells, the exit code, and new
failures.

The relay's callback action (pytorch/test-infra, .github/actions/cross-repo-ci-relay-callback) takes a JSON object as
its input ``test-results`` and sends that object on as ``workflow.test_results``. PyTorch's HUD reads ``passed``,
``failed``, ``skipped`` and ``total`` (torchci/lib/crcr/crcrUtils.ts) and refuses a payload above 2 MiB. The action
passes the text in an environment variable, which on Linux holds at most 128 KiB. The object therefore stays under 100
KiB for any run: besides the counts, it lists only as many failures by name as fit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import msgspec

from reports.gate import GateResult
from reports.junit import MISSING, clean, element_of, headline
from reports.model import CellResult, Run

#: The largest size of the whole text, in bytes.
LIMIT: Final = 100 * 1024
_LONGEST: Final = 300  # characters of a message
_FORMAT: Final = 1


class NewFailure(msgspec.Struct):
    """A cell that fails the gate and that the manifest does not list."""

    cell: str
    verdict: str
    outcome: str
    message: str


class Conformance(msgspec.Struct):
    """The part of the payload that only this project defines. The HUD passes that part on without reading it."""

    format: int
    exit_code: int
    verdict: str
    problems: list[str]
    clauses: dict[str, dict[str, int]]
    environment: dict[str, str | int | bool]
    new: list[NewFailure]
    new_left_out: int


class Payload(msgspec.Struct):
    """The object that is sent to the relay. It contains neither the name of the host nor the uuid of the device."""

    passed: int
    failed: int
    skipped: int
    total: int
    conclusion: str
    conformance: Conformance


def counts(run: Run) -> Counter[str]:
    """Returns the number of cells that ``passed``, ``failed`` and were ``skipped``, as in the JUnit files.

    A failure that does not gate counts as skipped, and a planned cell without an outcome counts as failed.
    """
    elements = (
        element_of(result, gates=not run.parsed.clauses[cell.clause].provisional)
        if (result := run.results.get(cell)) is not None
        else MISSING
        for cell in run.parsed.cells
    )
    shown = {None: "passed", "skipped": "skipped"}
    return Counter(shown.get(element and element[0], "failed") for element in elements)


def payload(judged: GateResult) -> Payload:
    """Returns the payload for a judged run: the counts, the exit code, the counts by clause, the environment, and as
    many new failures as fit."""
    run, code = judged.run, judged.exit_code
    found = counts(run)
    environment = {
        name: value
        for name, value in asdict(run.provenance).items()
        if name not in ("host", "device_uuid", "expectations") and value != ""
    }
    problems = [problem[:_LONGEST] for problem in judged.problems[:20]]
    ours = Conformance(
        _FORMAT, int(code), code.label, problems, _by_clause(judged), environment, [], 0
    )
    made = Payload(
        found["passed"], found["failed"], found["skipped"], found.total(),
        "success" if judged.green else "failure", ours,
    )  # fmt: skip
    _fill(made, judged.new)
    return made


def text_of(found: msgspec.Struct) -> str:
    """Returns an object as one line of ASCII JSON, for shells and environment variables."""
    return json.dumps(msgspec.to_builtins(found), separators=(",", ":"))


def _by_clause(judged: GateResult) -> dict[str, dict[str, int]]:
    """Returns for each clause the number of judged cells, the number of cells that passed, and the other counts that
    are not zero."""
    rare = ("expected", "regressions", "improvements", "not_gating", "crashes", "hangs", "missing")
    return {
        clause: {"passed": tally.passed, "judged": tally.judged}
        | {name: value for name in rare if (value := getattr(tally, name))}
        for clause, tally in judged.tallies.items()
    }


def _fill(found: Payload, new: Sequence[CellResult]) -> None:
    """Adds as many of the new failures to the payload as the size limit allows."""
    ours = found.conformance
    ours.new_left_out = len(new)
    room = LIMIT - len(text_of(found))
    for result in new:
        message = clean(headline(result))[:_LONGEST]
        one = NewFailure(str(result.key), str(result.verdict), str(result.outcome), message)
        room -= len(text_of(one)) + 1
        if room < 0:
            break
        ours.new.append(one)
        ours.new_left_out -= 1
