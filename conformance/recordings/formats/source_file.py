"""A file from which a recording is read. The beginning of its content is used to recognize its format."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from conformance.recordings.wire import RecordingError

T = TypeVar("T")

#: The number of bytes by which a format is recognized.
_HEAD: Final = 2**16
#: The most bytes that a compressed file may become.
_MOST: Final = 2**32
_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK\x03\x04"
_PICKLE: Final = b"\x80"


class SourceFile:
    """A file with a recording in any format, decompressed if it was compressed by gzip. Its properties and methods
    raise RecordingError if the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the content."""
        return self._read(_HEAD)

    @property
    def content(self) -> bytes:
        """The whole content."""
        return self._read(_MOST)

    @property
    def text(self) -> str:
        """The whole content, decoded as UTF-8."""
        try:
            return self.content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self.damaged(f"the file is not UTF-8 text (byte {error.start:,})") from None

    @property
    def beginning(self) -> str:
        """The beginning of the content as text; bytes that are not UTF-8 are left out."""
        return self.head.decode("utf-8-sig", errors="ignore").lstrip()

    @property
    def is_zip(self) -> bool:
        """True if the file is a zip archive."""
        return self.head.startswith(_ZIP)

    def json(self, kind: type[T], title: str) -> T:
        """Returns the content, decoded as JSON of the type ``kind``. ``title`` describes what the file should be, for
        the message of the error."""
        return self.decode(self.content, kind, title)

    def decode(self, data: bytes, kind: type[T], title: str) -> T:
        """Returns the given bytes, decoded as JSON of the type ``kind``. ``title`` describes what they should be.
        Raises RecordingError if they are not JSON of this type."""
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as error:
            raise self.damaged(f"expected {title}; {error}") from None
        except msgspec.DecodeError as error:
            raise self.damaged(f"the JSON is damaged or incomplete: {error}") from None
        except RecursionError:
            raise self.damaged("the JSON is nested too deeply") from None

    def members(self) -> list[str]:
        """Returns the names of the files in a zip archive."""
        with self._archive() as archive:
            return archive.namelist()

    def member(self, name: str) -> bytes:
        """Returns the content of a file in a zip archive."""
        with self._archive() as archive:
            try:
                if archive.getinfo(name).file_size > _MOST:
                    raise self.damaged(f"{name} is larger than {_MOST:,} bytes")
                return archive.read(name)
            except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError) as error:
                raise self.damaged(f"{name} cannot be read: {error}") from None

    def damaged(self, why: str) -> RecordingError:
        """Returns the error to raise for a file whose content cannot be read, for the reason ``why``."""
        return RecordingError(f"{self.path} cannot be read: {why}")

    def looks_like(self) -> str:
        """Returns a phrase that says what the file seems to be, for the message about a file of an unknown format."""
        if not self.head:
            return "an empty file"
        if self.is_zip:
            return f"a zip archive with {_some(self.members())}"
        if self.head.startswith(_PICKLE):
            return "binary data that looks like a pickle of Python; pickles are not read, because they can run code"
        keys = _keys(self.content) if self.beginning.startswith("{") else None
        if keys is not None:
            return f"a JSON object with the keys {_some(keys)}"
        if b"\0" in self.head:
            return f"binary data that begins with the bytes {self.head[:4].hex(' ')}"
        return f"text that begins with {self.beginning[:40].splitlines()[:1]}"

    def _archive(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.path)
        except (zipfile.BadZipFile, OSError) as error:
            raise self.damaged(f"the zip archive is damaged or incomplete: {error}") from None

    def _read(self, most: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                compressed = file.read(2) == _GZIP
                file.seek(0)
                if not compressed:
                    return file.read(most)
                with gzip.open(file) as content:
                    found = content.read(most)
                    if most == _MOST and content.read(1):
                        raise self.damaged(f"its content is larger than {_MOST:,} bytes")
                    return found
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self.damaged(f"the gzip data is damaged or incomplete: {error}") from None
        except OSError as error:
            raise self.damaged(error.strerror or str(error)) from None


def _keys(content: bytes) -> list[str] | None:
    try:
        return list(msgspec.json.decode(content, type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, RecursionError):
        return None


def _some(names: list[str]) -> str:
    """Returns the first few names of a list as text, separated by commas."""
    shown: list[Any] = [each[:40] for each in names[:6]]
    return ", ".join(shown) + (", …" if len(names) > 6 else "") if names else "no names"
