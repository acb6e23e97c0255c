"""Whatever becomes of a run's record: refused with one clear error, or read as what it says; never wrongly green.

The record is changed and given a checksum that fits, as someone would who wants the gate to open.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cell import Outcome, Verdict
from reports.gate import ExitCode, gate
from reports.model import RunError
from reports.run import RECORD_FILE, load_run, write_run
from tests.fuzzing import examples
from tests.reports import independent
from tests.reports.builders import (
    ADD,
    ADD_INT,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    QUERY,
    body,
    failed,
    forge,
    passed,
    plan_document,
    results,
)

EXPECTED = failed(ADD_INT, Verdict.EXPECTED)
RUNS = {
    "green": results(EXPECTED, passed(CONV, why="π & <b>")),
    "regression": results(failed(ADD), EXPECTED),
    "improvement": results(passed(ADD, verdict=Verdict.IMPROVEMENT), EXPECTED),
    "crash": results(failed(BOUNDS, outcome=Outcome.CRASH, layouts=())),
    "provisional": results(failed(QUERY, layouts=())),
    "missing": {key: each for key, each in results(EXPECTED).items() if key != CONV},
}
GREEN = {"green", "provisional"}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder a run, which no test changes, and one to change."""
    base = tmp_path_factory.mktemp("runs")
    for name, made in RUNS.items():
        write_run(base / name, plan_document(), made, PROVENANCE)
    (base / "scratch").mkdir()
    return base


def fresh(folders: Path, name: str) -> Path:
    for path in (folders / name).iterdir():
        shutil.copyfile(path, folders / "scratch" / path.name)
    return folders / "scratch"


def judge_as_others_would(folder: Path) -> str:
    """Load and gate; compare what comes out with an independent reading of the same record."""
    try:
        run = load_run(folder)
        result = gate(run)
    except RunError as error:
        assert str(folder) in str(error) and "\n" not in str(error)
        assert error.exit_code == 4
        return "refused"
    told = independent.read(folder)
    assert set(told) == set(run.results)
    for key, each in told.items():
        assert independent.same(run.results[key], each), key
    if result.exit_code is ExitCode.GREEN:
        assert independent.green(folder)
    return result.exit_code.label


@pytest.mark.parametrize("name", RUNS)
def test_the_independent_reading_agrees_on_what_was_not_changed(folders: Path, name: str) -> None:
    said = judge_as_others_would(fresh(folders, name))
    assert (said == "green") == (name in GREEN) == independent.green(folders / name)


_BYTES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from(
        [
            b"\xa4pass", b"\xa4fail", b"\xa2ok", b"\xa8expected", b"\x00", b"\x01", b"\xc0", b"\xff", b"\x90",
            b"\x80", b"\xa0", b"\xdc\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xcb" + b"\x7f\xf8" + b"\x00" * 6,
        ]
    ),
)  # fmt: skip


@examples(400)
@given(st.sampled_from(sorted(RUNS)), st.floats(0, 1, exclude_max=True), _BYTES, st.integers(0, 20), st.booleans())  # fmt: skip
def test_changed_bytes(
    folders: Path, name: str, share: float, put: bytes, cut: int, signed: bool
) -> None:
    folder = fresh(folders, name)
    whole = body(folder) if signed else (folder / RECORD_FILE).read_bytes()
    at = int(share * len(whole))
    changed = whole[:at] + put + whole[at + cut :]
    if signed:
        forge(folder, changed)
    else:
        (folder / RECORD_FILE).write_bytes(changed)
    said = judge_as_others_would(folder)
    if not signed and changed.partition(b"\n")[2] != whole.partition(b"\n")[2]:
        assert said == "refused"


_VALUES: dict[str, Any] = {
    "outcome": st.sampled_from([*(each.value for each in Outcome), "fine", "", None, 3]),
    "verdict": st.sampled_from([*(each.value for each in Verdict), "", None]),
    "checks": st.sampled_from([0, 1, -1, 2**63, 1.5, "3", True, None]),
    "layouts": st.sampled_from([[], ["transposed"], ["nowhere"], "transposed", [1]]),
    "ran_layouts": st.sampled_from([[], ["contiguous"], None, 3]),
    "worst_error": st.sampled_from([0.5, float("nan"), float("inf"), "much", -1, None]),
    "raises": st.sampled_from(["RuntimeError", "", None, 3]),
    "failure": st.sampled_from([None, {}, {"kind": "values"}, {"kind": "luck"}, "values"]),
    "failed": st.sampled_from([0, -1, 3, None]),
    "note": st.sampled_from(["values differ", "\n", 0]),
    "why": st.sampled_from(["", "because", None]),
    "repro": st.sampled_from(["repro/1.py", "../../etc/passwd", "/etc/passwd", "C:\\x", ""]),
    "seconds": st.sampled_from([1.0, -1.0, float("nan"), float("inf"), "soon"]),
    "waived": st.just(True),
}


def _change_value(parts: independent.Parts, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(_VALUES)))
    if name not in parts.fields:
        value = data.draw(_VALUES[name])
        parts.fields[name] = [[value], bytes(min(parts.count, 9))]
        return
    values, positions = parts.fields[name]
    what = data.draw(st.sampled_from(["value", "position", "extra", "drop"]))
    if what == "value" and values:
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(_VALUES[name])
    elif what == "position" and positions:
        place = data.draw(st.integers(0, len(positions) - 1))
        new = bytes([data.draw(st.integers(0, 3))])
        parts.fields[name][1] = positions[:place] + new + positions[place + 1 :]
    elif what == "extra":
        values.append(data.draw(_VALUES[name]))
    elif what == "drop":
        del parts.fields[name]


def _change_parts(parts: independent.Parts, data: st.DataObject) -> None:
    what = data.draw(
        st.sampled_from(["value", "value", "value", "count", "cells", "plan", "selected", "origin"])
    )
    if what == "value":
        _change_value(parts, data)
    elif what == "count":
        parts.count = data.draw(st.sampled_from([0, 1, 4, 5, 6, 2**40]))
    elif what == "cells":
        numbers = data.draw(st.lists(st.integers(0, 6), max_size=6))
        parts.cells = b"".join(number.to_bytes(4, "little") for number in numbers)
    elif what == "plan":
        _, ops = data.draw(st.sampled_from(parts.plan["cells"]))
        if not ops:
            return
        op = data.draw(st.sampled_from(sorted(ops)))
        data.draw(
            st.sampled_from([ops.clear, lambda: ops.pop(op), lambda: ops[op].append("bool")])
        )()
    elif what == "selected":
        parts.selected = data.draw(
            st.sampled_from([None, [], [["layout.values", {"add": ["bool"]}]]])
        )
    else:
        name = data.draw(st.sampled_from(sorted(parts.provenance)))
        parts.provenance[name] = data.draw(st.sampled_from(["", "1/4", True, False, 0, None]))


@examples(400)
@given(st.sampled_from(sorted(RUNS)), st.data())
def test_changed_parts(folders: Path, name: str, data: st.DataObject) -> None:
    folder = fresh(folders, name)
    parts = independent.Parts.of(folder)
    for _ in range(data.draw(st.integers(1, 3))):
        _change_parts(parts, data)
    forge(folder, parts.encoded())
    judge_as_others_would(folder)


def test_a_careful_forgery_of_every_red_cell_is_what_it_takes(folders: Path) -> None:
    # What is read is what the record says. That it is the one a run wrote is for CI to see to.
    folder = fresh(folders, "regression")
    parts = independent.Parts.of(folder)
    parts.fields = {name: [[value], bytes(len(CELLS))] for name, value in
                    {"outcome": "pass", "verdict": "ok", "checks": 12}.items()}  # fmt: skip
    path = folder / RECORD_FILE
    path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n" + parts.encoded())
    assert judge_as_others_would(folder) == "refused"  # the checksum is another
    forge(folder, parts.encoded())
    assert judge_as_others_would(folder) == "green"


def test_what_is_made_to_hurt_is_refused_quickly(folders: Path) -> None:
    folder = fresh(folders, "green")
    for hurtful in (
        b"\x91" * 1_000_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"",
        b"\xc1",
    ):
        forge(folder, hurtful)
        assert judge_as_others_would(folder) == "refused"
