"""Finds out where in the program a call is made: in which running module, and on which source line. For a call in the
backward pass, this is where the corresponding forward call was made."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from conformance.recordings.wire import Place
from opinfo.torch_private import next_sequence_number, running_sequence_number

#: A place as it is found: the innermost running module, and the code and line number of the innermost frame outside
#: torch. Made into a :class:`Place` at the end, because texts cost time in each call.
Found = tuple[Any, CodeType | None, int]

_NOWHERE: Final[Found] = (None, None, 0)
_OWN: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep  # the package conformance
_TORCH: Final = os.path.dirname(torch.__file__) + os.sep

#: The most forward calls whose places are kept for backward. A program that runs forward without backward for a long
#: time would otherwise fill the memory.
_KEPT: Final = 200_000


class _Running(threading.local):
    """The modules whose ``forward`` is running in this thread, with the outermost first."""

    def __init__(self) -> None:
        self.modules: list[torch.nn.Module] = []


class Places:
    """Finds the module and the source line of each call of a program."""

    def __init__(self) -> None:
        self._running = _Running()
        self._names: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._in_torch: dict[CodeType, bool] = {}
        self._of_node: dict[int, Found] = {}
        self._folder = os.getcwd()  # the program may change it

    @contextmanager
    def following(self) -> Iterator[None]:
        """Within the context, hooks on all modules keep the list of the modules that are running up to date."""
        hooks = (
            torch.nn.modules.module.register_module_forward_pre_hook(self._enter),
            torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def find(self) -> tuple[Found, bool]:
        """Returns the module and the source line of the call that is being made, in an internal form that :meth:`place`
        converts, and True if the call is made in the backward pass."""
        node = running_sequence_number()
        if node is not None:
            return self._of_node.get(node) or self._here(), True
        here = self._here()
        # the node of a forward call exists before the call; the calls of a composite op belong to one node
        self._of_node.setdefault(next_sequence_number() - 1, here)
        if len(self._of_node) > _KEPT:
            for old in list(self._of_node)[: _KEPT // 2]:
                del self._of_node[old]
        return here, False

    def place(self, found: Found) -> Place:
        """Converts a result of :meth:`find` into a ``Place``, which has the module's path and the source line as
        texts."""
        module, code, number = found
        if code is None:
            return Place(module or "")
        path = os.path.relpath(os.path.join(self._folder, code.co_filename), self._folder)
        shown = code.co_filename if path.startswith("..") else path
        return Place(module or "", f"{shown}:{number}")

    def _here(self) -> Found:
        modules = self._running.modules
        name = self._names.get(modules[-1], "") if modules else ""
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            inside = self._in_torch.get(code)
            if inside is None:
                inside = self._in_torch[code] = code.co_filename.startswith((_TORCH, _OWN, "<"))
            if not inside:
                return name, code, frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return (name, None, 0) if name else _NOWHERE

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        running = self._running.modules
        if module not in self._names:
            if not running:
                root = type(module).__name__
                for path, each in module.named_modules():
                    self._names[each] = f"{root}.{path}" if path else root
            else:
                self._names[module] = type(module).__name__
        running.append(module)

    def _leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        running = self._running.modules
        if running and running[-1] is module:
            running.pop()
