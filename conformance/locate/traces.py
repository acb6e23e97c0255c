"""The file format of a trace, and the comparison of two traces. The module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from conformance.locate.wire import LocatedCall, LocateError, growth_of
from devices.files import write_whole

FORMAT: Final = "torch-conformance-trace"
VERSION: Final = 1

#: Differences up to this many roundings are none.
_ROUNDINGS: Final = 64.0
#: By how much a call may enlarge the difference of its inputs without being the call where two runs part.
_ENLARGES: Final = 16.0
_EPSILON: Final = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
}


class TracedTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor that a call has written. ``sketch`` are projections of its elements, ``rms`` is the root of their mean
    square; both leave out NaN and infinities, of which there are ``not_finite``."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    rms: float = 0.0
    sketch: tuple[float, ...] = ()
    not_finite: int = 0

    @property
    def epsilon(self) -> float:
        return _EPSILON.get(self.dtype, 2.0**-23)


class TracedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call with its outputs. ``made_by`` has the numbers of the calls that wrote its inputs, ``scale`` is the largest root
    mean square of an input."""

    call: LocatedCall
    outputs: tuple[TracedTensor, ...] = ()
    made_by: tuple[int, ...] = ()
    scale: float = 0.0
    random: bool = False


class _Header(msgspec.Struct, frozen=True):
    format: str
    version: int
    device: str
    torch: str
    command: str


class Trace(msgspec.Struct, frozen=True):
    """A run as a sequence of calls."""

    device: str
    torch: str
    command: str
    calls: tuple[TracedCall, ...]


class Parting(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first call where two runs part. ``before`` and ``after`` are the relative differences of its inputs and outputs."""

    call: LocatedCall
    why: str
    before: float = 0.0
    after: float = 0.0


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """Two runs compared: the number of calls with equal bits, the first call with other bits, the call where the runs part, and
    the call after which their difference grows most."""

    equal: int
    compared: int
    first_bits: LocatedCall | None = None
    parting: Parting | None = None
    growth: Parting | None = None
    last: float = 0.0  # the difference of the last result


def write_trace(path: Path, trace: Trace) -> None:
    """Writes a trace. Raises LocateError."""
    header = _Header(FORMAT, VERSION, trace.device, trace.torch, trace.command)
    lines = [msgspec.json.encode(each) for each in (header, *trace.calls)]
    try:
        write_whole(path, b"\n".join(lines) + b"\n")
    except OSError as error:
        raise LocateError(f"{path} cannot be written: {error.strerror or error}") from None


def read_trace(path: Path) -> Trace:
    """Returns the trace in a file. Raises LocateError if the file is no trace."""
    try:
        first, *rest = path.read_bytes().splitlines() or [b""]
    except OSError as error:
        raise LocateError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        header = msgspec.json.decode(first, type=_Header)
    except msgspec.MsgspecError:
        header = None
    if header is None or (header.format, header.version) != (FORMAT, VERSION):
        raise LocateError(
            f"{path} is not a trace of version {VERSION}: expected a file that `conform locate -o FILE` wrote"
        )
    decoder = msgspec.json.Decoder(TracedCall)
    calls = []
    for number, line in enumerate(rest, 2):
        try:
            calls.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise LocateError(f"{path}, line {number}: {error}") from None
    return Trace(header.device, header.torch, header.command, tuple(calls))


def compare(mine: Sequence[TracedCall], theirs: Sequence[TracedCall]) -> Comparison:
    """Compares two runs of a program call by call, up to the first call that only one of them makes.

    Two runs part at the first call whose outputs differ by more than roundings and by more than sixteen times what its inputs
    differ by. The difference of tensors is estimated from their projections.
    """
    differences: dict[int, float] = {}
    equal, first, parting, growth, last = 0, None, None, None, 0.0
    compared = 0
    for ours, other in zip(mine, theirs):
        if (why := _another_call(ours, other)) is not None:
            parting = parting or Parting(ours.call, why)
            break
        compared += 1
        before = max((differences.get(each, 0.0) for each in ours.made_by), default=0.0)
        after = max((_apart(*pair) for pair in zip(ours.outputs, other.outputs)), default=0.0)
        differences[ours.call.number] = max(after, differences.get(ours.call.number, 0.0))
        same = [a.digest for a in ours.outputs] == [b.digest for b in other.outputs]
        equal += same
        first = first or (None if same else ours.call)
        last = after if ours.outputs else last
        if same or _is_cancelled(ours):
            continue
        found = Parting(ours.call, _why(ours), before, after)
        if growth is None or growth_of(found) > growth_of(growth):
            growth = found
        bound = _ROUNDINGS * max((each.epsilon for each in ours.outputs), default=0.0)
        if parting is None and after > max(bound, _ENLARGES * before):
            parting = found
    else:
        if len(mine) != len(theirs) and parting is None:
            longer = max(mine, theirs, key=len)
            parting = Parting(longer[compared].call, "only one of the runs makes the call")
    return Comparison(equal, compared, first, parting, growth, last)


def _another_call(ours: TracedCall, other: TracedCall) -> str | None:
    if ours.call.op != other.call.op:
        return f"the other run calls {other.call.op} here ({other.call.where})"
    mine, theirs = ([(e.dtype, e.shape) for e in each.outputs] for each in (ours, other))
    if mine != theirs:
        return "the results have other dtypes or shapes"
    return None


def _why(call: TracedCall) -> str:
    if call.random:
        return "the runs draw other random numbers; --same-random lets the CPU draw them"
    return "the results differ"


def _is_cancelled(call: TracedCall) -> bool:
    """Returns True if the results are zero but for rounding, so that their relative difference says nothing."""
    floats: Iterator[TracedTensor] = (each for each in call.outputs if each.sketch)
    small = [each.rms <= _ROUNDINGS * each.epsilon * call.scale for each in floats]
    return bool(small) and all(small)


def _apart(one: TracedTensor, other: TracedTensor) -> float:
    """Returns the relative difference of two tensors, estimated; 1 for integers that differ."""
    if one.digest == other.digest:
        return 0.0
    if not one.sketch or one.not_finite != other.not_finite:
        return 1.0
    squares = [(a - b) ** 2 for a, b in zip(one.sketch, other.sketch, strict=True)]
    size = max(one.rms, other.rms)
    return (sum(squares) / len(squares)) ** 0.5 / size if size else 0.0
