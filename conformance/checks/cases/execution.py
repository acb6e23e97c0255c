"""Runs the check of a case and returns the result. If the queued work finished before the check could observe it, the
check runs again with more work."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.context import CaseContext, ProgramSearch
from conformance.checks.cases.held_streams import prepare_busy
from conformance.checks.cases.processes import DeviceLocator, in_process
from conformance.checks.cases.results import Attempt
from devices.failure import Failure, Kind
from opinfo.device import Device, DeviceUnusable, open_device, seed_directly
from opinfo.reference import ieee

#: Durations in milliseconds of work that must be in flight, one per attempt. A device with a gate needs only
#: the first attempt.
PATIENCE = (50.0, 250.0, 1000.0, 4000.0)


def attempt(
    case: BehaviourCase, device: Device, where: DeviceLocator, search: ProgramSearch | None = None
) -> Attempt:
    """Runs the check of a case and returns the result. The check runs in a subprocess if the case requires one. With
    ``search``, the programs of the case are drawn as part of that random search.

    If the check did not pass and a process of it was killed by a signal that may come from outside of the run, the check runs
    a second time, whose result counts.
    """
    made = _attempt(case, device, where, search)
    if made.killed and not made.passes:
        signal, made = made.killed, _attempt(case, device, where, search)
        text = f"a process of the check was killed by {signal}, perhaps from outside of the run; the check ran again"
        made.notes = (*made.notes, text)
    return made


def _attempt(
    case: BehaviourCase, device: Device, where: DeviceLocator, search: ProgramSearch | None
) -> Attempt:
    if case.own_process:
        return in_its_own_process(case, where, device.descriptor.first_time)
    return in_this_process(case, device, where, search)


def in_this_process(
    case: BehaviourCase, device: Device, where: DeviceLocator, search: ProgramSearch | None = None
) -> Attempt:
    made = here(case.check, case.arguments, device, case.id, where, search, case.kind)
    return _blocked_by_another(case, made)


def _blocked_by_another(case: BehaviourCase, made: Attempt) -> Attempt:
    """Returns the result of a check. If the check is blocked by the clause of its own case, the result is changed to a
    failure of the case."""
    if made.blocked_by == case.clause:
        made.failure, made.not_shown = Failure(kind=case.kind, detail=made.not_shown), ""
        made.blocked_by = ""
    return made


def here(
    check: Callable[..., None],
    arguments: tuple[Any, ...],
    device: Device,
    seed: str,
    where: DeviceLocator,
    search: ProgramSearch | None = None,
    default: Kind = Kind.STATE,
) -> Attempt:
    prepare_busy(device)
    for patience in PATIENCE:
        made, context = Attempt(), CaseContext(device, seed, patience, where, search, default)
        try:
            with as_it_was(context), collector_paused(), ieee():
                seed_directly(device.torch_device.type, sum(map(ord, seed)))
                check(context, *arguments)
                context.settle()  # a failure of queued work belongs to the case that queued it
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # every exception of the device is recorded as its result
            made.end(error)
            traceback.clear_frames(
                error.__traceback__
            )  # frees tensors, which would count in later cases
            error.__traceback__ = None
            device.let_go()
        made.checks, made.notes, made.program = context.checks, context.notes, context.program
        made.reached, made.killed = context.reached, context.killed
        if not made.too_soon:
            break
    return made


def in_its_own_process(
    case: BehaviourCase, where: DeviceLocator, first_time: Callable[[float], float] = float
) -> Attempt:
    for patience in PATIENCE:
        made = in_process(
            case.check,
            case.arguments,
            where,
            seed=case.id,
            default=case.kind,
            environment=dict(case.environment),
            seconds=case.seconds,
            patience=patience,
            first_time=first_time,
            memory=case.memory,
        )
        if not made.too_soon:
            break
    made.killed = made.ended.signal if made.ended.from_outside else ""
    if made.passes and not (made.answered and made.ended.well):
        last = f": {made.ended.last_line}" if made.ended.last_line else ""
        made.failure = Failure(
            kind=Kind.ENDED, detail=f"the process of the case {made.ended.how}{last}"
        )
    return _blocked_by_another(case, made)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Disables garbage collection in the block. Otherwise reference cycles left by an earlier case could be freed while
    this case reads the allocator's counters."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def as_it_was(context: CaseContext) -> Iterator[None]:
    """Restores the current device and the current streams after the block, whatever the check did to them.

    State that the device cannot report is not restored; other clauses check that the device reports its state.
    """
    with contextlib.ExitStack() as restored:
        if context.accelerated:
            with contextlib.suppress(Exception):
                index = torch.accelerator.current_device_index()
                restored.callback(torch.accelerator.set_device_index, index)
            with contextlib.suppress(Exception):
                for each in context.indices:
                    stream = torch.accelerator.current_stream(context.at(each))
                    restored.callback(torch.accelerator.set_stream, stream)
        yield


# -- in a repro script


def conclude(made: Attempt) -> int:
    """Prints the result of a check. Returns 0 if the check passes, 1 if it fails, 2 if nothing could be judged."""
    if made.failure is not None or made.refused is not None:
        print(f"FAIL: {made.refused if made.failure is None else made.failure.message}")
        return 1
    if made.undeclared or made.not_shown:
        print(made.undeclared or made.not_shown)
        return 2
    print(f"PASS: {made.checks} check{'' if made.checks == 1 else 's'}")
    return 0


def on_a_fresh_device(case: BehaviourCase, where: DeviceLocator) -> Attempt:
    """Opens the device, and runs the check of a case as a run of the suite does."""
    descriptor, unusable = where.described(), ""
    try:
        device = open_device(descriptor)
    except DeviceUnusable as error:
        unusable = f"the device cannot be opened: {error}"
        try:
            device = open_device(descriptor, unused=True)
        except DeviceUnusable:  # nothing can be judged
            return Attempt(0, not_shown=unusable)
    made = in_this_process(case, device, where)
    judged = made.failure is not None and made.failure.kind is not Kind.RAISED
    # A device that computes wrong results can be judged; one on which everything raises cannot.
    return Attempt(made.checks, not_shown=unusable) if unusable and not judged else made
