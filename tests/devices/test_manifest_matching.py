"""Which blocks decide on a cell; held against a plain search that was written apart."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.cell import CellKey
from devices.manifest import Block, ExpectedOutcome, Manifest, ManifestError
from devices.verdicts import Expectation, ManifestConflict, Matcher

PATH = Path("expected.toml")
ADD = CellKey("layout.values", "add", "float32")


def block(
    line: int,
    clause: str = "*",
    op: str = "*",
    dtype: str = "*",
    outcome: str = "fail",
    layouts: str | None = None,
    expires: date | None = None,
    min_pass_rate: float | None = None,
) -> Block:
    """A block; patterns and layouts are written with blanks between them."""
    return Block(
        line=line,
        path=PATH,
        clause=tuple(clause.split()),
        op=tuple(op.split()),
        dtype=tuple(dtype.split()),
        layouts=None if layouts is None else frozenset(layouts.split()),
        outcome=ExpectedOutcome(outcome),
        reason="why",
        expires=expires,
        min_pass_rate=min_pass_rate,
    )


def expect(*blocks: Block, key: CellKey = ADD) -> Expectation | None:
    return Matcher(Manifest(blocks)).expect(key)


def lines(blocks: tuple[Block, ...]) -> list[int]:
    return [each.line for each in blocks]


def decided(*blocks: Block, key: CellKey = ADD) -> Expectation:
    found = expect(*blocks, key=key)
    assert found is not None
    return found


def test_a_cell_that_no_block_matches_has_no_expectation() -> None:
    assert expect(block(1, "layout.bounds"), block(2, op="mul"), block(3, dtype="int64")) is None


def test_an_op_s_name_does_not_match_longer_ones() -> None:
    assert expect(block(1, op="add"), key=ADD._replace(unit="addmm")) is None


def test_a_prefix_matches_itself_and_longer_names() -> None:
    for op in ("add", "addmm"):
        assert decided(block(1, op="add*"), key=ADD._replace(unit=op)).deciding[0].line == 1


def test_a_prefix_does_not_match_shorter_names() -> None:
    assert expect(block(1, op="addm*")) is None


def test_a_list_matches_each_of_its_patterns() -> None:
    several = block(1, op="mul nn.functional.conv* add")
    assert expect(several) is not None
    assert expect(several, key=ADD._replace(unit="nn.functional.conv2d")) is not None
    assert expect(several, key=ADD._replace(unit="sub")) is None


def test_a_cell_without_a_dtype_is_matched_by_any_dtype_only() -> None:
    case = CellKey("allocator.peaks", "many", "")
    assert expect(block(1, "allocator.*"), key=case) is not None
    assert expect(block(1, "allocator.*", dtype="float*"), key=case) is None


def test_an_exact_name_overrides_a_prefix() -> None:
    found = decided(block(1, op="add", outcome="blocked"), block(2, op="ad*"))
    assert (found.outcome, lines(found.overridden)) == (ExpectedOutcome.BLOCKED, [2])


def test_an_exact_name_overrides_the_prefix_of_all_of_it() -> None:
    found = decided(block(1, op="add*"), block(2, op="add", outcome="crash"))
    assert found.outcome is ExpectedOutcome.CRASH


def test_a_longer_prefix_overrides_a_shorter_one() -> None:
    found = decided(block(1, "layout.*", outcome="hang"), block(2, "layout.v*", outcome="crash"))
    assert found.outcome is ExpectedOutcome.CRASH


def test_of_a_list_the_most_exact_pattern_counts() -> None:
    found = decided(block(1, op="a* add", outcome="crash"), block(2, op="ad*"))
    assert found.outcome is ExpectedOutcome.CRASH


def test_more_exact_on_one_axis_and_less_on_another_is_a_conflict() -> None:
    with pytest.raises(ManifestConflict) as caught:
        expect(block(3, op="add", outcome="hang"), block(9, "layout.values", outcome="crash"))
    assert str(caught.value) == (
        "expected.toml:9: this block expects 'crash' of layout.values::add[float32], but the block"
        " at expected.toml:3 expects 'hang', and neither is more specific: narrow one of the blocks, or"
        " add a block for these cells only"
    )


def test_equally_exact_blocks_conflict() -> None:
    with pytest.raises(ManifestConflict):
        expect(block(1, op="add mul"), block(2, op="add", outcome="blocked"))


def test_a_conflict_is_raised_anew_with_each_cell_s_name() -> None:
    blocks = block(1, op="add", outcome="hang"), block(2, op="add", outcome="crash")
    matcher = Matcher(Manifest(blocks))
    for dtype in ("float32", "float32", "int64"):
        with pytest.raises(ManifestConflict, match=f"add.{dtype}."):
            matcher.expect(ADD._replace(dtype=dtype))


@pytest.mark.parametrize("other", ["fail", "unsupported", "blocked"])
def test_a_crash_and_a_failure_of_the_other_checks_do_not_conflict(other: str) -> None:
    found = decided(
        block(1, op="add", outcome=other, layouts="a"),
        block(2, "layout.values", outcome="crash"),
        block(3, "layout.*", outcome=other, layouts="b"),
    )
    assert (found.outcome, lines(found.blocks)) == (ExpectedOutcome.CRASH, [2])
    assert found.rest is not None and found.rest.outcome.value == other
    assert (lines(found.rest.blocks), found.rest.layouts) == ([1, 3], frozenset("ab"))
    assert found.overridden == ()


def test_a_flaky_cell_that_may_crash_is_a_conflict() -> None:
    with pytest.raises(ManifestConflict):
        expect(block(1, outcome="flaky", min_pass_rate=0.5), block(2, outcome="crash"))


def test_a_crash_with_two_sorts_of_failure_is_a_conflict_of_the_failures() -> None:
    with pytest.raises(ManifestConflict, match=r"toml:3.*'blocked'.*toml:2 expects 'fail'"):
        expect(block(1, outcome="crash"), block(2), block(3, outcome="blocked"))


def test_a_more_exact_block_solves_a_conflict() -> None:
    found = decided(
        block(1, op="add", outcome="blocked"),
        block(2, "layout.values"),
        block(3, "layout.values", op="add", outcome="unsupported"),
    )
    assert (found.outcome, lines(found.overridden)) == (ExpectedOutcome.UNSUPPORTED, [1, 2])


def test_blocks_that_expect_the_same_do_not_conflict() -> None:
    found = decided(block(1, op="add"), block(2, "layout.values"))
    assert lines(found.deciding) == [1, 2]


def test_the_layouts_of_all_blocks_of_the_outcome_are_united() -> None:
    found = decided(
        block(1, layouts="a b"), block(2, op="add", layouts="c"), block(3, "layout.*", layouts="d")
    )
    assert found.layouts == frozenset("abcd")
    assert (lines(found.deciding), lines(found.blocks)) == ([2, 3], [2, 3, 1])


def test_a_block_without_layouts_means_any() -> None:
    assert decided(block(1), block(2, op="add", layouts="c")).layouts is None


def test_the_layouts_of_an_overridden_outcome_are_left_out() -> None:
    found = decided(block(1, outcome="blocked", layouts="a"), block(2, op="add", layouts="c"))
    assert found.layouts == frozenset("c")


def test_a_crash_and_a_failure_do_not_override_each_other() -> None:
    found = decided(block(1, outcome="crash"), block(2, op="add"), block(3))
    assert [lines(part.blocks) for part in found.parts] == [[1], [2, 3]]
    found = decided(block(1, op="add", outcome="crash"), block(2), block(3, outcome="hang"))
    assert [lines(part.blocks) for part in found.parts] == [[1], [2]]
    assert lines(found.overridden) == [3]


def test_of_two_pass_rates_the_stricter_is_held() -> None:
    flaky = decided(
        block(1, op="add", outcome="flaky", min_pass_rate=0.5),
        block(2, "layout.*", outcome="flaky", min_pass_rate=0.9),
        block(3, outcome="flaky", min_pass_rate=1),
    )
    assert flaky.min_pass_rate == 0.9


def test_an_expectation_is_expired_when_all_that_decide_are() -> None:
    found = decided(
        block(1, op="add", expires=date(2027, 1, 1)),
        block(2, "layout.*", expires=date(2027, 2, 1)),
        block(3, expires=date(2028, 1, 1)),
    )
    assert [found.is_expired(date(2027, 2, day)) for day in (1, 2)] == [False, True]


def test_a_block_without_a_date_never_expires() -> None:
    assert not decided(block(1)).is_expired(date.max)


def test_a_match_holds_every_block_that_matches() -> None:
    manifest = Manifest((block(1), block(2, op="mul"), block(3, op="add", outcome="crash")))
    assert lines(Matcher(manifest).match(ADD).blocks) == [1, 3]


def test_inactive_blocks_are_not_matched() -> None:
    assert Matcher(Manifest((), (block(1),))).expect(ADD) is None


# The oracle: for each cell every block is compared with every other, by the words of the design.

Rank = tuple[float, ...]


def exactness(patterns: tuple[str, ...], name: str) -> float:
    """-1 where nothing matches; otherwise the more, the more exact."""
    best = -1.0
    for pattern in patterns:
        if pattern == name:
            best = float("inf")
        elif pattern.endswith("*") and name[: len(pattern) - 1] == pattern[:-1]:
            best = max(best, len(pattern) - 1)
    return best


Part = tuple[str, object, list[int]]


def oracle(blocks: list[Block], key: CellKey) -> list[Part] | str:
    """(outcome, layouts, deciding lines) of the end of the process and of the other checks, or "conflict"."""
    ends = ("crash", "hang")  # no block here is flaky
    candidates: list[tuple[Block, Rank]] = []
    for each in blocks:
        axes = zip((each.clause, each.op, each.dtype, each.variant), key, strict=True)
        rank = tuple(exactness(patterns, name) for patterns, name in axes)
        if min(rank) >= 0:
            candidates.append((each, rank))
    winners = []
    for each, rank in candidates:
        beaten = False
        for by, other in candidates:
            at_least = all(b >= a for a, b in zip(rank, other, strict=True))
            more = any(b > a for a, b in zip(rank, other, strict=True))
            same = (each.outcome.value in ends) == (by.outcome.value in ends)
            beaten = beaten or (at_least and more and same)
        if not beaten:
            winners.append(each)
    outcomes = sorted({each.outcome.value for each in winners}, key=lambda name: name not in ends)
    if len({name in ends for name in outcomes}) < len(outcomes):
        return "conflict"
    parts: list[Part] = []
    for outcome in outcomes:
        layouts: set[str] | None = set()
        for each, _ in candidates:
            if each.outcome.value == outcome:
                if each.layouts is None:
                    layouts = None
                    break
                assert layouts is not None
                layouts |= each.layouts
        deciding = [each.line for each in winners if each.outcome.value == outcome]
        parts.append((outcome, layouts, deciding))
    return parts


_CLAUSES = ["a.x", "a.xy", "b.x"]
_OPS = ["add", "addmm", "nn.conv"]
_DTYPES = ["int8", "int16", ""]
_VARIANTS = ["", "compiled", "4 ranks"]


def _patterns(names: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
    prefixes = {f"{name[:n]}*" for name in names for n in range(len(name) + 1)}
    some = st.sampled_from(sorted({*prefixes, *filter(None, names)}))
    return st.one_of(st.just(("*",)), st.lists(some, min_size=1, max_size=3).map(tuple))


def _drawn(*outcomes: ExpectedOutcome) -> st.SearchStrategy[Block]:
    return st.builds(
        Block,
        line=st.just(0),
        clause=_patterns(_CLAUSES),
        op=_patterns(_OPS),
        dtype=_patterns(_DTYPES),
        variant=_patterns(_VARIANTS) | st.just(("",)),
        layouts=st.none() | st.frozensets(st.sampled_from("pqr"), min_size=1),
        outcome=st.sampled_from(outcomes),
        reason=st.just("why"),
    )


def seen(matcher: Matcher, key: CellKey) -> list[Part] | str:
    """What the matcher says, in the oracle's form."""
    try:
        found = matcher.expect(key)
    except ManifestConflict:
        return "conflict"
    parts = found.parts if found is not None else ()
    return [(part.outcome.value, part.layouts, lines(part.deciding)) for part in parts]


def _compare(drawn: list[Block]) -> None:
    blocks = [replace(each, line=line) for line, each in enumerate(drawn, 1)]
    matcher = Matcher(Manifest(tuple(blocks)))
    for key in map(CellKey._make, product(_CLAUSES, _OPS, _DTYPES, _VARIANTS)):
        assert seen(matcher, key) == oracle(blocks, key)


_FEW = _drawn(ExpectedOutcome.FAIL, ExpectedOutcome.CRASH, ExpectedOutcome.HANG)
_MANY = _drawn(ExpectedOutcome.FAIL)  # of several outcomes so many would conflict on every cell


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(_FEW, max_size=8))
def test_the_matcher_says_what_a_plain_search_says(drawn: list[Block]) -> None:
    _compare(drawn)


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(st.lists(_MANY, min_size=60, max_size=80), st.lists(_FEW, max_size=2))
def test_many_blocks_are_matched_as_few_are(many: list[Block], few: list[Block]) -> None:
    _compare([*many, *few])


def test_a_conflict_is_a_manifest_error() -> None:
    assert issubclass(ManifestConflict, ManifestError)
