"""What tests of graphs share."""

from __future__ import annotations

import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated

Graph = torch.accelerator.Graph


def ones(*shape: int) -> torch.Tensor:
    """Made before anything else happens: it waits for the device, which captures refuse."""
    made = torch.ones(*shape or (2,), device="simulated")
    torch.simulated.synchronize()
    return made


def run(graph: Graph, stream: torch.Stream, times: int = 1) -> None:
    """Replay, and wait."""
    for _ in range(times):
        graph.replay()
    stream.synchronize()
