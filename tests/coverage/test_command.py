"""``conform coverage``: the table, its filters, and wrong uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from conformance.cli import conform
from conformance.coverage.call_map import call_map
from devices.cell import CellKey
from reports.run import write_run
from tests.reports.builders import PROVENANCE, passed, plan_document


def call(*arguments: str) -> Result:
    return CliRunner().invoke(conform, ["coverage", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_table_says_what_is_judged_and_why_the_rest_is_not() -> None:
    text = call("--device", "cpu").stdout
    assert "device cpu, torch" in text
    assert "quantized tensor" in text
    if str(torch.__version__).startswith(call_map().torch):
        assert "no reason is known" not in text
    else:
        assert "the calls were measured with torch" in text


def test_an_overload_is_shown_with_what_judges_it_and_its_weight() -> None:
    text = call("--device", "cpu", "--ops", "addmm").stdout
    (line,) = [each for each in text.splitlines() if each.startswith("  aten::addmm ")]
    assert "judged; called by " in line
    assert " models; by layout." in line


def test_the_filters_choose_rows() -> None:
    rows = document("--device", "cpu", "--only", "never-called", "--ops", "*.grad_input")[
        "overloads"
    ]
    assert rows
    assert {row["state"] for row in rows} == {"never-called"}
    assert all(row["overload"].endswith(".grad_input") for row in rows)


def test_a_run_judges_only_what_its_cells_have_judged(tmp_path: Path) -> None:
    cell = CellKey("layout.values", "bucketize", "float32")
    write_run(tmp_path, plan_document([cell]), {cell: passed(cell)}, PROVENANCE)
    found = document(str(tmp_path))
    judged = {row["overload"] for row in found["overloads"] if row["state"] == "judged"}
    assert "aten::bucketize.Tensor" in judged
    assert not judged & {"aten::bucketize.Scalar", "aten::add.Tensor"}
    assert found["counts"]["judged"] == len(judged)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cpu", "--ops", "nosuchop"), "no overload of device cpu matches"),
        (("--device", "nosuchdevice"), "nosuchdevice"),
        (("nosuchfolder",), "nosuchfolder"),
        (("--device", "cpu", "--ops", ","), "empty list"),
        (("--device", "cpu", "--only", "judge"), "never-called"),
    ],
)
def test_a_wrong_use_is_one_message_and_exits_with_4(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        conform.main(["coverage", *arguments])
    assert ended.value.code == 4
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_run_without_a_verdict_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = CellKey("layout.values", "bucketize", "float32")
    write_run(tmp_path, plan_document([cell]), {}, PROVENANCE)
    with pytest.raises(SystemExit) as ended:
        conform.main(["coverage", str(tmp_path)])
    assert ended.value.code == 4
    assert "judged no kernel" in capsys.readouterr().err
