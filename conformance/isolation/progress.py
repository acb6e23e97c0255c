"""What a run has done so far, line by line in a file of its results folder: what ``--resume`` goes on from.

The controller alone writes, one line an item, straight to the file: it survives whatever ends the run. A last
line that was cut off is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from conformance.isolation.lost import Lost
from devices.cell import CellKey
from devices.errors import ConformError

FILE: Final = ".progress.jsonl"
_FORMAT: Final = 1
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class CannotResume(ConformError):
    """There is nothing to go on from, or it is another run's."""


@dataclass(slots=True)
class Done:
    """What an earlier run of the same folder had done."""

    start: str = ""
    reports: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)  # worker, cells
    lost: list[Lost] = field(default_factory=list)
    doubts: list[CellKey] = field(default_factory=list)  # in which pytest itself had ended before


class Progress:
    """The writing side. Raises OSError where the file cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def begin(self, identity: Mapping[str, Any], start: str) -> None:
        self._line({"format": _FORMAT, "run": dict(identity), "start": start})

    def cells(self, worker: str, documents: Sequence[dict[str, Any]]) -> None:
        """An item's cells are done."""
        self._line({"worker": worker, "cells": documents})

    def lost(self, lost: Lost) -> None:
        """A cell ended its process."""
        self._line({"lost": lost.plain()})

    def doubt(self, cell: CellKey) -> None:
        """pytest itself ended in this cell, and perhaps not because of it."""
        self._line({"doubt": list(cell)})

    def close(self, *, complete: bool) -> None:
        """The run is over. What is complete needs no resuming."""
        os.close(self._file)
        if complete:
            self._path.unlink(missing_ok=True)

    def _line(self, document: dict[str, Any]) -> None:
        os.write(self._file, _encode(document) + b"\n")


def read_progress(folder: Path, identity: Mapping[str, Any]) -> Done:
    """What the run in this folder had done. Raises CannotResume."""
    path = folder / FILE
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        said = (
            "its run is complete" if (folder / "plan.json").exists() else "no run was begun there"
        )
        raise CannotResume(f"--resume: nothing to go on from in {folder}: {said}") from None
    except OSError as error:
        raise CannotResume(f"--resume: {path} cannot be read: {error.strerror}") from None
    done: Done | None = None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            document = _decode(line)
            if done is None:
                done = _begun(document, identity, path)
            else:
                _add(done, document)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            if done is not None and number >= len(lines) - 1:
                break  # cut off by what ended the run
            raise CannotResume(
                f"--resume: {path}:{number} is damaged: run without --resume, from the beginning"
            ) from None
    if done is None:
        raise CannotResume(f"--resume: nothing to go on from in {folder}: {path.name} is empty")
    return done


def _begun(document: Mapping[str, Any], identity: Mapping[str, Any], path: Path) -> Done:
    before = document["run"]
    if document["format"] != _FORMAT or not isinstance(before, dict):
        raise ValueError("format")
    names = [name for name in {**before, **identity} if before.get(name) != identity.get(name)]
    if names:
        differs = "; ".join(
            f"{name} was {before.get(name)!r} and is {identity.get(name)!r}" for name in names
        )
        raise CannotResume(
            f"--resume: {path.parent} holds another run: {differs}. Run it as it was begun, or "
            "without --resume, from the beginning"
        )
    return Done(str(document["start"]))


def _add(done: Done, document: Mapping[str, Any]) -> None:
    if "cells" in document:
        cells = document["cells"]
        for cell in cells:
            if not cell.get("references"):
                CellKey(*cell["cell"])
        done.reports.append((str(document["worker"]), cells))
    elif "lost" in document:
        lost = Lost.of(document["lost"])
        if lost not in done.lost:
            done.lost.append(lost)
    elif "run" in document:
        pass  # it was resumed here before
    else:
        doubt = CellKey(*document["doubt"])
        if doubt not in done.doubts:
            done.doubts.append(doubt)
