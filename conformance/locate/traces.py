"""The file format of a trace (a summary of the results of each call of a program), and the comparison of two traces.
The module does not import torch."""

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
    """Summarises a tensor that a call has written. ``digest`` is a hash of its bytes, ``sketch`` has projections of its
    elements on fixed random directions, and ``rms`` is their root mean square. ``sketch`` and ``rms`` leave out NaN and
    infinities; ``not_finite`` is the number of these."""

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
    """A call with a summary of its outputs. ``made_by`` has the numbers of the calls that wrote its inputs, ``scale``
    is the largest root mean square among its inputs, and ``random`` is True if it draws random numbers."""

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
    """The trace of one run of a program: a header, and its calls in order."""

    device: str
    torch: str
    command: str
    calls: tuple[TracedCall, ...]


class Parting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call at which two runs differ, and ``why``. ``before`` and ``after`` are the relative differences of the call's
    inputs and outputs between the runs."""

    call: LocatedCall
    why: str
    before: float = 0.0
    after: float = 0.0


class Comparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """The comparison of two runs: the number of calls with bitwise equal results, the number of compared calls, the
    first call with different bits, the first call whose results differ by more than rounding explains (``parting``),
    and the call that adds most to the difference of the runs (``growth``)."""

    equal: int
    compared: int
    first_bits: LocatedCall | None = None
    parting: Parting | None = None
    growth: Parting | None = None
    last: float = 0.0  # the difference of the last result


def write_trace(path: Path, trace: Trace) -> None:
    """Writes a trace to a file. Raises LocateError if the file cannot be written."""
    header = _Header(FORMAT, VERSION, trace.device, trace.torch, trace.command)
    lines = [msgspec.json.encode(each) for each in (header, *trace.calls)]
    try:
        write_whole(path, b"\n".join(lines) + b"\n")
    except OSError as error:
        raise LocateError(f"{path} cannot be written: {error.strerror or error}") from None


def read_trace(path: Path) -> Trace:
    """Returns the trace in a file. Raises LocateError if the file cannot be read or is not a trace."""
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

    Reports the first call whose outputs differ by more than rounding explains and by more than sixteen times the
    difference of its inputs. The differences of tensors are estimated from their projections.
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
    """Returns True if all floating-point results of a call are so small compared with its inputs that they consist of
    rounding errors. Their relative difference then says nothing."""
    floats: Iterator[TracedTensor] = (each for each in call.outputs if each.sketch)
    small = [each.rms <= _ROUNDINGS * each.epsilon * call.scale for each in floats]
    return bool(small) and all(small)


def _apart(one: TracedTensor, other: TracedTensor) -> float:
    """Returns an estimate of the relative difference of two tensors; 1 for tensors of integers that differ."""
    if one.digest == other.digest:
        return 0.0
    if not one.sketch or one.not_finite != other.not_finite:
        return 1.0
    squares = [(a - b) ** 2 for a, b in zip(one.sketch, other.sketch, strict=True)]
    size = max(one.rms, other.rms)
    return (sum(squares) / len(squares)) ** 0.5 / size if size else 0.0
