"""Cached answers to yes-or-no questions about the CPU, such as whether it accepts a call that an axis has made. The
cache is kept between runs, because computing the answers takes longer than making the calls.

For an op and dtype, the questions are asked in the same order as long as torch, the instruction set of the machine and
the source code of the package are the same. Each run verifies some of the cached answers.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch

from devices.files import file_name, write_whole
from opinfo.spot_check import is_due

#: The number of folders to keep, for other versions of this package or of torch.
_KEPT = 3
_SOURCES = (".py", ".toml")


class Changed(Exception):
    """The exception that is raised if a cached answer differs from the present behaviour of the CPU, or if the number
    of questions has changed."""


class Decisions:
    """The answers to a sequence of yes-or-no questions about the CPU. They are read from a file if it exists, and
    otherwise computed on the CPU. With ``anew=True``, they are always computed."""

    def __init__(self, path: Path | None = None, *, anew: bool = False) -> None:
        self.path = path
        self._kept = _read_answers(path) if path is not None and not anew else None
        self._given: list[str] = []

    def decide(self, question: Callable[[], bool]) -> bool:
        """Returns the cached answer to a question or, without a cache, the result of ``question``. Raises Changed if a
        verified answer is wrong or no cached answer is left."""
        if self._kept is None:
            answer = question()
        elif len(self._given) == len(self._kept):
            raise Changed
        else:
            answer = self._kept[len(self._given)] == "1"
            if is_due() and question() != answer:
                raise Changed
        self._given.append("01"[answer])
        return answer

    def save(self) -> None:
        """Writes new answers to the cache. Call the method when all questions have been asked. If the folder cannot
        be written, the next run computes the answers again.

        Raises Changed if there were fewer questions than cached answers.
        """
        given = "".join(self._given)
        if self._kept is not None and given != self._kept:
            raise Changed
        if self.path is None or self._kept is not None:
            return
        with suppress(OSError):
            write_whole(self.path, f"{given} {_checksum(given)}")

    def anew(self) -> Decisions:
        """Returns a new object for the same file. It uses no cached answers and computes all answers again."""
        return Decisions(self.path, anew=True)


def _checksum(given: str) -> str:
    return f"{zlib.crc32(given.encode()):08x}"


def _read_answers(path: Path) -> str | None:
    """Returns the answers that are stored in a file, one character ("0" or "1") for each question; None if the file is
    missing or damaged."""
    with suppress(OSError, UnicodeDecodeError):
        given, _, checksum = path.read_text(encoding="ascii").partition(" ")
        if checksum == _checksum(given):
            return given
    return None


def kept_in(root: Path, op: str, dtype: str) -> Decisions:
    """Returns the cached answers to the yes-or-no questions about an op and dtype. Their file is below the folder
    ``root``."""
    return Decisions(present_folder(root) / file_name(f"{op}-{dtype}"))


@lru_cache(maxsize=1)
def present_folder(root: Path) -> Path:
    """Returns the folder of cached answers for the present torch, machine and source code. Removes all but the folders
    that were used most recently."""
    facts = hashlib.blake2b(digest_size=12)
    for fact in (
        *(torch.__version__, torch.version.git_version, torch.backends.cpu.get_cpu_capability()),
        *(sys.version, platform.machine()),
    ):
        facts.update(f"{fact}\n".encode())
    here = Path(__file__).resolve().parents[1]
    for path in sorted(here.rglob("*")):
        if path.suffix in _SOURCES:
            facts.update(str(path.relative_to(here)).encode() + path.read_bytes())
    found = root / "samples" / facts.hexdigest()
    # OSError: the cache is not writable, or another run removes the same folder.
    with suppress(OSError):
        found.mkdir(parents=True, exist_ok=True)
        found.touch()
        others = [each for each in found.parent.iterdir() if each != found]
        for old in sorted(others, key=lambda p: p.stat().st_mtime)[: 1 - _KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return found
