"""What a device answers before a run is planned."""

from __future__ import annotations

from dataclasses import replace

import torch

from devices.cpu.descriptor import DESCRIPTOR
from opinfo.device import Survey, open_device


def test_a_device_that_refuses_views_in_its_own_way_has_no_strides() -> None:
    def refuses(tensor: torch.Tensor) -> torch.Tensor:
        raise TypeError("shapes must be sequences of integers")

    device = replace(open_device(DESCRIPTOR, unused=True), to_device=refuses)
    found = Survey.of(device)
    assert not found.strides and not found.storage
