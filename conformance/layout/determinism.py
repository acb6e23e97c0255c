"""layout.determinism: with deterministic algorithms on, repeated calls are bit-equal or raise RuntimeError
(https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html).

A kernel that reads memory before it wrote it gives equal results by luck, as long as the allocator hands out
the same bytes. So on the CPU the two calls are given different ones: see :func:`fresh_memory`.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from conformance.cells import CellRecord, Failure
from conformance.layout import repro
from conformance.layout.context import ItemContext, Laid
from opinfo.compare import bit_equal
from opinfo.structure import replace_tensors, tensors_of

CLAUSE = "layout.determinism"
#: Layouts that take different paths through a kernel; more would only repeat them.
_LAYOUTS = frozenset({"contiguous", "transposed", "channels_last", "contiguous+step_inner+offset"})


def check(ctx: ItemContext) -> None:
    """Call twice on the same tensors and compare bits."""
    if not ctx.wants(CLAUSE):
        return
    with ctx.running(CLAUSE) as (record,), deterministic():
        assert record is not None
        for sample in ctx.samples:
            for laid in ctx.laid_out(sample, _LAYOUTS):
                _twice(ctx, laid, record)
            ctx.release(sample)


@contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms on, and off again as it was."""
    before = torch.are_deterministic_algorithms_enabled()
    settings: Any = torch.utils.deterministic  # a module whose class makes this a property
    fill = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Filling every fresh tensor with NaN would hide what this clause looks for: memory left unwritten.
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = fill


@contextmanager
def fresh_memory(device: torch.device, byte: int) -> Iterator[None]:
    """What memory fresh from the allocator holds: ``byte`` everywhere. Only for the CPU over glibc, whose
    mallopt(3) can do it (M_PERTURB); nothing changes elsewhere."""
    mallopt = _mallopt() if device.type == "cpu" else None
    if mallopt is None:
        yield
        return
    mallopt(_M_PERTURB, byte ^ 0xFF)
    try:
        yield
    finally:
        mallopt(_M_PERTURB, 0)


_M_PERTURB = -6  # malloc.h; fresh memory is filled with the complement of the value, 0 turns it off


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    mallopt: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    return mallopt


def _twice(ctx: ItemContext, laid: Laid, record: CellRecord) -> None:
    results: list[Any] = []
    mutable = bool(ctx.mutable_inputs(laid.sample))
    for byte in (0, 1):
        try:
            with fresh_memory(ctx.device.torch_device, byte):
                result = ctx.fetch(ctx.run(ctx.op.function, laid))
            if mutable:  # it may be the input itself, which is put back below
                result = replace_tensors(result, torch.Tensor.clone)
            results.append(result)
        except RuntimeError:
            results.append(None)  # a refusal, or what the values clause judges
        except Exception:  # an argument error of every call alike; judged by values
            results.append(None)
        if mutable:
            for guarded in laid.guarded:
                if guarded is not None:
                    guarded.restore(ctx.device.to_device)
            ctx.rebuild(laid.sample)
            laid = ctx.lay(laid.sample, laid.case, laid.geometries)
    record.check(laid.sample.index, laid.case.id)
    first, second = results
    if (first is None) != (second is None):
        text: str | None = "one of two equal calls raised, the other did not"
    else:
        text = _difference(first, second)
    if text is not None:
        record.fail(
            Failure(
                laid.case.id,
                text,
                size=laid.sample.numel,
                repro=repro.for_call(ctx, laid, "determinism"),
            )
        )


def _difference(first: Any, second: Any) -> str | None:
    pairs = list(zip(tensors_of(first), tensors_of(second), strict=True))
    for place, (a, b) in enumerate(pairs):
        if a.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        if not bit_equal(a, b):
            return f"output {place} of two equal calls differs in its bits"
    if not pairs and first != second and first == first:
        return f"two equal calls gave {first!r} and {second!r}"
    return None
