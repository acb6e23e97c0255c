"""Lists the calls that pass through torch's dispatcher, without changing which calls torch makes. A dispatch mode would
change them: while one is active, ``reshape`` calls ``view`` instead of ``_reshape_alias``, for example."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from conformance.coverage.dataflow import LoggedCall, calls_in
from devices.files import cache_root, replacing

_SOURCE: Final = Path(__file__).with_name("observer.cpp")
_FLAGS: Final = ("-std=c++20", "-O1", "-g0", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden")


class ObserverNotBuilt(RuntimeError):
    """The error raised if the C++ code of the observer cannot be compiled. It contains the compiler's message."""


class Observer:
    """Lists the calls that this thread makes within the context :meth:`on`."""

    def __init__(self) -> None:
        self._library = _library()

    @contextmanager
    def on(self) -> Iterator[None]:
        """Within the context, the calls of this thread are added to the list."""
        self._library.observer_clear()
        handle = self._library.observer_start()
        try:
            yield
        finally:
            self._library.observer_stop(handle)

    def mark(self, line: str) -> None:
        """Adds a mark with the text ``line`` to the list of calls, which separates the calls before it from those after
        it."""
        self._library.observer_mark(f"={line}".encode())

    def take(self) -> list[LoggedCall]:
        """Returns the calls that were listed since the last call of this method, and empties the list. The numbering of
        tensors starts again."""
        lines: bytes = self._library.observer_lines()
        found = calls_in(lines.decode())
        self._library.observer_clear()
        return found

    @contextmanager
    def spoiling(self, overload: str, call: int = -1) -> Iterator[None]:
        """Within the context, the values that calls of ``overload`` return or write are replaced by wrong ones: those
        of call number ``call``, counted from 0, or those of every call if ``call`` is negative."""
        self._library.observer_spoil(overload.encode(), call)
        try:
            yield
        finally:
            self._library.observer_spoil(b"", -1)


@contextmanager
def observed_calls() -> Iterator[list[str]]:
    """Yields a list that is empty within the context. At the end of the context, the name of the aten overload of each
    call made within it is added."""
    observer, found = Observer(), list[str]()
    with observer.on():
        yield found
    found += [call.overload for call in observer.take() if call.overload.startswith("aten::")]


@cache
def _library() -> Any:
    """Loads the C++ library of the observer, and compiles it first if it is not in the cache. Raises
    ObserverNotBuilt."""
    version: Any = torch.version
    text = " ".join((*_FLAGS, str(version.git_version), _compiler()))
    key = hashlib.blake2b(_SOURCE.read_bytes() + text.encode(), digest_size=8).hexdigest()
    path = cache_root() / "coverage" / f"observer-{torch.__version__}-{key}.so"
    if not path.is_file():
        _compile(path)
    library = ctypes.CDLL(str(path))
    library.observer_start.restype = ctypes.c_uint64
    library.observer_stop.argtypes = [ctypes.c_uint64]
    library.observer_mark.argtypes = [ctypes.c_char_p]
    library.observer_lines.restype = ctypes.c_char_p
    library.observer_spoil.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    return library


def _compiler() -> str:
    return os.environ.get("CXX", "c++")


def _compile(path: Path) -> None:
    from torch.utils import cpp_extension

    path.parent.mkdir(parents=True, exist_ok=True)
    abi = int(torch.compiled_with_cxx11_abi())
    with replacing(path) as stream:
        command = [
            *_compiler().split(),
            *_FLAGS,
            f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
            *(f"-I{each}" for each in cpp_extension.include_paths()),
            str(_SOURCE),
            *("-o", stream.name),
            *(f"-L{each}" for each in cpp_extension.library_paths()),
            *("-lc10", "-ltorch_cpu"),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ObserverNotBuilt(
                f"measuring the calls needs a C++20 compiler, and {command[0]} could not be run: {error}"
            ) from None
        if done.returncode:
            raise ObserverNotBuilt(f"{_SOURCE.name} could not be compiled:\n{done.stderr[-2000:]}")
