"""The formats are recognized by the content of a file, and a file of no format is described."""

from __future__ import annotations

import gzip
import json
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.recordings.formats import FORMATS, check_format, recognize, title_of
from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.wire import RecordingError

TRACE = b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}'


def file_with(content: bytes, folder: Path) -> SourceFile:
    path = folder / "file"
    path.write_bytes(content)
    return SourceFile(path)


@dataclass(frozen=True)
class Known:
    content: bytes
    format: str


KNOWN = [
    Known(b'{"format":"torch-conformance-recording","version":1}\n', "recording"),
    Known(TRACE, "execution_trace"),
    Known(gzip.compress(TRACE), "execution_trace"),
    Known(b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}', "kineto"),
]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.format)
def test_a_format_is_recognized_by_the_content(known: Known, tmp_path: Path) -> None:
    module = recognize(file_with(known.content, tmp_path))
    assert module.__name__.rpartition(".")[2] == known.format


@dataclass(frozen=True)
class Strange:
    content: bytes
    said: str


@pytest.mark.parametrize(
    "strange",
    [
        Strange(b"", "an empty file"),
        Strange(b"import torch\nx = 1\n", "text that begins with ['import torch']"),
        Strange(json.dumps({"weights": 1, "bias": 2}).encode(), "the keys weights, bias"),
        Strange(pickle.dumps([1]), "pickles are not read"),
        Strange(b"\x7fELF\0\0", "binary data that begins with the bytes 7f 45 4c 46"),
    ],
    ids=lambda strange: strange.said,
)
def test_a_file_of_no_format_is_described(strange: Strange, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="is not a recording of a known format") as raised:
        check_format(file_with(strange.content, tmp_path).path, None)
    assert strange.said in str(raised.value)
    assert all(title_of(name) in str(raised.value) for name in FORMATS)


def test_an_archive_of_no_format_is_described(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(RecordingError, match="found a zip archive with notes.txt"):
        recognize(SourceFile(tmp_path / "a.zip"))


def test_a_given_format_is_not_recognized_but_must_be_known(tmp_path: Path) -> None:
    file = file_with(b"anything", tmp_path)
    assert recognize(file, "kineto").__name__.endswith("kineto")
    with pytest.raises(RecordingError, match="unknown format 'kinto': .*did you mean 'kineto'"):
        recognize(file, "kinto")


def test_damaged_archives_and_compressed_files_are_one_sentence(tmp_path: Path) -> None:
    for content in (gzip.compress(TRACE * 99)[:40], b"PK\x03\x04 no archive"):
        with pytest.raises(RecordingError, match="is damaged or incomplete") as raised:
            check_format(file_with(content, tmp_path).path, None)
        assert "\n" not in str(raised.value)


def test_an_empty_file_has_no_format_that_could_be_given(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="the file is empty"):
        check_format(file_with(b"", tmp_path).path, "kineto")
