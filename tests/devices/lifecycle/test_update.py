"""Update: narrows and removes by what runs show; adds with a reason and from two that agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.lifecycle.evidence import Evidence, EvidenceError, Seen, judge_observation
from devices.lifecycle.update import Cause, Update, UpdateError, update
from devices.manifest import CauseKind, ManifestError
from devices.verdicts import Matcher
from tests.devices.lifecycle.builders import (
    FACTS,
    PASS,
    TODAY,
    block,
    cell,
    fails,
    manifest,
    parse,
    run,
    seen,
)

ADD, MUL, SUB = (cell(f"layout.values::{op}[float32]") for op in ("add", "mul", "sub"))
ADD_INT, MUL_INT = (cell(f"layout.values::{op}[int8]") for op in ("add", "mul"))
DTYPES = ("float32", "int8")
CAUSE = Cause("seen twice")


def updated(
    text: str, *runs: Evidence | Mapping[CellKey, Seen], cause: Cause | None = None, **more: object
) -> Update:
    """Update with runs, or with the cells of runs; the device has no dtypes but theirs."""
    given = [
        each if isinstance(each, Evidence) else run(each, f"run{number}")
        for number, each in enumerate(runs)
    ]
    dtypes = more.pop("dtypes", {key.dtype for each in given for key in each.planned})
    return update(text, parse(text), given, TODAY, cause=cause, dtypes=dtypes, **more)  # type: ignore[arg-type]


def verdicts(done: Update, cells: Mapping[CellKey, Seen]) -> dict[CellKey, Verdict]:
    matcher = Matcher(parse(done.text).active(FACTS))
    return {
        key: judge_observation(matcher.expect(key), each, TODAY).verdict
        for key, each in cells.items()
    }


# Narrowing


def test_an_op_that_passes_leaves_its_list() -> None:
    done = updated(block(op='["add", "mul", "sub"]'), {ADD: fails(), MUL: PASS, SUB: fails()})
    assert 'op = ["add", "sub"]\n' in done.text
    assert [each.line for each in done.narrowed] == [1] and not done.removed


def test_a_dtype_that_passes_everywhere_leaves_its_list() -> None:
    text = block(op='["add", "mul"]', dtype='["float32", "int8"]')
    done = updated(text, {ADD: fails(), MUL: fails(), ADD_INT: PASS, MUL_INT: PASS})
    assert 'op = ["add", "mul"]\ndtype = "float32"\n' in done.text


def test_a_layout_that_passes_leaves_the_list() -> None:
    text = block(op='["add", "mul"]', layouts='["contiguous", "offset"]')
    done = updated(text, {ADD: fails("offset"), MUL: fails("offset")})
    assert 'layouts = ["offset"]\n' in done.text


def test_a_layout_that_was_not_run_stays() -> None:
    text = block(op='"add"', layouts='["contiguous", "offset"]')
    done = updated(text, {ADD: fails("offset", ran=["offset"])})
    assert done.text == text


def test_a_block_falls_apart_where_cells_fail_in_different_layouts() -> None:
    text = block(op='["add", "mul"]', layouts='["contiguous", "offset"]')
    cells = {ADD: fails("offset"), MUL: fails("contiguous", "offset")}
    done = updated(text, cells)
    assert set(verdicts(done, cells).values()) == {Verdict.EXPECTED}
    assert sorted((each.op, sorted(each.layouts or ())) for each in parse(done.text).blocks) == [
        (("add",), ["offset"]),
        (("mul",), ["contiguous", "offset"]),
    ]


def test_a_block_whose_every_cell_passes_goes_with_its_comment() -> None:
    text = manifest("# of mul\n" + block(op='"mul"'), "# of add\n" + block(op='"add"'))
    done = updated(text, {ADD: fails(), MUL: PASS})
    assert "mul" not in done.text and "# of add" in done.text
    assert [each.op for each in done.removed] == [("mul",)]


def test_a_heading_goes_with_its_last_block() -> None:
    text = "# about\n\n# muls\n\n" + block(op='"mul"') + "\n# adds\n\n" + block(op='"add"')
    done = updated(text, {ADD: fails(), MUL: PASS})
    assert done.text == "# about\n\n# adds\n\n" + block(op='"add"')


def test_comments_of_a_narrowed_block_stay() -> None:
    text = '# own\n[[expect]]  # head\nclause = "layout.values"\n# ops\nop = ["add", "mul"]  # why\noutcome = "fail"\nreason = "w"\n'
    done = updated(text, {ADD: fails(), MUL: PASS})
    assert done.text == text.replace('["add", "mul"]', '"add"')


def test_a_glob_that_still_holds_for_all_it_matches_stays() -> None:
    nn = [cell(f"layout.values::nn.{op}[float32]") for op in ("relu", "silu")]
    text = block(op='["add", "nn.*"]')
    done = updated(text, {ADD: PASS, nn[0]: fails(), nn[1]: fails()})
    assert 'op = "nn.*"\n' in done.text


def test_a_glob_of_which_one_op_passes_becomes_the_others() -> None:
    cells = {cell(f"layout.values::nn.{op}[float32]"): fails() for op in ("relu", "silu", "gelu")}
    cells[cell("layout.values::nn.gelu[float32]")] = PASS
    done = updated(block(op='"nn.*"'), cells)
    assert 'op = ["nn.relu", "nn.silu"]\n' in done.text


def test_a_glob_over_clauses_becomes_those_that_still_fail() -> None:
    bounds = cell("layout.bounds::add[float32]")
    done = updated(block(clause='"layout.*"'), {ADD: fails(), bounds: PASS})
    assert parse(done.text).blocks[0].clause == ("layout.values",)


def test_a_name_in_place_of_a_glob_does_not_contradict_a_block_that_decided() -> None:
    # add crashes in int8, which the second block says and so overrides the first.
    text = manifest(block(op='"*"'), block(op='"add*"', dtype='"int8"', outcome='"crash"'))
    cells = {ADD: fails(), ADD_INT: seen(Outcome.CRASH), MUL: PASS, MUL_INT: fails()}
    done = updated(text, cells)
    assert verdicts(done, cells) == {
        ADD: Verdict.EXPECTED,
        ADD_INT: Verdict.EXPECTED,
        MUL: Verdict.OK,
        MUL_INT: Verdict.EXPECTED,
    }


def test_what_no_run_planned_stays() -> None:
    # The run planned float32 alone: what the block says of int8 is not known to be better.
    text = block(op='["add", "mul"]')
    cells = {ADD: PASS, MUL: fails()}
    done = updated(text, cells, dtypes=DTYPES)
    blocks = {(each.op, each.dtype) for each in parse(done.text).blocks}
    assert blocks == {(("mul",), ("*",)), (("add",), ("int8",))}
    assert updated(text, cells, dtypes=()).text == text.replace('["add", "mul"]', '"mul"')


def test_a_cell_without_an_outcome_stays() -> None:
    text = block(op='["add", "mul"]')
    done = updated(text, run({ADD: PASS}, planned=[ADD, MUL]))
    assert parse(done.text).blocks[0].op == ("mul",)


def test_blocks_that_do_not_hold_here_are_untouched() -> None:
    text = manifest(block(op='"add"', when='{ os = "darwin" }'), block(op='"mul"'))
    done = updated(text, {ADD: PASS, MUL: PASS})
    assert done.text == block(op='"add"', when='{ os = "darwin" }')


def test_a_cell_that_a_block_overrode_is_not_excused_by_the_one_below() -> None:
    text = manifest(block(op='"a*"'), block(op='"add"', outcome='"crash"'))
    done = updated(text, {ADD: PASS})
    assert done.text == ""


def test_what_was_not_touched_is_not_reformatted() -> None:
    odd = '[[expect]]\nreason="x"\nclause = [ "layout.values" ]\n\n\noutcome = "fail"\nop = "sub"\n'
    done = updated(
        manifest(odd, block(op='["add", "mul"]')), {ADD: PASS, MUL: fails(), SUB: fails()}
    )
    assert odd in done.text


def test_nothing_to_do_is_nothing_done() -> None:
    text = "\n\n" + block(op='"add"')
    assert updated(text, {ADD: fails(), MUL: PASS}).text == text


# What is left alone


def test_cells_in_which_runs_disagree_are_named_and_left_alone() -> None:
    text = block(op='["add", "mul"]')
    done = updated(text, {ADD: PASS, MUL: fails()}, {ADD: fails("offset"), MUL: fails()})
    assert done.text == text
    assert [(each.key, each.why) for each in done.disagreeing] == [
        (ADD, "run0: pass; run1: fail in offset")
    ]


def test_runs_that_disagree_are_not_recorded() -> None:
    done = updated("", {ADD: fails("offset")}, {ADD: fails("contiguous")}, cause=CAUSE)
    assert done.text == "" and [each.key for each in done.disagreeing] == [ADD]


def test_a_failure_that_one_of_two_runs_saw_is_not_recorded() -> None:
    # Folders of two CI jobs may have one name.
    first = run({ADD: fails(), MUL: fails()}, "run")
    second = run({ADD: fails()}, "run", planned=[ADD, MUL])
    done = updated("", first, second, cause=CAUSE)
    assert set(verdicts(done, {ADD: fails()}).values()) == {Verdict.EXPECTED}
    assert set(verdicts(done, {MUL: fails()}).values()) == {Verdict.REGRESSION}
    (left,) = done.disagreeing
    assert left.key == MUL and left.why.endswith("; run: no outcome")


def test_runs_that_raise_differently_disagree() -> None:
    one, other = fails(raises="RuntimeError"), fails(raises="ValueError")
    assert len(updated("", {ADD: one}, {ADD: other}, cause=CAUSE).disagreeing) == 1


def test_cells_that_were_not_tried_by_declaration_need_no_block() -> None:
    untried = Seen(Observed(Outcome.UNSUPPORTED, declared=True), frozenset())
    done = updated("", {ADD: untried, MUL: PASS}, {ADD: untried, MUL: PASS})
    assert not done.unrecorded and "[[expect]]" not in done.text


def test_failures_without_a_reason_are_named() -> None:
    done = updated("", {ADD: fails("offset"), MUL: PASS})
    assert done.text == "" and [each.key for each in done.unrecorded] == [ADD]
    assert "the manifest does not list this outcome" in done.unrecorded[0].why


def test_what_no_block_can_expect_is_named_even_with_a_reason() -> None:
    cells = {ADD: seen(Outcome.ERROR)}
    done = updated("", cells, cells, cause=CAUSE)
    assert done.text == ""
    assert [each.why for each in done.unrecorded] == ["error: a manifest cannot list this outcome"]


def test_a_crash_that_became_a_failure_needs_a_reason() -> None:
    text = block(op='"add"', outcome='"crash"')
    done = updated(text, {ADD: fails("offset")})
    assert done.text == text and [each.key for each in done.unrecorded] == [ADD]
    cells = {ADD: fails("offset")}
    done = updated(text, cells, cells, cause=CAUSE)
    assert verdicts(done, cells) == {ADD: Verdict.EXPECTED} and "crash" not in done.text


FLAKY = block(op='"add"', outcome='"flaky"', expires="2027-06-01", min_pass_rate="0.5")


def test_a_flaky_cell_that_passes_stays_flaky() -> None:
    assert updated(FLAKY, {ADD: PASS}, {ADD: PASS}).text == FLAKY


def test_a_flaky_cell_below_its_pass_rate_is_named() -> None:
    done = updated(FLAKY, {ADD: PASS}, {ADD: fails()}, {ADD: fails()})
    assert [each.why for each in done.floors] == [
        "passes in 1 of 3 runs; expected a pass rate of at least 0.5 (expected.toml:1)"
    ]
    assert updated(FLAKY, {ADD: PASS}, {ADD: fails()}).floors == ()


def test_a_flaky_block_below_one_that_goes_stays() -> None:
    flaky = FLAKY.replace('"add"', '"a*"')
    done = updated(manifest(flaky, block(op='"add"', outcome='"crash"')), {ADD: PASS})
    assert done.text == flaky


def test_an_update_that_would_go_wrong_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("devices.lifecycle.update.narrowed", lambda *_: [])
    with pytest.raises(
        UpdateError, match=r"handle layout\.values::add\[float32\] wrongly .*nothing was written"
    ):
        updated(block(op='["add", "mul"]'), {ADD: fails(), MUL: PASS})


# Adding


def test_agreeing_failures_are_added_with_their_layouts() -> None:
    cells = {ADD: fails("offset"), MUL: PASS}
    cause = Cause("strides", CauseKind.DEVICE_BUG, "https://x.y/1", TODAY)
    done = updated("", cells, cells, cause=cause)
    assert done.text == (
        "# Expected failures, one block for each root cause.\n\n# strides\n\n"
        '[[expect]]\nclause = "layout.values"\nop = "add"\ndtype = "float32"\nlayouts = ["offset"]\n'
        'outcome = "fail"\nkind = "device-bug"\nreason = "strides"\nissue = "https://x.y/1"\n'
        "expires = 2027-01-01\n"
    )


def test_blocks_of_cases_say_nothing_of_dtypes() -> None:
    held, kept = cell("streams.query::held"), cell("streams.query::kept")
    cells = {held: fails(), kept: fails()}
    done = updated("", cells, cells, cause=CAUSE)
    assert "dtype" not in done.text
    assert set(verdicts(done, cells).values()) == {Verdict.EXPECTED}
    mended = {held: fails(), kept: PASS}
    narrowed = updated(done.text, mended)
    assert "dtype" not in narrowed.text and "kept" not in narrowed.text
    assert verdicts(narrowed, mended) == {held: Verdict.EXPECTED, kept: Verdict.OK}


def test_a_case_named_as_an_op_has_a_block_of_its_own() -> None:
    case, ulp = cell("optim.foreach::mul"), cell("precision.ulp::mul[float32]")
    cells = {case: fails(), ulp: fails()}
    done = updated("", cells, cells, cause=CAUSE)
    assert [(each.clause, each.dtype) for each in done.added] == [
        (("optim.foreach",), ("*",)),
        (("precision.ulp",), ("float32",)),
    ]
    assert set(verdicts(done, cells).values()) == {Verdict.EXPECTED}


def test_failures_of_one_kind_share_a_block() -> None:
    bounds = [cell(f"layout.bounds::{op}[float32]") for op in ("add", "mul")]
    cells = dict.fromkeys([ADD, MUL, *bounds], fails("offset"))
    done = updated("", cells, cells, cause=CAUSE)
    assert [(each.clause, each.op) for each in done.added] == [
        (("layout.bounds", "layout.values"), ("add", "mul"))
    ]


def test_failures_in_different_layouts_or_exceptions_do_not() -> None:
    cells = {
        ADD: fails("offset"),
        MUL: fails("contiguous"),
        SUB: fails("offset", raises="ValueError"),
    }
    done = updated("", cells, cells, cause=CAUSE)
    assert len(done.added) == 3 and 'raises = "ValueError"' in done.text


def test_a_block_never_speaks_of_a_cell_that_did_not_fail() -> None:
    cells = {ADD: fails("offset"), ADD_INT: PASS, MUL: PASS, MUL_INT: fails("offset")}
    done = updated("", cells, cells, cause=CAUSE)
    assert verdicts(done, cells) == {
        ADD: Verdict.EXPECTED,
        ADD_INT: Verdict.OK,
        MUL: Verdict.OK,
        MUL_INT: Verdict.EXPECTED,
    }


def test_a_newly_failing_layout_gets_a_block_of_its_own() -> None:
    text = block(op='"add"', dtype='"float32"', layouts='["offset"]')
    cells = {ADD: fails("contiguous", "offset")}
    done = updated(text, cells, cells, cause=CAUSE)
    assert verdicts(done, cells) == {ADD: Verdict.EXPECTED}
    assert text in done.text and [each.layouts for each in done.added] == [
        frozenset({"contiguous"})
    ]


def test_a_fault_that_moved_to_another_layout_leaves_the_old_one() -> None:
    text = block(op='"add"', dtype='"float32"', layouts='["offset"]')
    cells = {ADD: fails("contiguous")}
    assert verdicts(updated(text, cells), cells) == {ADD: Verdict.REGRESSION}
    done = updated(text, cells, cells, cause=CAUSE)
    assert [(each.reason, each.layouts) for each in parse(done.text).blocks] == [
        ("seen twice", frozenset({"contiguous"}))
    ]


def test_only_selected_cells_are_touched() -> None:
    text = block(op='["add", "mul"]', dtype='"float32"')
    cells = {ADD: PASS, MUL: PASS, SUB: fails("offset")}
    done = updated(text, cells, cells, cause=CAUSE, wanted=lambda key: key.unit == "add")
    assert 'op = "mul"\n' in done.text and not done.added


def test_a_new_cause_gets_a_heading_in_order() -> None:
    text = (
        "# about\n\n# add\n\n" + block(op='"add"') + "\n# z\n\n" + block(op='"mul"', reason='"z"')
    )
    cells = {ADD: fails(), MUL: fails(), SUB: fails("offset")}
    done = updated(text, cells, cells, cause=Cause("strides"))
    assert (
        done.text.index("# add")
        < done.text.index("# strides\n\n[[expect]]")
        < done.text.index("# z")
    )


def test_a_known_reason_goes_under_its_heading() -> None:
    text = (
        "# about\n\n# add\n\n" + block(op='"add"') + "\n# z\n\n" + block(op='"mul"', reason='"z"')
    )
    cells = {ADD: fails(), MUL: fails(), SUB: fails("offset")}
    done = updated(text, cells, cells, cause=Cause("why"))
    assert done.text.index("# add") < done.text.index('"sub"') < done.text.index("# z")


# What is refused


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([run({ADD: fails()})], "failures are added only from two runs that agree, but only a was given"),
        ([run({ADD: fails()}), run({ADD: fails()}, "b", plan_hash="9")], "have the hashes 1234 and 9"),
        ([run({ADD: fails()}), run({ADD: fails()}, "b", torch="2.14")], "differ in torch"),
        ([run({ADD: fails()}), run({ADD: fails()}, "b", driver="2")], "differ in driver"),
        ([run({ADD: fails()}), run({ADD: fails()}, "b", device="gpu")], "differ in device"),
        ([run({ADD: fails()}), replace(run({ADD: fails()}), name="b")], "are the same run"),
        ([run({}, planned=[ADD]), run({}, "b", planned=[ADD])], "no selected cell has an outcome"),
    ],
)  # fmt: skip
def test_evidence_that_is_none_is_refused(runs: list[Evidence], says: str) -> None:
    with pytest.raises(EvidenceError, match=says):
        updated("", *runs, cause=CAUSE)


def test_runs_that_differ_in_a_fact_that_the_manifest_asks_for_are_refused() -> None:
    text = block(when='{ device_name = "A*" }')
    runs = [run({ADD: PASS}, name, facts={**FACTS, "device_name": name}) for name in ("A1", "B1")]
    with pytest.raises(EvidenceError, match="differ in the fact 'device_name'"):
        updated(text, *runs)


def test_a_manifest_that_contradicts_itself_is_refused() -> None:
    text = manifest(block(op='"add"', outcome='"hang"'), block(op='"add"', outcome='"crash"'))
    with pytest.raises(ManifestError, match="neither is more specific"):
        updated(text, {ADD: PASS})


# Cells that end their process, and their other checks


def crashes(rest: Seen = PASS) -> Seen:
    """A crash of which the other checks end so."""
    return Seen(Observed(Outcome.CRASH, rest=rest.observed), rest.ran)


def expects(done: Update) -> list[tuple[str, tuple[str, ...], list[str]]]:
    """Outcome, ops and layouts of the blocks."""
    blocks = parse(done.text).blocks
    return sorted((each.outcome.value, each.op, sorted(each.layouts or ())) for each in blocks)


CRASH_AND_FAIL = manifest(
    block(op='["add", "mul"]', outcome='"crash"'),
    block(op='["add", "mul"]', layouts='["contiguous", "offset"]'),
)


def test_a_crash_with_other_failures_is_recorded_in_two_blocks() -> None:
    cells = {ADD: crashes(fails("offset")), MUL: crashes()}
    done = updated("", cells, cells, cause=CAUSE)
    assert expects(done) == [("crash", ("add", "mul"), []), ("fail", ("add",), ["offset"])]
    assert set(verdicts(done, cells).values()) == {Verdict.EXPECTED}


def test_new_failures_beside_an_expected_crash_need_a_reason() -> None:
    text, cells = block(op='"add"', outcome='"crash"'), {ADD: crashes(fails("offset"))}
    done = updated(text, cells, cells)
    assert done.text == text and "the other checks: fail" in done.unrecorded[0].why
    done = updated(text, cells, cells, cause=CAUSE)
    assert expects(done) == [("crash", ("add",), []), ("fail", ("add",), ["offset"])]


def test_failures_that_are_gone_beside_a_crash_leave_their_block() -> None:
    done = updated(CRASH_AND_FAIL, {ADD: crashes(), MUL: crashes(fails("offset"))})
    assert expects(done) == [("crash", ("add", "mul"), []), ("fail", ("mul",), ["offset"])]


def test_a_crash_that_is_gone_beside_failures_leaves_its_block_without_a_reason() -> None:
    cells = {ADD: fails("contiguous", "offset"), MUL: crashes(fails("contiguous", "offset"))}
    done = updated(CRASH_AND_FAIL, cells)
    assert expects(done) == [
        ("crash", ("mul",), []),
        ("fail", ("add", "mul"), ["contiguous", "offset"]),
    ]
    assert set(verdicts(done, cells).values()) == {Verdict.EXPECTED}


def test_a_crash_beside_a_listed_failure_leaves_the_failure_listed() -> None:
    text = block(op='"add"', layouts='["offset"]')
    cells = {ADD: crashes(fails("offset"))}
    done = updated(text, cells, cells, cause=CAUSE)
    assert expects(done) == [("crash", ("add",), []), ("fail", ("add",), ["offset"])]


def test_runs_that_differ_in_the_other_checks_of_a_crash_disagree() -> None:
    done = updated("", {ADD: crashes()}, {ADD: crashes(fails("offset"))}, cause=CAUSE)
    assert [left.key for left in done.disagreeing] == [ADD] and not done.added
    assert done.disagreeing[0].why == "run0: crash; run1: crash, other checks: fail in offset"
