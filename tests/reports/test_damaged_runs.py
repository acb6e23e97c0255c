"""A record that was cut short, edited, of a newer format or of another run is refused: never wrongly green."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.cell import CellKey, Outcome, Verdict
from reports.gate import gate
from reports.model import RunError
from reports.run import RECORD_FILE, load_run, times_of, write_run
from tests.reports.builders import (
    ADD,
    ADD_INT,
    CONV,
    PROVENANCE,
    body,
    failed,
    forge,
    plan_document,
    results,
)
from tests.reports.independent import Parts

# One of everything that keeps a run from being green, so that no single edit can make it so.
RED = results(failed(ADD), failed(CONV, outcome=Outcome.CRASH), failed(ADD_INT, Verdict.EXPECTED))
LAYOUT = "junit-layout.xml"


@pytest.fixture(scope="session")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("red")
    write_run(folder, plan_document(), RED, PROVENANCE)
    return folder


@pytest.fixture
def copy(red: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(red, tmp_path / "copy"))


@pytest.fixture(scope="session")
def scratch(red: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(red, tmp_path_factory.mktemp("scratch") / "run"))


def restore(red: Path, scratch: Path) -> None:
    for path in red.iterdir():
        shutil.copyfile(path, scratch / path.name)


@settings(max_examples=400, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.booleans())
def test_a_truncated_record_is_refused(
    red: Path, scratch: Path, share: float, signed: bool
) -> None:
    restore(red, scratch)
    whole = body(red) if signed else (red / RECORD_FILE).read_bytes()
    cut = whole[: int(share * len(whole))]
    if signed:
        forge(scratch, cut)
    else:
        (scratch / RECORD_FILE).write_bytes(cut)
    with pytest.raises(RunError, match=RECORD_FILE):
        load_run(scratch)


@settings(max_examples=400, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.binary(max_size=3), st.integers(0, 20))
def test_a_changed_byte_is_refused_or_stays_red(
    red: Path, scratch: Path, share: float, put: bytes, cut: int
) -> None:
    restore(red, scratch)
    whole = body(red)
    at = int(share * len(whole))
    forge(scratch, whole[:at] + put + whole[at + cut :])
    try:
        run = load_run(scratch)
    except RunError:
        return
    assert gate(run).exit_code != 0


def change_byte(folder: Path) -> None:
    path = folder / RECORD_FILE
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)


def newer_format(folder: Path) -> None:
    path = folder / RECORD_FILE
    path.write_bytes(path.read_bytes().replace(b"-run 1 0.1.0", b"-run 2 9.9.9", 1))


def older_format(folder: Path) -> None:
    path = folder / RECORD_FILE
    path.write_bytes(path.read_bytes().replace(b"-run 1 ", b"-run 0 ", 1))


def newer_format_of_another_shape(folder: Path) -> None:
    (folder / RECORD_FILE).write_bytes(b"torch-conformance-run 7 9.9.9 blake3:00\nwhatever")


def cut_header(folder: Path) -> None:
    path = folder / RECORD_FILE
    path.write_bytes(path.read_bytes()[:40])


def something_else(folder: Path) -> None:
    (folder / RECORD_FILE).write_text('{"format": 1}')


def a_folder(folder: Path) -> None:
    (folder / RECORD_FILE).unlink()
    (folder / RECORD_FILE).mkdir()


def junit_alone(folder: Path) -> None:
    (folder / RECORD_FILE).unlink()


def change(folder: Path, how: Callable[[Parts], Any]) -> None:
    parts = Parts.of(folder)
    how(parts)
    forge(folder, parts.encoded())


def value(name: str, new: Any, place: int = 0) -> Callable[[Path], None]:
    """Put another value into a field."""
    return lambda folder: change(
        folder, lambda parts: parts.fields[name][0].__setitem__(place, new)
    )


def short_field(parts: Parts) -> None:
    parts.fields["verdict"][1] = parts.fields["verdict"][1][:-1]


def wild_position(parts: Parts) -> None:
    parts.fields["verdict"][1] = b"\x09" + parts.fields["verdict"][1][1:]


def unplanned(parts: Parts) -> None:
    parts.cells = b"".join(n.to_bytes(4, "little") for n in (0, 1, 2, 3, 9))


def twice(parts: Parts) -> None:
    parts.cells = b"".join(n.to_bytes(4, "little") for n in (0, 1, 1, 2, 3))


# Each edit, and what the refusal says of it.
EDITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a changed byte": (change_byte, "truncated or changed since the run wrote it (its SHA-256"),
    "a newer format": (
        newer_format,
        "expected format 1, found 2, written by torch-conformance 9.9.9: update torch-conformance",
    ),
    "a newer header": (newer_format_of_another_shape, "found 7, written by torch-conformance 9.9.9"),
    "an older format": (older_format, "expected format 1, found 0"),
    "a cut header": (cut_header, "its first line is damaged or truncated"),
    "another file": (something_else, "this file is not the record of a run"),
    "a folder": (a_folder, "cannot be read"),
    "JUnit alone": (junit_alone, "the folder has JUnit files only"),
    "an unknown outcome": (value("outcome", "fine"), "Invalid enum value 'fine'"),
    "an unknown kind": (value("failure", {"kind": "luck"}, 0), "Invalid enum value 'luck'"),
    "another type": (value("checks", "many"), "Expected `int`, got `str`"),
    "a field of a newer version": (
        lambda folder: change(folder, lambda p: p.fields.update(waived=[[True], b""])),
        "the results have the field 'waived', which this version does not know",
    ),
    "no outcomes": (
        lambda folder: change(folder, lambda p: p.fields.pop("outcome")),
        "the results lack the field 'outcome'",
    ),
    "a short field": (lambda folder: change(folder, short_field), "'verdict' does not have 5 values"),
    "a wild position": (lambda folder: change(folder, wild_position), "a value that is not in its list"),
    "a cell that was not planned": (
        lambda folder: change(folder, unplanned), "a result for a cell that is not planned",
    ),
    "a cell twice": (lambda folder: change(folder, twice), "the cells are out of order"),
    "fewer results": (
        lambda folder: change(folder, lambda p: setattr(p, "count", 4)), "has 4 results for 5 cells",
    ),
    "another plan": (
        lambda folder: change(folder, lambda p: p.plan.update(hash="other")),
        "plan and provenance belong to different runs",
    ),
    "the provenance of another run": (
        lambda folder: change(folder, lambda p: p.provenance.update(device="npu")),
        "plan and provenance belong to different runs",
    ),
    "a lost provenance": (
        lambda folder: change(folder, lambda p: p.provenance.pop("torch")),
        "missing required field `torch`",
    ),
    "a cell dropped from the plan": (
        lambda folder: change(folder, lambda p: p.plan["cells"].pop()), "has 5 results for 4 cells",
    ),
    "a clause twice": (
        lambda folder: change(folder, lambda p: p.plan["clauses"].extend(p.plan["clauses"])),
        "listed twice",
    ),
    "unplanned selection": (
        lambda folder: change(
            folder, lambda p: setattr(p, "selected", [["layout.values", {"sub": ["bool"]}]])
        ),
        "1 selected cells are not planned",
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_doctored_record_is_refused_even_when_signed_again(copy: Path, edit: str) -> None:
    doctor, says = EDITS[edit]
    doctor(copy)
    with pytest.raises(RunError) as refused:
        load_run(copy)
    assert says in str(refused.value)
    assert str(refused.value).startswith(str(copy / RECORD_FILE)) and "\n" not in str(refused.value)
    assert refused.value.exit_code == 4


def test_a_pass_with_failing_layouts_is_read_and_is_no_evidence(copy: Path) -> None:
    value("outcome", "pass", 0)(copy)
    value("verdict", "ok", 0)(copy)
    result = gate(load_run(copy))
    assert result.exit_code == 2 and any("contradict" in text for text in result.problems)


def test_the_junit_files_are_no_evidence(copy: Path) -> None:
    (copy / LAYOUT).write_text("<testsuites/>")
    assert load_run(copy).results == RED


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="run.conform: not found; expected the folder"):
        load_run(tmp_path)
    with pytest.raises(RunError, match="nowhere: not found"):
        load_run(tmp_path / "nowhere")
    write_run(tmp_path, plan_document(), results(), PROVENANCE)
    with pytest.raises(RunError, match="junit-layout.xml: this file is not the record of a run"):
        load_run(tmp_path / LAYOUT)


# -- times, which JUnit files alone have too


def test_times_are_those_of_the_record_or_of_junit_files_alone(copy: Path) -> None:
    wanted = {cell: result.seconds for cell, result in RED.items()}
    assert times_of(copy) == wanted
    (copy / RECORD_FILE).unlink()
    assert times_of(copy) == pytest.approx(wanted)
    assert times_of(copy / LAYOUT).keys() == {cell for cell in RED if cell.dtype}


@pytest.mark.parametrize(
    "text",
    [
        "", "<testsuites", "<html/>", '<testsuites><testsuite name="x"><testcase name="y"/></testsuite></testsuites>',
        '<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]><testsuites>&x;</testsuites>',
        '<!DOCTYPE t [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><testsuite name="&b;"><testcase/></testsuite>',
    ],
)  # fmt: skip
def test_junit_that_is_not_a_run_s_gives_no_times_or_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(text)
    try:
        found: dict[CellKey, float] = times_of(path)
    except RunError as error:
        assert str(error).startswith(f"{path}: not the JUnit file of a run")
    else:
        assert found == {}
