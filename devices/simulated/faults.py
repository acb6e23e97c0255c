"""The planted faults of the simulated device: their names, the clauses they must trip, and how to switch them.

    SIMULATED_FAULTS=values.ignore_strides,out.restride pytest --device simulated

or ``with planted("values.ignore_strides"): ...``. What a fault does is in ``csrc/``; off, it costs one load.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from devices._text import listing, suggestion
from devices.errors import ConformError

ENVIRONMENT: Final = "SIMULATED_FAULTS"


class UnknownFault(ConformError):
    """No fault of the simulated device has this name. The text names those that there are."""


def _library() -> Any:
    return importlib.import_module("devices.simulated.backend").library


def switch(name: str, on: bool) -> None:
    """Switch one fault. Raises UnknownFault."""
    known = _library().fault_names()
    if name not in known:
        raise UnknownFault(
            f"the simulated device has no fault '{name}'{suggestion(name, known)} (known: {listing(known)})"
        )
    _library().switch_fault(name, on)


@contextmanager
def planted(*names: str) -> Iterator[None]:
    """Switch faults on for a block. Raises UnknownFault."""
    before = set(_library().faults_that_are_on())
    try:
        for name in names:
            switch(name, True)
        yield
    finally:
        for name in names:
            switch(name, name in before)


def switch_on_from_environment() -> None:
    """Switch on what ``SIMULATED_FAULTS`` names, for the life of the process. Raises UnknownFault."""
    for name in os.environ.get(ENVIRONMENT, "").split(","):
        if name.strip():
            switch(name.strip(), True)
