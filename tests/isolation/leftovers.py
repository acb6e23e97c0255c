"""What a run may leave behind: processes, listening sockets, shared memory, and files outside of its folders. Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_SHARED = Path("/dev/shm")
#: In /proc/net/tcp: the state of a listening socket, and the columns of state and inode. In /proc/net/unix: flags, inode, path.
_LISTENS = "0A"
_ACCEPTS = "00010000"
_UNWATCHED = frozenset({"__pycache__", ".git", ".mypy_cache", ".ruff_cache", "conform-results"})


class Members:
    """The processes of a run: those that have its mark in the environment with which they, or the process of which they
    are a fork, started."""

    VARIABLE = "KILLING_RUN"

    def __init__(self, mark: str) -> None:
        self._mark = f"{self.VARIABLE}={mark}".encode()

    def now(self) -> dict[int, str]:
        """Returns the command lines of the processes by their ids."""
        found = {}
        for pid in _pids():
            with suppress(OSError):
                if self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                    found[pid] = line.replace(b"\0", b" ").decode(errors="replace")
        return found

    @staticmethod
    def name(pid: int) -> str:
        with suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip()
        return ""

    @staticmethod
    def leads_a_session(pid: int) -> bool:
        with suppress(OSError):
            return os.getsid(pid) == pid
        return False


class Leftovers:
    """What was there before a run, and what is there afterwards. ``folders`` are for the run alone, and must be empty again;
    ``checkout`` must have no new files."""

    def __init__(self, folders: Sequence[Path], checkout: Path) -> None:
        self._folders, self._checkout = folders, checkout
        self._files, self._memory = set(_files(checkout)), set(_listed(_SHARED))
        self._sockets: set[str] = set()

    def watch(self, members: Members) -> None:
        """Notes the sockets that the processes have open now."""
        for pid in members.now():
            self._sockets.update(_open(pid, "socket:["))

    def found_after(self, seconds: float, members: Members) -> list[str]:
        """Returns what is still there after this many seconds, as sentences; nothing as soon as nothing is there."""
        end = time.monotonic() + seconds
        while (found := self._found(members)) and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def _found(self, members: Members) -> list[str]:
        found = [f"process {pid} is left: {line[:100]}" for pid, line in members.now().items()]
        found += [f"socket {each} is left" for each in sorted(_listening() & self._sockets)]
        for folder in self._folders:
            found += [f"{path} is left" for path in _files(folder)]
        found += [f"{path} is new" for path in sorted(set(_files(self._checkout)) - self._files)]
        if memory := set(_listed(_SHARED)) - self._memory:
            used = {
                path
                for pid in _pids()
                if pid not in members.now()
                for path in _open(pid, "/dev/shm/")
            }
            found += [
                f"/dev/shm/{name} is left"
                for name in sorted(memory)
                if f"/dev/shm/{name}" not in used
            ]
        return found


def _pids() -> list[int]:
    return [int(each) for each in os.listdir("/proc") if each.isdigit()]


def _listed(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def _files(folder: Path) -> Iterator[str]:
    """Yields the paths of all files below a folder, and of empty folders."""
    for above, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each not in _UNWATCHED]
        yield from (os.path.join(above, each) for each in files)
        if not folders and not files and above != str(folder):
            yield above


def _open(pid: int, beginning: str) -> set[str]:
    """Returns the open files and mappings of a process whose names begin in this way."""
    found = set()
    with suppress(OSError):
        for each in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{each}"))
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            found.add(line.split(maxsplit=5)[-1])
    return {name for name in found if name.startswith(beginning)}


def _listening() -> set[str]:
    """Returns the sockets of this machine that accept connections, as /proc/PID/fd names them."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                columns = row.split()
                if columns[3] == _LISTENS:
                    found.add(f"socket:[{columns[9]}]")
    with suppress(OSError):
        for row in Path("/proc/net/unix").read_text().splitlines()[1:]:
            columns = row.split()
            if columns[3] == _ACCEPTS:
                found.add(f"socket:[{columns[6]}]")
    return found
