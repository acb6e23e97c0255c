"""Cases of the clauses transfer.snapshot, transfer.non_blocking and transfer.pinned: the moment at which a copy
is complete, and pinned memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch

from conformance.checks.behaviour.allocator_memory import empty_host
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.checks.cases.held_streams import SOON, value_behind
from devices.errors import in_a_line
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_SIZE = 1000


def _numbers(start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + _SIZE, dtype=torch.float32)


def _to_device(context: CaseContext, source: torch.Tensor, way: str = "copy") -> torch.Tensor:
    if way == "copy":
        return torch.zeros(_SIZE, device=context.device).copy_(source)
    return source.to(context.device, copy=True)


def _to_host(source: torch.Tensor, way: str) -> torch.Tensor:
    if way == "copy":
        return torch.zeros(_SIZE).copy_(source)
    return source.cpu() if way == "cpu" else source.to("cpu")


@cases("transfer.snapshot", over={"to_device": ("to",), "copy_to_device": ("copy",)})
def source_may_change(context: CaseContext, way: str) -> None:
    """The host changes the source after a copy to the device has returned. The copy has the values that the
    source had before the change."""
    for start in range(5):
        source = _numbers(start)
        made = _to_device(context, source, way)
        source.fill_(-1)
        context.equal(
            made,
            _numbers(start),
            "the copy differs from the values that the source had at the time of the call",
        )


@cases("transfer.snapshot", requires={"streams"})
def host_scalar(context: CaseContext) -> None:
    """A kernel is queued with a CPU scalar tensor, and the host changes the scalar afterwards. The kernel uses
    the value that the scalar had at the time of the call."""
    stream, source = context.stream(), _to_device(context, _numbers())
    context.settle()

    def called() -> list[torch.Tensor]:
        scalar = torch.tensor(3.0)
        with stream:
            made = [source * scalar, source.clone().add_(scalar)]
        scalar.fill_(100)
        return made

    found = value_behind(context.hold(stream, needed=False), called)
    context.settle()
    for place, (got, want) in enumerate(zip(found, (_numbers() * 3, _numbers() + 3))):
        context.equal(
            got,
            want,
            "a kernel did not use the value that the scalar had at the time of the call",
            at=f"kernel {place}",
        )


@cases("transfer.snapshot", over={"to_host": ("to",), "cpu": ("cpu",), "copy_to_host": ("copy",)})
def device_may_change(context: CaseContext, way: str) -> None:
    """A copy to the host is complete when the call returns, and later work on the device does not change the
    copy."""
    for start in range(5):
        source = _to_device(context, _numbers(start))
        made = _to_host(source.add_(1), way)
        if made is source:  # cpu() of a CPU tensor is the tensor itself
            made = made.clone()
        at_once = made.clone()
        source.fill_(-1)
        context.equal(
            at_once,
            _numbers(start + 1),
            "the copy to the host was incomplete when the call returned",
        )
        context.equal(
            made, _numbers(start + 1), "later work on the device changed the copy on the host"
        )


@cases(
    "transfer.snapshot",
    over={"to_behind_work": ("to",), "copy_to_device_behind_work": ("copy",)},
    requires={"streams"},
)
def source_behind_work(context: CaseContext, way: str) -> None:
    """A copy to the device is queued behind work in flight, and the host changes the source after the call. The
    copy has the values that the source had at the time of the call."""
    stream, source = context.stream(), _numbers(3)
    _to_device(context, source, way)
    context.settle()

    def copy() -> torch.Tensor:
        with stream:
            made = _to_device(context, source, way)
        source.fill_(-1)
        return made

    made = value_behind(context.hold(stream, needed=False), copy)
    stream.synchronize()
    context.equal(
        made,
        _numbers(3),
        "the copy differs from the values that the source had at the time of the call",
    )


@cases(
    "transfer.snapshot",
    over={"cpu_behind_work": ("cpu",), "copy_to_host_behind_work": ("copy",)},
    requires={"streams"},
)
def result_behind_work(context: CaseContext, way: str) -> None:
    """A copy to the host is queued behind work in flight. The copy is complete when the call returns."""
    stream, there = context.stream(), _to_device(context, _numbers(3))
    there.add_(0)
    context.settle()

    def copy() -> torch.Tensor:
        with stream:
            return _to_host(there.add_(1), way).clone()

    made = value_behind(context.hold(stream, needed=False), copy)
    context.equal(made, _numbers(4), "the copy to the host was incomplete when the call returned")


def _pinned(context: CaseContext, start: int) -> torch.Tensor:
    made = _numbers(start)
    return made.pin_memory() if context.has("pinned_memory") else made


def _stand(context: CaseContext) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a tensor on the device and a tensor on the host for a case. Before that, runs once each kind of work
    that the cases queue, because the first call of an op may do more than queue work."""
    there, host = torch.zeros(_SIZE, device=context.device), _pinned(context, 3)
    there.fill_(1).copy_(host, non_blocking=True).add_(1)
    host.copy_(there, non_blocking=True)
    context.settle()
    host.copy_(_numbers(3))
    return there, host


@cases("transfer.non_blocking", requires={"pinned_memory"})
def to_device_in_order(context: CaseContext) -> None:
    """copy_(non_blocking=True) to the device runs after work that was queued before it on the same stream, and
    before work that was queued after it."""
    stream, (there, host) = context.stream(), _stand(context)
    with context.hold(stream, needed=False) as hold:
        with stream:
            there.fill_(1)
            there.copy_(host, non_blocking=True)
            there.add_(1)
        hold.waits(
            stream, "a non-blocking copy to the device did not wait for earlier work of its stream"
        )
    stream.synchronize()
    context.equal(there, _numbers(4), "the copy did not run between the work before and after it")


@cases("transfer.non_blocking", requires={"pinned_memory"})
def lazy_bits(context: CaseContext) -> None:
    """copy_(non_blocking=True) between the device and a pinned tensor whose conjugation or negation is not computed yet
    (conj(), and imag of a conjugate) copies the values that the tensor has, in both directions."""
    if "complex64" not in context.descriptor.dtypes:
        raise NotDeclared("the descriptor does not declare complex64")
    values = torch.complex(torch.arange(600.0), torch.arange(600.0) + 1)
    forms: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "conj()": lambda x: x.conj(),
        "imag of conj()": lambda x: x.conj().imag,
    }
    for name, form in forms.items():
        want, host = form(values).resolve_conj().resolve_neg().clone(), values.pin_memory()
        there = torch.zeros(want.shape, dtype=want.dtype, device=context.device)
        there.copy_(form(host), non_blocking=True)
        context.settle()
        context.equal(there, want, f"a non-blocking copy of {name} of a pinned tensor is wrong")
        form(host).copy_(there.add_(1), non_blocking=True)
        context.settle()
        text = f"a non-blocking copy into {name} of a pinned tensor is wrong"
        context.equal(form(host).resolve_conj().resolve_neg(), want + 1, text)


@cases("transfer.non_blocking", requires={"pinned_memory"})
def to_host_in_order(context: CaseContext) -> None:
    """copy_(non_blocking=True) to the host copies the result of work that was queued before it on the same
    stream, and not the result of work that was queued after it."""
    stream, (there, host) = context.stream(), _stand(context)
    with context.hold(stream, needed=False) as hold:
        with stream:
            there.fill_(5)
            host.copy_(there, non_blocking=True)
            there.fill_(6)
        hold.waits(
            stream, "a non-blocking copy to the host did not wait for earlier work of its stream"
        )
        hold.check(
            lambda: torch.equal(host, _numbers(3)),
            "the copy wrote to the host while its stream was blocked",
        )
    stream.synchronize()
    context.equal(
        host, torch.full((_SIZE,), 5.0), "the copy did not run between the work before and after it"
    )


@cases("transfer.non_blocking", over={n: (n,) for n in ("stream", "event", "device", "query")})
def complete_after(context: CaseContext, what: str) -> None:
    """A non-blocking copy to the host is complete after synchronize() of its stream, of the device, or of an event
    that was recorded after the copy. It is also complete after query() of that event returned True."""
    stream, (there, host) = context.stream(), _stand(context)
    for start in range(3):
        with stream:
            there.fill_(start + 7.0)
            host.copy_(there, non_blocking=True)
            event = context.event() if context.has("events") else None
            if event is not None:
                event.record()
        if what == "stream" or event is None:
            stream.synchronize()
        elif what == "event":
            event.synchronize()
        elif what == "device":
            torch.accelerator.synchronize(context.device)
        else:
            context.must(context.ends(event, 20 * SOON), "the event did not complete")
        context.equal(
            host.clone(),
            torch.full((_SIZE,), start + 7.0),
            "the copy to the host was incomplete although the test had waited for the copy",
        )


@cases("transfer.non_blocking")
def pageable(context: CaseContext) -> None:
    """A copy with non_blocking=True and host memory that is not pinned also runs in the order of the stream,
    and is complete after the stream was synchronized."""
    stream = context.stream()
    there = torch.zeros(_SIZE, device=context.device)
    context.settle()
    host, back = _numbers(3), torch.zeros(_SIZE)
    with stream:
        there.fill_(1)
        there.copy_(host, non_blocking=True)
        there.add_(1)
        back.copy_(there, non_blocking=True)
    stream.synchronize()
    context.equal(back, _numbers(4), "a round trip through the device gave wrong values")
    context.equal(there, _numbers(4), "the tensor on the device has wrong values")


@cases("transfer.non_blocking")
def to_without_waiting(context: CaseContext) -> None:
    """to(non_blocking=True) to the device and back gives the right values after the stream was synchronized."""
    stream, host = context.stream(), _pinned(context, 2)
    with stream:
        there = host.to(context.device, non_blocking=True)
        back = there.add(1).to("cpu", non_blocking=True)
    stream.synchronize()
    context.equal(back, _numbers(3), "a round trip through the device gave wrong values")


#: Views of a matrix of 6 x 8 elements that are not contiguous. Copies into the last one would write elements twice.
_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a transposed view": lambda x: x.t(),
    "a view of every other column": lambda x: x[:, 1::2],
    "a view of some rows and columns": lambda x: x[1:5, 2:7],
    "a view of every other row": lambda x: x[::2],
    "an expanded view": lambda x: x[2:3].expand(4, 8),
}


@cases("transfer.non_blocking")
def strided(context: CaseContext) -> None:
    """copy_(non_blocking=True) and to(non_blocking=True) between host and device give the right values if the source or
    the destination is a view that is not contiguous, and if the dtype changes as well. The memory of the host is pinned,
    where the device has pinned memory; transfer.strides copies other memory between more layouts."""
    pinned = context.has("pinned_memory")

    def zeros(shape: Sequence[int], dtype: torch.dtype, *, on_host: bool) -> torch.Tensor:
        if on_host:
            return torch.zeros(shape, dtype=dtype, pin_memory=pinned)
        return torch.zeros(shape, dtype=dtype, device=context.device)

    def on_host(values: torch.Tensor) -> torch.Tensor:
        return values.pin_memory() if pinned else values.clone()

    numbers = torch.arange(1.0, 49).reshape(6, 8)
    host, there = on_host(numbers), numbers.to(context.device)
    dtypes = [torch.float32, torch.int64]
    taken = [d for d in dtypes if str(d).removeprefix("torch.") in context.descriptor.dtypes]
    for (name, view), dtype in product(_VIEWS.items(), taken):
        want = view(numbers).to(dtype).contiguous()
        arrived = zeros(want.shape, dtype, on_host=False)
        returned = zeros(want.shape, dtype, on_host=True)
        copies = {
            "copy_ to the device": arrived.copy_(view(host), non_blocking=True),
            "copy_ to the host": returned.copy_(view(there), non_blocking=True),
            "to the device": view(host).to(context.device, dtype, non_blocking=True),
            "to the host": view(there).to("cpu", dtype, non_blocking=True),
        }
        context.settle()
        for way, found in copies.items():
            text, at = "a non-blocking copy of a view is wrong", f"{name}, {way}, to {dtype}"
            context.equal(found, want, text, at)
        if 0 in view(numbers).stride():
            continue
        dense, around = want.to(torch.float32), torch.zeros(6, 8, dtype=dtype)
        view(around).copy_(want)
        targets = {
            "to the device": (zeros((6, 8), dtype, on_host=False), on_host(dense)),
            "to the host": (zeros((6, 8), dtype, on_host=True), dense.to(context.device)),
        }
        for target, source in targets.values():
            view(target).copy_(source, non_blocking=True)
        context.settle()
        for way, (target, _) in targets.items():
            text, at = "a non-blocking copy into a view is wrong", f"{name}, {way}, to {dtype}"
            context.equal(target, around, text, at)


_BLOCK = 3000  # number of elements of each pinned block
_OTHERS = 4  # number of blocks that are allocated after one was freed


def _nothing_cached(context: CaseContext) -> None:
    """Releases the cached pinned blocks of other cases, so that the next block to be freed is the first to be
    reused."""
    context.settle()
    try:
        empty_host(context)
    except (RuntimeError, AttributeError) as error:  # allocator.host judges this failure
        context.note(
            f"cached pinned blocks of other cases could not be released: {in_a_line(error)}"
        )


@cases("transfer.pinned")
def pins(context: CaseContext) -> None:
    """Tensor.pin_memory() returns a pinned tensor with the same values and a pinned storage. For a tensor that
    is already pinned, pin_memory() returns the tensor itself."""
    plain = torch.arange(1000)
    pinned = plain.pin_memory()
    context.check(
        not plain.is_pinned(), "after pin_memory(), the original tensor is pinned but should not be"
    )
    context.check(pinned.is_pinned(), "the tensor that pin_memory() returned is not pinned")
    context.check(
        pinned.untyped_storage().is_pinned(), "the storage of a pinned tensor is not pinned"
    )
    context.equal(pinned, plain, "pin_memory() returned wrong values")
    context.check(
        pinned.pin_memory() is pinned, "pin_memory() of a pinned tensor returned a new tensor"
    )


#: Factory functions that take pin_memory, with arguments.
_FACTORIES: dict[str, tuple[Any, ...]] = {
    "empty": (100,), "zeros": (5, 5), "ones": (7,), "full": ((3, 4), 2.0), "tensor": ([1.0, 2.0],), "arange": (9,),
    "linspace": (0, 1, 5), "eye": (4,), "rand": (6,), "randn": (6,), "randint": (9, (6,)), "randperm": (8,),
    "empty_strided": ((2, 3), (1, 2)),
}  # fmt: skip


@cases("transfer.pinned")
def made_pinned(context: CaseContext) -> None:
    """Factory functions with pin_memory=True return pinned tensors. UntypedStorage.pin_memory() returns a
    pinned storage."""
    for name, arguments in _FACTORIES.items():
        made = getattr(torch, name)(*arguments, pin_memory=True)
        text = f"a tensor made by torch.{name} with pin_memory=True is not pinned"
        context.check(made.is_pinned(), text)
    storage = torch.arange(10).untyped_storage()
    context.check(
        storage.pin_memory().is_pinned(), "the storage that pin_memory() returned is not pinned"
    )
    context.check(
        not storage.is_pinned(),
        "after pin_memory(), the original storage is pinned but should not be",
    )


@cases("transfer.pinned")
def slices(context: CaseContext) -> None:
    """Slices and other views of a pinned tensor are pinned. A clone of a pinned tensor is in normal memory and
    is not pinned."""
    pinned = torch.arange(5000).pin_memory()
    views = pinned[10:20], pinned[-1:], pinned[::7], pinned.view(50, 100).t(), pinned[4999]
    for view in views:
        context.check(
            view.is_pinned(),
            f"a view from element {view.storage_offset()} of a pinned tensor is not pinned",
        )
    context.check(
        not pinned.clone().is_pinned(), "a clone of a pinned tensor is pinned but should not be"
    )


def _check_copied(
    context: CaseContext, there: torch.Tensor, want: torch.Tensor, reused: bool
) -> None:
    """Checks the values of a copy whose pinned source was freed before the copy had to be complete. ``reused`` says
    whether the memory of the source was overwritten through a new block meanwhile. That is right if the device had
    read the source by then, although the copy was not complete."""
    text = "the copy differs from the values that the block had when the copy was queued"
    if reused:
        text = "a pinned block was reused while a copy still had to read it"
    context.equal(there, want, text)


@cases("transfer.pinned", requires={"streams"})
def not_reused_early(context: CaseContext) -> None:
    """A pinned block is freed while a queued non-blocking copy still has to read it. The block is not reused
    before the copy has finished."""
    _not_reused(context, context.indices[0])


@cases("transfer.pinned", requires={"streams", "multi_device"})
def not_reused_elsewhere(context: CaseContext) -> None:
    """A pinned block is freed while a queued copy to the last device index still has to read it. The block is
    not reused before the copy has finished."""
    _not_reused(context, context.indices[-1])


def _not_reused(context: CaseContext, index: int) -> None:
    stream, want = context.stream(index), torch.arange(_BLOCK, dtype=torch.float32)
    there = torch.zeros(_BLOCK, device=context.at(index))
    _nothing_cached(context)
    with context.hold(stream):
        block = want.pin_memory()
        with stream:
            there.copy_(block, non_blocking=True)
        place = block.data_ptr()
        del block
        others = [torch.empty(_BLOCK, pin_memory=True).fill_(-1) for _ in range(_OTHERS)]
        reused = place in [each.data_ptr() for each in others]
    stream.synchronize()
    _check_copied(context, there, want, reused)


@cases("transfer.pinned", requires={"streams"}, over={"part_not_reused": (False,), "not_reused_between_two": (True,)})  # fmt: skip
def still_read(context: CaseContext, twice: bool) -> None:
    """A pinned block is freed while a queued copy still has to read a part of it, or while copies on two
    streams read it and only one copy has finished. The block is not reused before all copies
    have finished."""
    done, stream = context.stream(), context.stream()
    context.must(done != stream, "two new streams are the same", by="streams.identity")
    want = torch.arange(_BLOCK, dtype=torch.float32)
    first, there = (torch.zeros(_BLOCK - 7, device=context.device) for _ in range(2))
    _nothing_cached(context)
    with context.hold(done, released_first=True) as one, context.hold(stream) as hold:
        block = want.pin_memory()
        for on, target in ((stream, there), (done, first))[: 1 + twice]:
            with on:
                target.copy_(block[7:], non_blocking=True)
        place = block.data_ptr()
        del block
        one.release()
        context.check(context.ends(done), "the stream did not finish after it was unblocked")
        others = [torch.empty(_BLOCK, pin_memory=True).fill_(-1) for _ in range(_OTHERS)]
        hold.must_be_in_flight()
        reused = place in [each.data_ptr() for each in others]
    stream.synchronize()
    _check_copied(context, there, want[7:], reused)


@cases("transfer.pinned", requires={"streams"})
def not_reused_while_written(context: CaseContext) -> None:
    """A pinned block is freed while a queued non-blocking copy still has to write into it. Blocks that are
    allocated afterwards are not overwritten by the copy."""
    stream, there = context.stream(), torch.ones(_BLOCK, device=context.device)
    _nothing_cached(context)
    with context.hold(stream):
        block = torch.zeros(_BLOCK, pin_memory=True)
        with stream:
            block.copy_(there, non_blocking=True)
        del block
        others = [torch.empty(_BLOCK, pin_memory=True).fill_(-1) for _ in range(_OTHERS)]
    stream.synchronize()
    for other in others:
        want = torch.full((_BLOCK,), -1.0)
        context.equal(other, want, "an earlier copy wrote into a newly allocated pinned block")
