"""transfer.pinned: host memory for copies that do not block."""

from __future__ import annotations

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()


@cases("transfer.pinned")
def pins(context: Context) -> None:
    """pin_memory gives a pinned tensor with a pinned storage and the same values."""
    plain = torch.arange(1000)
    pinned = plain.pin_memory()
    context.check(not plain.is_pinned(), "the tensor itself stays as it is")
    context.check(pinned.is_pinned(), "the new one is pinned")
    context.check(pinned.untyped_storage().is_pinned(), "so is its storage")
    context.equal(pinned, plain, "it has the values")
    context.check(pinned.pin_memory() is pinned, "pinning what is pinned gives itself")


@cases("transfer.pinned")
def made_pinned(context: Context) -> None:
    """Factories with pin_memory=True give pinned tensors; storages can be pinned."""
    for made in (torch.empty(100, pin_memory=True), torch.zeros(5, 5, pin_memory=True)):
        context.check(made.is_pinned(), "a factory's tensor is pinned")
    storage = torch.arange(10).untyped_storage()
    context.check(storage.pin_memory().is_pinned(), "a pinned storage says so")
    context.check(not storage.is_pinned(), "the storage before does not")


@cases("transfer.pinned")
def slices(context: Context) -> None:
    """Slices and views of a pinned tensor are pinned, to the last element."""
    pinned = torch.arange(5000).pin_memory()
    views = pinned[10:20], pinned[-1:], pinned[::7], pinned.view(50, 100).t(), pinned[4999]
    for view in views:
        context.check(view.is_pinned(), f"a view from element {view.storage_offset()} is pinned")
    context.check(not pinned.clone().is_pinned(), "a copy in plain memory is not")


@cases("transfer.pinned", requires={"streams"})
def not_reused_early(context: Context) -> None:
    """A pinned block is not handed out again while a copy reads it."""
    size, stream = 3000, context.stream()
    want = torch.arange(size, dtype=torch.float32)
    there = torch.zeros(size, device=context.device)
    context.settle()
    with context.hold(stream) as hold:
        block = want.pin_memory()
        with stream:
            there.copy_(block, non_blocking=True)
        place = block.data_ptr()
        del block
        others = [torch.empty(size, pin_memory=True).fill_(-1) for _ in range(4)]
        context.check(
            place not in [each.data_ptr() for each in others], "the block is not handed out again"
        )
        hold.must_be_in_flight()
    stream.synchronize()
    context.equal(there, want, "the copy reads what was there at the call")


@cases("transfer.pinned", requires={"streams"})
def not_reused_while_written(context: Context) -> None:
    """A pinned block is not handed out again while a copy writes it."""
    size, stream = 3000, context.stream()
    there = torch.ones(size, device=context.device)
    context.settle()
    with context.hold(stream) as hold:
        block = torch.zeros(size, pin_memory=True)
        with stream:
            block.copy_(there, non_blocking=True)
        del block
        others = [torch.empty(size, pin_memory=True).fill_(-1) for _ in range(4)]
        hold.must_be_in_flight()
    stream.synchronize()
    for other in others:
        context.equal(other, torch.full((size,), -1.0), "a new block is not written by old copies")
