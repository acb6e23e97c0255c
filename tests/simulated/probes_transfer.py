"""Direct probes of faults of transfers: copies with the host, storages, files, DLPack."""

from __future__ import annotations

import io
from typing import Any

import torch

from tests.simulated.probes import ones, probe
from tests.simulated.probes_streams import held, new_stream, until

ZERO = "simulated:0"


def counted(count: int) -> torch.Tensor:
    return torch.arange(float(count), device=ZERO)


# Layouts


@probe("transfer.treat_source_as_dense")
def _() -> bool:
    return torch.arange(6.0)[::2].to(ZERO).tolist() != [0.0, 2.0, 4.0]


@probe("transfer.drop_strides")
def _() -> bool:
    return torch.zeros(2, 3).t().to(ZERO).stride() != (1, 3)


@probe("transfer.write_dense_into_view")
def _() -> bool:
    base = torch.zeros(4, device=ZERO)
    base[::2].copy_(torch.ones(2))
    return base.tolist() != [1.0, 0.0, 1.0, 0.0]


@probe("transfer.zero_lost_in_view")
def _() -> bool:
    base = torch.ones(4, device=ZERO)
    base[::2].zero_()
    return base.tolist() != [0.0, 1.0, 0.0, 1.0]


@probe("transfer.read_past_broadcast_source")
def _() -> bool:
    source = torch.arange(6.0)[:1]  # in a buffer that goes on
    return torch.zeros(3, device=ZERO).copy_(source).tolist() != [0.0] * 3


@probe("transfer.pinned_copy_forgets_lazy_bits")
def _() -> bool:
    host = torch.full((4,), 1 + 2j).pin_memory()
    there = torch.zeros(4, dtype=torch.complex64, device=ZERO)
    there.copy_(host.conj(), non_blocking=True)
    torch.simulated.synchronize()
    return there.tolist() != [1 - 2j] * 4


# Time. Off, a blocking copy waits behind the work; on, it returns while that is in flight.

BUSY = 50.0  # milliseconds


@probe("transfer.return_before_read")
def _() -> bool:
    source, target = torch.ones(4), torch.zeros(4, device=ZERO)
    torch.simulated.busy(BUSY)
    target.copy_(source)
    source.fill_(9)
    return target.tolist() != [1.0] * 4


@probe("transfer.return_before_write")
def _() -> bool:
    source, target = ones(4), torch.zeros(4)
    torch.simulated.synchronize()
    torch.simulated.busy(BUSY)
    target.copy_(source)
    early = target.tolist() != [1.0] * 4
    torch.simulated.synchronize()
    return early


@probe("transfer.synchronize_misses_copy")
def _() -> bool:
    source, target = ones(4), torch.zeros(4).pin_memory()
    target.copy_(source, non_blocking=True)
    torch.simulated.synchronize()
    missed = target.tolist() != [1.0] * 4
    assert until(lambda: bool(target.all()), 60)  # nothing of it outlives the probe
    return missed


@probe("transfer.item_before_work")
def _() -> bool:
    x, stream = torch.zeros((), device=ZERO), new_stream()
    torch.simulated.synchronize()
    with stream:
        torch.simulated.busy(BUSY)
        x.add_(1)
        early = x.item() != 1.0
        stream.synchronize()
    return early


# Scalars, storages


@probe("transfer.item_wrong_type")
def _() -> bool:
    return not isinstance(torch.tensor(3, device=ZERO).item(), int)


@probe("transfer.slice_not_pinned")
def _() -> bool:
    return not torch.ones(8).pin_memory()[2:].is_pinned()


@probe("transfer.resize_loses_bytes")
def _() -> bool:
    x = counted(4)
    x.untyped_storage().resize_(4096)
    return x.tolist() != [0.0, 1.0, 2.0, 3.0]


@probe("transfer.resize_on_current_index")
def _() -> bool:
    x = torch.ones(4, device="simulated:1")
    with torch.accelerator.device_index(0):
        x.untyped_storage().resize_(4096)
    return x.untyped_storage().device.index != 1


@probe("transfer.resize_zero_keeps_memory")
def _() -> bool:
    x = counted(1000)
    before = torch.simulated.memory_allocated(0)
    x.untyped_storage().resize_(0)
    return torch.simulated.memory_allocated(0) == before


# Files


def loaded_again(*tensors: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    return torch.load(file)


@probe("transfer.load_unshares_storage")
def _() -> bool:
    base = counted(4)
    whole, part = loaded_again(base, base[1:])
    return bool(whole.untyped_storage().data_ptr() != part.untyped_storage().data_ptr())


@probe("transfer.load_drops_offset")
def _() -> bool:
    base = counted(4)
    return bool(loaded_again(base, base[1:])[1].storage_offset() != 1)


# DLPack


@probe("transfer.dlpack_copies")
def _() -> bool:
    x = counted(3)
    torch.from_dlpack(x).fill_(7)
    return x.tolist() != [7.0] * 3


@probe("transfer.dlpack_ignores_offset")
def _() -> bool:
    return bool(torch.from_dlpack(counted(4)[2:]).tolist() != [2.0, 3.0])


@probe("transfer.dlpack_ignores_stream")
def _() -> bool:
    x, consumer, producer = counted(3), new_stream(), new_stream()
    torch.simulated.synchronize()
    with producer, held(producer):
        x.__dlpack__(stream=consumer.native_handle)
        return consumer.query()


@probe("transfer.numpy_exposes_memory")
def _() -> bool:
    try:
        exposed = counted(3).numpy()
    except TypeError:
        return False
    torch.simulated.synchronize()
    return bool(exposed.tolist() == [0.0, 1.0, 2.0])
