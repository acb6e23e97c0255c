"""Kernels in C++ for tests. They are compiled once for each state of their source."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from devices.files import cache_root

_SOURCE = Path(__file__).with_name("native.cpp")


@cache
def library() -> ctypes.CDLL:
    """Returns the compiled kernels."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    path = cache_root() / "test-kernels" / f"{digest}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}")
        command = ["g++", "-O2", "-shared", "-fPIC", str(_SOURCE), "-o", str(made)]
        subprocess.run(command, check=True)
        made.replace(path)
    return ctypes.CDLL(str(path))


def call(name: str, *given: Any) -> None:
    """Calls a kernel with tensors, integers and floats."""
    converted: list[Any] = []
    for each in given:
        if isinstance(each, torch.Tensor):
            converted.append(ctypes.c_void_p(each.data_ptr()))
        elif isinstance(each, float):
            converted.append(ctypes.c_double(each))
        else:
            converted.append(ctypes.c_int64(each))
    getattr(library(), name)(*converted)
