"""The abacus: what it declares."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from conformance import Descriptor, common_facts


def _unavailable() -> str | None:
    """None where the device can be used, else one line on why not. It must not import torch."""
    return None if importlib.util.find_spec("torch_abacus") else "torch_abacus is not installed"


def _facts() -> Mapping[str, str]:
    """A device with a driver reads its version here."""
    return {**common_facts(), "device_name": "Wooden abacus"}


DESCRIPTOR = Descriptor(
    name="abacus",
    torch_type="abacus",
    title="An abacus",
    sources=("torch_abacus/backend.py",),
    module="torch_abacus",
    # Neither strides nor storage: its tensors have none of their own. What needs them is reported as
    # unsupported by declaration.
    capabilities=frozenset(),
    dtypes=frozenset(
        {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
    ),
    # Its ops are one fallback, which it registers for all that have no kernel of their own and runs on the beads.
    permitted_fallbacks=frozenset({"*"}),
    workers_per_device=2,
    facts=_facts,
    unavailable=_unavailable,
)
