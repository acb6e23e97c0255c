"""Caches the shared libraries that the C++ compiler builds from the code that Inductor generates.

Inductor generates its code anew in every case. Only the compiler's output is taken from the suite's cache, for the same
source text and the same command. So a later run tests Inductor as before and saves the compiler's time, which is most
of the time of compiling a small graph.

The module is an adapter over private names of torch's compiler. A test pins each name that is used. Repro scripts
contain the module.
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
    """Within the context, a library that Inductor wants to compile is copied from ``folder`` if the folder has it;
    otherwise it is compiled and added to the folder. A command that does not include a precompiled header from the
    folder ``headers`` is run as usual: only the name of that header shows whether the text of any included header has
    changed."""
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
    """Runs the compiler. If one of its processes was killed from outside (by a person, or by the kernel for lack of
    memory), runs it a second time, because this does not depend on the device."""
    try:
        build()
    except Exception as error:
        if not was_killed(error):
            raise
        build()


def was_killed(error: Exception) -> bool:
    """Returns True if an error raised by torch's builder says that SIGKILL ended the compiler, or a process that the
    compiler had started."""
    ended_by = getattr(error.__cause__, "returncode", None)
    return ended_by == -signal.SIGKILL or "Killed signal terminated program" in str(error)


def library_key(builder: Any, target: Path, headers: Path) -> str | None:
    """Returns the file name of a library in the cache: a digest of the compiler, its environment variables, the
    command, the text of the sources and headers, the build of torch, and the processor. Returns None if the content of
    the library may depend on anything else: if the command does not include the precompiled header or links a static
    library, or if a source includes a header that belongs neither to torch, nor to Python, nor to the compiler."""
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
    """Returns True if a source includes a header by an absolute path, or from a folder named in the command that
    belongs neither to torch nor to Python."""
    folders = [Path(word[2:]) for word in words if word.startswith("-I")]
    own = (Path(torch.__file__).parent, Path(sysconfig.get_paths()["include"]))
    others = [each for each in folders if not any(each.is_relative_to(known) for known in own)]
    for source in sources:
        for name in map(os.fsdecode, _INCLUDE.findall(source.read_bytes())):
            if os.path.isabs(name) or any((each / name).exists() for each in others):
                return True
    return False


def _compiler_file(compiler: str) -> tuple[str, ...]:
    """Returns the path, size and modification time of the compiler's program. They change if the program is replaced,
    even by one of the same version."""
    found = shutil.which(compiler)
    if found is None:
        return ()
    path = Path(found).resolve()
    return str(path), str(path.stat().st_size), str(path.stat().st_mtime_ns)


@cache
def _torch_build() -> tuple[str, ...]:
    """Returns texts that identify this build of torch. They differ between two builds of the same version."""
    libraries = sorted(Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"))
    states = [each.stat() for each in libraries]
    return torch.__version__, *(f"{each.st_size} {each.st_mtime_ns}" for each in states)


@cache
def _processor() -> str:
    """Returns a description of this machine's processor, because the compiler generates code for the processor on which
    it runs."""
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
    """Deletes the libraries in the cache that no run has used for a month. Does so once per process."""
    with contextlib.suppress(FileNotFoundError):
        for library in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                if library.stat().st_mtime < time.time() - _UNUSED:
                    library.unlink()
