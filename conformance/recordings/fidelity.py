"""Replays a recording on the CPU, records the replay, and compares the two recordings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from conformance.recordings.recorder import CallRecorder
from conformance.recordings.source import AtenCall, RecordedSource
from conformance.recordings.wire import RecordedCall
from opinfo.layouts import Geometry
from opinfo.samples import Sample


@dataclass
class Fidelity:
    """The number of distinct calls that a replay repeats exactly, and the reasons why other calls differ, with their
    numbers."""

    exact: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        total = self.exact + sum(self.reasons.values())
        text = (
            f"fidelity: the replay repeats {self.exact:,} of the {total:,} distinct calls exactly"
        )
        if self.reasons:
            text += "; " + "; ".join(f"{why}: {count:,}" for why, count in self.reasons.items())
        return text


def fidelity_of(source: RecordedSource) -> Fidelity:
    """Makes each call of a recording once on the CPU, with the strides of a replay, records it again, and compares the
    two records."""
    found = Fidelity()
    for name, subject in source.subjects().items():
        assert isinstance(subject, AtenCall)
        (sample,) = source.samples(subject, subject.call.dtype)
        recorded = record_again(subject, sample)
        if recorded is not None and recorded.name == name:
            found.exact += 1
        else:
            found.reasons[_why(subject.call, recorded)] += 1
    for why in source.left_out.values():
        found.reasons[why] += 1
    return found


def record_again(subject: AtenCall, sample: Sample) -> RecordedCall | None:
    """Makes a call with the strides and offsets of its sample. Returns the call as the recorder sees it; None if the
    call raises."""
    geometries = sample.geometries or ()
    laid = [_laid(*each) for each in zip(sample.tensors, geometries, strict=True)]
    args, kwargs = sample.call.bind(laid)
    recorder = CallRecorder()
    try:
        with torch.no_grad(), recorder:
            subject.overload(*args, **kwargs)
    except Exception:  # whatever the CPU raises, the call cannot be compared
        return None
    calls = recorder.recording().calls
    return calls[0] if calls else None


def _laid(value: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Returns a copy of the tensor with the given strides and offset, in a new buffer."""
    buffer = torch.zeros(geometry.extent, dtype=value.dtype)
    view = part = buffer.as_strided(geometry.shape, geometry.stride, geometry.offset)
    for dim, (size, step) in enumerate(zip(geometry.shape, geometry.stride)):
        if size > 1 and step == 0:  # copy_ refuses elements that share memory, and these are equal
            part, value = part.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    part.copy_(value)
    return view


def _why(call: RecordedCall, again: RecordedCall | None) -> str:
    if again is None:
        return "the CPU raises an exception for the random elements"
    storages = [each.storage for each in call.tensors]
    if len(set(storages)) < len(storages):
        return "tensors share memory in the program, but not in the replay"
    if any(each.stride is None for each in call.tensors):
        return "the recording does not have the strides"
    return "other arguments"
