"""The adapter over torch's database of modules (ModuleInfo). The adapter over the database of ops is opinfo/catalog.py.

A test pins each field that is used (``tests/opinfo/test_module_catalog.py``). The database's own skips are ignored.
Repro scripts contain a copy of the module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class ModuleSample:
    """Arguments to construct a module, and arguments to call the module, on the CPU."""

    args: tuple[Any, ...]  # arguments of the constructor
    kwargs: Mapping[str, Any]
    inputs: tuple[Any, ...]  # arguments of the call
    named: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ModuleEntry:
    """A module of torch's database (ModuleInfo), under names that do not change between versions."""

    upstream: Any

    @property
    def name(self) -> str:
        """The name of the module, such as ``BatchNorm2d``, which is unique in the database."""
        name: str = self.upstream.name
        return name.removeprefix("nn.").removeprefix("modules.")

    @property
    def build(self) -> Any:
        """The class of the module, which is called to build an instance."""
        return self.upstream.module_cls

    def samples(self, *, training: bool) -> list[ModuleSample]:
        """Returns the database's float32 samples that have arguments to call the module with, in the database's order.
        ``training`` is the mode of the module for which the samples are made."""
        drawn = self.upstream.module_inputs_func(
            self.upstream,
            device="cpu",
            dtype=torch.float32,
            requires_grad=True,
            training=training,
        )
        return [
            ModuleSample(
                tuple(each.constructor_input.args),
                dict(each.constructor_input.kwargs),
                tuple(each.forward_input.args),
                dict(each.forward_input.kwargs),
            )
            for each in drawn
            if each.forward_input is not None
        ]


@cache
def module_entries() -> Mapping[str, ModuleEntry]:
    """Returns all modules of the database by name, in the database's order.

    Raises ImportError if the database cannot be imported; it needs the same packages as the database of ops.
    """
    from torch.testing._internal.common_modules import module_db

    entries = map(ModuleEntry, module_db)
    return {entry.name: entry for entry in entries}
