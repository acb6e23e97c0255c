"""Applies a dispatch mode to all threads of a program, and keeps track of the threads that are in a step of an
optimizer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode


class ProgramThreads:
    """Enters a dispatch mode in each thread that a program starts, and counts, per thread, the optimizer steps that are
    running."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode
        self._thread = threading.local()

    @property
    def phase(self) -> str:
        """``optimizer`` if the current thread is running a step of an optimizer, otherwise ``forward``."""
        return "optimizer" if getattr(self._thread, "steps", 0) else "forward"

    @contextmanager
    def following(self) -> Iterator[None]:
        """Within the context, the mode is entered in each new thread. In the current thread, the caller must enter
        it."""
        steps = (
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        )
        before = threading.getprofile()
        threading.setprofile(self._join_thread)
        try:
            yield
        finally:
            threading.setprofile(before)
            for hook in steps:
                hook.remove()

    def _join_thread(self, *_: Any) -> None:
        """Enters the mode in a new thread until that thread ends. Python calls this function as the thread's profile
        function, before the first statement of the thread."""
        sys.setprofile(None)
        self._mode.__enter__()

    def _step_begins(self, *_: Any) -> None:
        self._thread.steps = getattr(self._thread, "steps", 0) + 1

    def _step_ends(self, *_: Any) -> None:
        self._thread.steps = max(0, getattr(self._thread, "steps", 0) - 1)
