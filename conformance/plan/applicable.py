"""The cache of the clauses that apply to ops and dtypes. They depend only on the installed torch and on this suite, never
on the device: as long as both stay the same, planning does not load the op database and draws no samples."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from conformance.plan.selection import Machine
from devices.files import write_whole
from opinfo.exceptions import exceptions
from opinfo.sample_source import SampleSource
from opinfo.samples import Traits, choose, probe
from opinfo.subject import Subject

#: Raised when the format of the kept file changes. Its name holds a digest of the sources that give the answers.
_FORMAT: Final = 1
#: Cached files that are kept: a developer who switches between branches needs one for each state of the suite.
_KEPT: Final = 8
#: Packages that the database looks for as it is loaded, besides torch.
_PACKAGES: Final = ("numpy", "scipy", "sympy", "hypothesis", "expecttest")
_SOURCES: Final = (".py", ".toml")


Applicable = Callable[[Traits], Iterable[str]]


class Entry(msgspec.Struct, frozen=True):
    """An op of a source of samples, with the dtypes that the source lists for the device type."""

    id: str
    ufunc: str
    dtypes: frozenset[str]


class SubjectClauses(msgspec.Struct, frozen=True):
    """An op and dtype of the plan, with the number of samples and the clauses that apply. ``returns`` is True if the
    CPU accepts at least one of the samples. ``names`` are the names under which ``exceptions.toml`` may list the op, if
    they are others than ``op``."""

    op: str
    dtype: str
    samples: int
    returns: bool
    clauses: tuple[str, ...]
    names: tuple[str, ...] = ()


class _File(msgspec.Struct):
    ops: tuple[Entry, ...]
    subjects: dict[str, SubjectClauses] = {}


class ApplicableClauses:
    """A cache of the clauses that apply to the ops and dtypes of a source of samples, for a device type and a number of
    samples. ``path`` is the cache file; if ``path`` is None, nothing is stored on disk."""

    def __init__(
        self,
        source: SampleSource,
        torch_type: str,
        samples: int,
        applicable: Applicable,
        path: Path | None,
    ) -> None:
        self._source, self._samples, self._applicable, self._path = (
            source,
            samples,
            applicable,
            path,
        )
        kept = _read_cache(path) if path is not None else None
        self._new = kept is None
        self._file = kept or _File(
            tuple(
                Entry(op.id, op.ufunc, op.dtypes_on(torch_type))
                for op in source.subjects().values()
            )
        )

    @property
    def ops(self) -> tuple[Entry, ...]:
        """All ops, in the order of the source."""
        return self._file.ops

    def of(self, op: str, dtype: str) -> SubjectClauses:
        """Returns the clauses that apply to an op and dtype, with the number of samples, from the cache or, if it does
        not have them yet, computed from the source."""
        name = f"{op} {dtype}"
        found = self._file.subjects.get(name)
        if found is None:
            found = self._file.subjects[name] = self._probe_op(self._source.subjects()[op], dtype)
            self._new = True
        return found

    def _probe_op(self, op: Subject, dtype: str) -> SubjectClauses:
        samples = choose(self._source.shapes(op, dtype), self._samples)
        traits = probe(op, dtype, samples, exceptions())
        clauses = tuple(self._applicable(traits)) if traits.returns else ()
        names = () if op.names == (op.id,) else op.names
        return SubjectClauses(op.id, dtype, traits.samples, traits.returns, clauses, names)

    def save(self) -> None:
        """Writes new entries to the cache file, and deletes old cache files. Errors are ignored, because without the
        file the next run only takes longer."""
        if self._path is None or not self._new:
            return
        with contextlib.suppress(OSError):
            write_whole(self._path, msgspec.json.encode(self._file))
            self._new = False
            for old in sorted(self._path.parent.glob("*.json"), key=_last_use)[:-_KEPT]:
                old.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):  # another run has removed it
        return path.stat().st_mtime
    return 0.0


def _accelerator() -> str:
    """Returns the name of the machine's accelerator as torch reports it. The contents of the op database depend on
    it."""
    try:
        return str(torch.accelerator.is_available() and torch.accelerator.current_accelerator())
    except Exception as error:  # the device's module lacks what torch asks of it
        return type(error).__name__


def file_of(root: Path, torch_type: str, samples: int, machine: Machine) -> Path:
    """Returns the path of the cache file. The name of the file contains a digest of the versions of the suite and of
    torch, and of everything else on which the op database depends."""
    facts: list[Any] = [
        *(_FORMAT, samples, sys.version, platform.machine(), _accelerator()),
        *(str(torch.__version__), str(torch.version.git_version)),
        torch.backends.cpu.get_cpu_capability(),
        *sorted(machine.named.items()),
        *sorted((k, v) for k, v in os.environ.items() if k.startswith(("PYTORCH_", "TORCH_TEST"))),
        *((name, _version(name)) for name in _PACKAGES),
        _sources(),
    ]
    name = hashlib.blake2b(msgspec.json.encode(facts), digest_size=12).hexdigest()
    return root / "subjects" / torch_type / f"{name}.json"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _sources() -> str:
    """Returns a digest of the suite's source files that determine which clauses apply."""
    sources = hashlib.blake2b()
    here = Path(__file__).resolve().parents[1]
    for folder in (here, here.parent / "opinfo", here.parent / "devices"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in _SOURCES:
                sources.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return sources.hexdigest()


def _read_cache(path: Path) -> _File | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError):
        return None  # missing or damaged: the database is asked again, and the file is replaced
    with contextlib.suppress(OSError):  # the folder belongs to someone else, who tracks its use
        os.utime(path)
    return found if found.ops else None  # the database is never empty
