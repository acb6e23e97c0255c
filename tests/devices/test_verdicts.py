"""The verdict on a cell: strict both ways, and by the exact outcome."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from devices.cell import CellKey, CellOutcome, Observed, Outcome, Verdict
from devices.failure import Failure, Kind
from devices.manifest import Block, ExpectedOutcome, Manifest
from devices.verdicts import Expectation, Judgement, Matcher, judge_cell

KEY = CellKey("layout.values", "add", "float32")
PASS = Observed(Outcome.PASS)
ALL = frozenset({"a", "b", "c"})


def block(line: int = 7, outcome: str = "fail", **changes: Any) -> Block:
    if outcome == "flaky":
        changes = {"expires": date(2027, 1, 1), "min_pass_rate": 0.5, **changes}
    if isinstance(changes.get("layouts"), str):
        changes["layouts"] = frozenset(changes["layouts"])
    return Block(
        line=line,
        path=Path("expected.toml"),
        clause=("*",),
        outcome=ExpectedOutcome(outcome),
        reason="why",
        **changes,
    )


def expecting(*blocks: Block) -> Expectation:
    found = Matcher(Manifest(blocks)).expect(KEY)
    assert found is not None
    return found


def failing(layouts: str = "", raises: str | None = None, message: str = "") -> Observed:
    return Observed(Outcome.FAIL, frozenset(layouts), raises, message)


TABLE = """
    .                    none fail crash hang unsupported blocked flaky
    pass                 O    I    I     I    I           I       F
    fail                 R    E    I     R    R           R       F
    unsupported          R    R    R     R    E           R       R
    blocked              R    R    R     R    R           E       R
    crash                R    R    E     R    R           R       R
    hang                 R    R    R     E    R           R       R
    ambiguous-reference  O    R    R     R    R           R       R
    error                R    R    R     R    R           R       R
    not-run              M    M    M     M    M           M       M
"""
LETTERS = {verdict.value[0].upper(): verdict for verdict in Verdict}
_ROWS = [line.split() for line in TABLE.strip().splitlines()]
CASES = [
    (row[0], expected, LETTERS[letter])
    for row in _ROWS[1:]
    for expected, letter in zip(_ROWS[0][1:], row[1:], strict=True)
]


def test_the_table_holds_every_outcome() -> None:
    assert {seen for seen, _, _ in CASES} == {outcome.value for outcome in Outcome}
    assert {wanted for _, wanted, _ in CASES} == {"none", *(each.value for each in ExpectedOutcome)}


@pytest.mark.parametrize(("seen", "expected", "verdict"), CASES)
def test_the_table(seen: str, expected: str, verdict: Verdict) -> None:
    expectation = None if expected == "none" else expecting(block(outcome=expected))
    judgement = judge_cell(expectation, Observed(Outcome(seen)))
    assert judgement.verdict is verdict
    assert bool(judgement.why) == (judgement != Judgement(Verdict.OK))


def _documented() -> list[list[str]]:
    """The table in ``judge_cell``'s docstring, without its marks."""
    rows = re.findall(r"^    (\S+) +((?:[a-z*]+ *){7})$", judge_cell.__doc__ or "", re.MULTILINE)
    return [[name, *cells.replace("*", "").split()] for name, cells in rows]


def test_the_documented_table_is_the_one_that_holds() -> None:
    names = {"ambiguous": "ambiguous-reference"}
    documented = {
        (names.get(row[0], row[0]), expected): verdict
        for row in _documented()
        for expected, verdict in zip(_ROWS[0][1:], row[1:], strict=True)
    }
    assert documented == {(seen, wanted): verdict.value for seen, wanted, verdict in CASES}


def test_a_pass_says_nothing() -> None:
    assert judge_cell(None, PASS) == Judgement(Verdict.OK, "", ())


def test_an_ambiguous_reference_is_in_no_numerator() -> None:
    judgement = judge_cell(None, Observed(Outcome.AMBIGUOUS))
    assert judgement.why == "the references disagree, so the cell is not counted"


def test_a_missing_cell_says_that_the_run_is_incomplete() -> None:
    judgement = judge_cell(None, Observed(Outcome.NOT_RUN))
    assert judgement.why == "planned, but not run: the run is incomplete"


def test_an_unexpected_failure_tells_its_exception_and_first_line() -> None:
    judgement = judge_cell(None, failing("a", "RuntimeError", "no kernel\nmore"))
    assert judgement.why == (
        "fail (RuntimeError: no kernel); the manifest does not list this outcome"
    )


def test_a_long_message_is_shortened() -> None:
    assert len(judge_cell(None, failing(message="x" * 1000)).why) < 200


def test_an_error_cannot_be_expected() -> None:
    judgement = judge_cell(expecting(block()), Observed(Outcome.ERROR, message="no input was made"))
    assert judgement.why == (
        "the check could not be made (no input was made); a manifest cannot list such a cell"
    )


def test_an_expected_failure_names_its_blocks() -> None:
    mine = block()
    judgement = judge_cell(expecting(mine), failing("a"))
    assert judgement == Judgement(Verdict.EXPECTED, "expected 'fail' (expected.toml:7)", (mine,))


def test_an_unexpected_pass_is_to_be_recorded() -> None:
    mine = block()
    judgement = judge_cell(expecting(mine), PASS)
    assert judgement.blocks == (mine,)
    assert judgement.why == (
        "passes, expected 'fail' (expected.toml:7): `conform manifest update RUN` narrows or"
        " removes the block"
    )


def test_a_failure_that_became_a_crash_says_both() -> None:
    judgement = judge_cell(expecting(block()), Observed(Outcome.CRASH, message="SIGSEGV"))
    assert judgement.why == "crash (SIGSEGV), expected 'fail' (expected.toml:7)"


def test_a_crash_that_became_a_failure_is_to_be_recorded() -> None:
    judgement = judge_cell(expecting(block(outcome="crash")), failing("a"))
    assert judgement.why == (
        "fails, but no longer crashes; expected 'crash' (expected.toml:7): `conform manifest update"
        " --reason TEXT RUN RUN` records the failure instead"
    )


def test_listed_layouts_may_fail() -> None:
    judgement = judge_cell(expecting(block(layouts="ab")), failing("ab"), ran=ALL)
    assert judgement.verdict is Verdict.EXPECTED


def test_a_layout_that_is_not_listed_is_a_regression_that_names_it() -> None:
    judgement = judge_cell(expecting(block(layouts="ab")), failing("abc"), ran=ALL)
    assert judgement.verdict is Verdict.REGRESSION
    assert (
        judgement.why
        == "the layouts c have the outcome 'fail', but are not listed at expected.toml:7"
    )


def test_a_listed_layout_that_passed_is_an_improvement_that_names_it() -> None:
    one, other, third = block(3, layouts="a"), block(9, layouts="abc"), block(12, layouts="a")
    judgement = judge_cell(expecting(one, other, third), failing("a"), ran=ALL)
    assert judgement == Judgement(
        Verdict.IMPROVEMENT,
        "the layouts b, c pass, but are listed at expected.toml:9: `conform manifest update RUN`"
        " narrows or removes the block",
        (other,),
    )


def test_a_listed_layout_that_was_not_run_has_not_passed() -> None:
    judgement = judge_cell(expecting(block(layouts="ab")), failing("a"), ran=frozenset("ac"))
    assert judgement.verdict is Verdict.EXPECTED


def test_without_the_layouts_that_ran_none_is_held_to_have_passed() -> None:
    assert judge_cell(expecting(block(layouts="ab")), failing("a")).verdict is Verdict.EXPECTED


def test_a_new_layout_weighs_more_than_one_that_passed() -> None:
    judgement = judge_cell(expecting(block(layouts="ab")), failing("ac"), ran=ALL)
    assert judgement.verdict is Verdict.REGRESSION


def test_two_causes_meet_on_one_cell() -> None:
    expectation = expecting(block(layouts="a"), block(layouts="b"))
    assert judge_cell(expectation, failing("ab"), ran=ALL).verdict is Verdict.EXPECTED


def test_a_failure_in_no_layout_is_not_the_one_that_is_listed() -> None:
    judgement = judge_cell(expecting(block(layouts="ab")), failing(message="import failed"))
    assert judgement.verdict is Verdict.REGRESSION
    assert (
        judgement.why
        == "the cell failed (import failed), but in no layout; expected a failure in the layouts a, b (expected.toml:7)"
    )


def test_match_is_held_against_the_words_of_the_device_and_not_ours() -> None:
    expectation = expecting(block(raises="RuntimeError", match=re.compile("no kernel")))

    def told(said: str, detail: str) -> Verdict:
        failure = Failure(kind=Kind.RAISED, detail=detail, raises="RuntimeError", said=said)
        seen = CellOutcome(cell=KEY, outcome=Outcome.FAIL, raises="RuntimeError", failure=failure)
        return judge_cell(expectation, seen.observed).verdict

    assert told("there is no kernel for it", "raised RuntimeError") is Verdict.EXPECTED
    assert told("out of memory", "raised RuntimeError: no kernel") is Verdict.REGRESSION


def test_a_failure_without_an_exception_matches_no_text() -> None:
    failure = Failure(kind=Kind.STRIDES, expected="(2, 1)", found="(1, 2)")
    seen = CellOutcome(cell=KEY, outcome=Outcome.FAIL, failure=failure)
    judgement = judge_cell(expecting(block(match=re.compile("expected"))), seen.observed)
    assert judgement.verdict is Verdict.REGRESSION


def test_a_crash_need_not_know_its_layout() -> None:
    expectation = expecting(block(outcome="crash", layouts="a"))
    assert judge_cell(expectation, Observed(Outcome.CRASH)).verdict is Verdict.EXPECTED


def test_a_crash_in_another_layout_is_a_regression() -> None:
    expectation = expecting(block(outcome="crash", layouts="a"))
    judgement = judge_cell(expectation, Observed(Outcome.CRASH, frozenset("b")))
    assert judgement.verdict is Verdict.REGRESSION


@pytest.mark.parametrize(
    ("raises", "message", "verdict"),
    [
        ("RuntimeError", "no kernel for int8", Verdict.EXPECTED),
        ("RuntimeError", "out of memory", Verdict.REGRESSION),
        ("TypeError", "no kernel for int8", Verdict.REGRESSION),
        (None, "no kernel for int8", Verdict.REGRESSION),
    ],
)
def test_exception_and_message_are_part_of_what_is_expected(
    raises: str | None, message: str, verdict: Verdict
) -> None:
    mine = block(raises="RuntimeError", match=re.compile(r"kernel for \w+$"))
    assert judge_cell(expecting(mine), failing("a", raises, message)).verdict is verdict


def test_another_exception_says_what_was_expected() -> None:
    mine = block(3, raises="RuntimeError", match=re.compile("no kernel"))
    judgement = judge_cell(
        expecting(mine, block(5, raises="TypeError")), failing("a", "ValueError", "bad")
    )
    assert judgement.why == (
        "fail (ValueError: bad); expected RuntimeError and a message that matches 'no kernel'"
        " or TypeError (expected.toml:3, expected.toml:5)"
    )


def test_one_block_that_describes_the_failure_is_enough() -> None:
    expectation = expecting(block(raises="RuntimeError"), block(raises="TypeError"))
    assert judge_cell(expectation, failing("a", "TypeError")).verdict is Verdict.EXPECTED


def test_exception_and_message_of_two_blocks_are_not_mixed() -> None:
    expectation = expecting(
        block(raises="RuntimeError", match=re.compile("x")),
        block(raises="TypeError", match=re.compile("y")),
    )
    judgement = judge_cell(expectation, failing("a", "RuntimeError", "y"))
    assert judgement.verdict is Verdict.REGRESSION


@pytest.mark.parametrize("observed", [PASS, failing("a")])
def test_a_flaky_cell_is_flaky_until_it_expires(observed: Observed) -> None:
    judgement = judge_cell(expecting(block(outcome="flaky")), observed)
    assert judgement.verdict is Verdict.FLAKY
    assert judgement.why == f"{observed.outcome}, expected 'flaky' (expected.toml:7)"


@pytest.mark.parametrize(
    ("observed", "verdict", "why"),
    [
        (PASS, Verdict.OK, "passes"),
        (failing("a"), Verdict.REGRESSION, "fail; the manifest does not list this outcome"),
    ],
)
def test_an_expired_flaky_block_allows_nothing(
    observed: Observed, verdict: Verdict, why: str
) -> None:
    judgement = judge_cell(expecting(block(outcome="flaky")), observed, expired=True)
    assert judgement.verdict is verdict
    assert (
        judgement.why
        == f"{why}; the block that allowed the cell to be flaky has expired (expected.toml:7)"
    )


def test_an_expired_failure_stays_expected() -> None:
    judgement = judge_cell(expecting(block()), failing("a"), expired=True)
    assert judgement.verdict is Verdict.EXPECTED


def test_a_flaky_failure_in_another_layout_is_a_regression() -> None:
    expectation = expecting(block(outcome="flaky", layouts="a"))
    assert judge_cell(expectation, failing("ab")).verdict is Verdict.REGRESSION


def test_a_flaky_failure_of_another_kind_is_a_regression() -> None:
    expectation = expecting(block(outcome="flaky", raises="RuntimeError"))
    assert judge_cell(expectation, failing("a", "TypeError")).verdict is Verdict.REGRESSION


def test_a_layout_that_did_not_flake_this_time_is_no_improvement() -> None:
    expectation = expecting(block(outcome="flaky", layouts="ab"))
    assert judge_cell(expectation, failing("a"), ran=ALL).verdict is Verdict.FLAKY


# A cell that ended its process, and its other checks


def ended(rest: str = "", outcome: Outcome = Outcome.CRASH, **more: Any) -> Observed:
    """A crash of which the other checks fail in these layouts; without layouts they pass."""
    other = failing(rest, **more) if rest else PASS
    return Observed(outcome, message="killed by SIGSEGV", rest=other)


CRASH, FAIL_AB = block(1, "crash"), block(2, layouts="ab")

ENDED = [
    # The blocks, what is observed, and the verdict.
    ((), ended(), Verdict.REGRESSION),
    ((), ended("a"), Verdict.REGRESSION),
    ((CRASH,), ended(), Verdict.EXPECTED),
    ((CRASH,), ended("a"), Verdict.REGRESSION),
    ((CRASH,), failing("a"), Verdict.IMPROVEMENT),
    ((FAIL_AB,), ended("ab"), Verdict.REGRESSION),
    ((FAIL_AB,), ended(), Verdict.REGRESSION),
    ((CRASH, FAIL_AB), ended("ab"), Verdict.EXPECTED),
    ((CRASH, FAIL_AB), ended("abc"), Verdict.REGRESSION),
    ((CRASH, FAIL_AB), ended("a"), Verdict.IMPROVEMENT),
    ((CRASH, FAIL_AB), ended(), Verdict.IMPROVEMENT),
    ((CRASH, FAIL_AB), Observed(Outcome.CRASH), Verdict.EXPECTED),  # no other check ran
    ((CRASH, FAIL_AB), ended("ab", Outcome.HANG), Verdict.REGRESSION),
    ((CRASH, FAIL_AB), failing("ab"), Verdict.IMPROVEMENT),
    ((CRASH, FAIL_AB), failing("abc"), Verdict.REGRESSION),
    ((CRASH, FAIL_AB), PASS, Verdict.IMPROVEMENT),
    ((block(1, "hang"), FAIL_AB), ended("ab", Outcome.HANG), Verdict.EXPECTED),
    ((block(1, "flaky"),), ended(), Verdict.REGRESSION),
]


@pytest.mark.parametrize(("blocks", "observed", "verdict"), ENDED)
def test_the_end_of_a_process_and_the_other_checks_are_judged_apart(
    blocks: tuple[Block, ...], observed: Observed, verdict: Verdict
) -> None:
    expectation = expecting(*blocks) if blocks else None
    assert judge_cell(expectation, observed, ran=ALL).verdict is verdict


def test_an_expected_crash_with_a_new_failure_names_the_failure() -> None:
    judgement = judge_cell(expecting(CRASH), ended("a", message="[a] wrong values"), ran=ALL)
    assert judgement.why == (
        "the other checks: fail ([a] wrong values); the manifest does not list this outcome"
    )


def test_a_listed_failure_that_is_gone_beside_an_expected_crash_names_its_block() -> None:
    judgement = judge_cell(expecting(CRASH, FAIL_AB), ended("a"), ran=ALL)
    assert judgement.blocks == (FAIL_AB,)
    assert judgement.why.startswith("the other checks: the layouts b pass, but are listed at ")


def test_a_crash_that_is_gone_beside_expected_failures_names_its_block() -> None:
    judgement = judge_cell(expecting(CRASH, FAIL_AB), failing("ab"), ran=ALL)
    assert judgement.blocks == (CRASH,)
    assert judgement.why.startswith("the process no longer ends, expected 'crash'")


def test_the_blocks_of_an_expected_crash_with_expected_failures_are_both_named() -> None:
    assert judge_cell(expecting(CRASH, FAIL_AB), ended("ab"), ran=ALL).blocks == (CRASH, FAIL_AB)


def test_other_checks_whose_references_disagree_are_not_counted() -> None:
    observed = Observed(Outcome.CRASH, rest=Observed(Outcome.AMBIGUOUS))
    assert judge_cell(expecting(CRASH), observed).verdict is Verdict.EXPECTED


@pytest.mark.parametrize("outcome", [Outcome.BLOCKED, Outcome.UNSUPPORTED, Outcome.ERROR])
def test_other_checks_that_cannot_be_made_are_not_covered_by_a_crash(outcome: Outcome) -> None:
    observed = Observed(Outcome.CRASH, rest=Observed(outcome))
    assert judge_cell(expecting(CRASH), observed).verdict is Verdict.REGRESSION
