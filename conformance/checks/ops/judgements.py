"""Judgements as data: the evidence of a call and the parts of its reference, which can be written to a file and judged
again in a process without the device."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from conformance.checks.ops.calls import Found, Judge, ReferenceParts
from conformance.checks.repro.bundle import Bundle
from devices.errors import ConformError
from devices.files import write_whole
from opinfo.compare import Wrong
from opinfo.encoding import read_value, write_value

#: Changes when files of an older version can no longer be read.
_FORMAT = 1


class WritableReference(ReferenceParts, Protocol):
    """A reference whose parts can be written to a file: ``frozen`` returns a part as a value."""

    def frozen(self, name: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """One judged call: the clause and its judge, the evidence, and the reference. ``layout`` names the layout of the
    call, ``sample`` is the index of its sample."""

    clause: str
    judge: Judge
    evidence: Any
    reference: WritableReference
    layout: str = ""
    sample: int = 0

    def verdicts(self) -> Found:
        """Yields the verdicts of the judge, one for each comparison: None if the comparison passed."""
        return self.judge(self.evidence, self.reference)

    def faults(self) -> list[str]:
        """Returns the faults that the judge finds, as sentences."""
        return [str(each) for each in self.verdicts() if isinstance(each, Wrong)]

    def frozen(self) -> Judgement:
        """Returns the judgement with a reference whose parts are values. Every part that the judge may read is
        computed. A part that cannot be computed raises RuntimeError when it is read."""
        names = sorted(Bundle().take([self.judge]).reads("reference"))
        return replace(self, reference=Parts(dict(_parts(self.reference, names))))


@dataclass(frozen=True, slots=True)
class NotComputed:
    """Stands for a part of a reference that the CPU could not compute."""

    why: str


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a reference as values. Reading a part that could not be computed raises RuntimeError."""

    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            found = self.values[name]
        except KeyError:
            raise AttributeError(name) from None
        if isinstance(found, NotComputed):
            raise RuntimeError(f"the reference has no {name}: {found.why}")
        return found

    def frozen(self, name: str) -> Any:
        return getattr(self, name)


def _parts(reference: WritableReference, names: list[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        try:
            yield name, reference.frozen(name)
        except (
            Exception
        ) as error:  # the judge does not read this part in this call, or meets the same exception
            yield name, NotComputed(f"{type(error).__name__}: {error}")


def write_judgements(path: Path, judgements: Iterable[Judgement]) -> None:
    """Writes judgements to a file, with all parts of their references. Raises NotEncodable if a part cannot be
    written."""
    documents = [write_value(each.frozen()) for each in judgements]
    text = json.dumps({"format": _FORMAT, "judgements": documents})
    write_whole(path, text)


def read_judgements(path: Path) -> list[Judgement]:
    """Returns the judgements that a file holds. Raises ConformError if the file cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, found {document['format']}")
        return [read_value(each) for each in document["judgements"]]
    except OSError as error:
        raise ConformError(f"{path}: {error.strerror or error}") from error
    except (
        *(KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError),
        *(ImportError, zlib.error, RecursionError),
    ) as error:
        raise ConformError(
            f"{path} is damaged, or another version of the suite wrote it: {type(error).__name__}: {error}"
        ) from error
