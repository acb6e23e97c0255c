"""What is known to be flaky is held to its pass rate, over as many runs as there are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.manifest import Manifest
from devices.verdicts import Expectation, Matcher, judge_flaky

PASS, FAIL = Observed(Outcome.PASS), Observed(Outcome.FAIL, frozenset({"offset"}))
CRASH, NOT_RUN = Observed(Outcome.CRASH), Observed(Outcome.NOT_RUN)


def flaky(rate: float, layouts: str = "") -> Expectation:
    text = (
        '[[expect]]\nclause = "a.b"\noutcome = "flaky"\nreason = "why"\nexpires = 2027-01-01\n'
        f"min_pass_rate = {rate}\n{layouts}"
    )
    found = Matcher(Manifest.parse(text)).expect(CellKey("a.b", "add", "int8"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ([FAIL], Verdict.FLAKY),  # one run says nothing of a rate
        ([FAIL, NOT_RUN], Verdict.FLAKY),
        ([PASS, PASS], Verdict.FLAKY),
        ([PASS, FAIL], Verdict.FLAKY),
        ([PASS, FAIL, FAIL], Verdict.REGRESSION),
        ([FAIL, FAIL], Verdict.REGRESSION),
        ([PASS, PASS, CRASH], Verdict.REGRESSION),
        ([NOT_RUN], Verdict.MISSING),
    ],
)
def test_a_pass_rate_of_one_half_is_held(seen: Sequence[Observed], verdict: Verdict) -> None:
    assert judge_flaky(flaky(0.5), seen).verdict is verdict


def test_a_failure_outside_of_its_layouts_is_a_regression_whatever_the_rate() -> None:
    expectation = flaky(0.1, 'layouts = ["transposed"]')
    assert judge_flaky(expectation, [PASS, PASS, PASS, FAIL]).verdict is Verdict.REGRESSION


def test_the_rate_is_told() -> None:
    judgement = judge_flaky(flaky(0.9), [PASS, FAIL])
    assert judgement.why == "passes in 1 of 2 runs; expected a pass rate of at least 0.9 (line 1)"


def test_once_it_expired_a_failure_is_a_regression() -> None:
    assert judge_flaky(flaky(0.5), [PASS, FAIL], expired=True).verdict is Verdict.REGRESSION
    assert judge_flaky(flaky(0.5), [PASS, PASS], expired=True).verdict is Verdict.OK
