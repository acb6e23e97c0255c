"""Installs the planted faults that are written in Python. While such a fault is on, it replaces a kernel or a method of
torch.

The faults themselves are in installed.py and installed_training.py. All other planted faults are switches that the
library, or a module of this package, checks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, Final

import torch

Undo = Callable[[], None]  # undoes the fault

_C: Any = torch._C

#: By fault: a function that breaks something and returns a function that undoes it.
INSTALLED: Final[dict[str, Callable[[], Undo]]] = {}

#: By fault: the op whose kernel the fault replaces, if it replaces one.
_OPS: dict[str, str] = {}

_undo: dict[str, Undo] = {}


def switch(name: str, on: bool) -> None:
    """Switches a fault on or off. Does nothing if the fault is not written in Python, or if it already has the
    requested state."""
    if on and name in INSTALLED and name not in _undo:
        _undo[name] = INSTALLED[name]()
    elif not on and name in _undo:
        _undo.pop(name)()


def installs(
    fault: str, install: Callable[..., Undo], *where: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator for a function that is to be installed while a fault is on. Switching the fault on calls
    ``install(function, *where)``.

    For a kernel, ``where`` is the op and the dispatch key.
    """

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        INSTALLED[fault] = partial(install, function, *where)
        if len(where) == 2:
            _OPS[fault] = f"aten::{where[0].partition('.')[0]}"
        return function

    return note


def reached_by(ops: set[str]) -> set[str]:
    """Returns the faults that can change the result of code that calls the given ops (such as ``aten::cos``).

    These are the faults that replace a kernel of one of the ops, and all faults that do not replace a kernel.
    """
    return {fault for fault in INSTALLED if _OPS.get(fault) in (None, *ops)}


def kernel(function: Callable[..., Any], op: str, key: str) -> Undo:
    """Replaces the kernel of an op for a dispatch key. Returns a function that undoes the replacement."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel is overridden on purpose
        library.impl(op, function, key)
    return library._destroy


def fallback(function: Callable[..., Any]) -> Undo:
    """Adds a kernel for all ops for which the device has no kernel. Returns a function that removes it."""
    library = torch.library.Library("_", "IMPL")
    library.fallback(function, "PrivateUse1")
    return library._destroy


def method(function: Callable[..., Any], name: str) -> Undo:
    """Replaces a method of tensors. The new function takes the tensor, the original method, and the arguments. Returns
    a function that undoes the replacement."""
    original = getattr(torch.Tensor, name)
    setattr(torch.Tensor, name, partialmethod(function, original))
    return lambda: setattr(torch.Tensor, name, original)


def run_installer(function: Callable[[], Undo]) -> Undo:
    return function()


def without(key: str) -> Any:
    """Returns a guard object. While the object exists, calls of ops skip the kernels of the given dispatch key."""
    return _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(getattr(_C.DispatchKey, key)))
