"""Devices that do right in another way than most: cases that once failed of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checks.behaviour import allocator_memory
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotDeclared
from conformance.suites.allocator import blocks, streams_of_blocks
from conformance.suites.device import processes
from conformance.suites.transfer import async_copies
from devices.descriptor import Descriptor
from devices.registry import get
from opinfo.device import has_pointers, open_device


class _Scripted(CaseContext):
    """A device without streams whose allocator hands out one block, and whose counters are scripted."""

    reserved: Iterator[int]

    def streams(self, count: int = 2) -> list[Any]:
        return [nullcontext()] * count

    def counters(self, index: int = 0) -> Any:
        return SimpleNamespace(reserved=next(self.reserved))

    def bytes_of(self, count: int, index: int = 0) -> torch.Tensor:
        return _BLOCK


_BLOCK = torch.zeros(4096, dtype=torch.uint8)


def scripted(*reserved: int, **changes: Any) -> _Scripted:
    descriptor: Descriptor = replace(get("cpu"), **changes)
    made = _Scripted(open_device(descriptor), "a seed")
    made.reserved = iter(reserved)
    return made


def test_a_block_whose_segment_was_given_back_may_serve_another_stream() -> None:
    with pytest.raises(NotDeclared):
        streams_of_blocks.own_stream_only(scripted(4096, 0), 4096)


def test_a_block_that_is_kept_may_not() -> None:
    with pytest.raises(CheckFailed):
        streams_of_blocks.own_stream_only(scripted(4096, 4096), 4096)


def test_a_segment_that_was_given_back_is_not_missed_when_its_size_is_asked_for_again() -> None:
    blocks.after_a_split(scripted(8, 2, 8))


def test_a_segment_that_is_lost_is() -> None:
    with pytest.raises(CheckFailed):
        blocks.after_a_split(scripted(8, 8, 16))


@pytest.mark.parametrize(
    ("live", "freed", "right"),
    [
        (4096, 0, True),  # the block goes back to the system as soon as it is freed
        (0, 0, False),  # the block is not counted
        (4096, 4096, False),  # empty_cache keeps the segment
    ],
)
def test_an_allocator_that_does_not_cache_has_nothing_to_release(
    live: int, freed: int, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[weakref.ref[torch.Tensor]] = []

    class Uncached(_Scripted):
        def stream(self, index: int = 0, **_: Any) -> Any:
            return nullcontext()

        def counters(self, index: int = 0) -> Any:
            if not blocks:
                return SimpleNamespace(reserved=0)
            return SimpleNamespace(reserved=freed if blocks[0]() is None else live)

        def bytes_of(self, count: int, index: int = 0) -> torch.Tensor:
            made = torch.zeros(count, dtype=torch.uint8)
            blocks.append(weakref.ref(made))
            return made

    monkeypatch.setattr(allocator_memory, "fresh", lambda _: None)
    with nullcontext() if right else pytest.raises(CheckFailed):
        streams_of_blocks.after_release(Uncached(open_device(get("cpu")), "a seed"))


@pytest.mark.parametrize(("reads_at", "right"), [("the call", True), ("the end", False)])
def test_a_pinned_block_may_be_reused_once_the_device_has_read_it(
    reads_at: str, right: bool
) -> None:
    """A device may read the source inside of the call, although the copy completes later."""
    want, there, source = torch.arange(4.0), torch.zeros(4), torch.arange(4.0)
    if reads_at == "the call":
        there.copy_(source)
    source.fill_(-1)  # through a new block at the same address
    if reads_at == "the end":
        there.copy_(source)
    with nullcontext() if right else pytest.raises(CheckFailed, match="still had to read it"):
        async_copies._check_copied(scripted(), there, want, True)


@pytest.mark.parametrize(("apart", "addresses"), [(512, False), (2**22, True)])
def test_the_address_of_an_object_that_stands_for_a_buffer_is_no_pointer(
    apart: int, addresses: bool
) -> None:
    """Objects on the host are some hundred bytes apart, so that only ranges of large tensors overlap."""
    known: dict[int, int] = {}

    class Buffer(torch.Tensor):
        def data_ptr(self) -> int:
            storage = self.untyped_storage().data_ptr()
            place = known.setdefault(storage, 2**20 + apart * len(known))
            return place + self.storage_offset() * self.itemsize

    device: Any = SimpleNamespace(to_device=lambda tensor: tensor.as_subclass(Buffer))
    assert has_pointers(device) is addresses


def test_an_error_that_is_raised_at_once_is_not_too_early() -> None:
    def fail() -> None:
        raise RuntimeError("at once")

    context = scripted(fail=fail)

    @contextmanager
    def hold(**_: Any) -> Iterator[None]:
        yield

    context.hold = hold  # type: ignore[method-assign,assignment]
    processes._behind_other_work(context)
    assert context.checks == 1


def test_an_error_that_is_never_raised_is_missed() -> None:
    context = scripted(fail=lambda: None)
    context.hold = lambda **_: nullcontext()  # type: ignore[method-assign,assignment]
    with pytest.raises(CheckFailed):
        processes._behind_other_work(context)


def test_values_that_look_alike_are_told_by_their_bytes() -> None:
    found, wanted = (
        torch.tensor([bits], dtype=torch.int32).view(torch.float32)
        for bits in (0x7FC00001, 0x7FC00000)
    )
    with pytest.raises(CheckFailed) as caught:
        scripted().equal(found, wanted, "it is the same")
    told = caught.value.failure.message
    assert (
        "expected nan with the bytes [0, 0, 192, 127], found nan with the bytes [1, 0, 192, 127]"
        in told
    )
