"""device.async_error: what fails on the device is told by the next synchronise."""

from __future__ import annotations

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context

cases = Cases()


def _fail(context: Context) -> list[torch.Tensor]:
    """Queue work that fails: by the descriptor's own way, or an index that is out of range; what it gives."""
    if context.descriptor.fail is not None:
        context.descriptor.fail()
        return []
    three = context.to_device(torch.tensor([1.0, 2.0, 3.0]))
    return [three.index_select(0, context.to_device(torch.tensor([7])))]


def _wait(context: Context, given: list[torch.Tensor]) -> None:
    """Wait for all work, and on a device that computes nothing before it is asked, for this."""
    context.opened.settle(given)
    context.settle()


def _surfaces(context: Context) -> None:
    def both() -> None:
        _wait(context, _fail(context))

    context.raises(Exception, both, text="a failure is told by the next synchronise")


def _later_results(context: Context) -> None:
    want = torch.arange(1000, dtype=torch.float32) * 2
    x = context.to_device(torch.arange(1000, dtype=torch.float32))
    told, given = 0, []
    for step in range(3):
        try:
            if step == 0:
                given = _fail(context)
            got = context.from_device(x * 2)
        except Exception:  # an error is no wrong result
            told += 1
            continue
        context.equal(got, want, "a result behind the failure is right, or raises")
    try:
        _wait(context, given)
    except Exception:  # told, which is what is counted
        told += 1
    context.check(told, "the failure has been told by then")


def _judge(context: Context, function: str) -> None:
    """Here where the descriptor knows a harmless failure; else in a process of its own."""
    if context.descriptor.fail is not None:
        globals()[function](context)
        return
    ended = context.child(globals()[function])
    context.check(
        ended.answered and not ended.raised,
        "the failure is an exception",
        got=ended.raised or ended.how,
    )


@cases("device.async_error")
def surfaces(context: Context) -> None:
    """The failure of a kernel is told by the next synchronise."""
    _judge(context, "_surfaces")


@cases("device.async_error")
def later_results(context: Context) -> None:
    """No later result is silently wrong."""
    _judge(context, "_later_results")


@cases("device.async_error", requires={"streams"})
def behind_other_work(context: Context) -> None:
    """A failure that waits behind other work is told by the synchronise that waits for it."""
    _judge(context, "_behind_other_work")


def _behind_other_work(context: Context) -> None:
    with context.hold() as hold:
        _fail(context)
        hold.must_be_in_flight()
        hold.release()
        context.raises(Exception, context.settle, text="the synchronise tells the failure")
