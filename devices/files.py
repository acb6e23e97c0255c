"""Functions for files: the cache folder, atomic replacement, safe file names, and TOML."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

import msgspec

try:
    import tomllib as tomllib
except ModuleNotFoundError:  # Python 3.10: tomli is the same code
    import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]

_Made = TypeVar("_Made")


def cache_root() -> Path:
    """Returns the cache folder, whose files can be made again: ``$TORCH_CONFORMANCE_CACHE`` if that variable is set,
    otherwise a folder in the user's cache folder."""
    if explicit := os.environ.get("TORCH_CONFORMANCE_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torch-conformance"


@contextmanager
def explained(kind: Callable[[str], Exception], path: object, problem: str) -> Iterator[None]:
    """Replaces an OSError in the context by an error of type ``kind``. The text of the error names the file, the
    problem (such as "cannot be written") and the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{path}: {problem}: {error.strerror or error}") from None


#: The largest file that is read as text, and the largest record of a run, in bytes.
MOST_TEXT = 64 << 20
MOST_RECORD = 1 << 30


def read_regular(path: Path, most: int = MOST_TEXT) -> bytes:
    """Returns the bytes of a regular file. Raises OSError if the file cannot be read, if it has more than ``most``
    bytes, or if it is a device or a pipe, because reading from these may never end."""
    # Opening a pipe without a writer would wait for one.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb", buffering=0) as stream:
        state = os.fstat(descriptor)
        if stat.S_ISDIR(state.st_mode):
            raise IsADirectoryError(errno.EISDIR, "expected a file, found a folder", str(path))
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "expected a file, found a device or a pipe", str(path))
        if state.st_size > most:
            large = f"the file has {state.st_size >> 20:,} MiB; expected at most {most >> 20:,} MiB"
            raise OSError(errno.EFBIG, large, str(path))
        return stream.read(state.st_size) if state.st_size else stream.read(most)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Provides a stream whose content atomically replaces the file ``path`` at the end of the context. If the context
    raises, the file is unchanged. Creates parent folders. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as stream:
            yield stream
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def why_not_writable(path: Path) -> str:
    """Returns why :func:`write_whole` cannot write a file; an empty text if it can. Folders that do not exist would be
    created, and are not."""
    if path.is_dir():
        return "expected a file, found a folder"
    if path.exists() and not path.is_file():
        return "expected a file, found a device or a pipe"
    there = path.absolute().parent
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return f"{there}: {error.strerror or error}"


def write_whole(path: Path, content: str | bytes) -> None:
    """Replaces a file atomically, so that a reader sees either the old content or the new one. Raises OSError."""
    with replacing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def file_name(text: str) -> str:
    """Returns a file name for any text. The name is valid on every system."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text) or "_"


def stays_inside(path: str) -> bool:
    """Returns True if a relative path from an untrusted source stays inside its folder, by the rules of POSIX and of
    Windows."""
    parts = PurePosixPath(path.replace("\\", "/"))
    inside = not parts.is_absolute() and ".." not in parts.parts
    return inside and bool(path) and path.isprintable() and ":" not in path


def read_toml(path: Path, kind: type[_Made], error: type[Exception]) -> _Made:
    """Returns the content of a TOML file, checked and converted to ``kind`` by msgspec. Raises ``error``, whose text
    names the file."""
    try:
        data = tomllib.loads(read_regular(path).decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise error(f"{path}: expected a file of valid TOML: {problem}") from None
    return converted(data, kind, str(path), error)


def converted(data: object, kind: type[_Made], where: str, error: type[Exception]) -> _Made:
    """Returns data converted to ``kind`` by msgspec. Raises ``error``, whose text begins with ``where``."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as problem:
        raise error(f"{where}: {problem}") from None
