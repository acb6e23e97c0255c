"""The source of samples that replays a recording: each recorded call is a subject, with the call as its sample."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import torch

from conformance.recordings.operands import arguments_of, geometries_of
from conformance.recordings.wire import (
    RecordedCall,
    Recording,
    RecordingError,
    read_recording,
)
from opinfo.database import DATABASE
from opinfo.sample_source import SampleSource
from opinfo.samples import SEED, Sample
from opinfo.subject import Subject, names_of_packet

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


class UnknownOp(RecordingError):
    """The error for a recorded op that is not registered with torch."""


class AtenCall(Subject):
    """A recorded call of an overload of an op."""

    schemas: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    declares_view: bool = False
    dtypes: frozenset[str] = frozenset()

    def __init__(self, call: RecordedCall) -> None:
        overload = overload_of(call.op)
        self.call, self.overload = call, overload
        self.id, self.function, self.reference = call.name, overload, overload
        self.dtypes = frozenset({call.dtype})
        self.schemas = (overload._schema,)
        space, _, packet = overload._schema.name.partition("::")
        self.names = names_of_packet(packet) if space == "aten" else (f"{space}.{packet}",)
        aliases = [each.alias_info for each in overload._schema.returns]
        self.declares_view = any(each is not None and not each.is_write for each in aliases)

    @property
    def checks_sizes(self) -> bool:  # type: ignore[override]
        """False for an op that only torch calls, such as a backward op, and for an op of another library: such ops need
        not refuse tensors whose sizes do not fit each other."""
        packet = self.overload._schema.name.removeprefix("aten::")
        return not (packet.startswith("_") or "backward" in packet or "::" in packet)

    @property
    def own_families(self) -> frozenset[str]:
        """The families that follow from the schema, and those that keep the sizes of tensors."""
        kept = () if self.checks_sizes else ("axes.keep_shapes", "explore.keeps_sizes")
        return super().own_families.union(kept)

    @cached_property
    def unsafe_in_graphs(self) -> bool:
        """True if the op has a tag that excludes it from graphs (see torch.Tag)."""
        tags = {
            torch.Tag.cudagraph_unsafe,
            torch.Tag.dynamic_output_shape,
            torch.Tag.data_dependent_output,
        }
        return bool(tags & set(self.overload.tags))

    @cached_property
    def pointwise(self) -> bool:
        """True if the op is tagged as pointwise (torch.Tag.pointwise)."""
        return torch.Tag.pointwise in self.overload.tags


class RecordedSource:
    """A recording as a :class:`opinfo.sample_source.SampleSource`. Calls of ops that torch does not know are in
    ``unknown``, with the reasons."""

    def __init__(self, recording: Recording, digest: str) -> None:
        self.recording, self.digest = recording, digest
        self.unknown: dict[str, str] = {}
        self._subjects: dict[str, Subject] = {}
        for name, call in recording.named().items():
            try:
                self._subjects[name] = AtenCall(call)
            except UnknownOp as error:
                self.unknown[name] = str(error)

    def subjects(self) -> Mapping[str, Subject]:
        """Returns the distinct calls by name, in the order of their first occurrence."""
        return self._subjects

    def samples(self, subject: Subject, dtype: str, *, seed: int = SEED) -> list[Sample]:
        """Returns the recorded call as the only sample. The seed draws its elements. Raises RecordingError if the call
        cannot be made from the recording."""
        assert isinstance(subject, AtenCall), f"{subject.id} is not of this recording"
        call = subject.call
        arguments = arguments_of(call, seed + int(call.digest, 16))
        numel = sum(each.numel() for each in arguments.tensors)
        layouts = None if numel <= _EVERY_LAYOUT else NEIGHBOURS
        return [Sample(0, arguments, None, layouts=layouts, geometries=geometries_of(call))]

    def describe(self) -> str:
        return f"a recording of {len(self._subjects)} distinct calls, {self.digest}"


def overload_of(op: str) -> Any:
    """Returns the overload of an op by its name, such as ``aten.addmm.default``. Raises UnknownOp if no library has
    registered it."""
    space, _, rest = op.partition(".")
    packet, _, overload = rest.rpartition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), packet), overload)
    except (AttributeError, RuntimeError):
        raise UnknownOp(
            f"torch {torch.__version__} has no op {op}; import the module that registers it"
        ) from None


@cache
def open_recording(path: Path) -> RecordedSource:
    """Returns the source for the recording in a file. Raises RecordingError if the file is not a recording."""
    recording = read_recording(path)
    return RecordedSource(recording, hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest())


def source_of(recording: str | None) -> SampleSource:
    """Returns the source for the recording with the given path; torch's database of ops if the path is None. Raises
    RecordingError if the file is not a recording."""
    return DATABASE if recording is None else open_recording(Path(recording))
