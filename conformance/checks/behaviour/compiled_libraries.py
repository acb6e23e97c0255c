"""The machine code that a C++ compiler made of the code that Inductor generates, in the suite's cache.

Inductor generates its code anew in every case. What is taken from the cache is the compiler's output for the same text, by
the same command: so a later run asks the same of Inductor, and saves the compiler's time, which is most of the time of
compiling a small graph.

The module is an adapter over private names of torch's compiler. A test pins each name that is used. Repro scripts contain
the module.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import os
import platform
import re
import shutil
import signal
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from devices.files import replacing

#: The variables with which a compiler finds its own programs, headers and libraries.
_VARIABLES = (
    *("PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH"),
    *("LIBRARY_PATH", "CCC_OVERRIDE_OPTIONS", "SOURCE_DATE_EPOCH"),
)
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
#: Libraries that no run has used for this number of seconds are deleted: 30 days.
_UNUSED = 30 * 24 * 3600


@contextlib.contextmanager
def libraries_from_cache(folder: Path, headers: Path) -> Iterator[None]:
    """Takes each library that Inductor would compile in the block from ``folder`` if the folder has it, and otherwise puts
    it there. Commands that do not include a precompiled header in ``headers`` are run as ever, because only the name of that
    header changes with the text of all headers."""
    builder: Any = importlib.import_module("torch._inductor.cpp_builder").CppBuilder
    compile_with_torch = builder.build

    def build(self: Any) -> None:
        _build(self, partial(compile_with_torch, self), folder, headers)

    _delete_unused(folder)
    builder.build = build
    try:
        yield
    finally:
        builder.build = compile_with_torch


def _build(builder: Any, build: Callable[[], None], folder: Path, headers: Path) -> None:
    target = Path(builder.get_target_file_path())
    key = library_key(builder, target, headers)
    if key is None:
        _compile(build)
        return
    library = folder / key
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(library, target)
        os.utime(library)
        return
    _compile(build)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(library) as stream:
        stream.write(target.read_bytes())


def _compile(build: Callable[[], None]) -> None:
    """Runs the compiler, a second time if one of its processes was killed from outside: by a person, or by the kernel for
    want of memory. That says nothing of the device."""
    try:
        build()
    except Exception as error:
        if not was_killed(error):
            raise
        build()


def was_killed(error: Exception) -> bool:
    """Returns whether an error of torch's builder says that SIGKILL ended the compiler, or a process that the compiler had
    started."""
    ended_by = getattr(error.__cause__, "returncode", None)
    return ended_by == -signal.SIGKILL or "Killed signal terminated program" in str(error)


def library_key(builder: Any, target: Path, headers: Path) -> str | None:
    """Returns the name of a library in the cache: a digest of all that its content depends on, which is the compiler, its
    variables, the command, the text of the sources, the headers, the build of torch and the processor. Returns None if this
    is not all: if the command does not include the precompiled header, links a static library, or if a source includes a
    header that is neither in the folders of torch and Python nor one of the compiler's own."""
    words = builder.get_command_line().split()
    if not any(
        word == "-include" and Path(path).parent == headers
        for word, path in itertools.pairwise(words)
    ):
        return None
    sources = [path for path in map(Path, words) if path.parent == target.parent and path != target]
    if any(word.endswith((".a", ".lib")) for word in words) or _includes_others(words, sources):
        return None
    compiler = (_compiler_version(words[0]), _compiler_file(words[0]))
    variables = [(name, os.environ.get(name)) for name in _VARIABLES]
    digest = hashlib.sha256(repr((_torch_build(), _processor(), compiler, variables)).encode())
    for word in words:
        path = Path(word)
        # Where the sources and the target are does not matter, what the sources say does.
        if path.parent == target.parent:
            digest.update(path.suffix.encode())
            if path != target:
                digest.update(path.read_bytes())
        else:
            digest.update(word.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _includes_others(words: Sequence[str], sources: Iterable[Path]) -> bool:
    """Returns whether a source includes a header of a folder that the command names, other than those of torch and Python."""
    folders = [Path(word[2:]) for word in words if word.startswith("-I")]
    own = (Path(torch.__file__).parent, Path(sysconfig.get_paths()["include"]))
    others = [each for each in folders if not any(each.is_relative_to(known) for known in own)]
    for source in sources:
        for name in map(os.fsdecode, _INCLUDE.findall(source.read_bytes())):
            if os.path.isabs(name) or any((each / name).exists() for each in others):
                return True
    return False


def _compiler_file(compiler: str) -> tuple[str, ...]:
    """Returns what changes if the compiler's program is replaced, also by one of the same version."""
    found = shutil.which(compiler)
    if found is None:
        return ()
    path = Path(found).resolve()
    return str(path), str(path.stat().st_size), str(path.stat().st_mtime_ns)


@cache
def _torch_build() -> tuple[str, ...]:
    """Returns texts that identify the build of torch: two builds of the same version have different ones."""
    libraries = sorted(Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"))
    states = [each.stat() for each in libraries]
    return torch.__version__, *(f"{each.st_size} {each.st_mtime_ns}" for each in states)


@cache
def _processor() -> str:
    """Returns what the compiler may know of this machine's processor, for which it compiles by default."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        known = ("model name", "flags", "Features", "CPU part")
        return "\n".join(sorted({line for line in lines if line.startswith(known)}))
    return f"{platform.machine()} {platform.processor()}"


def _compiler_version(compiler: str) -> str:
    found: Any = importlib.import_module("torch._inductor.cpp_builder")
    return str(found.get_compiler_version_info(compiler))


@cache
def _delete_unused(folder: Path) -> None:
    """Deletes the libraries that no run has used for a month; once in a process."""
    with contextlib.suppress(FileNotFoundError):
        for library in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                if library.stat().st_mtime < time.time() - _UNUSED:
                    library.unlink()
