"""Whatever a manifest says and runs show: an update never says more, and what passes is gone."""

from __future__ import annotations

from itertools import product

from hypothesis import assume, given
from hypothesis import strategies as st

from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.lifecycle.evidence import Evidence, Seen, judge_observation
from devices.lifecycle.text import canonical
from devices.lifecycle.update import Cause, update
from devices.manifest import Manifest
from devices.verdicts import Expectation, Matcher
from tests.devices.lifecycle.builders import FACTS, TODAY, block, manifest, parse, run
from tests.fuzzing import examples

CLAUSES = ("layout.bounds", "layout.values", "streams.query")
OPS = ("add", "addmm", "mul", "nn.relu")
#: Neither is in any plan: what a manifest says of them is nobody's to change.
OTHER_OPS = ("admire", "nn.silu")
PLANNED_DTYPES, DTYPES = ("bool", "float32"), ("bool", "float32", "int8", "int64")
VARIANTS = ("", "compiled")
LAYOUTS = ("a", "b", "c")
WORLD = [CellKey(*names) for names in product(CLAUSES, OPS, PLANNED_DTYPES, VARIANTS)]


def _axis(names: tuple[str, ...], *prefixes: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*names, *prefixes]), min_size=1, max_size=3, unique=True)


def _toml(names: list[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


_BLOCKS = st.fixed_dictionaries(
    {
        "clause": _axis(CLAUSES, "layout.*", "*").map(_toml),
        "op": _axis(OPS, "add*", "nn.*", "*", "unheard").map(_toml),
        "outcome": st.sampled_from(["fail", "fail", "fail", "crash", "flaky"]),
    },
    optional={
        "dtype": _axis(DTYPES, "int*", "*").map(_toml),
        "variant": _axis(VARIANTS, "comp*", "*").map(_toml),
        "layouts": st.lists(st.sampled_from(LAYOUTS), min_size=1, unique=True).map(_toml),
        "raises": st.sampled_from(['"RuntimeError"', '"ValueError"']),
        "when": st.sampled_from(['{ os = "linux" }', '{ os = "darwin" }']),
    },
)


def _text(blocks: list[dict[str, str]]) -> str:
    texts = []
    for number, values in enumerate(blocks):
        values = {**values, "outcome": f'"{values["outcome"]}"', "reason": f'"cause {number}"'}
        if values["outcome"] == '"flaky"':
            values = {**values, "expires": "2028-01-01", "min_pass_rate": "0.5"}
        texts.append(block(**values))
    return manifest(*texts)


@st.composite
def _seen(draw: st.DrawFn) -> Seen:
    outcome = draw(
        st.sampled_from(
            [
                Outcome.PASS,
                Outcome.FAIL,
                Outcome.FAIL,
                Outcome.CRASH,
                Outcome.ERROR,
                Outcome.UNSUPPORTED,
            ]
        )
    )
    ran = draw(st.frozensets(st.sampled_from(LAYOUTS)))
    failed = frozenset(ran)
    if outcome is Outcome.CRASH and draw(st.booleans()):
        rest = draw(_seen())
        if rest.observed.outcome is not Outcome.CRASH:
            return Seen(Observed(outcome, rest=rest.observed), rest.ran)
    if outcome is not Outcome.FAIL:
        return Seen(Observed(outcome), ran)
    failed = draw(st.frozensets(st.sampled_from(sorted(ran)))) if ran else frozenset()
    return Seen(Observed(outcome, failed, draw(st.sampled_from([None, "RuntimeError"]))), ran)


_RUN = st.dictionaries(st.sampled_from(WORLD), _seen(), min_size=1)
_ALL = [
    CellKey(*names) for names in product(CLAUSES, (*OPS, *OTHER_OPS, "unheard"), DTYPES, VARIANTS)
]


def _matcher(read: Manifest) -> Matcher:
    return Matcher(read.active(FACTS))


def _says_no_more(new: Expectation | None, old: Expectation | None) -> bool:
    """Whether what is expected now was expected before."""
    if new is None:
        return True
    if old is None:
        return False
    # An outcome that another block's overrode comes to light when that block goes.
    overridden = {each.outcome for each in old.overridden}
    parts = {part.outcome: part for part in old.parts}
    for part in new.parts:
        if part.outcome not in parts:
            if part.outcome not in overridden:
                return False
            continue
        layouts = parts[part.outcome].layouts
        if layouts is not None and (part.layouts is None or not part.layouts <= layouts):
            return False
    return True


def _two(cells: dict[CellKey, Seen], other: dict[CellKey, Seen]) -> list[Evidence]:
    return [run(cells, "a", WORLD), run({**cells, **other}, "b", WORLD)]


def _without_conflicts(text: str) -> Manifest:
    read = parse(text)
    matcher = _matcher(read)
    assume(all(matcher.match(key).conflict is None for key in _ALL))
    return read


@examples(100)
@given(
    st.lists(_BLOCKS, max_size=4).map(_text),
    _RUN,
    st.dictionaries(st.sampled_from(WORLD), _seen(), max_size=2),
)
def test_without_a_reason_nothing_is_added_and_what_passes_is_gone(
    text: str, cells: dict[CellKey, Seen], other: dict[CellKey, Seen]
) -> None:
    text = canonical(text, parse(text))
    read = _without_conflicts(text)
    runs = _two(cells, other)
    done = update(text, read, runs, TODAY, dtypes=DTYPES)
    before, after = _matcher(read), _matcher(parse(done.text))
    alike = len({each.outcome for each in read.blocks}) == 1
    assert not done.added
    assert canonical(done.text, parse(done.text)) == done.text
    for key in _ALL:
        old, new = before.expect(key), after.expect(key)
        assert _says_no_more(new, old), key
        saw = [each.cells[key] for each in runs if key in each.cells]
        if saw and all(each.agrees(saw[0]) for each in saw):
            # Of two that agree, one may have run more layouts.
            first = {judge_observation(old, each, TODAY).verdict for each in saw}
            now = judge_observation(new, saw[0], TODAY).verdict
            if saw[0].observed.outcome is Outcome.PASS:
                assert now in (Verdict.OK, Verdict.FLAKY)
            elif Verdict.IMPROVEMENT not in first:
                assert {now} == first
            else:
                assert now in (Verdict.EXPECTED, Verdict.IMPROVEMENT)
        elif key.unit in OPS:  # seen by no run, or not the same by both
            assert _same(old, new), key
        elif key.dtype not in PLANNED_DTYPES and key.unit != "unheard" and alike:
            # Of ops that no plan had nothing is known; where outcomes meet, less may be said.
            assert _same(old, new), key
    again = update(done.text, parse(done.text), runs, TODAY, dtypes=DTYPES)
    assert again.text == done.text


def _same(old: Expectation | None, new: Expectation | None) -> bool:
    if old is None or new is None:
        return old is new
    told = [[(part.outcome, part.layouts) for part in each.parts] for each in (old, new)]
    return told[0] == told[1]


@examples(100)
@given(st.lists(_BLOCKS, max_size=4).map(_text), _RUN)
def test_with_a_reason_every_cell_that_a_block_can_expect_is_expected(
    text: str, cells: dict[CellKey, Seen]
) -> None:
    read = _without_conflicts(text)
    done = update(text, read, _two(cells, {}), TODAY, dtypes=DTYPES, cause=Cause("seen twice"))
    before, after = _matcher(read), _matcher(parse(done.text))
    for key in _ALL:
        if key not in cells:
            if key.dtype in PLANNED_DTYPES or key.unit in OPS:
                assert _says_no_more(after.expect(key), before.expect(key)), key
            continue
        old = before.expect(key)
        verdict = judge_observation(after.expect(key), cells[key], TODAY).verdict
        if old is not None and old.outcome.value == "flaky":
            continue
        if Outcome.ERROR in [part.observed.outcome for part in cells[key].parts]:
            assert verdict is Verdict.REGRESSION
        else:
            assert verdict in (Verdict.OK, Verdict.EXPECTED, Verdict.FLAKY), key
