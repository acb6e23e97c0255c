"""Subjects (functions under test) for overloads of aten that users reach, but that no op of torch's database calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Final

import torch

from opinfo.compare import tensors_of
from opinfo.overload_calls import CALLS, OF_INTEGERS, WITH_TARGETS, Call, Calls
from opinfo.overload_calls_nn import NETWORK_CALLS
from opinfo.subject import Subject, names_of_packet
from opinfo.torch_private import schema_of

#: The beginning of the ids of these subjects.
SPACE: Final = "aten."
_OF_INTERNAL: Final = ("contiguous", "contiguous+offset")


class AtenOverload(Subject):
    """A function under test that is one overload of aten, such as ``aten.bucketize.Scalar``, with handwritten
    samples."""

    runs_on_cpu = True
    #: the rules for special values make calls of their own, which an overload need not take
    unwanted_families = ("special.",)
    dtypes: frozenset[str] = frozenset()

    def __init__(self, name: str, overload: Any, calls: Calls, dtype: str) -> None:
        self.id, self._overload, self._calls = f"{SPACE}{name}", overload, calls
        self.function = self.reference = overload
        self.dtypes = frozenset({dtype})
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
        """The families of ``exceptions.toml`` to which the overload belongs: those that its schema implies, and the
        families of ops whose samples must keep the sizes of their tensors."""
        found = super().own_families | {"axes.keep_shapes", "explore.keeps_sizes"}
        return found | {"mutates.arguments"} if self._written else found

    @property
    def unsafe_in_graphs(self) -> bool:
        """True if the overload has a tag that excludes it from graphs (see torch.Tag)."""
        unsafe = {torch.Tag.cudagraph_unsafe, torch.Tag.dynamic_output_shape}
        return bool(unsafe & set(self._overload.tags))

    @property
    def _written(self) -> frozenset[str]:
        """The names of the arguments to which the overload writes."""
        return frozenset(
            each.name
            for each in schema_of(self._overload).arguments
            if each.alias_info is not None and each.alias_info.is_write
        )

    def written_tensors(self, call: Any) -> frozenset[int]:
        """Returns the positions of the call's tensors to which the overload writes according to its schema."""
        names = (each.name for each in schema_of(self._overload).arguments)
        given = dict(zip(names, call.args)) | call.kwargs
        written = {id(each) for name in self._written for each in tensors_of(given.get(name))}
        return frozenset(n for n, each in enumerate(call.tensors) if id(each) in written)

    def raw_samples(self, dtype: torch.dtype) -> Iterator[Any]:
        for (first, *rest), kwargs in self._calls(dtype):
            yield SimpleNamespace(
                input=first, args=tuple(rest), kwargs=kwargs, output_process_fn_grad=None
            )


@cache
def overload_subjects() -> Mapping[str, Subject]:
    """Returns an ``AtenOverload`` for each overload that the installed torch has, by id."""
    every = {**CALLS, **NETWORK_CALLS, **OF_INTEGERS}
    for name, (plain, calls) in WITH_TARGETS.items():
        every[name] = partial(_with_targets, name, plain, calls)
    found = (
        AtenOverload(name, overload, calls, "int64" if name in OF_INTEGERS else "float32")
        for name, calls in every.items()
        if (overload := _overload(name)) is not None
    )
    return {subject.id: subject for subject in found}


def _overload(name: str) -> Any:
    """Returns the overload with a name such as ``bucketize.Scalar`` or ``gelu_``; None if torch lacks it."""
    packet, _, overload = name.partition(".")
    holder, wanted = getattr(torch.ops.aten, packet, None), overload or "default"
    return getattr(holder, wanted) if holder is not None and wanted in holder.overloads() else None


def _with_targets(name: str, plain: str, calls: Calls, dtype: torch.dtype) -> Iterator[Call]:
    """Yields the calls of the overload ``name``, which writes its results into arguments such as ``out=``. For these
    arguments, the calls pass zeros of the sizes that the overload ``plain``, which returns its results, gives for
    the same arguments."""
    targets = [
        each.name
        for each in schema_of(_overload(name)).arguments
        if each.alias_info is not None and each.alias_info.is_write
    ]
    for args, kwargs in calls(dtype):
        results = tensors_of(_overload(plain)(*args, **kwargs))
        yield args, {**kwargs, **dict(zip(targets, map(torch.zeros_like, results)))}
