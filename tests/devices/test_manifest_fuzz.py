"""Any text is read as a manifest, or refused as one; nothing else happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.expectations import Manifest, ManifestError

CLAUSES = ("layout.values", "layout.bounds", "graphs.pool")
LAYOUTS = ("channels_last+offset", "transposed", "stepped")


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


def _loads_or_is_refused(text: str) -> None:
    try:
        manifest = Manifest.parse(text, None, CLAUSES, LAYOUTS)
    except ManifestError:
        return
    lines = text.split("\n")
    for block in manifest.blocks:
        assert "expect" in lines[block.line - 1]
        assert block.reason.strip()


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.lists(_LINES, max_size=12).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    _loads_or_is_refused(text)


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # of the drawn regular expressions
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(_BLOCKS, max_size=4), st.sampled_from(["\n", "\r\n"]))
def test_any_blocks_are_read_or_refused(blocks: list[str], newline: str) -> None:
    _loads_or_is_refused("".join(blocks).replace("\n", newline))


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(_BLOCKS, min_size=1, max_size=4), st.data())
def test_a_damaged_manifest_is_read_or_refused(blocks: list[str], data: st.DataObject) -> None:
    text = "".join(blocks)
    at = data.draw(st.integers(0, len(text) - 1))
    cut = data.draw(st.integers(0, 3))
    put = data.draw(st.text(st.sampled_from("\"'[]{}=,#\\\n\0é"), max_size=3))
    _loads_or_is_refused(text[:at] + put + text[at + cut :])
