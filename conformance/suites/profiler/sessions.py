"""Cases about the sessions of a profiler: schedules, several sessions in a row, and work that is queued when a session
starts or stops."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule, tensorboard_trace_handler

from conformance.checks.behaviour.queued_work import two
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import WaitingCall
from conformance.suites.profiler.executions import ASYNCHRONOUS, busy, warmed
from conformance.suites.profiler.host_events import names, ones
from conformance.suites.profiler.recording import STOP, Recording, events_of, labelled, loaded
from devices.failure import Kind

cases = Cases(Kind.STATE)

#: Milliseconds of work that is queued when a session stops.
QUEUED = 200.0
#: Seconds after which a call that stops a session counts as hanging.
NEVER = 30.0
#: Seconds for which the device does nothing before a session.
IDLE = 0.3


# -- schedules


def recorded_steps(wait: int, warmup: int, active: int, repeat: int, skip: int, steps: int) -> list[list[int]]:  # fmt: skip
    """Returns, for each cycle of a schedule, the numbers of the steps that the cycle records according to the
    documentation of torch.profiler.schedule. ``steps`` is the number of steps of the program; the last cycle is
    shorter if the program ends before it."""
    cycles: list[list[int]] = []
    length, first = wait + warmup + active, skip
    while first < steps and (repeat == 0 or len(cycles) < repeat):
        begin = first + wait + warmup
        cycles.append([step for step in range(begin, begin + active) if step < steps])
        first += length
    return [cycle for cycle in cycles if cycle]


_SCHEDULES = {
    "wait_warmup_active": (1, 1, 2, 2, 0),
    "warmup_after_skipping": (0, 1, 1, 1, 3),
    "every_other_step": (0, 1, 1, 0, 0),
    "cut_short": (1, 1, 20, 0, 0),
}


@cases("profiler.activity", over={f"schedule_{n}": row for n, row in _SCHEDULES.items()})
def schedules(
    context: CaseContext, wait: int, warmup: int, active: int, repeat: int, skip: int
) -> None:
    """A profile with a schedule lists, for each cycle, the ops and kernels of the steps that the schedule selects, and
    of no other steps."""
    steps, cycles = 9, list[Recording]()
    x = ones(context, 64)
    warmed(context, x.add_, 1)
    about = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip}

    def ready(_: Any) -> None:  # judges nothing: torch does not survive an exception here
        cycles.append(seen.as_it_is())

    seen = Recording(context, schedule=schedule(**about), on_trace_ready=ready)
    with seen:
        for step in range(steps):
            labelled(f"step {step}", x.add_, 1)
            context.settle()
            if step < steps - 1:
                seen.step()
    found = [[s for s in range(steps) if cycle.all_named(f"step {s}")] for cycle in cycles]
    expected = recorded_steps(wait, warmup, active, repeat, skip, steps)
    text = "the steps that the cycles of a profile list are not those that the schedule selects"
    context.same(found, expected, text, Kind.COUNT)
    for cycle, recorded in zip(cycles, found, strict=True):
        _judge_cycle(context, cycle, recorded)


def _judge_cycle(context: CaseContext, cycle: Recording, recorded: list[int]) -> None:
    """Checks that a cycle lists the ops and kernels of the recorded steps, and no others."""
    ops = [cycle.ops_inside(cycle.named(f"step {step}")) for step in recorded]
    text = "the ops listed for a recorded step differ from those that were called"
    context.same([names(each) for each in ops], [["aten::add_"]] * len(recorded), text)
    text = "a profile lists ops of steps that the schedule does not record"
    context.same(len(cycle.all_named("aten::add_")), len(recorded), text, Kind.COUNT)
    if context.has("streams"):
        kernels = sum(len(cycle.launched(op)) for called in ops for op in called)
        text = "a profile lists kernels of steps that the schedule does not record"
        context.same(len(cycle.executions), kernels, text, Kind.COUNT)


@cases("profiler.activity")
def handler_writes_each_cycle(context: CaseContext) -> None:
    """tensorboard_trace_handler writes one trace for each cycle of a schedule. Each trace is valid and has the steps of
    its cycle."""
    x = ones(context, 4)
    with TemporaryDirectory() as folder:
        handler = tensorboard_trace_handler(folder)
        options = {"schedule": schedule(wait=0, warmup=1, active=1, repeat=2), "on_trace_ready": handler}  # fmt: skip
        with Recording(context, **options) as seen:
            for _ in range(5):
                x.add(1)
                context.settle()
                seen.step()
        texts = [path.read_text(encoding="utf-8") for path in Path(folder).glob("*.pt.trace.json")]
    context.same(
        len(texts),
        2,
        ("tensorboard_trace_handler did not write exactly one trace for each cycle"),
        Kind.COUNT,
    )
    steps = []
    for text in texts:
        listed = {str(e.get("name")) for e in events_of(context, loaded(context, text))}
        steps.append(sorted(name for name in listed if name.startswith("ProfilerStep#")))
    text = "the traces do not contain the active steps of their cycles of the schedule"
    context.same(sorted(steps), [["ProfilerStep#1"], ["ProfilerStep#3"]], text)


# -- one session after another


@cases("profiler.activity")
def nothing_of_the_others(context: CaseContext) -> None:
    """Three profiles are made in one process, with work before, between and after them. Each profile must list its
    own ops and no others."""
    x, recordings = ones(context, 4), list[Recording]()
    for place in range(3):
        labelled(f"before {place}", x.neg)
        with Recording(context) as seen:
            labelled(f"inside {place}", x.add, 1)
            context.settle()
        labelled(f"after {place}", x.neg)
        recordings.append(seen)
    for place, seen in enumerate(recordings):
        called = [event.name for event in seen.host if event.name in ("aten::add", "aten::neg")]
        context.same(
            called, ["aten::add"], ("a profile does not list exactly the ops that ran inside of it")
        )
        seen.named(f"inside {place}")


@cases("profiler.activity")
def started_and_stopped(context: CaseContext) -> None:
    """A profile lists what runs between ``start()`` and ``stop()``. If the profile is started again, it lists only its
    last session."""
    x, seen = ones(context, 4), Recording(context)
    for place in range(2):
        x.neg()
        seen.start()
        labelled(f"session {place}", x.add, 1)
        context.settle()
        seen.stop()
        x.neg()
        listed = [e.name for e in seen.host if e.name in ("aten::add", "aten::neg")]
        text = "a profile does not list exactly the ops between start() and stop()"
        context.same(listed, ["aten::add"], text)
        seen.named(f"session {place}")


@cases("profiler.activity")
def empty(context: CaseContext) -> None:
    """A profile in which nothing runs lists no ops or kernels, has empty averages, and exports a valid trace."""
    with Recording(context) as seen:
        pass
    listed = [event.name for event in seen.host if event.name.startswith("aten::")]
    context.same(listed, [], "a profile in which nothing ran lists ops")
    context.same(seen.executions, [], "a profile in which nothing ran lists kernels", Kind.COUNT)
    ops = [each.key for each in seen.profile.key_averages() if each.key.startswith("aten::")]
    context.same(ops, [], "key_averages() of a profile in which nothing ran has ops")
    slices = [e for e in seen.trace if e.get("cat") in ("cpu_op", "kernel", "gpu_memcpy")]
    context.same(slices, [], "the trace of a profile in which nothing ran has ops or kernels")


@cases("profiler.activity", **ASYNCHRONOUS)
def first_kernel_of_each_session(context: CaseContext) -> None:
    """Each of three sessions lists all of its kernels, including the first. Before the second session, the device is
    idle for 0.3 s."""
    x = ones(context, 64)
    warmed(context, x.add_, 1)
    for place in range(3):
        time.sleep(IDLE * (place == 1))
        with Recording(context) as seen:
            with record_function("session"):
                for _ in range(4):
                    x.add_(1)
            context.settle()
        calls = seen.ops_inside(seen.named("session"))
        context.same(len(calls), 4, "a session does not list all its ops", Kind.COUNT)
        for number, call in enumerate(calls):
            seen.launched(call, at=f"session {place}, call {number}")


# -- work that is queued at the start and at the end


@cases("profiler.activity", own_process=True, **ASYNCHRONOUS)
def first_use_after_work(context: CaseContext) -> None:
    """A process uses the device before it makes its first profile. The profile lists all its kernels."""
    x = ones(context, 64)
    warmed(context, x.add_, 1)
    with Recording(context) as seen:
        with record_function("first"):
            x.add_(1)
            x.mul_(2)
        context.settle()
    calls = seen.ops_inside(seen.named("first"))
    context.same(
        names(calls),
        ["aten::add_", "aten::mul_"],
        ("the first profile of a process does not list exactly the ops that were called"),
    )
    for call in calls:
        seen.launched(call)


@cases("profiler.activity", **ASYNCHRONOUS)
def work_before_the_start(context: CaseContext) -> None:
    """A profile starts while earlier work is still queued. The profile must list as many kernels for each op as a
    profile without earlier work."""
    (stream, _), x = two(context), ones(context, 64)
    warmed(context, x.add_, 1)
    with Recording(context) as alone:
        with stream, record_function("session"):
            x.add_(1)
            x.neg_()
        context.settle()
    with context.hold(stream) as hold:
        with stream:
            x.mul_(2)
        with Recording(context) as seen:
            with stream, record_function("session"):
                x.add_(1)
                x.neg_()
            hold.must_be_in_flight()
            hold.release()
            context.settle()
    calls = seen.ops_inside(seen.named("session"))
    context.same(
        names(calls),
        ["aten::add_", "aten::neg_"],
        (
            "a profile that starts while work is queued does not list "
            "exactly the ops that were called"
        ),
    )
    counts = [len(seen.launched(call)) for call in calls]
    usual = [len(alone.launched(call)) for call in alone.ops_inside(alone.named("session"))]
    text = "the number of kernels of an op changes if work is queued when the profile starts"
    context.same(counts, usual, text, Kind.COUNT)


def _stops(context: CaseContext, index: int) -> None:
    """Queues work on device index ``index`` and stops the session while this work is still queued and index 0 is
    current. Checks that the session lists the work and that stopping does not take too long."""
    x = ones(context, 64, index=index)
    warmed(context, x.add_, 1)
    with context.on(index):
        busy(context, 0.1)
    context.settle()
    torch.accelerator.set_device_index(0)
    with Recording(context):
        warmed(context, x.add_, 1)
    seen = Recording(context)
    seen.start()
    with context.on(index):
        busy(context, QUEUED)
        with record_function("queued"):
            for _ in range(3):
                x.add_(1)
    seen.stop()
    calls = seen.ops_inside(seen.named("queued"))
    context.same(len(calls), 3, "a session does not list all its ops", Kind.COUNT)
    for number, call in enumerate(calls):
        seen.launched(call, at=f"call {number} on index {index}")
    long = {each.index for each in seen.executions if each.took > QUEUED / 2 * 1e6}
    text = "a kernel or copy is listed on another index than the one it ran on"
    context.check(long <= {index}, text, expected=index, found=long, kind=Kind.DEVICE)
    limit = QUEUED / 1000 + STOP
    text = "stopping a session took longer than the queued work"
    found = f"{seen.stopping:.1f} s"
    context.check(seen.stopping <= limit, text, expected=f"at most {limit:g} s", found=found)


@cases("profiler.activity", own_process=True, over={"stop_while_work_is_queued": (0,)}, **ASYNCHRONOUS)  # fmt: skip
@cases(
    "profiler.activity",
    own_process=True,
    requires={"streams", "multi_device"},
    indices=2,
    over={"stop_while_another_index_works": (1,)},
)
def stops(context: CaseContext, index: int) -> None:
    """A session stops while 200 ms of work are queued on the current index or on another index. The session lists the
    kernels of this work, and stopping takes no longer than the work."""
    with WaitingCall(lambda: _stops(context, index), limit=NEVER):
        pass


@cases("profiler.activity", requires={"streams"})
def device_activity_is_supported(context: CaseContext) -> None:
    """``supported_activities()`` includes the host's and the device's activity, and a profile that is made without
    ``activities`` records both."""
    x = ones(context, 64)
    supported = torch.profiler.supported_activities()
    text = "supported_activities() does not include the host's activity"
    context.check(ProfilerActivity.CPU in supported, text, found=supported)
    with Recording(context, activities=None) as seen:
        labelled("call", x.add, 1)
        context.settle()
    seen.launched(seen.named("call"))
