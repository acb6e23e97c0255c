"""What the planner asks of every op and dtype, answered by torch's database, or kept from an earlier run.

An answer depends on the installed torch and on this suite alone, never on the device, so that planning need not
load the database, nor draw a single sample, when nothing of that has changed since the last time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from devices.cache import write_whole
from opinfo.catalog import Op, catalogue
from opinfo.exceptions import exceptions
from opinfo.samples import choose, draw
from opinfo.traits import Traits, probe

#: Raised when the file's format changes; what its answers mean is in the sources, whose digest names it.
_FORMAT: Final = 1
#: Files of other states of the suite that are kept: someone who works on it goes back and forth.
_KEPT: Final = 8
#: What the database asks for as it is loaded, beside torch.
_PACKAGES: Final = ("numpy", "scipy", "sympy", "hypothesis", "expecttest")
_SOURCES: Final = (".py", ".toml")


class Entry(msgspec.Struct, frozen=True):
    """An op: its kind and the dtypes that the database lists for the device type."""

    id: str
    ufunc: str
    dtypes: frozenset[str]


class Subject(msgspec.Struct, frozen=True):
    """An op and dtype: how many samples there are, whether the CPU takes one, and the clauses that apply."""

    op: str
    dtype: str
    samples: int
    returns: bool
    clauses: tuple[str, ...]


class _File(msgspec.Struct):
    ops: tuple[Entry, ...]
    subjects: dict[str, Subject]


class Subjects:
    """Answers for a device type and a number of samples. ``applicable`` gives the clauses of an op's traits;
    ``path`` is the file of kept answers, None for none."""

    def __init__(
        self,
        torch_type: str,
        samples: int,
        applicable: Callable[[Traits], Iterable[str]],
        path: Path | None,
    ) -> None:
        self._samples, self._applicable, self._path = samples, applicable, path
        kept = _read(path) if path is not None else None
        self._new = kept is None
        self._file = kept or _File(tuple(_entry(op, torch_type) for op in catalogue().values()), {})

    @property
    def ops(self) -> tuple[Entry, ...]:
        """Every op, in the database's order."""
        return self._file.ops

    def of(self, op: str, dtype: str) -> Subject:
        name = f"{op} {dtype}"
        found = self._file.subjects.get(name)
        if found is None:
            found = self._file.subjects[name] = self._look(catalogue()[op], dtype)
            self._new = True
        return found

    def _look(self, op: Op, dtype: str) -> Subject:
        traits = probe(op, dtype, choose(draw(op, dtype), self._samples), exceptions())
        clauses = tuple(self._applicable(traits)) if traits.returns else ()
        return Subject(op.id, dtype, traits.samples, traits.returns, clauses)

    def keep(self) -> None:
        """Write what is new. A folder that cannot be written costs the next run its time, and nothing else."""
        if self._path is None or not self._new:
            return
        try:
            write_whole(self._path, msgspec.json.encode(self._file))
        except OSError:
            return
        self._new = False
        for old in sorted(self._path.parent.glob("*.json"), key=_last_use)[:-_KEPT]:
            old.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # another run has removed it
        return path.stat().st_mtime
    return 0.0


def _entry(op: Op, torch_type: str) -> Entry:
    return Entry(op.id, op.ufunc, op.dtypes_on(torch_type))


def file_of(root: Path, torch_type: str, samples: int, machine: Mapping[str, str]) -> Path:
    """The file for this state of the suite, of torch, and of what the database looks at as it is loaded."""
    accelerator = torch.accelerator.is_available() and torch.accelerator.current_accelerator()
    facts: list[Any] = [
        *(_FORMAT, samples, sys.version, platform.machine(), str(accelerator)),
        *(str(torch.__version__), str(torch.version.git_version)),
        torch.backends.cpu.get_cpu_capability(),
        *sorted(machine.items()),
        *sorted((k, v) for k, v in os.environ.items() if k.startswith(("PYTORCH_", "TORCH_TEST"))),
        *((name, _version(name)) for name in _PACKAGES),
        _sources(),
    ]
    digest = hashlib.blake2b(msgspec.json.encode(facts), digest_size=12).hexdigest()
    return root / "subjects" / torch_type / f"{digest}.json"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _sources() -> str:
    """A digest of the suite: of the packages that decide which clauses apply."""
    digest = hashlib.blake2b()
    here = Path(__file__).resolve().parent
    for folder in (here, here.parent / "opinfo", here.parent / "devices"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SOURCES:
                digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> _File | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError):
        return None  # there is none, or it is damaged: all is asked anew, and written over it
    if not found.ops:
        return None  # no database is empty: such a plan would check nothing
    with contextlib.suppress(OSError):  # a folder of someone else's, who counts the uses
        os.utime(path)
    return found
