"""Recordings of any format, as a run opens them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.plan.options import OPTIONS, Request
from conformance.recordings.formats import read
from conformance.recordings.opening import OpenedRecording
from conformance.recordings.source import open_recording
from conformance.recordings.wire import write_recording
from devices.errors import ConformError
from tests.recordings.formats.test_files import EXAMPLES


def test_the_workers_of_a_run_see_the_calls_that_its_controller_plans(tmp_path: Path) -> None:
    opened = OpenedRecording(EXAMPLES / "spyre.yaml")
    opened.convert(tmp_path)
    again = open_recording(opened.path)
    assert opened.path.parent == tmp_path
    assert again.describe() == opened.source.describe()
    assert list(again.subjects()) == list(opened.source.subjects())


def test_a_file_of_conform_record_is_not_converted(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    write_recording(path, read(EXAMPLES / "operator_inputs.txt"))
    opened = OpenedRecording(path)
    opened.convert(tmp_path / "absent")
    assert opened.path == path


def test_a_format_without_a_recording_is_a_wrong_use() -> None:
    values = {each.dest: each.default for each in OPTIONS}
    values["conform_recording_format"] = "kineto"
    with pytest.raises(ConformError, match="--recording-format needs --recording FILE"):
        Request.from_options(
            {**values, "conform_minimise": "0", "conform_explore_seed": "0"},
            collect_only=False,
            deselects=(),
        )
