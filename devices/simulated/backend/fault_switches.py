"""The switches of the planted faults.

This command switches two faults on for a run::

    SIMULATED_FAULTS=values.ignore_strides,out.restride pytest --device simulated

``with planted("values.ignore_strides"): ...`` switches one fault on for a block. Checking a switch that is off costs
the library one load of a word from memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from devices.errors import ConformError, suggestion

# The first two declare the faults that are installed in Python.
from devices.simulated.backend import installed, installed_training, installing  # noqa: F401
from devices.simulated.backend.native import library
from devices.simulated.faults import ENVIRONMENT, FAULTS


class UnknownFault(ConformError):
    """The error for a fault name that the simulated device does not have. The text of the error suggests the nearest
    names."""


def switch(name: str, on: bool) -> None:
    """Switches one fault on or off. Raises UnknownFault."""
    if name not in FAULTS:
        raise UnknownFault(
            f"{ENVIRONMENT}: the simulated device has no fault '{name}'{suggestion(name, FAULTS) or '.'}"
            " docs/contract.md lists the faults under 'Planted faults'"
        )
    library.switch_fault(name, on)
    installing.switch(name, on)


@contextmanager
def planted(*names: str) -> Iterator[None]:
    """Switches faults on for a ``with`` block. Raises UnknownFault."""
    before = set(library.faults_that_are_on())
    try:
        for name in names:
            switch(name, True)
        yield
    finally:
        for name in before.symmetric_difference(library.faults_that_are_on()):
            switch(name, name in before)


def switch_on_from_environment() -> None:
    """Switches on the faults that ``SIMULATED_FAULTS`` names, for the life of the process. Raises UnknownFault."""
    for name in os.environ.get(ENVIRONMENT, "").split(","):
        if name.strip():
            switch(name.strip(), True)


@contextmanager
def reached() -> Iterator[set[str]]:
    """Collects the faults that can change the result of code in a ``with`` block.

    A fault can change the result only if the library checks the switch of the fault during the block, or if the fault
    replaces a kernel that is called.
    """
    library.note_asked(True)
    library.note_ops(True)
    library.faults_asked()  # forget what was asked before the block
    library.ops_called()
    found: set[str] = set()
    try:
        yield found
    finally:
        found.update(library.faults_asked())
        found.update(installing.reached_by(set(library.ops_called())))
        library.note_asked(False)
        library.note_ops(False)
