"""torchax as a device, for the example site: what `conform init` drafts for it, without what torchax does not have."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping

from conformance import Descriptor, common_facts


def _unavailable() -> str | None:
    """None if torchax can be used in this environment, else the reason in one line. Must not import torch."""
    found = importlib.util.find_spec("torchax")
    return None if found else "torchax is not installed: pip install torchax jax"


def _facts() -> Mapping[str, str]:
    """The versions of torchax, as the backend, and of jax, as the runtime."""
    installed = importlib.metadata.version
    return {
        **common_facts(),
        "backend": f"torchax {installed('torchax')}",
        "runtime": f"jax {installed('jax')}",
    }


DESCRIPTOR = Descriptor(
    name="torchax",
    torch_type="jax",
    title="torchax on the CPU",
    sources=("https://github.com/google/torchax",),
    module="torchax_enabled",
    init="init",
    # A tensor has no storage and no strides of its own (docs/found.md); streams, events, generators and pinned memory raise.
    capabilities=frozenset(["autocast", "fork_detection"]),
    dtypes=frozenset(
        ["bfloat16", "bool", "complex64", "float16", "float32", "int16", "int32", "int8",
         "uint16", "uint32", "uint8"]
    ),
    flushes_subnormals=frozenset(["bfloat16", "float32"]),
    alignment=64,
    host_memory=True,
    workers_per_device=2,
    facts=_facts,
    unavailable=_unavailable,
)  # fmt: skip
