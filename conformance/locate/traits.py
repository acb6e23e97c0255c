"""Determines how the calls of an overload are judged: whether its inputs determine the values of its result, and the
largest accepted error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import torch

from conformance.suites.precision.bounds import on_samples
from devices.descriptor import Descriptor
from opinfo.compare import DEFAULT_TOLERANCES
from opinfo.exceptions import exceptions
from opinfo.subject import names_of_packet
from opinfo.torch_private import schema_of

#: Arguments that say how much is dropped. A call that drops nothing draws no random numbers.
_DROPS: Final = ("dropout_p", "p", "dropout")
#: The real dtype whose bounds a complex one has.
_COMPONENT: Final = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_REAL: Final = ("float16", "bfloat16", "float32")

#: The accepted error of an element of a pointwise result, in units in its last place.
_POINTWISE_ULPS: Final = 4.0

#: The families of ``opinfo/exceptions.toml`` that decide how a call is judged, and the name that a judge knows.
_OF_FAMILIES: Final = {
    "values.uninitialized": "uninitialized",
    "values.not_unique": "not unique",
    "values.any_index": "any index",
    "values.of_any": "any index",
    "values.of_k": "index after k",
}


#: Ops that return which kernel of the device is to be called.
_CHOICES: Final = frozenset({"_fused_sdp_choice"})


def traits_of(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> frozenset[str]:
    """Returns the traits of a call that change how it is judged: ``random`` and ``uninitialized`` results have
    arbitrary values, a ``geometry`` result depends only on the shapes and strides of the inputs, a ``not unique``
    result is one of several right ones, and ``any index`` and ``index after k`` are for ops such as ``sort`` and
    ``kthvalue`` that may return the index of any of several equal elements."""
    found = _of_overload(overload)
    if "random" in found and _drops_nothing(overload, args, kwargs):
        return found - {"random"}
    return found


@cache
def _of_overload(overload: Any) -> frozenset[str]:
    schema = schema_of(overload)
    packet = schema.name.partition("::")[2]
    families = exceptions().families_of(*_names(packet))
    found = {name for family, name in _OF_FAMILIES.items() if family in families}
    if torch.Tag.nondeterministic_seeded in overload.tags:
        found.add("random")
    if packet in _CHOICES:
        found.add("not unique")
    is_view = any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
    )
    if is_view or torch.Tag.inplace_view in overload.tags or packet.startswith("as_strided"):
        found.add("geometry")
    return frozenset(found)


def _drops_nothing(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    arguments = schema_of(overload).arguments
    given = {each.name: each.default_value for each in arguments if each.has_default_value()}
    given |= dict(zip((each.name for each in arguments), args)) | dict(kwargs)
    return any(
        each.name in _DROPS and str(each.type) == "float" and given.get(each.name) == 0
        for each in arguments
    )


def _names(packet: str) -> tuple[str, ...]:
    own = packet, packet.removeprefix("_foreach_")
    return tuple(dict.fromkeys((*own, *(name for each in own for name in names_of_packet(each)))))


class Bounds:
    """The largest errors that are accepted from a device: a relative error, and a number of units in the last place of
    the result's largest element."""

    def __init__(self, descriptor: Descriptor) -> None:
        given = {name: each.rtol for name, each in descriptor.tolerances.items()}
        self._relative = {name: rtol for name, (rtol, _) in DEFAULT_TOLERANCES.items()} | given
        self._known: dict[Any, dict[str, tuple[float, float]]] = {}

    def of(self, overload: Any) -> dict[str, tuple[float, float]]:
        """Returns the accepted errors of an overload by the name of the dtype."""
        packet = schema_of(overload).name.partition("::")[2]
        if packet not in self._known:
            names = _names(packet)
            ulps = {each: max(on_samples(name, each) for name in names) for each in _REAL}
            ulps["float64"] = ulps["float32"]
            pointwise = torch.Tag.pointwise in overload.tags
            self._known[packet] = {
                dtype: self._bound(dtype, ulps[real], pointwise)
                for dtype in self._relative
                if (real := _COMPONENT.get(dtype, dtype)) in ulps
            }
        return self._known[packet]

    def _bound(self, dtype: str, ulps: float, pointwise: bool) -> tuple[float, float]:
        """Returns the accepted error for a dtype. Each element of a ``pointwise`` result is computed on its own, so its
        error is compared with its own size and not with that of the largest element."""
        relative = self._relative[dtype]
        if not pointwise:
            return relative, ulps
        return max(relative, _POINTWISE_ULPS * torch.finfo(getattr(torch, dtype)).eps), 0.0
