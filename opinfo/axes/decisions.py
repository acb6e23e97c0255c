"""What the CPU said of the calls that axes make, kept between runs: asking for it again takes longer than making them.

The same op and dtype asks the same questions in the same order, as long as nothing that decides them has changed: torch,
the machine's instructions, this package. Kept answers are not trusted silently: some are asked for again in each run.
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

#: Folders that are kept, of several states of this package or of torch.
_KEPT = 3
_SOURCES = (".py", ".toml")


class Changed(Exception):
    """A kept answer is not what the CPU says now, or belongs to another question."""


class Decisions:
    """Answers to questions of yes or no: those that are kept in a file, in their order; the CPU's own where there is none, or
    where they are asked for ``anew``."""

    def __init__(self, path: Path | None = None, *, anew: bool = False) -> None:
        self.path = path
        self._kept = _read(path) if path is not None and not anew else None
        self._given: list[str] = []

    def decide(self, question: Callable[[], bool]) -> bool:
        """The kept answer to a question; asked, if none is kept. Raises Changed."""
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
        """All questions have been asked: write new answers. Raises Changed if there were more; where the folder cannot be
        written, the next run asks again."""
        given = "".join(self._given)
        if self._kept is not None and given != self._kept:
            raise Changed
        if self.path is None or self._kept is not None:
            return
        with suppress(OSError):
            write_whole(self.path, f"{given} {_checksum(given)}")

    def anew(self) -> Decisions:
        """The same, with nothing kept."""
        return Decisions(self.path, anew=True)


def _checksum(given: str) -> str:
    return f"{zlib.crc32(given.encode()):08x}"


def _read(path: Path) -> str | None:
    """What a file holds; None if it is missing or damaged."""
    with suppress(OSError, UnicodeDecodeError):
        given, _, checksum = path.read_text(encoding="ascii").partition(" ")
        if checksum == _checksum(given):
            return given
    return None


def kept_in(root: Path, op: str, dtype: str) -> Decisions:
    """The answers for an op and dtype in this cache folder."""
    return Decisions(_folder(root) / file_name(f"{op}-{dtype}"))


@lru_cache(maxsize=1)
def _folder(root: Path) -> Path:
    """The folder of answers that hold for this torch, this machine and this package. Those used longest ago are removed."""
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
    # The cache belongs to someone else, or another run removes the same folder.
    with suppress(OSError):
        found.mkdir(parents=True, exist_ok=True)
        found.touch()
        others = [each for each in found.parent.iterdir() if each != found]
        for old in sorted(others, key=lambda p: p.stat().st_mtime)[: 1 - _KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    return found
