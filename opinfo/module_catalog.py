"""The adapter over torch's database of modules, as opinfo/catalog.py is the one over its database of ops.

A test pins each field used (``tests/opinfo/test_module_catalog.py``). Upstream's skips are never inherited. Repro scripts
carry this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class ModuleSample:
    """How upstream makes one module, and calls it: on the CPU."""

    args: tuple[Any, ...]  # of the class
    kwargs: Mapping[str, Any]
    inputs: tuple[Any, ...]  # of the call
    named: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ModuleEntry:
    """One ModuleInfo, under stable names."""

    upstream: Any

    @property
    def name(self) -> str:
        """``BatchNorm2d``: unique in the database."""
        name: str = self.upstream.name
        return name.removeprefix("nn.").removeprefix("modules.")

    @property
    def build(self) -> Any:
        """The class."""
        return self.upstream.module_cls

    def samples(self, *, training: bool) -> list[ModuleSample]:
        """The samples in float32 that call the module, in upstream's order."""
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
def module_catalogue() -> Mapping[str, ModuleEntry]:
    """All modules of the database by name, in its order. Raises ImportError if it cannot be imported: it needs what the
    database of ops needs."""
    from torch.testing._internal.common_modules import module_db

    entries = map(ModuleEntry, module_db)
    return {entry.name: entry for entry in entries}
