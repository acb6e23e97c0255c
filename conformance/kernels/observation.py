"""Records which aten ops a kernel calls, and whether it calls its reference.

Every call that is judged is recorded, and all in the same way. If only some calls were recorded, a kernel could find out
which, for example by ``sys.getprofile()``, by the dispatch modes that are active, or by the frames of its callers. It
could then compute its results itself in these calls, and pass its work to the op that it replaces in all others.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any, Final

import torch

from opinfo.torch_private import OpRecord, is_composite, quiet_kineto

# A kernel may replace these names, so they are looked up before it is loaded.
_set, _get, _set_threads = sys.setprofile, sys.getprofile, threading.setprofile
_start, _stop = OpRecord.start, OpRecord.stop

#: The name of a call of the reference, among the names of ops.
REFERENCE: Final = "reference"

#: The name that stands for the calls of a kernel that switched the record off.
SWITCHED_OFF: Final = "the record was switched off"


class Observer:
    """Records the aten ops that are called in all threads and, if ``reference`` is the code of a Python function, the
    calls of this function."""

    def __init__(self, reference: CodeType | None) -> None:
        self.reference = reference
        self.calls: list[str] = []
        self.outermost: set[str] = set()
        self._profile = None if reference is None else self._note_reference
        quiet_kineto()

    def observed(self, function: Callable[[], Any]) -> Any:
        """Returns the result of a function. Afterwards, ``calls`` has the names of the aten ops that the function called,
        such as "aten::mul", but not the ops that these ops call themselves; "reference" if it called the reference; and
        "the record was switched off" if it did so. ``outermost`` has only the ops that no other op called, even one that
        torch implements by calls of other ops."""
        self.calls, record, profile, before = [], OpRecord(), self._profile, _get()
        _start(record)
        _set(profile)
        _set_threads(profile)
        try:
            return function()
        finally:
            kept = _get() is profile
            _set(before)
            _set_threads(before)
            events = _stop(record)
            self.calls += sorted(_ops(events or ()))
            self.outermost = _outermost(events or ())
            if events is None or not kept:
                self.calls.append(SWITCHED_OFF)

    def _note_reference(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call" and self.reference is not None and _same(frame.f_code, self.reference):
            self.calls.append(REFERENCE)


def _same(code: CodeType, other: CodeType) -> bool:
    place = code.co_filename, code.co_firstlineno, code.co_name
    return place == (other.co_filename, other.co_firstlineno, other.co_name)


def _ops(events: Any) -> set[str]:
    """Returns the names of the ops in a list of trees of events. An op that torch implements by calls of other ops is
    listed with those; what any other op calls is left out."""
    found, left = set[str](), list(events)
    while left:
        event = left.pop()
        name: str = event.name
        if name.startswith("aten::"):
            found.add(name)
        if not name.startswith("aten::") or _is_composite(name):
            left += event.children
    return found


def _outermost(events: Any) -> set[str]:
    """Returns the names of the ops in a list of trees of events, without those that other ops call."""
    found, left = set[str](), list(events)
    while left:
        event = left.pop()
        if event.name.startswith("aten::"):
            found.add(event.name)
        else:
            left += event.children
    return found


@cache
def _is_composite(name: str) -> bool:
    """Returns True if torch implements an overload of an op, such as ``aten::softmax``, by calls of other ops."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    overloads = [] if packet is None else packet.overloads()
    suffixes = ("" if each == "default" else f".{each}" for each in overloads)
    return any(is_composite(f"{name}{each}") for each in suffixes)
