"""Copies of a process that may die in its place."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from conformance.run import process_copies as copying
from conformance.run.process_copies import Copies
from conformance.search.minimise.tasks import Bench

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="nothing is copied but on Linux"
)


def answers(connection: Connection) -> None:
    """Say which process this is, unless it is told to die."""
    while connection.recv_bytes() != b"die":
        connection.send_bytes(str(os.getpid()).encode())
    os.kill(os.getpid(), signal.SIGKILL)


@linux
def test_a_copy_that_dies_tells_its_status_and_is_replaced() -> None:
    copies, seen = Copies(answers), set()
    for _ in range(2):
        for _ in range(2):
            copies.connection().send_bytes(b"who")
            seen.add(copies.connection().recv_bytes())
        copies.connection().send_bytes(b"die")
        with pytest.raises(EOFError):
            copies.connection().recv_bytes()
        assert copies.end() == -signal.SIGKILL
    copies.close()
    assert len(seen) == 2 and str(os.getpid()).encode() not in seen


@linux
def test_a_copy_that_is_not_needed_ends() -> None:
    copies = Copies(answers)
    assert copies.end() is None
    copies.connection()
    assert copies.end() == 1  # the connection closed before it was told anything
    copies.close()


# -- copies of a copy that has the device's module loaded

_loaded: list[int] = []


def tells(connection: Connection) -> None:
    """Say which process has loaded the module, if one has."""
    connection.recv_bytes()
    connection.send_bytes(b"".join(str(pid).encode() for pid in _loaded))


def loads(tried: Path) -> bool:
    with tried.open("a") as stream:
        stream.write("tried\n")
    _loaded.append(os.getpid())
    return True


def said(copies: Copies, times: int) -> list[bytes]:
    """What copies say, one after the other."""
    found = []
    for _ in range(times):
        copies.connection().send_bytes(b"who")
        found.append(copies.connection().recv_bytes())
        copies.end()
    return found


@linux
def test_all_copies_but_the_first_have_the_module_loaded_by_one(tmp_path: Path) -> None:
    copies = Copies(tells, partial(loads, tmp_path / "tried"))
    first, *others = said(copies, 4)
    copies.close()
    assert first == b"" and len(set(others)) == 1 and others[0]
    assert (tmp_path / "tried").read_text() == "tried\n"


@linux
@pytest.mark.parametrize("how", ["may not be copied", "raises", "dies", "ends", "hangs"])
def test_where_a_copy_with_the_module_cannot_be_copied_each_loads_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_WARM_SECONDS", 0.5)

    def warm() -> bool:
        loads(tmp_path / "tried")
        if how == "raises":
            raise OSError("no such library")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "ends":
            os._exit(0)
        if how == "hangs":
            signal.pause()
        return False

    copies = Copies(tells, warm)
    assert said(copies, 4) == [b""] * 4
    copies.close()
    assert (tmp_path / "tried").read_text() == "tried\n"


@linux
def test_the_death_of_a_copy_of_the_loaded_one_is_told_and_costs_no_other() -> None:
    copies = Copies(answers, lambda: True)
    for _ in range(3):
        copies.connection().send_bytes(b"die")
        with pytest.raises(EOFError):
            copies.connection().recv_bytes()
        assert copies.end() == -signal.SIGKILL
    copies.close()


@linux
def test_what_copies_would_share_is_seen(tmp_path: Path) -> None:
    before = copying._shared_files()
    with (tmp_path / "plain").open("w"):
        assert copying._shared_files() == before
    with socket.socket():
        assert copying._shared_files() > before
    with mmap.mmap(-1, 4096), (tmp_path / "mapped").open("w+b") as file:
        file.write(bytes(4096))
        file.flush()
        with mmap.mmap(file.fileno(), 4096):
            shared = copying._shared_files() - before
    assert len(shared) == 1  # memory that is shared and has no name; a file is no device
    assert copying._shared_files() == before


@linux
@pytest.mark.parametrize("opens", [True, False])
def test_a_module_is_kept_loaded_if_a_copy_can_open_the_device(
    opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where a driver is started by the import, and leaves no trace but does not work in a copy.
    calls: list[int] = []
    imported_here = os.getpid()

    def open_device(*_: object) -> None:
        assert os.getpid() != imported_here
        if not opens:
            raise RuntimeError("the driver cannot be used in a forked process")

    monkeypatch.setattr(copying, "start_device", lambda _: calls.append(1))
    monkeypatch.setattr(copying, "open_device", open_device)
    monkeypatch.setattr(copying, "may_copy", lambda: True)
    assert copying.loads_for_copies(Bench("cpu", None, 1), 0) is opens
    assert calls == [1]
