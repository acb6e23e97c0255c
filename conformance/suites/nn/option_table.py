"""The table of a module's options, and what several tables use.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from conformance.suites.nn.covering import Combination
from opinfo.module_catalog import ModuleSample

#: The values of an option, and the values of all options of a module by name.
Levels = Mapping[str, tuple[Any, ...]]

NO_YES = (False, True)
#: With and without a dimension of batches.
BATCH: Levels = {"batch": (True, False)}


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of a module. ``sample`` makes the arguments of the constructor and of the call from a combination of
    options, and draws numbers from the generator. ``refused`` returns True for combinations that the module does not
    accept, or whose result is not determined."""

    module: str
    levels: Levels
    sample: Callable[[Combination, torch.Generator], ModuleSample]
    refused: Callable[[Combination], bool]


def floats(draw: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=draw).requires_grad_()


def accepts_all(options: Combination) -> bool:
    return False


def without(options: Combination, *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}
