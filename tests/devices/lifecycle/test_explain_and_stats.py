"""Explain says which block decided and why; stats counts what a manifest holds."""

from __future__ import annotations

from datetime import timedelta

from devices.cell import Verdict
from devices.lifecycle.evidence import judge_observation
from devices.lifecycle.inspection import explain, explanation_text, stats, stats_text
from tests.devices.lifecycle.builders import FACTS, TODAY, block, cell, fails, manifest, parse

ADD = cell("layout.values::add[float32]")


def explained(*blocks: str) -> list[str]:
    return explanation_text(explain(parse(manifest(*blocks)), ADD, FACTS))


def test_a_cell_that_no_block_matches_is_expected_to_pass() -> None:
    assert explained(block(op='"mul"')) == [
        "layout.values::add[float32]",
        "expected: pass (no block of the manifest applies here)",
    ]


def test_the_block_that_decides_is_shown_with_what_it_says() -> None:
    assert explained(
        block(
            op='["mul", "a*"]', layouts='["offset"]', kind='"device-bug"', issue='"https://x.y/1"'
        )
    ) == [
        "layout.values::add[float32]",
        "expected: 'fail' in offset",
        "decides: expected.toml:1, 'fail' in offset",
        "    matched by clause 'layout.values', op 'a*', dtype '*'",
        "    device-bug: why",
        "    https://x.y/1",
    ]


def test_a_block_that_lost_is_shown_with_the_one_that_won_and_on_which_axis() -> None:
    lines = explained(block(), block(op='"add"', dtype='"float*"', outcome='"blocked"'))
    assert lines[1] == "expected: 'blocked'"
    assert lines[2].startswith("decides: expected.toml:6, 'blocked'")
    assert lines[5] == "overridden by expected.toml:6: expected.toml:1, 'fail'"
    assert lines[7] == "    less specific in op and dtype"


def test_blocks_that_agree_are_shown_with_their_layouts() -> None:
    lines = explained(block(layouts='["offset"]'), block(op='"add"', layouts='["contiguous"]'))
    assert lines[1] == "expected: 'fail' in contiguous, offset"
    assert (
        "agrees with the deciding block, but is less specific: expected.toml:1, 'fail' in offset"
        in lines
    )


def test_a_condition_that_is_false_here_is_named() -> None:
    lines = explained(block(when='{ os = "darwin", torch = ">=2" }'))
    assert lines[1] == "expected: pass (no block of the manifest applies here)"
    assert lines[2].startswith("does not apply on this machine: expected.toml:1")
    assert lines[-1] == "    needs os 'darwin'; found 'linux'"


def test_a_contradiction_is_told() -> None:
    lines = explained(block(op='"add"'), block(op='"add"', outcome='"blocked"'))
    assert lines[1].startswith("conflict: expected.toml:7: this block expects 'blocked'")


def test_a_crash_and_the_failures_beside_it_are_told_apart() -> None:
    lines = explained(block(layouts='["offset"]'), block(op='"add"', outcome='"crash"'))
    assert lines[1:3] == ["expected: 'crash'", "expected of the other checks: 'fail' in offset"]
    decides = [line for line in lines if line.startswith("decides: ")]
    assert [line[9:24] for line in decides] == ["expected.toml:7", "expected.toml:1"]


def test_the_verdict_on_a_run_is_told() -> None:
    found = explain(parse(block(layouts='["offset"]')), ADD, FACTS)
    seen = fails("contiguous")
    judgement = judge_observation(found.match.expectation, seen, TODAY)
    assert judgement.verdict is Verdict.REGRESSION
    assert explanation_text(found, [("runs/a", seen, judgement)])[-2:] == [
        "runs/a: fail in contiguous: regression",
        "    the layouts contiguous have the outcome 'fail', but are not listed at expected.toml:1",
    ]


FULL = manifest(
    block(
        clause='["layout.values", "layout.bounds"]', kind='"device-bug"', issue='"https://x.y/1"'
    ),
    block(clause='"streams.*"', outcome='"crash"', expires="2026-12-31"),
    block(op='"mul"', expires="2027-02-01", when='{ os = "darwin" }'),
)


def test_stats_count_blocks_and_cells() -> None:
    cells = [
        ADD,
        cell("layout.bounds::add[int8]"),
        cell("streams.query::busy"),
        cell("graphs.pool::a"),
    ]
    found = stats(parse(FULL), FACTS, TODAY, cells=cells)
    assert (found.blocks, found.covered, found.planned) == (3, 3, 4)
    assert found.by_kind == {"device-bug": 1, "none given": 2}
    assert found.by_outcome == {"crash": 1, "fail": 2}
    assert found.families == {"layout": 2, "streams": 1}
    assert found.covered_by_family == {"layout": 2, "streams": 1}
    assert found.expired == ("expected.toml:8 (2026-12-31)",)
    assert found.expiring == ("expected.toml:14 (2027-02-01)",)
    assert found.without_issue == ("expected.toml:8", "expected.toml:14")
    assert [(each.where, each.when) for each in found.inactive] == [
        ("expected.toml:14", ("needs os 'darwin', found 'linux'",))
    ]


def test_what_expires_soon_depends_on_what_soon_is() -> None:
    assert stats(parse(FULL), FACTS, TODAY, soon=timedelta(days=10)).expiring == ()


def test_stats_are_told_in_lines_and_long_lists_are_cut() -> None:
    lines = stats_text(stats(parse(FULL), FACTS, TODAY, cells=[ADD]), most=1)
    assert lines[0] == "3 blocks, which match 1 of 1 planned cells"
    assert "by kind: device-bug 1, none given 2" in lines
    assert lines[lines.index("without an issue: 2") + 2] == "    and 1 more"
