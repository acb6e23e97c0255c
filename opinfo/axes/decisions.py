"""The CPU's answers to yes-or-no questions about the calls that axes make, cached between runs. Asking again takes
longer than making the calls.

An op and dtype ask the same questions in the same order as long as torch, the instruction set of the machine and this
package are the same. Each run verifies some of the cached answers.
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
    """A cached answer differs from what the CPU answers now, or there are more or fewer questions than before."""


class Decisions:
    """Answers to a sequence of yes-or-no questions. They come from a file if there is one, or else from the CPU; with
    ``anew``, always from the CPU."""

    def __init__(self, path: Path | None = None, *, anew: bool = False) -> None:
        self.path = path
        self._kept = _read(path) if path is not None and not anew else None
        self._given: list[str] = []

    def decide(self, question: Callable[[], bool]) -> bool:
        """The cached answer to a question; without a cache, the answer of ``question``. Raises Changed."""
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

    def keep(self) -> None:
        """Write new answers, after all questions were asked. If the folder cannot be written, the next run asks again.

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
        """The same object without cached answers."""
        return Decisions(self.path, anew=True)


def _checksum(given: str) -> str:
    return f"{zlib.crc32(given.encode()):08x}"


def _read(path: Path) -> str | None:
    """The answers in a file; None if it is missing or damaged."""
    with suppress(OSError, UnicodeDecodeError):
        given, _, checksum = path.read_text(encoding="ascii").partition(" ")
        if checksum == _checksum(given):
            return given
    return None


def kept_in(root: Path, op: str, dtype: str) -> Decisions:
    """The cached answers for an op and dtype in this cache folder."""
    return Decisions(_folder(root) / file_name(f"{op}-{dtype}"))


@lru_cache(maxsize=1)
def _folder(root: Path) -> Path:
    """The folder of answers for this torch, machine and version of the package. Removes the folders that were used
    longest ago."""
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
