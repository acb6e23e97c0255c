"""The descriptor of Meta's MTIA. Its backend is not public, so the descriptor describes torch's public module
torch.mtia. The descriptor has never been run; the first run may show that it needs corrections."""

from __future__ import annotations

import importlib.metadata
import re

from devices.descriptor import Descriptor, common_facts, names
from devices.machine import counting, is_installed, late_module, torch_lacks


def _unavailable() -> str | None:
    if not is_installed("torch"):
        return "torch is not installed"
    version = importlib.metadata.version("torch")
    public = re.search(r"\+(cpu|cu\d+|rocm|xpu)", version)
    if public or any(torch_lacks(f"torch_{kind}") is None for kind in ("cuda", "hip", "xpu")):
        return f"torch {version} is a public build; MTIA needs a build from inside Meta"
    if not late_module("torch")._C._mtia_isBuilt():
        return "the installed torch is built without MTIA"
    return None if late_module("torch.mtia").is_available() else "torch.mtia finds no device"


def _facts() -> dict[str, str]:
    """Returns the facts of the machine, with the device's name if its properties contain one. The driver's version
    cannot be read with public functions."""
    properties = late_module("torch.mtia").get_device_properties(0)
    name = str(properties.get("name", "")) or None
    return common_facts(device_name=name)


DESCRIPTOR = Descriptor(
    name="mtia",
    torch_type="mtia",
    title="Meta MTIA",
    sources=(
        "torch/mtia/__init__.py, memory.py, mtia_graph.py",
        "https://docs.pytorch.org/docs/stable/mtia.html",
    ),
    capabilities=names(
        "strides storage streams events allocator_statistics allocator_history graphs "
        "graph_pools generator multi_device properties serialization autocast fork_detection"
    ),
    # The supported dtypes are not public, except bfloat16 (torch.mtia.is_bf16_supported).
    dtypes=names("bool uint8 int8 int16 int32 int64 float16 bfloat16 float32"),
    alignment=64,  # not public; c10 guarantees at least this (c10::gAlignment)
    facts=_facts,
    unavailable=_unavailable,
    device_count=counting("torch.mtia"),
)
