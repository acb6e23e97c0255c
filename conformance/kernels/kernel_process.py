"""The main function of the kernel's process: it loads the kernel, makes the planned calls, and writes the results. The
process never has an expected value."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import msgspec
import torch

from conformance.kernels import forms
from conformance.kernels.calls_file import (
    ANSWERS,
    CALLS,
    ENDED,
    FINISHING,
    FIRST_ROUND,
    LOADED,
    MEMORY,
    NOT_RUN,
    OPCHECKING,
    PROGRESS,
    REFUSAL,
    REQUEST,
    TIMING,
    Answer,
    Loaded,
    Output,
    PlannedCall,
    Refusal,
    View,
    arguments_text,
    packed,
    read,
    write,
)
from conformance.kernels.forms import is_custom_op
from conformance.kernels.guard_pages import (
    MAP_ANONYMOUS,
    MAP_FIXED,
    MAP_PRIVATE,
    MAP_SHARED,
    PAGE,
    PROT_NONE,
    PROT_READ,
    PROT_WRITE,
    map_memory,
)
from conformance.kernels.observation import Observer
from conformance.kernels.process_state import (
    changed_names,
    fingerprint,
    replaced_names,
    state_of_calls,
)
from conformance.kernels.request import Request
from conformance.kernels.timing import median_times
from devices.errors import ConformError
from devices.registry import find
from opinfo.compare import replace_tensors, tensors_of
from opinfo.device import open_device
from opinfo.encoding import ARGUMENTS, NotEncodable, read_value, write_value
from opinfo.memory import M_PERTURB, mallopt
from opinfo.torch_private import storage_id

# The kernel may replace these names, so they are looked up before it is loaded.
_pack, _digest, _string_at, _type = packed, hashlib.blake2b, ctypes.string_at, type
_to_cpu, _frombuffer, _as_strided = torch.Tensor.cpu, torch.frombuffer, torch.Tensor.as_strided
_open, _write, _close, _pwrite = os.open, os.write, os.close, os.pwrite

#: The bytes with which new memory of the CPU's allocator is filled, in turn.
_FILLS = (0x00, 0x5B, 0x7F)


def main(folder: str, first: str) -> None:
    """Loads the kernel of the request in a folder, and makes its calls, beginning with number ``first``."""
    tempfile.tempdir = folder  # removed after the judgement
    Process(Path(folder)).run(int(first))


def check_device(folder: str) -> None:
    """Opens the device of the request in a folder, and writes the reason if it cannot be used. No kernel is loaded in this
    process."""
    request = msgspec.json.decode((Path(folder) / REQUEST).read_bytes(), type=Request)
    try:
        open_device(find(request.device, request.descriptor))
    except ConformError as error:
        write(Path(folder) / REFUSAL, Refusal(str(error), error.exit_code))


class Process:
    """The kernel's process: the request, the planned calls, and their memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.request = msgspec.json.decode((folder / REQUEST).read_bytes(), type=Request)
        self.calls: list[PlannedCall] = read(folder / CALLS, list[PlannedCall])
        self.device = open_device(find(self.request.device, self.request.descriptor))
        self.on_cpu = self.device.torch_device.type == "cpu"
        self.slots: dict[int, int] = {}
        self.slot_size = max((r.mapped for c in self.calls for r in c.storages), default=0) + PAGE
        self.held: tuple[Any, list[torch.Tensor], list[torch.Tensor]] | None = None
        self.answered: set[int] = set()
        self.last: tuple[int, list[tuple[torch.Tensor, int, bytes]]] | None = None

    def run(self, first: int) -> None:
        torch.set_grad_enabled(False)
        before = fingerprint()
        self._step(0)
        try:
            with forms.overrides_captured() as captured:
                kernel = forms.load(self.request, captured)
        except BaseException as error:  # a kernel may raise anything, SystemExit too
            self._report(Loaded(f"loading the kernel raised {_type(error).__name__}: {error}"))
            return
        torch.set_grad_enabled(False)
        observer = Observer(self._reference_code())
        state = state_of_calls()
        for number in range(first, len(self.calls)):
            self._step(number + 1)
            self._make(number, kernel, observer)
        count = len(self.calls)
        self._step(count + FINISHING)
        self._check_last()
        checked = self.folder.name == FIRST_ROUND and is_custom_op(self.request, kernel)
        # Replaced below, unless the process ends in opcheck.
        opcheck = {"opcheck": "it did not end"} if checked else {}
        replaced = (*replaced_names(before), *changed_names(state, state_of_calls()))
        found = Loaded(replaced=replaced, opcheck=opcheck)
        self._report(found)
        if checked:
            self._step(count + OPCHECKING)
            found = msgspec.structs.replace(found, opcheck=self._checked_by_torch(kernel))
            self._report(found)
        if self.folder.name == FIRST_ROUND and self.request.speed:
            self._step(count + TIMING)
            self._report(msgspec.structs.replace(found, **self._times(kernel)))
        self._step(count + ENDED)

    def _checked_by_torch(self, kernel: Callable[..., Any]) -> dict[str, str]:
        """Returns the results of opcheck for the largest call that the kernel answered. If opcheck itself raises an
        exception, that is the result."""
        number = self._largest()
        if number is None:
            return {"opcheck": NOT_RUN}
        try:
            args, kwargs, _ = self._arguments(self.calls[number])
            return forms.checked_by_torch(kernel, args, kwargs)
        except Exception as error:
            return {"opcheck": f"it raised {_type(error).__name__}: {error}"}

    def _times(self, kernel: Callable[..., Any]) -> dict[str, Any]:
        """Returns the median times of the kernel and of the op that it replaces, or the reason why there are none."""
        number, other = self._largest(), forms.replaced_op(self.request)
        if number is None or other is None:
            return {"untimed": "no call to time"}
        try:
            args, kwargs, _ = self._arguments(self.calls[number])
            # New tensors of the allocator: memory that is mapped from a file is slower.
            args, kwargs = replace_tensors((args, kwargs), torch.Tensor.clone)
            both = getattr(kernel, "direct", kernel), other
            times, results = median_times(both, args, kwargs, self.device.synchronise)
        except Exception as error:
            return {"untimed": f"{_type(error).__name__}: {error}"}
        self.held = None  # the arguments of timed calls are others
        for result in results:
            blobs: list[bytes] = []
            self._put(self._answer(Answer(number, timed=True), result, blobs), blobs)
        timed = arguments_text(args, kwargs)
        return {"kernel_us": times[0], "replaced_us": times[1], "timed": timed}

    def _largest(self) -> int | None:
        """Returns the number of the largest call to which this process returned a result; None if there is none."""
        sizes = [
            (sum(r.nbytes for r in call.storages), -number)
            for number, call in enumerate(self.calls)
            if number in self.answered and all(v.offset == 0 for v in call.tensors)
        ]
        return -max(sizes)[1] if sizes else None

    def _report(self, found: Loaded) -> None:
        write(self.folder / LOADED, found)

    def _step(self, number: int) -> None:
        # No file stays open, because a kernel may write to each.
        file = _open(self.folder / PROGRESS, os.O_WRONLY | os.O_CREAT)
        _pwrite(file, b"%12d" % number, 0)
        _close(file)

    # -- one call

    def _make(self, number: int, kernel: Callable[..., Any], observer: Observer) -> None:
        call = self.calls[number]
        args, kwargs, tensors = self._arguments(call)
        before = [(tuple(t.shape), t.stride(), t.storage_offset()) for t in tensors]
        perturb = mallopt() if self.on_cpu else None
        if perturb is not None:
            perturb(M_PERTURB, _FILLS[number % len(_FILLS)] ^ 0xFF)
        result, raised = None, None
        try:
            result = observer.observed(lambda: kernel(*args, **kwargs))
            if not self.on_cpu:
                self.device.settle(result)
        except Exception as error:
            raised = (_type(error).__name__, str(error)[:2000])
        finally:
            if perturb is not None:
                perturb(M_PERTURB, 0)
        found = Answer(number, raised=raised, calls=tuple(observer.calls))
        blobs: list[bytes] = []
        if raised is None:
            self.answered.add(number)
            found = self._answer(found, result, blobs)
        after = [(tuple(t.shape), tuple(t.stride()), int(t.storage_offset())) for t in tensors]
        moved = {n: now for n, (now, was) in enumerate(zip(after, before)) if now != was}
        self._give_memory_back(call)
        self._put(msgspec.structs.replace(found, moved=moved), blobs)
        self._check_last()
        own = [
            (each, len(blob), _digest(blob).digest())
            for each, out, blob in zip(_tensors(result), found.outputs, blobs)
            if out.storage is None and out.span and self.on_cpu
        ]
        self.last = (number, own)

    def _reference_code(self) -> CodeType | None:
        """Returns the code object of the reference: of the function itself if it is decorated, of ``forward`` if it is a
        module. Returns None if the reference is not written in Python."""
        source = self.request.reference
        if (
            source is None or self.request.form == "flashinfer"
        ):  # its reference is text in a definition
            return None
        found = inspect.unwrap(source.load())
        if isinstance(found, (torch.nn.Module, type)):
            found = getattr(found, "forward", None)
        return getattr(found, "__code__", None)

    def _put(self, answer: Answer, blobs: list[bytes]) -> None:
        data = _pack(answer, blobs)
        file = _open(self.folder / ANSWERS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            while data:
                data = data[_write(file, data) :]
        finally:
            _close(file)

    def _check_last(self) -> None:
        """Reports an error if a result of the previous call was changed after that call had returned."""
        if self.last is None:
            return
        number, own = self.last
        self.last = None
        for tensor, span, digest in own:
            if _digest(_string_at(tensor.data_ptr(), span)).digest() != digest:
                self._put(Answer(number, late=True), [])
                return

    def _answer(self, found: Answer, result: Any, blobs: list[bytes]) -> Answer:
        outputs: list[Output] = []

        def take(tensor: torch.Tensor) -> int:
            out, blob = self._output(tensor)
            outputs.append(out)
            blobs.append(blob)
            return len(outputs) - 1

        try:
            data = write_value(_plain(result), ARGUMENTS, take)
        except NotEncodable:
            data = {"other": _type(result).__name__}
        return msgspec.structs.replace(found, result=data, outputs=tuple(outputs))

    def _output(self, tensor: torch.Tensor) -> tuple[Output, bytes]:
        kind = f"{_type(tensor).__module__}.{_type(tensor).__qualname__}"
        if _type(tensor) is not torch.Tensor:
            return Output(kind, ""), b""
        if tensor.requires_grad:  # gradients are off, so no op returns such a tensor
            return Output(f"{kind} that requires gradients", ""), b""
        device = tensor.device.type
        if device != self.device.torch_device.type or tensor.layout != torch.strided:
            return Output(kind, f"{device}, layout {tensor.layout}"), b""
        dtype, shape, stride = str(tensor.dtype)[6:], tuple(tensor.shape), tuple(tensor.stride())
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if 0 not in shape else 0
        span, offset = extent * tensor.dtype.itemsize, int(tensor.storage_offset())
        nbytes = tensor.untyped_storage().nbytes()
        outside = offset * tensor.dtype.itemsize + span > nbytes
        storage, at = self._storage_at(tensor)
        out = Output(kind, device, dtype, shape, stride, offset, tensor.is_conj(), tensor.is_neg())
        if outside:
            return msgspec.structs.replace(out, outside=True), b""
        if storage is not None:
            return msgspec.structs.replace(out, storage=storage, offset=at), b""
        if self.on_cpu:
            blob = _string_at(tensor.data_ptr(), span) if span else b""
        else:
            flat = _as_strided(tensor.detach(), (extent,), (1,), offset)
            held = _to_cpu(flat)
            blob = _string_at(held.data_ptr(), span) if span else b""
        return msgspec.structs.replace(out, span=span), blob

    def _storage_at(self, tensor: torch.Tensor) -> tuple[int | None, int]:
        """Returns the number of the argument's storage in which a tensor lies, and the tensor's offset in elements.
        Returns (None, 0) if the tensor has its own memory."""
        bases = self.held[2] if self.held else []
        own = storage_id(tensor)
        for number, base in enumerate(bases):  # a storage without bytes has no address
            if storage_id(base) == own:
                return number, int(tensor.storage_offset())
        address = tensor.data_ptr()
        for number, base in enumerate(bases):
            start = base.data_ptr()
            if address and start <= address < start + base.nbytes:
                return number, (address - start) // tensor.dtype.itemsize
        return None, 0

    # -- memory

    def _arguments(self, call: PlannedCall) -> tuple[Any, Any, list[torch.Tensor]]:
        tensors = self._tensors(call)
        args, kwargs = read_value(call.arguments, ARGUMENTS, lambda n: tensors[n])
        device = self.device.torch_device

        def placed(value: Any) -> Any:
            return device if isinstance(value, torch.device) else value

        return [*map(placed, args)], {k: placed(v) for k, v in kwargs}, tensors

    def _tensors(self, call: PlannedCall) -> list[torch.Tensor]:
        if call.held and self.held is not None:
            _, tensors, bases = self.held
            for slot, (region, base) in enumerate(zip(call.storages, bases)):
                self._map(slot, region)
                if not self.on_cpu and region.nbytes:
                    base.copy_(self._mapped(slot, region))
            return tensors
        self.held = None
        bases = []
        for slot, region in enumerate(call.storages):
            self._map(slot, region)
            base = self._mapped(slot, region)
            bases.append(base if self.on_cpu else self.device.to_device(base.clone()))
        tensors = [_view(bases[each.storage], each) for each in call.tensors]
        self.held = (call, tensors, bases)
        return tensors

    def _slot(self, number: int) -> int:
        """Returns the address at which the memory of slot ``number`` ends; an inaccessible page follows. Storage
        ``number`` of every call ends here, so that storages of equal size have equal addresses."""
        if number not in self.slots:
            start = map_memory(None, self.slot_size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS)
            self.slots[number] = start + self.slot_size
        return self.slots[number]

    def _map(self, number: int, region: Any) -> None:
        end = self._slot(number)
        start = end - self.slot_size
        map_memory(start, self.slot_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED)
        if region.mapped:
            access = PROT_READ | PROT_WRITE
            address = end - region.mapped
            file = _open(self.folder / MEMORY, os.O_RDWR)
            map_memory(address, region.mapped, access, MAP_SHARED | MAP_FIXED, file, region.at)
            _close(file)

    def _mapped(self, number: int, region: Any) -> torch.Tensor:
        if not region.nbytes:
            return torch.empty(0, dtype=torch.uint8)
        address = self._slot(number) - region.mapped + region.lead
        memory = (ctypes.c_char * region.nbytes).from_address(address)
        return _frombuffer(memory, dtype=torch.uint8)

    def _give_memory_back(self, call: PlannedCall) -> None:
        """Copies the storages of the call from the device back to the memory file, so that the judge sees what the
        kernel wrote. On the CPU nothing is copied, because the kernel works directly in the file's memory."""
        if self.on_cpu or self.held is None:
            return
        for slot, (region, base) in enumerate(zip(call.storages, self.held[2])):
            if region.nbytes:
                held = _to_cpu(base)
                address = self._slot(slot) - region.mapped + region.lead
                ctypes.memmove(address, held.data_ptr(), region.nbytes)


def _view(base: torch.Tensor, asked: View) -> torch.Tensor:
    dtype = getattr(torch, asked.dtype)
    whole = base[: base.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    view = whole.as_strided(asked.shape, asked.stride, asked.offset)
    if asked.conj:
        view = torch.conj(view)
    return torch._neg_view(view) if asked.neg else view


def _plain(result: Any) -> Any:
    """Returns a result in which named tuples are replaced by plain tuples."""
    if isinstance(result, tuple):
        return tuple(map(_plain, result))
    return [*map(_plain, result)] if type(result) is list else result


def _tensors(result: Any) -> list[torch.Tensor]:
    return tensors_of(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
