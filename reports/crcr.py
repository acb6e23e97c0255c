"""What PyTorch's Cross-Repository CI Relay takes of a run: counts, and where they come from.

The relay's callback action (pytorch/test-infra, .github/actions/cross-repo-ci-relay-callback) takes a JSON object as
its input ``test-results`` and sends it on as ``workflow.test_results``. PyTorch's HUD reads ``passed``, ``failed``,
``skipped`` and ``total`` (torchci/lib/crcr/crcrUtils.ts) and refuses a payload above 2 MiB; the action hands the text
through an environment variable, which on Linux holds 128 KiB at most. So what is made here stays under 100 KiB,
however large the run: names of failures fill what the counts leave.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from reports.gate import GateResult
from reports.junit import MISSING, element_of, headline
from reports.model import CellResult, Run

#: Bytes of the whole text.
LIMIT: Final = 100 * 1024
_LONGEST: Final = 300  # characters of one message
_FORMAT: Final = 1


def counts(run: Run) -> dict[str, int]:
    """The counts that the HUD shows: those of the JUnit files. A planned cell without an outcome has failed."""
    passed = failed = skipped = 0
    for cell in run.parsed.cells:
        result = run.results.get(cell)
        element = MISSING if result is None else element_of(result)
        if element is None:
            passed += 1
        elif element[0] == "skipped":
            skipped += 1
        else:
            failed += 1
    total = passed + failed + skipped
    return {"passed": passed, "failed": failed, "skipped": skipped, "total": total}


def payload(run: Run, result: GateResult) -> dict[str, Any]:
    """The object for the relay: counts, the gate's answer, the counts by clause, the environment, and as many
    new failures as fit. Nothing in it names the host or the device's uuid."""
    origin = asdict(run.provenance)
    environment = {
        name: value
        for name, value in origin.items()
        if name not in ("host", "device_uuid", "expectations") and value != ""
    }
    found: dict[str, Any] = {
        **counts(run),
        "conclusion": "success" if result.judgement.green else "failure",
        "conformance": {
            "format": _FORMAT,
            "exit_code": int(result.exit_code),
            "verdict": result.exit_code.label,
            "problems": [problem[:_LONGEST] for problem in result.problems[:20]],
            "clauses": _by_clause(result),
            "environment": environment,
            "new": [],
            "new_left_out": 0,
        },
    }
    _fill(found, [_told(each) for each in result.judgement.new])
    return found


def text_of(found: Mapping[str, Any]) -> str:
    """As one line of ASCII."""
    return json.dumps(found, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _by_clause(result: GateResult) -> dict[str, dict[str, int]]:
    """Passed of judged, and what else there is, by clause."""
    return {
        clause: {"passed": tally.passed, "judged": tally.judged}
        | {
            name: value
            for name in ("expected", "regressions", "improvements", "crashes", "hangs", "missing")
            if (value := getattr(tally, name))
        }
        for clause, tally in result.judgement.tallies.items()
    }


def _told(result: CellResult) -> dict[str, str]:
    return {
        "cell": str(result.key),
        "verdict": result.verdict.value,
        "outcome": result.outcome.value,
        "message": headline(result)[:_LONGEST],
    }


def _fill(found: dict[str, Any], new: list[dict[str, str]]) -> None:
    """Put in as many of the new failures as the limit leaves room for."""
    ours = found["conformance"]
    ours["new_left_out"] = len(new)
    room = LIMIT - len(text_of(found))
    for number, one in enumerate(new):
        room -= len(text_of(one)) + 1
        if room < 0:
            break
        ours["new"].append(one)
        ours["new_left_out"] = len(new) - number - 1
