"""Subjects for overloads of aten that users reach, but that no op of torch's database calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import torch

from opinfo.overload_calls import CALLS, Calls
from opinfo.subject import Subject, names_of_packet
from opinfo.torch_private import schema_of

#: The beginning of the ids of these subjects.
SPACE: Final = "aten."
_DTYPES: Final = frozenset({"float32"})
_OF_INTERNAL: Final = ("contiguous", "contiguous+offset")


class AtenOverload(Subject):
    """An overload of aten with samples of its own, such as ``aten.bucketize.Scalar``."""

    runs_on_cpu = True
    #: the rules for special values make calls of their own, which an overload need not take
    unwanted_families = ("special.",)
    dtypes = _DTYPES

    def __init__(self, name: str, overload: Any, calls: Calls) -> None:
        self.id, self._overload, self._calls = f"{SPACE}{name}", overload, calls
        self.function = self.reference = overload
        self._packet = name.partition(".")[0]
        # Only torch itself calls such an op: with contiguous tensors, whose sizes fit each other.
        internal = self._packet.startswith("_") or "backward" in self._packet
        self.checks_sizes, self.layouts = not internal, _OF_INTERNAL if internal else None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.id, *names_of_packet(self._packet))

    @property
    def schemas(self) -> tuple[Any, ...]:
        return (schema_of(self._overload),)

    @property
    def own_families(self) -> frozenset[str]:
        """The families that follow from the schema. The sizes of all samples stay as they are."""
        return super().own_families | {"axes.keep_shapes", "explore.keeps_sizes"}

    def raw_samples(self, dtype: torch.dtype) -> Iterator[Any]:
        for (first, *rest), kwargs in self._calls(dtype):
            yield SimpleNamespace(
                input=first, args=tuple(rest), kwargs=kwargs, output_process_fn_grad=None
            )


@cache
def overload_subjects() -> Mapping[str, Subject]:
    """Returns the subjects by id, without those whose overload the installed torch lacks."""
    found: dict[str, Subject] = {}
    for name, calls in CALLS.items():
        packet, _, overload = name.partition(".")
        holder = getattr(torch.ops.aten, packet, None)
        if holder is not None and (overload or "default") in holder.overloads():
            subject = AtenOverload(name, getattr(holder, overload or "default"), calls)
            found[subject.id] = subject
    return found
