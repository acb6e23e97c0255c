"""The file of pinned examples: written sorted and once, read strictly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.pinned import (
    FILE,
    Pinned,
    PinnedError,
    add_pinned,
    digest,
    line_of,
    ordered,
    read_pinned,
)

PIN = Pinned(
    clause="layout.values",
    op="exp",
    dtype="float32",
    call={"args": [{"tensor": 0}], "kwargs": {}, "tensors": [], "sample": 3},
    layouts={"first": "contiguous", "rest": "contiguous", "target": "contiguous"},
    kind="values",
    reason="found by random search",
    date="2026-01-31",
)
OTHER = replace(PIN, op="cos")
PROGRAM = Pinned(
    clause="streams.wait",
    op="drawn",
    dtype="",
    program=(1, [0, 0], [["step", 0, 0, 1]], [0, 1]),
    kind="x# is as in one order",
    reason="found by random search",
    date="2026-01-31",
)


def test_a_folder_without_the_file_has_none(tmp_path: Path) -> None:
    assert read_pinned(tmp_path) == read_pinned(None) == ()


def test_what_is_added_reads_back(tmp_path: Path) -> None:
    assert add_pinned(tmp_path, [PIN, OTHER]) == (OTHER, PIN)
    assert read_pinned(tmp_path) == (OTHER, PIN)


def test_the_same_example_is_added_once_whatever_is_said_of_it(tmp_path: Path) -> None:
    add_pinned(tmp_path, [PIN])
    again = replace(PIN, reason="seen again", date="2027-01-31", kind="strides")
    assert again.id == PIN.id and add_pinned(tmp_path, [again, OTHER]) == (OTHER,)
    assert read_pinned(tmp_path) == (OTHER, PIN)


def test_the_file_does_not_depend_on_the_order_in_which_examples_came(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, pins in ((one, [PIN, OTHER]), (two, [OTHER, PIN])):
        folder.mkdir()
        for pin in pins:
            add_pinned(folder, [pin])
    assert (one / FILE).read_bytes() == (two / FILE).read_bytes()
    assert not [p for p in one.iterdir() if p.name != FILE]


def test_every_line_names_the_format_and_its_id(tmp_path: Path) -> None:
    add_pinned(tmp_path, [PIN])
    (line,) = (tmp_path / FILE).read_text().splitlines()
    data = json.loads(line)
    assert (data["format"], data["id"], PIN.layout) == (1, PIN.id, f"pinned:{PIN.id}")


def test_the_id_is_over_cell_call_and_layouts(tmp_path: Path) -> None:
    layouts = {**PIN.layouts, "first": "transposed"}
    changed = [OTHER, replace(PIN, call={}), replace(PIN, layouts=layouts)]
    assert len({pin.id for pin in (PIN, *changed)}) == 4


def test_ids_stay_as_they_were() -> None:
    assert (PIN.id, PROGRAM.id) == ("2cd488b5", "0b2eb99b")


def test_calls_and_programs_are_kept_side_by_side(tmp_path: Path) -> None:
    assert add_pinned(tmp_path, [PROGRAM, PIN]) == (PIN, PROGRAM)
    assert add_pinned(tmp_path, [PROGRAM]) == ()
    call, program = map(json.loads, (tmp_path / FILE).read_text().splitlines())
    assert (call["format"], program["format"]) == (1, 2)
    assert "program" not in call and not {"call", "layouts"} & set(program)
    assert read_pinned(tmp_path) == (PIN, PROGRAM)


def test_the_id_of_a_program_is_over_cell_and_program() -> None:
    changed = [replace(PROGRAM, clause="streams.order"), replace(PROGRAM, program=(1,))]
    assert len({pin.id for pin in (PROGRAM, *changed)}) == 3
    assert replace(PROGRAM, kind="other", reason="other").id == PROGRAM.id


def test_a_plan_s_hash_sees_which_are_pinned() -> None:
    assert digest([]) == "none"
    assert digest([PIN, OTHER]) == digest([OTHER, PIN]) != digest([PIN])
    assert ordered([PIN, OTHER]) == (OTHER, PIN)


def line(pinned: Pinned = PIN, /, **changed: Any) -> str:
    data = json.loads(line_of(pinned))
    return json.dumps({k: v for k, v in (data | changed).items() if v is not None})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "truncated"),
        ("[" * 100_000, "not a pinned example"),
        ("[]", "Expected `object`, got `array`"),
        (line(format=3), "Invalid value 3 - at `$.format`"),
        (line(format=[]), "`$.format`"),
        (line(format=2), "`$.dtype`"),
        (line(format=2, dtype=""), "unknown field `call`"),
        (line(PROGRAM, format=1), "`$.dtype`"),
        (line(PROGRAM, call={}), "unknown field `call`"),
        (line(PROGRAM, program=[]), "Expected `array` of length >= 1 - at `$.program`"),
        (line(PROGRAM, program="x"), "Expected `array`, got `str` - at `$.program`"),
        (line(PROGRAM, dtype="float32"), "Expected `str` of length <= 0 - at `$.dtype`"),
        (line(PROGRAM, program=[2]), "its content gives the id"),
        (line(dtype=""), "`$.dtype`"),
        (line(op=None), "missing required field `op`"),
        (line(more=1), "unknown field `more`"),
        (line(reason=" "), "`$.reason`"),
        (line(date="31.1.2026"), "`$.date`"),
        (line(op="sin"), "its content gives the id"),
        (line(id="00000000"), "its content gives the id"),
        (line(layouts=[]), "Expected `object`, got `array` - at `$.layouts`"),
        (line(layouts={"first": 1}), "Expected `str`, got `int` - at `$.layouts[...]`"),
    ],
)
def test_a_bad_line_is_one_error_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / FILE).write_text(f"{line()}\n\n{text}\n")
    with pytest.raises(PinnedError) as caught:
        read_pinned(tmp_path)
    assert f"{FILE}:3: " in str(caught.value) and says in str(caught.value)


def test_a_file_that_cannot_be_read_or_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff")
    with pytest.raises(PinnedError, match="cannot be read"):
        read_pinned(tmp_path)
    with pytest.raises(PinnedError, match="cannot be written"):
        add_pinned(tmp_path / "none", [PIN])


@given(
    st.text(max_size=60)
    | st.builds(lambda d: json.dumps(d), st.dictionaries(st.text(), st.integers()))
)
def test_no_text_is_more_than_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("pinned")
    (folder / FILE).write_text(text, encoding="utf-8")
    try:
        assert read_pinned(folder) == ()
    except PinnedError as error:
        assert FILE in str(error)
