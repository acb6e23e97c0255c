"""How planted faults in Python are installed while they are on, in the place of a kernel or a method of torch's.

The faults themselves are in installed.py and installed_training.py. All others are switches that the library, or a module
of this package, checks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, Final

import torch

Mend = Callable[[], None]  # repairs what was broken

_C: Any = torch._C

#: By fault: what breaks something, and returns a function that repairs it.
INSTALLED: Final[dict[str, Callable[[], Mend]]] = {}

#: By fault: the op whose kernel it replaces, if it does that.
_OPS: dict[str, str] = {}

_mends: dict[str, Mend] = {}


def switch(name: str, on: bool) -> None:
    """Switch a fault on or off; does nothing if it is not one of these, or already is in that state."""
    if on and name in INSTALLED and name not in _mends:
        _mends[name] = INSTALLED[name]()
    elif not on and name in _mends:
        _mends.pop(name)()


def installs(
    fault: str, install: Callable[..., Mend], *where: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What stands below is installed while the fault is on: ``install(function, *where)``. Of a kernel, ``where`` are the
    op and the dispatch key."""

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        INSTALLED[fault] = partial(install, function, *where)
        if len(where) == 2:
            _OPS[fault] = f"aten::{where[0].partition('.')[0]}"
        return function

    return note


def reached_by(ops: set[str]) -> set[str]:
    """The faults that can change what calls these ops (``aten::cos``): those that have the place of one's kernel, and those
    of which it is not known."""
    return {fault for fault in INSTALLED if _OPS.get(fault) in (None, *ops)}


def kernel(function: Callable[..., Any], op: str, key: str) -> Mend:
    """Replace the kernel of an op."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel is overridden on purpose
        library.impl(op, function, key)
    return library._destroy


def fallback(function: Callable[..., Any]) -> Mend:
    """Add a kernel for all ops that the device has none for."""
    library = torch.library.Library("_", "IMPL")
    library.fallback(function, "PrivateUse1")
    return library._destroy


def method(function: Callable[..., Any], name: str) -> Mend:
    """Replace a method of tensors; the function takes the tensor, the original method, and the arguments."""
    original = getattr(torch.Tensor, name)
    setattr(torch.Tensor, name, partialmethod(function, original))
    return lambda: setattr(torch.Tensor, name, original)


def called(function: Callable[[], Mend]) -> Mend:
    return function()


def without(key: str) -> Any:
    """A guard that excludes a dispatch key."""
    return _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(getattr(_C.DispatchKey, key)))
