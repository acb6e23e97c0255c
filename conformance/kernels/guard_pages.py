"""Allocates memory with an inaccessible page right after its last byte or right before its first byte, so that an
access outside of a tensor ends the process. Repro scripts contain copies of these functions."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch

from opinfo.guarded import Guarded
from opinfo.layouts import Geometry

#: The edges at which the inaccessible page lies.
EDGES = ("after", "before")

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS = 1, 2, 0x10, 0x20
PAGE = mmap.PAGESIZE

#: The addresses of live memory that ``paged`` made, with the edge.
PAGED: dict[int, str] = {}


def map_memory(
    address: int | None, nbytes: int, protection: int, flags: int, file: int = -1, at: int = 0
) -> int:
    """Maps memory with mmap(2) and returns its address. Raises OSError if mmap fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = libc.mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    call.argtypes = [*call.argtypes, ctypes.c_int64]
    found = call(address, nbytes, protection, flags, file, at)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap of {nbytes} bytes failed")
    return int(found)


def paged(values: torch.Tensor, edge: str) -> torch.Tensor:
    """Returns a copy of a uint8 CPU tensor, with an inaccessible page right after its last byte (``edge="after"``) or
    right before its first byte (``edge="before"``)."""
    nbytes = values.numel()
    if not nbytes:
        return values.clone()
    pages = -(-nbytes // PAGE) * PAGE
    whole = pages + 2 * PAGE
    start = map_memory(None, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS)
    access = PROT_READ | PROT_WRITE
    map_memory(start + PAGE, pages, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED)
    address = start + PAGE if edge == "before" else start + PAGE + pages - nbytes
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    memory.owner = Mapping(start, whole, address)  # torch keeps the buffer, and so the mapping
    PAGED[address] = edge
    return torch.frombuffer(memory, dtype=torch.uint8).copy_(values)


class Mapping:
    """Mapped memory, which is unmapped when this object is freed."""

    def __init__(self, start: int, nbytes: int, address: int) -> None:
        self.start, self.nbytes, self.address = start, nbytes, address
        unmap = ctypes.CDLL(None).munmap
        unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.unmap, self.known = unmap, PAGED

    def __del__(self) -> None:
        self.known.pop(self.address, None)
        self.unmap(self.start, self.nbytes)


class _AtPage(Guarded):
    """A tensor whose memory lies next to an inaccessible page. Unlike other guarded tensors, it has no known bytes
    around it."""

    __slots__ = ()
    edge = "after"

    def _nbytes(self) -> int:
        return self.geometry.extent * self.itemsize

    def _place(self, staged: torch.Tensor, dtype: torch.dtype, to_device: Any) -> None:
        self.before = staged
        self.base = to_device(paged(staged, self.edge))
        self.view = self.base.view(dtype).as_strided(
            self.geometry.shape, self.geometry.stride, self.geometry.offset
        )


class BeforePage(_AtPage):
    """A tensor that ends right before an inaccessible page."""

    __slots__ = ()


class AfterPage(_AtPage):
    """A tensor that begins right after an inaccessible page."""

    __slots__ = ()
    edge = "before"


def contiguous(shape: tuple[int, ...]) -> Geometry:
    """Returns the geometry of a contiguous tensor without a storage offset."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return Geometry(tuple(shape), tuple(stride), 0, 0 if 0 in shape else step)
