"""Builds the device's library when it is first used, once for each build of torch and each state of the source
files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TextIO

import torch

from devices.files import cache_root, explained
from devices.simulated.build_tools import missing_tools
from devices.simulated.faults import header

NAME: Final = "simulated_device"
#: Other sources than the package's: ``python -m tests.mutation`` has some of its own.
SOURCES: Final = Path(
    os.environ.get("SIMULATED_SOURCES") or Path(__file__).resolve().parents[1] / "csrc"
)
FLAGS: Final = (
    *("-std=c++20", "-O1", "-g0", "-Wall", "-Wno-sign-compare", "-Wno-interference-size"),
    "-fvisibility=hidden",
)


class BuildFailed(RuntimeError):
    """The error for a library that could not be built. Its text has the reason, what to do, and the name of the file
    with the compiler's whole output."""


def library() -> ModuleType:
    """Loads the device's library and returns it; builds it first if it is not in the cache. Raises BuildFailed."""
    folder = cache_root() / "simulated" / _key()
    built = None if (folder / "complete").is_file() else _build(folder)
    return built or _load(folder / f"{NAME}.so")


def _key() -> str:
    """Returns a key for the build. The key changes if the version of torch, the ABI of Python, the flags or the source
    files change."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".cpp", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    version: Any = torch.version
    extra = (*FLAGS, str(version.git_version), os.environ.get("SIMULATED_CXXFLAGS", ""), header())
    digest.update(" ".join(extra).encode())
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return f"{torch.__version__}-{abi}-{digest.hexdigest()}"


def _load(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.machinery.ModuleSpec(NAME, loader, origin=str(path))
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _build(folder: Path) -> ModuleType | None:
    """Compiles and loads the library. Returns None if another process built it in the meantime.

    The function uses a lock of its own, because torch's lock remains after a build was killed, and later builds would
    hang.
    """
    if (missing := missing_tools()) is not None:
        raise BuildFailed(missing)
    problem = "cannot be written, but the simulated device is built in this folder: set TORCH_CONFORMANCE_CACHE to another folder"
    with explained(BuildFailed, folder, problem):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".flock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"simulated: another process is building the device in {folder}; waiting for it",
                file=sys.stderr,
                flush=True,
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "complete").is_file():  # another process built it meanwhile
            return None
        # Of a build that was killed: we hold the real one.
        (folder / "lock").unlink(missing_ok=True)
        loaded = _compile(folder)
        (folder / "complete").touch()
    return loaded


def _compile(folder: Path) -> ModuleType:
    # Imported late: it costs 0.3 s, and only builds need it.
    from torch.utils import cpp_extension

    units = sources(folder)
    flags = [*FLAGS, *os.environ.get("SIMULATED_CXXFLAGS", "").split()]
    with _tools_on_path(), _progress(folder, len(units), sys.stderr):
        try:
            loaded: ModuleType = cpp_extension.load(
                NAME,
                [str(unit) for unit in units],
                extra_cflags=flags,
                extra_ldflags=["-pthread"],
                extra_include_paths=[str(folder), *headers_of_kineto()],
                build_directory=str(folder),
                with_cuda=False,
            )
        except RuntimeError as error:
            raise BuildFailed(_short(folder, str(error))) from None
    return loaded


def headers_of_kineto() -> list[str]:
    """Returns the folder of Kineto's headers, which include each other without a path."""
    return [str(Path(torch.__file__).parent / "include" / "kineto")]


def sources(folder: Path) -> list[Path]:
    """Writes the header that lists the faults, and returns the files to compile. Ninja recompiles only files that are
    out of date."""
    faults = folder / "fault_list.h"
    if not faults.exists() or faults.read_text(encoding="utf-8") != header():
        faults.write_text(header(), encoding="utf-8")
    return sorted(SOURCES.glob("unit_*.cpp"))


def _short(folder: Path, output: str) -> str:
    """Returns a message with the first errors of the compiler, and writes the whole output to a file."""
    log = folder / "build.log"
    log.write_text(output, encoding="utf-8")
    errors = [line for line in output.splitlines() if "error" in line.lower()][:3]
    return (
        f"the simulated device could not be built with torch {torch.__version__}: "
        f"{' | '.join(errors) or output[-300:]} (whole output: {log})"
    )


@contextlib.contextmanager
def _tools_on_path() -> Iterator[None]:
    """Adds the folder of pip's scripts to PATH in the context, so that a ninja in that folder is found even if its
    environment is not activated."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([before, sysconfig.get_path("scripts")])
    try:
        yield
    finally:
        os.environ["PATH"] = before


@contextlib.contextmanager
def _progress(folder: Path, files: int, out: TextIO) -> Iterator[None]:
    """Prints a line about the build; on a terminal, the line also counts the compiled files."""
    started, over, verdict = time.monotonic(), threading.Event(), "failed"
    title = f"building the simulated device for torch {torch.__version__} (once; about a minute)"
    start = "\r" if out.isatty() else ""

    def show() -> None:
        while not over.wait(0.5):
            done = sum(1 for _ in folder.glob("*.o"))
            seconds = time.monotonic() - started
            print(f"\r{title}: {done}/{files} files, {seconds:.0f} s", end="", file=out, flush=True)

    watcher = threading.Thread(target=show, daemon=True)
    if out.isatty():
        watcher.start()
    else:
        print(f"{title} ...", file=out, flush=True)
    try:
        yield
        verdict = "done"
    finally:
        over.set()
        if out.isatty():
            watcher.join()
        seconds = time.monotonic() - started
        print(f"{start}{title}: {verdict} after {seconds:.0f} s", file=out, flush=True)
