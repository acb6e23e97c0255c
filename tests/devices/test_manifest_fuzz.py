"""Any bytes are read as a manifest, or refused as one; what is read says what is written there."""

from __future__ import annotations

from datetime import date
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.files import tomllib
from devices.lifecycle.inspection import explain, explanation_text, lint, stats
from devices.lifecycle.text import canonical
from devices.manifest import Manifest, ManifestError
from devices.verdicts import Matcher, judge_cell
from tests.fuzzing import examples

CLAUSES = ("layout.values", "layout.bounds", "graphs.pool")
LAYOUTS = ("channels_last+offset", "transposed", "stepped")
KNOWN = {"clause": CLAUSES, "layouts": LAYOUTS}


def block_with(**values: str) -> str:
    """A block of these keys, each written in TOML."""
    return "[[expect]]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())


_VALUES = st.one_of(
    st.sampled_from(
        [
            '"layout.values"', '"layout.*"', '"*"', "[]", '["add", "mul*"]', '"float32"', '"fail"',
            '"flaky"', '"crash"', "2027-01-01", "0.5", "nan", "-1", "true", '"["', '"(a+)+"', '""',
            '{ torch = ">=2" }', '{ os = "l*", torch = "<3" }', "{ torch = 1 }", '"RuntimeError"',
            '"https://x.y/1"', '"device-bug"', '["transposed"]', "{}", '"""a\n[[expect]]\n"""',
            "[[1]]", "'''\n[[expect]]'''", "10:00:00", "2027-01-01 10:00:00", '"\\u0000"',
        ]
    ),
    st.text(st.characters(codec="utf-8"), max_size=12),
)  # fmt: skip
_KEYS = st.sampled_from(
    [
        "clause",
        "op",
        "dtype",
        "layouts",
        "outcome",
        "raises",
        "match",
        "when",
        "kind",
        "reason",
        "issue",
        "expires",
        "min_pass_rate",
        "ops",
    ]
)
_LINES = st.one_of(
    st.builds("{} = {}".format, _KEYS, _VALUES),
    st.sampled_from(["[[expect]]", "[expect.when]", "[expect]", "# c [[expect]]", "", "\r", "]"]),
    st.text(st.characters(codec="utf-8"), max_size=20),
)
_BLOCKS = st.fixed_dictionaries(
    {
        "clause": st.sampled_from(['"layout.values"', '"*"', '["graphs.*", "layout.bounds"]']),
        "outcome": st.sampled_from(['"fail"', '"crash"', '"flaky"']),
        "reason": st.sampled_from(['"why"', '"""\n[[expect]]\n"""', "'''[[expect]]\n'''"]),
    },
    optional={
        "op": st.sampled_from(['"add"', '["add", "nn.*"]', '"*"']),
        "dtype": st.sampled_from(['"float*"', '["int8", "bool"]', '"flaot"']),
        "match": st.text(st.sampled_from("a([{.*+?|^$\\\\)]}"), max_size=6).map("'{}'".format),
        "when": st.sampled_from(['{ torch = ">=2" }', '{ torch = "x" }']),
        "expires": st.just("2027-01-01"),
        "min_pass_rate": st.sampled_from(["0.5", "0", "2"]),
    },
).map(lambda values: block_with(**values))


FACTS = {"torch": "2.13.0", "os": "linux"}
TODAY = date(2026, 6, 1)
CELLS = [
    CellKey(*names)
    for names in product(
        ("layout.values", "layout.bounds", "graphs.pool"),
        ("add", "mul", "nn.relu"),
        ("int8", "float32"),
    )
]
SEEN = (
    Observed(Outcome.FAIL, frozenset({"transposed"}), "RuntimeError", "a"),
    Observed(Outcome.FAIL),
    Observed(Outcome.CRASH),
)


def _loads_or_is_refused(text: str) -> None:
    """Whatever is done with a text's manifest ends well, or with one clear error."""
    try:
        manifest = Manifest.parse(text, None, KNOWN)
        lint(manifest, CELLS, FACTS, TODAY, text)
        stats(manifest, FACTS, TODAY, cells=CELLS)
        for key in CELLS[:2]:
            explanation_text(explain(manifest, key, FACTS))
        matcher = Matcher(manifest.active(FACTS))
    except ManifestError as error:
        assert str(error).strip()
        return
    lines = text.split("\n")
    for block in manifest.blocks:
        assert "expect" in lines[block.line - 1]
        assert block.reason.strip()
    _never_wrongly_green(text, matcher)
    form = canonical(text, manifest)
    again = Manifest.parse(form, None, KNOWN)
    assert canonical(form, again) == form
    assert _verdicts(Matcher(again.active(FACTS))) == _verdicts(matcher)


def _verdicts(matcher: Matcher) -> list[Verdict | None]:
    """The verdict on each cell for each of what might be seen; None where blocks contradict."""
    found: list[Verdict | None] = []
    for key in CELLS:
        match = matcher.match(key)
        for seen in SEEN:
            verdict = None if match.conflict else judge_cell(match.expectation, seen).verdict
            found.append(verdict)
    return found


def _never_wrongly_green(text: str, matcher: Matcher) -> None:
    """What is excused is excused by a block that says so, read by other means than ours."""
    tables = tomllib.loads(text).get("expect", [])
    verdicts = iter(_verdicts(matcher))
    for key in CELLS:
        for seen in SEEN:
            if next(verdicts) in (Verdict.EXPECTED, Verdict.FLAKY):
                assert any(_excuses(table, key, seen) for table in tables), (key, seen)


def _excuses(table: dict[str, Any], key: CellKey, seen: Observed) -> bool:
    for axis, name in zip(("clause", "op", "dtype", "variant"), key, strict=True):
        names = table.get(axis, "*")
        if not any(
            fnmatchcase(name, each) for each in ([names] if isinstance(names, str) else names)
        ):
            return False
    if table.get("when", {}).get("os") not in (None, "l*", "linux"):
        return False
    flaky = table["outcome"] == "flaky" and seen.outcome is Outcome.FAIL
    return flaky or table["outcome"] == seen.outcome.value


@examples(300)
@given(st.lists(_LINES, max_size=12).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    _loads_or_is_refused(text)


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # of the drawn regular expressions
@examples(200)
@given(st.lists(_BLOCKS, max_size=4), st.sampled_from(["\n", "\r\n"]))
def test_any_blocks_are_read_or_refused(blocks: list[str], newline: str) -> None:
    _loads_or_is_refused("".join(blocks).replace("\n", newline))


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@examples(200)
@given(st.lists(_BLOCKS, min_size=1, max_size=4), st.data())
def test_a_damaged_manifest_is_read_or_refused(blocks: list[str], data: st.DataObject) -> None:
    text = "".join(blocks)
    at = data.draw(st.integers(0, len(text) - 1))
    cut = data.draw(st.integers(0, 3))
    put = data.draw(st.text(st.sampled_from("\"'[]{}=,#\\\n\0é"), max_size=3))
    _loads_or_is_refused(text[:at] + put + text[at + cut :])


# Of the manifest that we ship, and of no manifest at all

_SHIPPED = Path(__file__).resolve().parents[2] / "devices" / "cpu" / "expected.toml"
_BLOCKS_SHIPPED = _SHIPPED.read_bytes().split(b"\n\n")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifest") / "expected.toml"


def _file_loads_or_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    try:
        manifest = Manifest.load(file)
    except ManifestError as error:
        assert str(file) in str(error)
        return
    text = content.decode("utf-8-sig")
    assert len(manifest.blocks) == len(tomllib.loads(text).get("expect", []))
    form = canonical(text, manifest)
    assert canonical(form, Manifest.parse(form)) == form


@examples(200)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(file: Path, content: bytes) -> None:
    _file_loads_or_is_refused(file, content)


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@examples(200)
@given(st.data())
def test_bytes_changed_in_a_real_manifest_are_read_or_refused(
    file: Path, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(_BLOCKS_SHIPPED) - 3))
    content = b"\n\n".join(_BLOCKS_SHIPPED[first : first + 3]) + b"\n"
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        put = data.draw(
            st.one_of(
                st.binary(max_size=3), st.sampled_from([b"[[expect]]", b'"""', b"#", b"\n", b"*"])
            )
        )
        content = content[:at] + put + content[at + data.draw(st.integers(0, 12)) :]
    _file_loads_or_is_refused(file, content)
