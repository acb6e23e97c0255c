"""Sends tensors of the device to other processes, as torch.multiprocessing sends CPU tensors.

The receiving process maps the sender's memory. The sender keeps the memory until the receiver has freed the storage.
Both processes have one end of a pipe: when the receiver frees the storage or is killed, its end closes, and the sender
notices that.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from devices.simulated.backend import native

#: What other processes hold: the end of a pipe, and the storage.
_sent: list[tuple[int, Any]] = []
#: The storages of other processes that this process holds, by file and offset.
_received: dict[tuple[int, int, int], Any] = {}

#: A reducer of pickle: a function, and its arguments.
_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def register() -> None:
    """Makes torch.multiprocessing send tensors of the device. Tensors of other devices are sent as before."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce)


def ipc_collect() -> None:
    """Frees the memory of sent tensors that no other process uses any more."""
    if native.on("sharing.never_collected"):
        return
    ended = select.poll()
    for end, _ in _sent:
        ended.register(end, 0)
    done = {end for end, event in ended.poll(0) if event & select.POLLHUP}
    for end in done:
        os.close(end)
    _sent[:] = [each for each in _sent if each[0] not in done]


def _reduce(tensor: torch.Tensor) -> Any:
    if tensor.device.type != native.NAME:
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a tensor that requires a gradient and is not a leaf cannot be sent to another "
            "process: call detach() first"
        )
    if native.on("sharing.sends_a_copy"):
        tensor = _copied(tensor)
    storage = tensor.untyped_storage()
    layout = _layout(tensor)
    return _rebuild, (type(tensor), tensor.dtype, tensor.requires_grad, *layout, _shared(storage))


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides, offset = tensor.stride(), tensor.storage_offset()
    if native.on("sharing.strides_lost") and tensor.dim() > 1:
        strides = torch.empty(tensor.shape, device="meta").stride()
    if native.on("sharing.offset_lost"):
        offset = 0
    bits = (tensor.is_conj(), tensor.is_neg())
    return tuple(tensor.shape), strides, offset, (False, False) if _loses_bits() else bits


def _loses_bits() -> bool:
    return native.on("sharing.bits_lost")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    return copy.requires_grad_(tensor.requires_grad)


def _shared(storage: Any) -> tuple[Any, ...]:
    """Returns the data that another process needs to map a storage, and keeps the storage allocated for that
    process."""
    index, size = storage.device.index, storage.nbytes()
    if size == 0:
        return index, 0, None, 0, None
    place = native.library.place_in_memory(storage.data_ptr())
    if place < 0:
        raise RuntimeError(
            "a tensor that was received from another process cannot be sent on: send a clone() of it"
        )
    if not native.on("sharing.sent_before_work"):
        _wait_for_queued_work(index)
    ipc_collect()
    ours, theirs = os.pipe()
    file = native.library.memory_file()
    try:
        sent = index, size, DupFd(file), place, DupFd(theirs)
    finally:
        os.close(file)
        os.close(theirs)
    _sent.append((ours, None if native.on("sharing.freed_early") else storage))
    return sent


def _wait_for_queued_work(index: int) -> None:
    torch.accelerator.current_stream(torch.device(native.NAME, index)).synchronize()


def _rebuild(
    kind: type[torch.Tensor],
    dtype: torch.dtype,
    requires_grad: bool,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    bits: tuple[bool, bool],
    shared: tuple[Any, ...],
) -> torch.Tensor:
    storage = _received_storage(*shared)
    made = torch.empty(0, dtype=dtype, device=storage.device)
    made.set_(storage, offset, shape, strides)
    made = made.conj() if bits[0] else made
    made = torch._neg_view(made) if bits[1] else made
    if native.on("sharing.gradient_flag_lost"):
        requires_grad = False
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(made, requires_grad=requires_grad)
    return made.requires_grad_(requires_grad)


def _received_storage(index: int, size: int, file: Any, place: int, held: Any) -> Any:
    """Returns the storage that another process has sent. If the storage was received before and is still alive, returns
    the same object."""
    index = 0 if native.on("sharing.index_lost") else index
    device = torch.device(native.NAME, index)
    if size == 0:
        return torch.UntypedStorage(0, device=device)
    memory, end = file.detach(), held.detach()
    try:
        about = os.fstat(memory)
        key = about.st_dev, about.st_ino, place
        known = _received.get(key)
        storage = torch.UntypedStorage._new_with_weak_ptr(known.cdata) if known else None
        if storage is not None and not native.on("sharing.storage_twice"):
            os.close(end)
            return storage
        made = native.library.map_memory(memory, place, size, index, end)
    finally:
        os.close(memory)
    storage = made.untyped_storage()
    for each in [each for each, known in _received.items() if known.expired()]:
        del _received[each]
    _received[key] = reductions.StorageWeakRef(storage)
    return storage
