"""Making the check of a case, once or, where its work was over too soon, again with more of it."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from conformance.behaviour import process
from conformance.behaviour.context import Context
from conformance.behaviour.judging import CheckFailed, NotInFlight, NotShown
from devices.errors import ConformError
from opinfo.device import Device

if TYPE_CHECKING:
    from conformance.behaviour.drawing import Search

#: Milliseconds that work in flight takes, attempt by attempt. A device with a gate needs the first alone.
PATIENCE = (50.0, 250.0, 1000.0, 4000.0)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of a check. At most one of the texts is set; with none, ``checks`` comparisons held."""

    checks: int
    failed: str = ""
    raised: str = ""  # type of the exception that failed it, where that was no check of ours
    not_shown: str = ""
    refused: NotImplementedError | None = None
    replay: tuple[Callable[..., None], tuple[Any, ...]] | None = None
    notes: tuple[str, ...] = ()


def here(
    check: Callable[..., None],
    arguments: tuple[Any, ...],
    device: Device,
    seed: str,
    where: process.Where,
    search: Search | None = None,
) -> Attempt:
    """Make a check in this process; as part of a random ``search``, where one is given."""
    attempt = Attempt(0, not_shown="it was not tried")
    for patience in PATIENCE:
        context = Context(device, seed, patience, where=where, search=search)
        try:
            with as_it_was(context):
                _seed(seed)
                check(context, *arguments)
                context.settle()  # a failure of queued work belongs to the case that queued it
            return Attempt(context.checks, notes=tuple(context.notes))
        except NotInFlight as error:
            attempt = Attempt(context.checks, not_shown=str(error))
            _drop(error)
        except BaseException as error:
            return _judged(error, context)
    return attempt


def aside(
    check: Callable[..., None],
    arguments: tuple[Any, ...],
    seed: str,
    where: process.Where,
    environment: dict[str, str],
    seconds: float,
) -> Attempt:
    """Make a check in a process of its own."""
    attempt = Attempt(0, not_shown="it was not tried")
    for patience in PATIENCE:
        ended = process.run(check, arguments, where, seed, environment, seconds, patience)
        attempt = _told(ended)
        if not ended.not_in_flight:
            break
    return attempt


@contextlib.contextmanager
def as_it_was(context: Context) -> Iterator[None]:
    """Leave the current device and streams as they were, whatever a check or a fault does to them."""
    if not context.accelerated:
        yield
        return
    index = torch.accelerator.current_device_index()
    streams = [torch.accelerator.current_stream(context.at(each)) for each in context.indices]
    try:
        yield
    finally:
        for stream in streams:
            torch.accelerator.set_stream(stream)
        torch.accelerator.set_device_index(index)


def _seed(seed: str) -> None:
    torch.manual_seed(sum(map(ord, seed)))


def _judged(error: BaseException, context: Context) -> Attempt:
    checks, replay = context.checks, context.replay
    line = (str(error).strip().splitlines() or [""])[0][:400]
    _drop(error)
    if isinstance(error, CheckFailed):
        return Attempt(checks, failed=str(error) or "a check failed", replay=replay)
    if isinstance(error, (NotShown, ConformError)):
        return Attempt(checks, not_shown=str(error), replay=replay)
    if isinstance(error, NotImplementedError):
        return Attempt(checks, refused=error)
    if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        raise error
    name = type(error).__name__
    return Attempt(checks, failed=f"raised {name}: {line}", raised=name, replay=replay)


def _told(ended: process.Ended) -> Attempt:
    if ended.failed:
        return Attempt(ended.checks, failed=ended.failed)
    if ended.not_shown:
        return Attempt(ended.checks, not_shown=ended.not_shown)
    if ended.raised:
        if ended.raised_type == "NotImplementedError":
            text = ended.raised.partition(": ")[2]
            return Attempt(ended.checks, refused=NotImplementedError(text))
        return Attempt(ended.checks, failed=f"raised {ended.raised}", raised=ended.raised_type)
    if not ended.answered or ended.returncode != 0:
        said = [line for line in ended.printed.splitlines() if line.strip()]
        last = f": {said[-1][:300]}" if said else ""
        return Attempt(ended.checks, failed=f"its process {ended.how}{last}")
    return Attempt(ended.checks, notes=tuple(ended.notes))


def _drop(error: BaseException) -> None:
    """Free what the frames of an error hold: tensors, which later cases count."""
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
