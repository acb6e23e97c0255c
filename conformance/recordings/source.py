"""Replays a recording: the checks treat each recorded call like an op of torch's op database whose only sample is this
call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any, Final

import torch

from conformance.recordings.operands import (
    arguments_of,
    geometries_of,
    repeat_elements,
    shapes_of,
)
from conformance.recordings.wire import (
    RecordedCall,
    Recording,
    RecordingError,
    read_recording,
)
from opinfo.compare import Arguments, tensors_of
from opinfo.database import DATABASE
from opinfo.encoding import write_value
from opinfo.exceptions import exceptions
from opinfo.layouts import Geometry
from opinfo.sample_source import SampleSource
from opinfo.samples import META, SEED, Sample, result_by_shapes
from opinfo.shared_memory import why_apart, with_shared_elements
from opinfo.subject import Function, Source, Subject, names_of_packet

#: Up to this number of elements, a call runs in every layout; a larger one only in the neighbours of its own geometry.
_EVERY_LAYOUT: Final = 2**16
NEIGHBOURS: Final = (
    "contiguous",
    "contiguous+offset",
    "contiguous+step_inner+offset",
    "transposed",
    "channels_last",
    "contiguous/transposed",
)


#: The layouts of an op that only torch calls, besides the recorded one: in others torch need not call it.
_OF_INTERNAL: Final = ("contiguous", "contiguous+offset")


#: The most elements of the tensors of a call. They are drawn in float64, and several copies are made.
_MOST_ELEMENTS: Final = 2**28

#: The phases of a program in which no call is differentiated.
_WITHOUT_GRADIENTS: Final = ("backward", "optimizer")


#: The argument for the share of elements that an attention drops, which is 0 by default; the number 0.0 as a recording has
#: it.
_DROPOUT: Final = "dropout_p"
_NO_DROPOUT: Final = write_value(0.0)


class NotReplayed(RecordingError):
    """The error for a recorded call that cannot be repeated on its own, or whose op is not registered with torch."""


class WrittenArguments:
    """Wraps an op that returns nothing and writes to lists of tensors, such as ``_foreach_mul_``, as a function that
    returns the tensors to which the op wrote."""

    def __init__(self, overload: Any) -> None:
        self.overload = overload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.overload(*args, **kwargs)
        given = dict(zip((each.name for each in self.overload._schema.arguments), args)) | kwargs
        return tuple(
            each
            for argument in self.overload._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
            for each in given.get(argument.name) or ()
        )


class AtenCall(Subject):
    """A recorded call of an op's overload, in the form of an op that the checks can test."""

    schemas: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    declares_view: bool = False
    dtypes: frozenset[str] = frozenset()
    #: the rules for special values make calls of their own, which an overload need not take
    unwanted_families = ("special.",)

    def __init__(self, call: RecordedCall, *, backward: bool = False) -> None:
        overload = overload_of(call.op)
        if torch.Tag.inplace_view in overload.tags:
            raise NotReplayed("the op changes the sizes or strides of its operand in place")
        unknown = [
            e.dtype
            for e in call.tensors
            if not isinstance(getattr(torch, e.dtype, None), torch.dtype)
        ]
        if unknown:
            raise NotReplayed(f"torch {torch.__version__} has no dtype {unknown[0]}")
        if (count := elements_of(call)) > _MOST_ELEMENTS:
            raise NotReplayed(f"its tensors have more than {_MOST_ELEMENTS:,} elements: {count:,}")
        self.call, self.overload = call, overload
        # what backward and an optimizer call is not differentiated
        self._has_gradients = backward and call.phase not in _WITHOUT_GRADIENTS
        schema = overload._schema
        function = overload if schema.returns else WrittenArguments(overload)
        self.id, self.function, self.reference = call.name, function, function
        self.dtypes = frozenset({call.dtype})
        self.schemas = (schema,)
        space, _, packet = schema.name.partition("::")
        own = (packet, packet.removeprefix("_foreach_")) if space == "aten" else ()
        names = (name for each in own for name in names_of_packet(each))
        self.names = tuple(dict.fromkeys(names)) or (f"{space}.{packet}",)
        aliases = [each.alias_info for each in schema.returns]
        self.declares_view = any(each is not None and not each.is_write for each in aliases)
        # an op that only torch calls need not refuse what torch never passes to it
        self.is_internal = space == "aten" and (
            packet.startswith(("_", "native_")) or "backward" in packet
        )
        self.checks_sizes = space == "aten" and not self.is_internal
        self.layouts = _OF_INTERNAL if self.is_internal else None

    @property
    def gradient_dtypes(self) -> frozenset[str]:
        """The dtype of the call, if its gradients are to be judged because it is a forward call; otherwise empty.
        Whether the op can be differentiated is found out by the check."""
        return self.dtypes if self._has_gradients else frozenset()

    @property
    def own_families(self) -> frozenset[str]:
        """The names of the families of exceptions (``opinfo/exceptions.toml``) to which the call belongs: those that
        follow from the op's schema, and those that forbid other tensor sizes."""
        found = set(super().own_families)
        if any(
            each.alias_info is not None and each.alias_info.is_write for each in self._arguments
        ):
            found.add("mutates.arguments")
        if self._draws:
            found.add("values.free")
        takers = [str(each.type) for each in self._arguments if "Tensor" in str(each.type)]
        if takers == ["List[Tensor]"]:  # such as _foreach_norm: takes each tensor on its own
            found.add("cross_device.any")
        if not self.checks_sizes:
            found |= {"axes.keep_shapes", "explore.keeps_sizes"}
        return frozenset(found)

    @property
    def _draws(self) -> bool:
        """True if the call draws random numbers. An attention call without dropout does not, although its op has the
        tag for random ops."""
        if torch.Tag.nondeterministic_seeded not in self.overload.tags:
            return False
        names = [each.name for each in self._arguments]
        given = {**dict(zip(names, self.call.args)), **self.call.kwargs}
        by_default = _NO_DROPOUT if _DROPOUT in names else None
        return bool(given.get(_DROPOUT, by_default) != _NO_DROPOUT)

    @property
    def names_device(self) -> bool:
        """True if the op takes the keyword argument ``device``."""
        return any(each.name == "device" for each in self._arguments)

    def possible_result(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns a tensor for each tensor or list of tensors that the schema returns, of the dtype of the call."""
        dtype: torch.dtype = getattr(torch, self.call.dtype)
        returns = self.overload._schema.returns
        found = tuple(
            torch.empty(2, dtype=dtype, device=META) if "Tensor" in str(each.type) else 0
            for each in returns
        )
        return found[0] if len(found) == 1 else found or tuple(tensors)

    @property
    def _arguments(self) -> Any:
        return self.overload._schema.arguments

    def tolerance(self, dtype: str, torch_type: str) -> tuple[float, float] | None:
        """Returns the largest tolerance, for this dtype and device type, among the ops in torch's op database that call
        a kernel with this op's name."""
        found = [
            each.tolerance(dtype, torch_type) for each in _entries_by_packet().get(self._packet, ())
        ]
        return max((each for each in found if each is not None), default=None)

    @property
    def _packet(self) -> str:
        name: str = self.overload._schema.name
        return name.replace("aten::_foreach_", "aten::").rstrip("_")

    def written_tensors(self, call: Any) -> frozenset[int]:
        """Returns the positions, among the tensors of a call, of those that the op writes to according to its
        schema."""
        given = dict(zip((each.name for each in self._arguments), call.args)) | call.kwargs
        written = {
            id(tensor)
            for each in self._arguments
            if each.alias_info is not None and each.alias_info.is_write
            for tensor in tensors_of(given.get(each.name))
        }
        return frozenset(n for n, each in enumerate(call.tensors) if id(each) in written)

    def source_of(self, function: Function) -> Source:
        """Returns the expression by which a repro script refers to the op."""
        if isinstance(function, WrittenArguments):
            return f"WrittenArguments(torch.ops.{function.overload})", (WrittenArguments,)
        return super().source_of(function)

    @cached_property
    def unsafe_in_graphs(self) -> bool:
        """True if the op has a tag that excludes it from captured graphs (see torch.Tag)."""
        tags = {
            torch.Tag.cudagraph_unsafe,
            torch.Tag.dynamic_output_shape,
            torch.Tag.data_dependent_output,
        }
        return bool(tags & set(self.overload.tags))

    @cached_property
    def pointwise(self) -> bool:
        """True if the op has the tag pointwise (torch.Tag.pointwise)."""
        return torch.Tag.pointwise in self.overload.tags


class RecordedSource:
    """A recording as a :class:`opinfo.sample_source.SampleSource`. ``left_out`` has the reasons why some calls cannot
    be replayed, by the name of the call."""

    def __init__(self, recording: Recording, digest: str, *, backward: bool = False) -> None:
        self.recording, self.digest, self.backward = recording, digest, backward
        self.left_out: dict[str, str] = {}
        self.apart: dict[str, str] = {}  # why calls are made with tensors that share no memory
        self._subjects: dict[str, Subject] = {}
        for name, call in recording.named().items():
            try:
                self._subjects[name] = AtenCall(call, backward=backward)
            except NotReplayed as error:
                self.left_out[name] = str(error)

    def subjects(self) -> Mapping[str, Subject]:
        """Returns the distinct calls of the recording by name, in the order in which they first occurred."""
        return self._subjects

    def larger_than(self, most: int) -> frozenset[str]:
        """Returns the names of the calls whose operands, or whose results, together have more than ``most`` elements."""
        calls = self.recording.named().items()
        by_operands = {name for name, call in calls if elements_of(call) > most}
        return frozenset(
            by_operands.union(name for name, n in self._result_sizes.items() if n > most)
        )

    @cached_property
    def _result_sizes(self) -> Mapping[str, int]:
        """The number of elements of the results of each call, by the name of the call."""
        found = {}
        for name, subject in self._subjects.items():
            (sample,) = self.shapes(subject, next(iter(subject.dtypes)))
            result = result_by_shapes(subject, sample)
            found[name] = sum(each.numel() for each in tensors_of(result))
        return found

    def leave_out_large_results(self) -> None:
        """Leaves out the calls whose operands are small, and whose results are too large to be compared, such as a
        tensor of zeros."""
        for name, count in self._result_sizes.items():
            if count > _MOST_ELEMENTS:
                del self._subjects[name]
                self.left_out[name] = (
                    f"its result has more than {_MOST_ELEMENTS:,} elements: {count:,}"
                )

    def of_any_values(self) -> frozenset[str]:
        """Returns the names of the calls whose inputs do not determine the values of the result."""
        known = exceptions()
        return frozenset(
            name
            for name, each in self._subjects.items()
            if "values.free" in known.families_of(*each.names) | each.own_families
        )

    def samples(self, subject: Subject, dtype: str, *, seed: int = SEED) -> list[Sample]:
        """Returns the recorded call as the only sample. Its elements are random numbers that depend on the seed. Raises
        RecordingError if the recording does not suffice to make the call."""
        assert isinstance(subject, AtenCall), f"{subject.id} is not a call of this recording"
        call = subject.call
        arguments = arguments_of(call, seed + int(call.digest, 16))
        geometries = geometries_of(call)
        tensors = [
            repeat_elements(each, place.stride)
            for each, place in zip(arguments.tensors, geometries, strict=True)
        ]
        storages = self._storages(subject, Arguments(*arguments.bind(tensors)), geometries)
        if storages is not None:
            tensors = with_shared_elements(tensors, geometries, storages)
        arguments = Arguments(*arguments.bind(tensors))
        layouts = subject.layouts
        if layouts is None and sum(each.numel() for each in tensors) > _EVERY_LAYOUT:
            layouts = NEIGHBOURS
        return [
            Sample(0, arguments, None, layouts=layouts, geometries=geometries, storages=storages)
        ]

    def shapes(self, subject: Subject, dtype: str) -> list[Sample]:
        """Returns the recorded call as the only sample, with tensors that have no elements: a log of training on a GPU has
        calls whose tensors take gigabytes. Raises RecordingError if the recording does not suffice to make the call."""
        assert isinstance(subject, AtenCall), f"{subject.id} is not a call of this recording"
        arguments = shapes_of(subject.call)
        if (
            subject.names_device and not arguments.tensors
        ):  # otherwise a factory allocates its result
            arguments = Arguments(arguments.args, {**arguments.kwargs, "device": META})
        geometries = geometries_of(subject.call)
        return [Sample(0, arguments, None, geometries=geometries, shapes_only=True)]

    def _storages(
        self, subject: AtenCall, arguments: Arguments, geometries: Sequence[Geometry]
    ) -> tuple[int, ...] | None:
        """Returns the number of each tensor's storage. Returns None if no two tensors share memory, or if the shared
        values do not define the result of the call; ``apart`` then has the call's name with the reason."""
        storages = tuple(each.storage for each in subject.call.tensors)
        if len(set(storages)) == len(storages):
            return None
        dtypes = [each.dtype for each in arguments.tensors]
        written = subject.written_tensors(arguments)
        why = why_apart(dtypes, geometries, storages, written, pointwise=subject.pointwise)
        if any(each.stride is None for each in subject.call.tensors):
            why = "the recording has no strides"
        if why:
            self.apart[subject.id] = why
        return None if why else storages

    def describe(self) -> str:
        gradients = ", with gradients" if self.backward else ""
        return f"a recording of {len(self._subjects)} distinct calls, {self.digest}{gradients}"


def elements_of(call: RecordedCall) -> int:
    """Returns the number of elements of the tensors of a call together."""
    return sum(prod(each.shape) for each in call.tensors)


@cache
def _entries_by_packet() -> Mapping[str, list[Subject]]:
    """Returns the ops of torch's op database, grouped by the name of the aten op that they call. For in-place ops, the
    name is without its final underscore."""
    found: dict[str, list[Subject]] = {}
    for entry in DATABASE.subjects().values():
        for packet in {each.rstrip("_") for each in entry.packets}:
            found.setdefault(packet, []).append(entry)
    return found


def overload_of(op: str) -> Any:
    """Returns the overload of an op by its name, such as ``aten.addmm.default``. Raises NotReplayed if the op is not
    registered with torch."""
    space, _, rest = op.partition(".")
    packet, _, overload = rest.rpartition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), packet), overload)
    except (AttributeError, RuntimeError):
        raise NotReplayed(
            f"torch {torch.__version__} has no op {op}; import the module that registers it"
        ) from None


@cache
def open_recording(path: Path, *, backward: bool = False) -> RecordedSource:
    """Returns a source of samples that replays the recording in a file; with ``backward``, the gradients of its calls are
    judged, too. Raises RecordingError if the file is not a recording."""
    recording = read_recording(path)
    digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    return RecordedSource(recording, digest, backward=backward)


def source_of(recording: str | None, *, backward: bool = False) -> SampleSource:
    """Returns a source of samples that replays the recording in a file; torch's op database if the path is None. Raises
    RecordingError if the file is not a recording."""
    if recording is None:
        return DATABASE
    return open_recording(Path(recording), backward=backward)
