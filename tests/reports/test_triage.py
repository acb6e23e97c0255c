"""Why a run is not green: planted situations, each with the part that is to blame."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devices.cell import CellKey, Outcome, Verdict
from reports.crcr import text_of
from reports.gate import NoBaseline, gate
from reports.model import CellResult, Run
from reports.triage import Analyzer, Job, NoRetry, TriageVerdict, Upstream, triage
from tests.reports.builders import (
    ADD_INT,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    failed,
    plan_document,
    results,
)
from tests.reports.relay_rules import check_verdict

BACKEND = {"backend": "2.5.0", "driver": "26.18"}
COMMIT = "0e797b5a6acf"
JOB = Job(
    "npu", "https://example.org/runs/1", Upstream(194610, COMMIT),
    Analyzer("torch-conformance", "0.2.0"), "2026-11-29T12:00:00Z",
)  # fmt: skip
NEWER = "2.14.0.dev20261129"


def a_run(
    *made: CellResult, facts: dict[str, str] | None = None, left_out: tuple[CellKey, ...] = (),
    cells: tuple[CellKey, ...] = CELLS, **origin: Any,
) -> Run:  # fmt: skip
    """A run of the backend above, with the results given; every other cell passes."""
    found = {c: r for c, r in results(*made, cells=cells).items() if c not in left_out}
    stated = BACKEND if facts is None else facts
    document = plan_document(cells, facts={**stated, "os": "linux"})
    return Run(Path("out"), document, replace(PROVENANCE, **origin), found)


def verdict_of(run: Run, job: Job = JOB, **others: Run) -> TriageVerdict:
    found = triage(gate(run), job, **others)
    assert found is not None
    check_verdict(json.loads(text_of(found)))
    return found


def blamed(run: Run, job: Job = JOB, **others: Run) -> tuple[str, str]:
    found = verdict_of(run, job, **others)
    return str(found.category), str(found.confidence)


BEFORE = a_run(start="2026-11-28T02:00:00+00:00")
RED = a_run(failed(CONV), torch=NEWER)
NIGHTLY = replace(JOB, upstream=Upstream(0, COMMIT))


def test_upstream_changed_and_the_failure_happens_again() -> None:
    found = verdict_of(RED, baseline=BEFORE, retry=RED)
    assert (found.category, found.confidence) == ("upstream", "high")
    assert found.reproduced_on_retry is True
    suspected = found.suspected_upstream
    assert suspected is not None and suspected.pr == 194610 and suspected.commit == COMMIT


def test_upstream_changed_and_nobody_tried_again() -> None:
    found = verdict_of(RED, NIGHTLY, baseline=BEFORE)
    assert (found.category, found.confidence) == ("upstream", "medium")
    assert found.reproduced_on_retry is None
    assert found.suspected_upstream is not None and found.suspected_upstream.pr is None


def test_a_pull_request_built_under_the_same_version_is_a_change_of_upstream() -> None:
    assert blamed(a_run(failed(CONV)), baseline=BEFORE)[0] == "upstream"


def test_upstream_changed_but_the_backend_states_no_version() -> None:
    run, before = a_run(failed(CONV), torch=NEWER, facts={}), a_run(facts={})
    assert blamed(run, baseline=before) == ("upstream", "low")


@pytest.mark.parametrize("changed", [{"backend": "2.6.0"}, {"driver": "26.22"}])
def test_the_backend_changed(changed: dict[str, str]) -> None:
    run = a_run(failed(CONV), facts={**BACKEND, **changed})
    nobody = replace(JOB, upstream=Upstream())
    assert blamed(run, nobody, baseline=BEFORE) == ("backend", "medium")
    assert blamed(run, nobody, baseline=BEFORE, retry=run) == ("backend", "high")


def test_both_changed() -> None:
    run = a_run(failed(CONV), torch=NEWER, facts={**BACKEND, "driver": "26.22"})
    assert blamed(run, baseline=BEFORE, retry=run) == ("unknown", "low")


def test_the_backend_failed_in_this_way_before() -> None:
    before = a_run(failed(CONV))
    assert blamed(RED, baseline=before, retry=RED) == ("backend", "high")


def test_of_old_and_new_failures_the_new_ones_decide() -> None:
    run = a_run(failed(CONV), failed(ADD_INT, raises="RuntimeError"), torch=NEWER)
    found = verdict_of(run, baseline=a_run(failed(CONV)), retry=run)
    assert found.category == "upstream"
    assert [item.test for item in found.evidence] == [str(ADD_INT)]


def test_the_machine_died() -> None:
    broken = [failed(c, outcome=Outcome.ERROR, failure=None, note="no device") for c in CELLS]
    run = a_run(*broken, torch=NEWER)
    assert blamed(run, baseline=BEFORE) == ("infra", "high")


def test_the_run_was_interrupted() -> None:
    run = a_run(failed(CONV), torch=NEWER, left_out=(BOUNDS,))
    assert blamed(run, baseline=BEFORE) == ("infra", "medium")


def test_the_suite_could_not_make_its_checks() -> None:
    run = a_run(failed(CONV, outcome=Outcome.ERROR, failure=None, note="KeyError"))
    assert blamed(run) == ("infra", "medium")


def test_only_another_machine_is_new() -> None:
    nobody = replace(JOB, upstream=Upstream())
    run = a_run(failed(CONV), device_name="the other board", host="builder9")
    found = verdict_of(run, nobody, baseline=BEFORE)
    assert (found.category, found.confidence) == ("infra", "low")
    assert "the other board" in found.summary and "builder" not in found.summary


def test_failures_that_do_not_happen_again_are_random() -> None:
    retry = a_run(torch=NEWER)
    found = verdict_of(RED, baseline=BEFORE, retry=retry)
    assert (found.category, found.confidence) == ("flake", "high")
    assert found.reproduced_on_retry is False and found.suspected_upstream is None


def test_of_failures_that_happen_again_the_random_ones_are_left_out() -> None:
    run = a_run(failed(CONV), failed(ADD_INT, raises="RuntimeError"), torch=NEWER)
    found = verdict_of(run, baseline=BEFORE, retry=RED)
    assert found.category == "upstream" and found.reproduced_on_retry is True
    assert [item.test for item in found.evidence] == [str(CONV)]


def test_nothing_changed_and_nobody_tried_again() -> None:
    run, nobody = a_run(failed(CONV)), replace(JOB, upstream=Upstream())
    assert blamed(run, nobody, baseline=BEFORE) == ("flake", "low")
    assert blamed(run, nobody, baseline=BEFORE, retry=run) == ("unknown", "low")


def test_a_new_suite_may_check_more() -> None:
    run = a_run(failed(CONV), torch=NEWER, suite_version="0.2.0")
    assert blamed(run, baseline=BEFORE) == ("unknown", "low")


def test_without_an_earlier_run_nobody_is_blamed() -> None:
    found = verdict_of(RED)
    assert (found.category, found.confidence) == ("unknown", "low")
    assert found.evidence[0].test == str(CONV) and found.evidence[0].job == "npu"


def test_cells_that_pass_unexpectedly_are_no_failures() -> None:
    run = a_run(failed(CONV, Verdict.IMPROVEMENT, outcome=Outcome.PASS, layouts=()))
    assert "1 cell does better than listed" in verdict_of(run).summary


def test_a_green_run_has_no_verdict() -> None:
    assert triage(gate(BEFORE), JOB) is None


def test_a_verdict_stays_small_however_much_fails() -> None:
    cells = tuple(CellKey("layout.values", f"op{n}" * 90, "float32") for n in range(30))
    made = [
        failed(c, raises=f"Error{n}", message="\N{SNOWMAN}\x00<b>" * 900)
        for n, c in enumerate(cells)
    ]
    found = verdict_of(a_run(*made, cells=cells))
    assert 1 <= len(found.evidence) <= 10


def test_a_retry_says_nothing_about_cells_that_it_did_not_run() -> None:
    absent = a_run(torch=NEWER, left_out=(CONV,))
    found = verdict_of(RED, baseline=BEFORE, retry=absent)
    assert (found.category, found.confidence, found.reproduced_on_retry) == (
        "upstream",
        "medium",
        None,
    )
    run = a_run(failed(CONV), failed(ADD_INT), torch=NEWER)
    found = verdict_of(run, baseline=BEFORE, retry=absent)
    assert (found.category, found.confidence, found.reproduced_on_retry) == (
        "upstream",
        "medium",
        False,
    )
    assert [item.test for item in found.evidence] == [str(CONV)]


def test_baseline_and_retry_must_be_of_the_same_device() -> None:
    with pytest.raises(NoRetry, match="the torch of the retry is '2.13.0\\+cpu'"):
        triage(gate(RED), JOB, None, BEFORE)
    with pytest.raises(NoBaseline, match="the device of the baseline is"):
        triage(gate(RED), JOB, replace(BEFORE, plan=_of_npu(), provenance=_npu()))


def _npu() -> Any:
    return replace(PROVENANCE, device="npu")


def _of_npu() -> Any:
    return plan_document(device="npu")
