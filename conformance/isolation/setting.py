"""Where items run: in a worker of this machine, in one of another, or in pytest's own process."""

from __future__ import annotations

import faulthandler
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from conformance.isolation.guard import DeviceLost, leave_note
from conformance.isolation.journal import Journal
from conformance.isolation.lost import Lost, LostCells
from conformance.isolation.process import (
    close_in_children,
    end_with_parent,
    pipes_of,
    tell_stacks,
)
from devices.cell import CellKey
from devices.errors import ConformError


@dataclass(frozen=True, slots=True)
class Setting:
    """What the process that runs items is given: its journal, its device's index, what is lost already, and the
    ways out for one whose device has died, and for one that cannot work here and says why."""

    journal: Journal
    index: int
    lost: LostCells
    leave: Callable[[Lost], NoReturn]
    end: Callable[[dict[str, Any]], NoReturn]
    folder: Path | None = None  # where scripts go, if not into the results folder


class RemoteJournal(Journal):
    """The journal of a worker on another machine, where the controller can read no file: it is told, and the
    process ends itself when a cell has had its time."""

    def __init__(self, folder: Path, worker: str, tell: Callable[[Any], None]) -> None:
        super().__init__(folder, worker)
        self._tell = tell

    def begin(self, cell: CellKey, limit: float) -> None:
        super().begin(cell, limit)
        self._tell({"begun": list(cell) if cell.clause else []})
        faulthandler.dump_traceback_later(limit, exit=True)

    def end(self) -> None:
        super().end()
        faulthandler.cancel_dump_traceback_later()
        self._tell({"begun": []})


def in_worker(folder: Path, name: str, given: Mapping[str, Any], channel: Any) -> Setting:
    """The setting of a worker of xdist. ``given`` and ``channel`` come from the controller; over the channel
    cells arrive that ended other processes meanwhile."""
    lost = LostCells(Lost.of(plain) for plain in given["lost"])
    aside = Path(tempfile.mkdtemp(prefix="conform-")) if given["remote"] else None
    journals = aside or folder / "journal"
    channel.setcallback(lambda plain: lost.add(Lost.of(plain)))
    close_in_children(pipes_of(channel.gateway))
    tell_stacks(journals, name)
    journal: Journal
    if given["remote"]:
        journal = RemoteJournal(journals, name, channel.send)
    else:
        end_with_parent()
        journal = Journal(journals, name)

    def end(said: dict[str, Any]) -> NoReturn:
        if given["remote"]:
            channel.send({"left": said})
        leave_note(journals, name, said)

    def leave(one: Lost) -> NoReturn:
        end(one.plain())

    if given["remote"]:
        channel.send({"host": platform.node()})
    return Setting(journal, int(given["index"]), lost, leave, end, aside)


def in_process(folder: Path, lost: LostCells) -> Setting:
    """pytest's own process (``-n 0``): what crashes or hangs there ends the run, which can be resumed."""

    def leave(one: Lost) -> NoReturn:
        raise DeviceLost(one)

    def end(said: dict[str, Any]) -> NoReturn:
        raise ConformError(said["error"])

    return Setting(Journal(folder / "journal", "main"), 0, lost, leave, end)
