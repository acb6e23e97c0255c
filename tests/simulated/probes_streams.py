"""Direct probes of faults of order: streams, events, queued copies, failures of queued work.

A probe never waits for what a fault keeps from happening: where it must give work time, the limit only decides how
long a faulty device is watched.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import torch

from devices.simulated.backend import library
from tests.simulated.probes import ones, probe, raises

WATCHED = 1.0  # seconds


def until(condition: Callable[[], bool], seconds: float = WATCHED) -> bool:
    """Whether it becomes true in that time."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.001)
    return True


def new_stream(index: int = 0) -> torch.Stream:
    return torch.Stream(f"simulated:{index}")


@contextlib.contextmanager
def held(stream: torch.Stream) -> Iterator[None]:
    """The stream's work waits, until the end of the block."""
    gate = torch.simulated.Gate()
    with stream:
        gate.close()
    assert until(gate.reached, 60)
    try:
        yield
    finally:
        gate.open()


def in_a_thread(function: Callable[[], bool]) -> bool:
    """The answer of a function that may spoil the state of its thread."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(function()))
    thread.start()
    thread.join()
    return answers[0]


def counter() -> torch.Tensor:
    made = torch.zeros(1, device="simulated:0")
    torch.simulated.synchronize()
    return made


# The current stream, identity


@probe("streams.exit_not_restored")
def _() -> bool:
    def changed() -> bool:
        before = torch.accelerator.current_stream("simulated:0")
        with new_stream():
            pass
        return torch.accelerator.current_stream("simulated:0") != before

    return in_a_thread(changed)


@probe("streams.current_shared_by_threads")
def _() -> bool:
    stream = new_stream()

    def choose() -> bool:
        torch.accelerator.set_stream(stream)
        return True

    in_a_thread(choose)
    return bool(torch.accelerator.current_stream("simulated:0") == stream)


@probe("streams.new_stream_repeats")
def _() -> bool:
    return new_stream().stream_id == new_stream().stream_id


@probe("streams.native_handle_null")
def _() -> bool:
    return not new_stream().native_handle


@probe("streams.native_handle_changes")
def _() -> bool:
    stream = new_stream()
    return bool(stream.native_handle != stream.native_handle)


@probe("streams.external_own_queue")
def _() -> bool:
    handle, owner = library.new_external_stream(0)
    return torch.simulated.ExternalStream(handle, 0).stream_id != owner


# Order


@probe("streams.reorder_tasks")
def _() -> bool:
    x, stream = counter(), new_stream()
    with stream:
        with held(stream):
            for _ in range(3):
                x.add_(1).mul_(10)
        result = float(x)
        stream.synchronize()  # reading x may have gone before work on it
        return result != 1110


@probe("streams.serialise_streams")
def _() -> bool:
    with held(new_stream()):
        return not new_stream().record_event().query()


@probe("streams.pool_has_default")
def _() -> bool:
    return torch.accelerator.current_stream() in [new_stream() for _ in range(16)]


@probe("events.elapsed_across_indices")
def _() -> bool:
    events = [torch.Event(f"simulated:{index}", enable_timing=True) for index in range(2)]
    for index, event in enumerate(events):
        event.record(new_stream(index))
        event.synchronize()
    return not raises(lambda: events[0].elapsed_time(events[1]))


@probe("events.wait_for_itself_stalls")
def _() -> bool:
    stream = new_stream()
    event = stream.record_event()
    event.wait(stream)
    stalls = not until(stream.record_event().query)
    stream.synchronize()
    return stalls


@probe("streams.launch_blocks_host")
def _() -> bool:
    x, stream, gate, launched = counter(), new_stream(), torch.simulated.Gate(), threading.Event()

    def open_late() -> None:
        launched.wait(WATCHED)
        gate.open()

    with stream:
        x.add_(1)
        stream.synchronize()
        gate.close()
        behind = stream.record_event()
        thread = threading.Thread(target=open_late)
        thread.start()
        x.add_(1)
        blocked = behind.query()
    launched.set()
    thread.join()
    stream.synchronize()
    return blocked


@probe("streams.ignore_wait")
def _() -> bool:
    first, second = new_stream(), new_stream()
    with held(first):
        second.wait_event(first.record_event())
        return second.query()


@probe("streams.default_record_is_done")
def _() -> bool:
    default = torch.accelerator.current_stream("simulated:0")
    with held(default):
        return bool(default.record_event().query())


@probe("streams.wait_takes_latest_record")
def _() -> bool:
    first, second, event = new_stream(), new_stream(), torch.Event("simulated:0")
    before, after = (torch.Event("simulated:0", enable_timing=True) for _ in range(2))
    event.record(first)
    event.synchronize()
    with held(first):
        with held(second):
            before.record(second)
            second.wait_event(event)  # of what is done
            after.record(second)
            event.record(first)
        second.synchronize()
    return before.elapsed_time(after) > 90  # milliseconds: the fault lets go after 100


@probe("streams.query_always_true")
def _() -> bool:
    stream = new_stream()
    with held(stream):
        return stream.query()


def _returns_early(synchronize: Callable[[], None], stream: torch.Stream) -> bool:
    """Whether it returns while the stream is held."""
    gate, returned = torch.simulated.Gate(), threading.Event()
    opened: list[bool] = []

    def open_late() -> None:
        returned.wait(0.2)
        opened.append(True)
        gate.open()

    with stream:
        gate.close()
    thread = threading.Thread(target=open_late)
    thread.start()
    synchronize()
    early = not opened
    returned.set()
    thread.join()
    return early


@probe("streams.synchronize_returns_early")
def _() -> bool:
    stream = new_stream()
    return _returns_early(stream.synchronize, stream)


@probe("streams.synchronize_skips_default")
def _() -> bool:
    default = torch.accelerator.current_stream("simulated:0")
    return _returns_early(lambda: torch.simulated.synchronize(0), default)


@probe("streams.synchronize_skips_priority")
def _() -> bool:
    urgent = torch.Stream("simulated:0", priority=-1)
    return _returns_early(lambda: torch.simulated.synchronize(0), urgent)


@probe("streams.synchronize_wrong_index")
def _() -> bool:
    return _returns_early(lambda: torch.simulated.synchronize(0), new_stream(0))


@probe("streams.copy_ignores_peer_stream")
def _() -> bool:
    here, there = ones(2).to("simulated:0"), torch.zeros(2, device="simulated:1")
    torch.simulated.synchronize(0)
    torch.simulated.synchronize(1)
    peer = new_stream(1)
    with peer:
        with held(peer):
            there.add_(5)
            with torch.simulated.device(0):
                there.copy_(here)
            until(torch.accelerator.current_stream("simulated:0").query, 0.2)
        return there.tolist() != [1.0, 1.0]


@probe("streams.converted_copy_ignores_source")
def _() -> bool:
    source = torch.full((8,), 2.0, dtype=torch.complex64, device="simulated:0").mul_(1)
    target = torch.zeros(8, device="simulated:1")
    torch.simulated.synchronize(0)
    torch.simulated.synchronize(1)
    with warnings.catch_warnings(), new_stream():
        warnings.simplefilter("ignore")  # the imaginary part is dropped
        torch.simulated.busy(50)
        target.copy_(source.mul_(3))
    torch.simulated.synchronize(0)
    return target.tolist() != [6.0] * 8


# Events


@probe("events.record_late")
def _() -> bool:
    stream, event = new_stream(), torch.Event("simulated:0")
    gate = torch.simulated.Gate()
    with held(stream):
        event.record(stream)
        with stream:
            gate.close()
    late = not until(event.query)
    gate.open()
    stream.synchronize()
    return late


@probe("events.rerecord_ignored")
def _() -> bool:
    stream, event = new_stream(), torch.Event("simulated:0")
    event.record(stream)
    event.synchronize()
    with held(stream):
        event.record(stream)
        return event.query()


@probe("events.elapsed_constant")
def _() -> bool:
    stream = new_stream()
    events = [torch.Event("simulated:0", enable_timing=True) for _ in range(3)]
    with stream:
        for event in events:
            event.record(stream)
            torch.simulated.busy(2)
    stream.synchronize()
    first, second, third = events
    return first.elapsed_time(second) == first.elapsed_time(third)


@probe("events.elapsed_in_ticks_elsewhere")
def _() -> bool:
    stream = new_stream(1)
    first, second = (torch.Event("simulated:1", enable_timing=True) for _ in range(2))
    with stream:
        first.record(stream)
        torch.simulated.busy(20)
        second.record(stream)
    stream.synchronize()
    return first.elapsed_time(second) > 10_000  # milliseconds


@probe("events.elapsed_has_offset")
def _() -> bool:
    event = torch.Event("simulated:0", enable_timing=True)
    event.record(new_stream())
    event.synchronize()
    return event.elapsed_time(event) != 0


@probe("events.elapsed_in_seconds")
def _() -> bool:
    stream = new_stream()
    first, second = (torch.Event("simulated:0", enable_timing=True) for _ in range(2))
    with stream:
        first.record(stream)
        torch.simulated.busy(20)
        second.record(stream)
    stream.synchronize()
    return first.elapsed_time(second) < 10


@probe("streams.record_on_any_index")
def _() -> bool:
    event = torch.Event("simulated:0")
    event.record(new_stream(0))
    return not raises(lambda: event.record(new_stream(1)))


@probe("events.unrecorded_not_ready")
def _() -> bool:
    return not torch.simulated.Event().query()


@probe("events.elapsed_untimed_accepted")
def _() -> bool:
    events = [torch.simulated.Event() for _ in range(2)]
    for event in events:
        event.record()
        event.synchronize()
    return not raises(lambda: events[0].elapsed_time(events[1]))


@probe("events.index_set_before_record")
def _() -> bool:
    return torch.simulated.Event().device.index is not None


@probe("events.ipc_early_handle_dead")
def _() -> bool:
    event, first, second = torch.simulated.Event(interprocess=True), new_stream(), new_stream()
    early = torch.simulated.Event.from_ipc_handle("simulated:0", event.ipc_handle())
    event.record(first)
    event.synchronize()
    late = torch.simulated.Event.from_ipc_handle("simulated:0", event.ipc_handle())
    with held(first):
        event.record(first)
        late.wait(second)
        waits = not second.query()
    second.synchronize()
    with held(first):
        event.record(first)
        early.wait(second)
        return waits and second.query()


@probe("events.ipc_synchronize_returns_early")
def _() -> bool:
    event, stream = torch.simulated.Event(interprocess=True), new_stream()
    returned = threading.Event()

    def wait() -> None:
        event.synchronize()
        returned.set()

    with held(stream):
        event.record(stream)
        thread = threading.Thread(target=wait)
        thread.start()
        early = returned.wait(0.2)
    thread.join()
    return early


@probe("events.made_anew_by_each_record")
def _() -> bool:
    event, stream = torch.Event("simulated:0"), new_stream()
    event.record(stream)
    other, before = torch.Event("simulated:0"), event.event_id
    other.record(stream)
    event.record(stream)
    event.synchronize()
    return event.event_id != before


@probe("events.ipc_recorded_on_index_0")
def _() -> bool:
    event, stream = torch.simulated.Event(interprocess=True), new_stream(1)
    with held(stream):
        event.record(stream)
        return until(event.query)


@probe("streams.priority_lost_elsewhere")
def _() -> bool:
    return torch.simulated.Stream("simulated:1", priority=-1).priority != -1


@probe("streams.external_of_index_0")
def _() -> bool:
    owner = new_stream(1)
    return raises(lambda: torch.simulated.ExternalStream(owner.native_handle, 1))


@probe("streams.gradient_not_recorded")
def _() -> bool:
    reads, makes, caller = new_stream(), new_stream(), new_stream()
    x = torch.ones(64, device="simulated:0", requires_grad=True)
    with reads:
        y = x * 3
    makes.wait_stream(reads)
    with makes:
        z = y * 2
    given = ones(64)
    torch.simulated.synchronize()
    with warnings.catch_warnings(), held(reads):
        warnings.simplefilter("ignore")
        with caller:
            z.backward(given)
        with makes:
            others = [torch.full((64,), 777.0, device="simulated:0") for _ in range(6)]
        makes.synchronize()
    torch.simulated.synchronize()
    assert x.grad is not None and others
    return x.grad.tolist() != [6.0] * 64


@probe("device.error_lost_by_other_index")
def _() -> bool:
    with torch.accelerator.device_index(1):
        library.fail("made up")
    assert until(torch.accelerator.current_stream("simulated:1").query, 60)  # the work has failed
    torch.simulated.synchronize(0)
    return not raises(lambda: torch.simulated.synchronize(1))


@probe("events.ipc_handle_dead")
def _() -> bool:
    event, first, second = torch.simulated.Event(interprocess=True), new_stream(), new_stream()
    opened = torch.simulated.Event.from_ipc_handle("simulated:0", event.ipc_handle())
    with held(first):
        event.record(first)
        opened.wait(second)
        return second.query()


# Copies with the host, failures


@probe("transfer.non_blocking_off_stream")
def _() -> bool:
    stream, source = new_stream(), ones(2)
    target = torch.zeros(2).pin_memory()
    torch.simulated.synchronize()
    with stream, held(stream):
        target.copy_(source, non_blocking=True)
        return until(lambda: bool(target.any()), 0.2)


@probe("device.error_swallowed")
def _() -> bool:
    library.fail("planned")
    return not raises(torch.simulated.synchronize)
