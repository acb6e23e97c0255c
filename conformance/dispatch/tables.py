"""The dispatcher's tables: which kernel a device has for an op."""

from __future__ import annotations

from functools import cache

import torch

#: What a line of a table ends with where the kernel is the backend's for all ops that have none.
_FALLBACK = "[backend fallback]"


def key_of(torch_type: str) -> str:
    """The dispatch key of a device type: ``PrivateUse1``, also of a type whose module is not imported yet."""
    try:
        return str(torch._C._dispatch_key_for_device(torch_type))
    except RuntimeError:  # torch knows no such type: a module will give PrivateUse1 this name
        return "PrivateUse1"


@cache
def is_native(name: str, key: str) -> bool:
    """Whether an op (``aten::add.Tensor``) has a kernel for the key: the device's own, or one that is composed
    of other ops."""
    for line in torch._C._dispatch_dump_table(name).splitlines():
        if line.startswith(f"{key}: "):
            return not line.endswith(_FALLBACK)
    return False


@cache
def overloads(name: str) -> tuple[str, ...]:
    """The full names of an op's overloads: ``aten::add`` has ``aten::add.Tensor``, ``aten::add.out`` …"""
    return _by_packet().get(name, ())


@cache
def _by_packet() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        found.setdefault(name.partition(".")[0], []).append(name)
    return {packet: tuple(names) for packet, names in found.items()}


def without_kernel(packet: str, key: str) -> list[str]:
    """The overloads of an op that the device has no kernel for, nor what one is composed of."""
    return [name for name in overloads(packet) if not is_native(name, key)]
