"""The faults of public bugs that are planted into the simulated device, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import devices.simulated.backend  # noqa: F401 - the kernels are there before a fault replaces them
from tests.bugs.kernels import KERNELS, leaked
from tests.bugs.python_functions import PYTHON
from tests.planting.places import on_simulated, planted, replaced

DEVICE_FAULTS: Final = frozenset({*KERNELS, *PYTHON})


@contextmanager
def in_the_device(name: str) -> Iterator[None]:
    """With the fault of that name in the simulated device, for a block."""
    if name in KERNELS:
        fault = KERNELS[name]
        with planted(fault.overloads, fault.effect, fault.key) as run:
            yield
        if run.failures:
            raise AssertionError(f"the fault {name} raised: {run.failures[0]}")
    else:
        python = PYTHON[name]
        here = on_simulated if python.here else None
        with replaced(python.owner, python.name, python.effect, here):
            yield
    leaked.clear()
