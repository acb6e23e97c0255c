"""Lists the overloads of aten for which a device has its own kernels."""

from __future__ import annotations

from typing import Final

from opinfo.torch_private import all_overloads, has_kernel, key_of

#: Kernels under these keys serve a device that has none of its own.
_SHARED: Final = (
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)


def overloads_of_aten() -> tuple[str, ...]:
    """Returns the names of all overloads of aten, such as ``aten::add.Tensor``."""
    return tuple(
        name
        for packet, names in all_overloads().items()
        if packet.startswith("aten::")
        for name in names
    )


def own_kernels(torch_type: str) -> frozenset[str]:
    """Returns the overloads for which a kernel is registered for a device type. The device's Python module must have
    been imported before."""
    key = key_of(torch_type)
    return frozenset(name for name in overloads_of_aten() if has_kernel(name, key))


def is_shared(name: str) -> bool:
    """Returns True if torch itself implements an overload by calling other ops, for every device."""
    return any(has_kernel(name, key) for key in _SHARED)
