"""Direct probes of faults that strike large tensors only."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.simulated.children import child_says
from tests.simulated.probes import DEVICE, probe

GRID, FLOAT32 = 2**16, 2**24
#: For tensors that are larger than the device's memory by default. Hardly any of it is touched.
LARGE = {"SIMULATED_MEMORY_MIB": "8192", "SIMULATED_DEVICES": "1"}


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@probe("large.grid_65535")
def _() -> bool:
    x = zeros(GRID, 2)
    x[:, 0] = 1
    return bool(functional.layer_norm(x, [2])[-1, 0] == 0)


@probe("large.batches_16bit")
def _() -> bool:
    x = zeros(GRID + 1, 1, 1)
    x[-1] = 3
    return bool(torch.bmm(x, x)[-1] != 9)


@probe("large.channels_65535")
def _() -> bool:
    x = zeros(2, GRID)
    x[0] = 1
    return bool(functional.batch_norm(x, None, None, training=True)[0, -1] == 0)


@probe("large.place_in_float32")
def _() -> bool:
    x = zeros(FLOAT32 + 2, dtype=torch.uint8)
    x[FLOAT32 + 1] = 1
    return int(x.argmax()) != FLOAT32 + 1


@probe("large.sum_stops")
def _() -> bool:
    return float(torch.ones(1, device=DEVICE).expand(2 * FLOAT32).sum()) != 2.0 * FLOAT32


@probe("large.tail_unwritten")
def _() -> bool:
    x = zeros(FLOAT32 + 1, dtype=torch.uint8) + 3
    return int((x * x)[-1]) != 9


@probe("large.index_in_float32")
def _() -> bool:
    x = zeros(FLOAT32 + 2, dtype=torch.uint8)
    x[FLOAT32 + 1] = 5
    return int(x.index_select(0, torch.tensor([FLOAT32 + 1], device=DEVICE))) != 5


@probe("large.write_wraps")
def _() -> bool:
    x, one = zeros(FLOAT32 + 2, dtype=torch.uint8), zeros(1, dtype=torch.uint8) + 1
    x.index_copy_(0, torch.tensor([FLOAT32 + 1], device=DEVICE), one)
    return int(x[1]) == 1


@probe("large.gradient_65535")
def _() -> bool:
    table = zeros(GRID, 1).requires_grad_()
    functional.embedding(torch.tensor([GRID - 1], device=DEVICE), table).sum().backward()
    assert table.grad is not None
    return bool(table.grad[-1] == 0)


@probe("large.carry_lost")
def _() -> bool:
    x = zeros(FLOAT32 + 1, dtype=torch.uint8)
    x[0] = 1
    return int(x.cumsum(0, dtype=torch.uint8)[-1]) != 1


@probe("large.random_tail")
def _() -> bool:
    return int(zeros(FLOAT32 + 1, dtype=torch.uint8).random_(1, 100)[-1]) == 0


def large() -> torch.Tensor:
    """A tensor whose last byte is 2."""
    base = torch.empty(2**32 + 4096, dtype=torch.uint8, device=DEVICE)
    base[0], base[2**31], base[-1], base[4095] = 1, 2, 2, 3
    return base


def place_is_cut() -> bool:
    return int(torch.bitwise_not(large()[2**31 :][:1])[0]) != 253


def byte_is_cut() -> bool:
    x = large()
    return int(x.gather(0, torch.tensor([len(x) - 1], device=DEVICE))) != 2


def step_is_cut() -> bool:
    steps = large()[4095 :: 2**31]
    steps.copy_(torch.tensor([3, 4, 5], dtype=torch.uint8, device=DEVICE)[: len(steps)])
    return steps.flip(0).tolist() != [5, 4, 3][-len(steps) :]


@probe("large.offset_32bit")
def _() -> bool:
    return child_says(place_is_cut, **LARGE)


@probe("large.bytes_32bit")
def _() -> bool:
    return child_says(byte_is_cut, **LARGE)


@probe("large.step_32bit")
def _() -> bool:
    return child_says(step_is_cut, **LARGE)
