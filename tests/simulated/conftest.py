"""Fixtures of the simulated device's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated


@pytest.fixture
def stream() -> Iterator[torch.Stream]:
    """A stream, current for the test, on a device that has nothing to do."""
    torch.simulated.synchronize()
    with torch.Stream("simulated") as made:
        yield made
        made.synchronize()
