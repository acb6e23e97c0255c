"""Graphs in ``torch.simulated``, as in ``torch.cuda``: they are ``torch.accelerator.Graph`` under the module's names."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal

import torch

from devices.simulated.backend import native

Graph = torch.accelerator.Graph

Mode = Literal["default", "global", "thread_local", "relaxed"]


def is_current_stream_capturing() -> bool:
    """Whether work on the current stream of the current device is recorded, and not run."""
    stream: Any = torch.accelerator.current_stream()
    return bool(stream.is_capturing())


def graph_pool_handle() -> tuple[int, int]:
    """The id of a new memory pool, for graphs to share: ``Graph(pool=...)``."""
    first, second = native.library.graph_pool_handle()
    return int(first), int(second)


class graph:
    """``with torch.simulated.graph(g):`` captures the block into ``g``, on a stream of its own where none is given.

    ``pool`` and ``capture_error_mode`` are those of ``torch.accelerator.Graph`` and override what ``g`` was made with.
    """

    def __init__(
        self,
        made: torch.accelerator.Graph,
        pool: tuple[int, int] | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: Mode | None = None,
    ) -> None:
        self.graph = made
        if pool is not None:
            made.graph_pool = pool
        if capture_error_mode is not None:
            made.capture_error_mode = capture_error_mode
        self.stream = torch.Stream("simulated") if stream is None else stream

    def __enter__(self) -> None:
        self.stream.__enter__()
        try:
            self.graph.__enter__()
        except BaseException:
            self.stream.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.graph.__exit__(kind, error, trace)
        finally:
            self.stream.__exit__(kind, error, trace)
