"""Fixtures of the simulated device's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import devices.simulated.backend  # noqa: F401 - makes torch.simulated


@pytest.fixture(autouse=True)
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Opens every gate of a test at its end: one that a failed test left closed would hold all tests behind it."""
    made, make = [], torch.simulated.Gate

    def remembered() -> torch.simulated.Gate:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(torch.simulated, "Gate", remembered)
    yield
    for gate in made:
        gate.open()


@pytest.fixture
def stream(gates: None) -> Iterator[torch.Stream]:
    """A stream, current for the test, on a device that has nothing to do."""
    torch.simulated.synchronize()
    with torch.Stream("simulated") as made:
        yield made
        made.synchronize()
