"""The file format of recordings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from conformance.recordings.wire import (
    FORMAT,
    VERSION,
    Header,
    Place,
    RecordedCall,
    RecordedTensor,
    Recording,
    RecordingError,
    Values,
    read_recording,
    write_recording,
)

X = RecordedTensor("float32", (3, 4), (4, 1), values=Values(-1.5, 2.0, nan=True))
Y = RecordedTensor("int64", (4,), (2,), offset=1, storage=1, values=Values(0, 7, repeats=False))
CALL = RecordedCall(
    "aten.add.Tensor",
    [{"tensor": 0}, {"tensor": 1}],
    {"alpha": {"float": "0.5"}},
    (X, Y),
    count=3,
    places=((Place("Net.a", "net.py:7"), 2), (Place("", "net.py:9"), 1)),
)


def recording(*calls: RecordedCall) -> Recording:
    return Recording(Header(FORMAT, VERSION, "2.13.0", "python net.py"), calls)


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = recording(CALL, msgspec.structs.replace(CALL, op="aten.sub.Tensor"))
    write_recording(tmp_path / "calls.jsonl", written)
    assert read_recording(tmp_path / "calls.jsonl") == written


@dataclass(frozen=True)
class Wrong:
    text: str
    said: str


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong("", "is not a recording"),
        Wrong("{}\n", "is not a recording"),
        Wrong('{"format": "other", "version": 1}\n', "is not a recording"),
        Wrong(f'{{"format": "{FORMAT}", "version": 99}}\n', "found version 99"),
        Wrong(f'{{"format": "{FORMAT}", "version": 1}}\nnonsense\n', "line 2"),
        Wrong(f'{{"format": "{FORMAT}", "version": 1}}\n{{"op": 3}}\n', "line 2"),
    ],
    ids=lambda wrong: wrong.said,
)
def test_a_damaged_file_gives_one_clear_error(wrong: Wrong, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(wrong.text, encoding="utf-8")
    with pytest.raises(RecordingError, match=wrong.said) as raised:
        read_recording(path)
    assert str(path) in str(raised.value) and raised.value.exit_code == 4


def test_a_file_that_is_absent_gives_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read: No such file"):
        read_recording(tmp_path / "calls.jsonl")


def test_the_name_of_a_call_depends_on_its_geometry_and_not_on_its_values_and_places() -> None:
    def named(**changes: object) -> str:
        return msgspec.structs.replace(CALL, **changes).name

    assert named() == CALL.name and CALL.name.startswith("add.Tensor~")
    assert named(count=9) == named(places=()) == named(phase="backward") == CALL.name
    other_values = msgspec.structs.replace(X, values=Values(0, 1))
    assert named(tensors=(other_values, Y)) == CALL.name
    for changed in (
        msgspec.structs.replace(X, stride=(1, 3)),
        msgspec.structs.replace(X, offset=2),
        msgspec.structs.replace(X, shape=(4, 4)),
        msgspec.structs.replace(X, dtype="float64"),
        msgspec.structs.replace(X, storage=1),
    ):
        assert named(tensors=(changed, Y)) != CALL.name
    assert named(kwargs={}) != CALL.name


def test_calls_of_one_name_are_joined_with_their_places() -> None:
    other = msgspec.structs.replace(
        CALL, phase="backward", count=2, places=((Place("", "net.py:9"), 2),)
    )
    joined = recording(CALL, other).named()
    assert list(joined) == [CALL.name]
    assert joined[CALL.name].count == 5
    assert dict(joined[CALL.name].places) == {
        Place("Net.a", "net.py:7"): 2,
        Place("", "net.py:9"): 3,
    }


def test_a_call_is_listed_by_its_floating_dtype_and_its_most_frequent_place() -> None:
    assert CALL.dtype == "float32" and CALL.where == "net.py:7 (Net.a)"
    assert msgspec.structs.replace(CALL, tensors=(Y,)).dtype == "int64"
    assert msgspec.structs.replace(CALL, tensors=(), places=()).where == ""
