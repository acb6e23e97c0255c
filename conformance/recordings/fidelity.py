"""Measures how exactly a recording can be replayed: makes each recorded call again on the CPU, records these calls, and
compares the two recordings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec
import torch

from conformance.recordings.recorder import CallRecorder
from conformance.recordings.source import AtenCall, RecordedSource
from conformance.recordings.wire import RecordedCall
from opinfo.guarded import strided_view
from opinfo.samples import Sample
from opinfo.shared_memory import blocks_of

_NOT_MADE: Final = "the run did not make the call"
_OUT_OF_TIME: Final = "not compared, because --max-time is over"


@dataclass
class Fidelity:
    """How exactly a recording can be replayed: the number of distinct calls that a replay repeats exactly, and, for the
    other calls, the reasons why they differ, each with its number of calls."""

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


def fidelity_of(
    source: RecordedSource, made: Collection[str] | None = None, deadline: float | None = None
) -> Fidelity:
    """Makes each call of a recording once on the CPU, as a replay does, records it, and compares this record with the
    original one. Calls whose names are not in ``made`` are not made, because the run did not make them either; None
    stands for all calls. After ``deadline``, in seconds of ``time.time()``, no call is made."""
    found = Fidelity()
    for name, subject in source.subjects().items():
        assert isinstance(subject, AtenCall)
        if made is not None and name not in made:
            found.reasons[_NOT_MADE] += 1
            continue
        if deadline is not None and time.time() > deadline:
            found.reasons[_OUT_OF_TIME] += 1
            continue
        (sample,) = source.samples(subject, subject.call.dtype)
        recorded = record_again(subject, sample)
        if recorded is not None and _same(subject, recorded):
            found.exact += 1
        else:
            found.reasons[source.apart.get(name) or _why(subject.call, recorded)] += 1
    for why in source.left_out.values():
        found.reasons[why] += 1
    return found


def record_again(subject: AtenCall, sample: Sample) -> RecordedCall | None:
    """Makes a recorded call on the CPU, on tensors with the strides and offsets of the sample, and records it. Returns
    the new record; None if the call raises."""
    geometries = sample.geometries or ()
    storages = sample.storages or tuple(range(len(geometries)))
    blocks = blocks_of(sample.tensors, geometries, storages)
    laid = [
        strided_view(blocks[number], value.dtype, geometry)
        for number, value, geometry in zip(storages, sample.tensors, geometries, strict=True)
    ]
    args, kwargs = sample.call.bind(laid)
    recorder = CallRecorder()
    try:
        with torch.no_grad(), recorder:
            subject.overload(*args, **kwargs)
    except Exception:  # whatever the CPU raises, the call cannot be compared
        return None
    calls = recorder.recording().calls
    return calls[0] if calls else None


def _same(subject: AtenCall, again: RecordedCall) -> bool:
    """Returns True if the original record of a call and the record of its replay describe the same call. An argument
    that equals its default may be present in only one of them, because torch does not always pass it to the
    recorder."""
    defaults = {
        each.name for each in subject.overload._schema.arguments if each.default_value is None
    }

    def without_defaults(call: RecordedCall) -> str:
        kwargs = {k: v for k, v in call.kwargs.items() if v is not None or k not in defaults}
        return msgspec.structs.replace(call, kwargs=kwargs).name

    return without_defaults(again) == without_defaults(subject.call)


def _why(call: RecordedCall, again: RecordedCall | None) -> str:
    if again is None:
        return "the CPU raises an exception for the random elements"
    if any(each.stride is None for each in call.tensors):
        return "the recording does not have the strides"
    return "other arguments"
