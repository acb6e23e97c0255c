"""Records the aten calls that a program makes. Each distinct call is recorded once, with the number of times that it
was made."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.recordings.operand_kinds import (
    COMPUTE_NOTHING,
    answering_class,
    names_meta,
    not_strided,
    without_elements,
)
from conformance.recordings.places import Found, Places
from conformance.recordings.program_threads import ProgramThreads
from conformance.recordings.wire import (
    FORMAT,
    VERSION,
    Header,
    Place,
    RecordedCall,
    RecordedTensor,
    Recording,
    RecordingError,
    Values,
    number_key,
    write_recording,
)
from devices.files import why_not_writable
from opinfo.catalog import dtype_name
from opinfo.encoding import ARGUMENTS, NotEncodable, write_value
from opinfo.torch_private import storage_id

#: The op by which ``torch.tensor`` marks a new constant. It returns its operand, and means something to a tracer alone, which
#: copies the constant.
_MARKER: Final = "aten::lift_fresh"


class _Seen:
    """A distinct call: its record, and the number of times that it was made at each source line and module of the
    program."""

    __slots__ = ("call", "places")

    def __init__(self, call: RecordedCall) -> None:
        self.call = call
        self.places: Counter[Found] = Counter()


class CallRecorder(TorchDispatchMode):
    """Records the calls that are made while this dispatch mode is active.

    Two calls are distinct if they differ in the overload, in an argument, or in the dtype, shape, strides, offset,
    shared storage or requires_grad of a tensor. Floating-point numbers among the arguments are compared by
    :func:`conformance.recordings.wire.number_key`. The values of tensors are recorded from the first of several equal
    calls.
    """

    def __init__(self, *, elements: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = elements
        self.left_out: Counter[str] = Counter()  # the reasons why calls are not in the recording
        self._calls: dict[Any, _Seen] = {}
        self._lock = threading.RLock()  # a program may make calls in several threads
        self._places = Places()
        self._threads = ProgramThreads(self)
        self._autocast = threading.local()

    # -- the calls

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in COMPUTE_NOTHING or func.name() == _MARKER:
            return func(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        form = (
            (_form(args, tensors), _form(tuple(kwargs.items()), tensors))
            if kwargs
            else _form(args, tensors)
        )
        if whose := answering_class(tensors):
            self._leave_out(
                f"{func}: a tensor of class {whose}; the calls that it makes of plain tensors are recorded"
            )
            return NotImplemented  # torch asks the class next
        if kind := without_elements(tensors) or "meta" * names_meta((*args, *kwargs.values())):
            self._leave_out(f"calls of {kind} tensors, which have no elements")
            return func(*args, **kwargs)
        if why := not_strided(tensors):
            self._leave_out(f"{func}: {why} cannot be recorded")
            return func(*args, **kwargs)
        place, backward = self._places.find()
        phase = "backward" if backward else self._threads.phase
        key = (func, form, *_geometries(tensors), phase, self._autocast_of(tensors))
        with self._lock:
            try:
                seen = self._calls.get(key) or self._first(key, func, args, kwargs, tensors)
                seen.places[place] += 1
            except NotEncodable as reason:
                self._leave_out(f"{func}: {reason}")
        return func(*args, **kwargs)

    def _leave_out(self, why: str) -> None:
        with self._lock:
            self.left_out[why] += 1

    def _autocast_of(self, tensors: list[torch.Tensor]) -> str:
        enabled: Mapping[str, bool] = getattr(self._autocast, "enabled", {})
        for tensor in tensors:
            kind = tensor.device.type
            if enabled.get(kind):
                return dtype_name(torch.get_autocast_dtype(kind))
        return ""

    def _first(
        self,
        key: Any,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> _Seen:
        """Records a new call. Raises NotEncodable if an argument cannot be recorded."""
        numbers = iter(range(len(tensors)))
        write = partial(write_value, codecs=ARGUMENTS, tensor=lambda _: next(numbers))
        storages: dict[int, int] = {}
        described = tuple(
            describe_tensor(
                each, storages.setdefault(storage_id(each), len(storages)), elements=self.elements
            )
            for each in tensors
        )
        call = RecordedCall(
            op=str(func),
            args=[write(_without_generator(each)) for each in args],
            kwargs={name: write(_without_generator(each)) for name, each in kwargs.items()},
            tensors=described,
            phase=key[-2],
            autocast=key[-1],
        )
        found = self._calls[key] = _Seen(call)
        return found

    def recording(self, command: str = "") -> Recording:
        """Returns a recording of the calls that were made so far."""
        calls = []
        with self._lock:  # a thread of the program may still be running
            for seen in self._calls.values():
                places: Counter[Place] = Counter()
                for found, count in seen.places.items():
                    places[self._places.place(found)] += count
                calls.append(_with_places(seen.call, places))
            lacks = tuple(f"{count:,} x {why}" for why, count in self.left_out.items())
        header = Header(FORMAT, VERSION, str(torch.__version__), command, lacks)
        return Recording(header, tuple(calls))

    # -- the program around the calls

    @contextmanager
    def recording_program(self) -> Iterator[None]:
        """Records the calls of this thread, and of all threads that are started within the context, together with the
        modules, phases (forward, backward, optimizer) and autocast regions in which they are made."""
        following = self._threads.following()
        with following, self._places.following(), self._following_autocast(), self:
            yield

    @contextmanager
    def _following_autocast(self) -> Iterator[None]:
        """Keeps track of the autocast regions within the context. The recorder needs this because it runs below
        autocast, where torch reports that autocast is off."""
        original, state = torch.set_autocast_enabled, self._autocast

        def set_enabled(*given: Any) -> None:
            original(*given)
            if len(given) == 2:
                state.enabled = {**getattr(state, "enabled", {}), given[0]: given[1]}

        # the region that is around the context in this thread
        state.enabled = {kind: torch.is_autocast_enabled(kind) for kind in _kinds()}
        torch.set_autocast_enabled = set_enabled  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.set_autocast_enabled = original
            del state.enabled


@contextmanager
def record(path: str | Path, *, elements: bool = False) -> Iterator[CallRecorder]:
    """Records the aten calls that are made within the context, and writes them to a file at the end, even after an
    exception.

    With ``elements``, the elements of the tensors are recorded; otherwise only their range. Raises RecordingError before
    the first call if the file cannot be written.
    """
    path = Path(path).absolute()  # the program may change its folder
    if why := why_not_writable(path):
        raise RecordingError(f"{path} cannot be written: {why}")
    recorder = CallRecorder(elements=elements)
    try:
        with recorder.recording_program():
            yield recorder
    finally:
        write_recording(path, recorder.recording())


def describe_tensor(
    tensor: torch.Tensor, storage: int = 0, *, elements: bool = False
) -> RecordedTensor:
    """Returns the description of a strided tensor. ``storage`` is the number of its storage within the call."""
    plain = tensor.detach()
    return RecordedTensor(
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        offset=int(tensor.storage_offset()),
        storage=storage,
        device=tensor.device.type,
        requires_grad=tensor.requires_grad,
        parameter=isinstance(tensor, torch.nn.Parameter),
        values=values_of(plain),
        elements=write_value(plain.cpu())["tensor"] if elements else None,
    )


def values_of(tensor: torch.Tensor) -> Values:
    """Returns the range of a tensor's finite elements, and whether it has NaN, infinite or repeated elements."""
    if tensor.numel() == 0:
        return Values(repeats=False)
    plain = tensor.resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if plain.dtype is torch.bool:
        return Values(float(plain.all()), float(plain.any()))
    if not plain.is_floating_point():
        # torch's CPU orders no uint64; with the first bit flipped, int64 have the same order
        flipped = -(2**63) if plain.dtype is torch.uint64 else 0
        bits = plain.view(torch.int64) if flipped else plain.to(torch.int64)
        low, high = (int(each) - flipped for each in (bits ^ flipped).aminmax())
        return Values(low, high, repeats=bits.unique().numel() < bits.numel())
    plain = plain if plain.dtype in (torch.float32, torch.float64) else plain.to(torch.float32)
    finite = plain if bool(plain.isfinite().all()) else plain[plain.isfinite()]
    nan, infinite = bool(plain.isnan().any()), bool(plain.isinf().any())
    if finite.numel() == 0:
        return Values(nan=nan, infinite=infinite)
    smallest, largest = finite.aminmax()
    return Values(float(smallest), float(largest), nan=nan, infinite=infinite)


def _with_places(call: RecordedCall, places: Mapping[Place, int]) -> RecordedCall:
    most = sorted(places.items(), key=lambda each: -each[1])
    return msgspec.structs.replace(call, count=sum(places.values()), places=tuple(most))


def _kinds() -> set[str]:
    """Returns the device types that this machine has, such as ``cpu`` and ``cuda``."""
    accelerator = torch.accelerator.current_accelerator()
    return {"cpu", *(() if accelerator is None else (accelerator.type,))}


def _without_generator(value: Any) -> Any:
    """Returns None for a random number generator, which cannot be recorded, and any other value as it is."""
    return None if isinstance(value, torch.Generator) else value


def _form(values: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns a hashable key of nested arguments, with a placeholder for each tensor. Appends the tensors to
    ``tensors``."""
    found: list[Any] = []
    for each in values:
        kind = type(each)
        if isinstance(each, torch.Tensor):
            tensors.append(each)
            found.append(_TENSOR)
        elif kind is list or kind is tuple:
            found.append((kind, _form(each, tensors)))
        elif kind is float:
            found.append(number_key(each))
        elif kind is int or kind is str or each is None:
            found.append(each)
        else:  # a bool equals an int, a dtype or device has a text of its own
            found.append((kind, str(each)))
    return tuple(found)


_TENSOR: Final = object()


def _geometries(tensors: list[torch.Tensor]) -> list[Any]:
    found: list[Any] = []
    for each in tensors:
        found += (
            *(each.dtype, each.shape, each.stride(), each.storage_offset()),
            each.requires_grad,
        )
    if len(tensors) > 1:
        numbers: dict[int, int] = {}
        found += (numbers.setdefault(storage_id(each), len(numbers)) for each in tensors)
    return found
