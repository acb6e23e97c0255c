"""A device with streams whose `_sleep`, which `conform init` tries, keeps the host waiting for ever."""

import time

import torch

import devices.simulated.backend  # noqa: F401  # the driver

del torch.simulated.Gate, torch.simulated.busy


def _sleep(cycles: int) -> None:
    time.sleep(1e6)


torch.simulated._sleep = _sleep
