"""Workers have a device index each; cases, which name indices themselves, are run with the first one current."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from devices import registry
from opinfo.device import Device, first_index, open_device


@pytest.fixture
def second() -> Iterator[Device]:
    """The device of a worker whose index is 1."""
    before = torch.simulated.current_device()
    yield open_device(registry.get("simulated"), 1)
    torch.simulated.set_device(before)


def test_the_first_index_is_current_for_the_block(second: Device) -> None:
    assert torch.simulated.current_device() == 1
    with first_index(second) as device:
        assert device.torch_device == torch.device("simulated", 0)
        assert device.to_device(torch.ones(2)).device.index == 0
        assert torch.simulated.current_device() == 0
    assert torch.simulated.current_device() == 1


def test_it_is_left_as_it_was_where_the_block_raises(second: Device) -> None:
    with pytest.raises(KeyError), first_index(second):
        raise KeyError
    assert torch.simulated.current_device() == 1


def test_a_worker_of_the_first_index_keeps_its_device() -> None:
    device = open_device(registry.get("simulated"))
    with first_index(device) as first:
        assert first is device
