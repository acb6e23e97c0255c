"""Cases about processes: forking, first use of the device, loading of the backend, exit of the process, and
errors of asynchronous work."""

from __future__ import annotations

import os
import select
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from conformance.checks.behaviour.fresh_process import fresh, source
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotShown
from conformance.checks.child import Ended
from conformance.checks.clock import Clock
from devices.failure import Kind

cases = Cases(Kind.STATE)


FORK_SECONDS = 8.0


def counted(context: CaseContext) -> int:
    """Returns the number of devices that torch reports; the number that the descriptor declares if torch reports
    none."""
    if context.accelerated:
        return torch.accelerator.device_count()
    count = getattr(getattr(torch, context.kind, None), "device_count", None)
    return int(count()) if count is not None else context.descriptor.device_count()


def computes(device: torch.device) -> list[float]:
    """Computes 2 * x + 1 for x = 1, 2, 3 on a device, and returns the three results as a list."""
    return list((torch.tensor([1.0, 2.0, 3.0], device=device) * 2 + 1).tolist())


def forked(function: Callable[[], str]) -> str:
    """Runs a function, and nothing else, in a fork of the current process. Returns ``returned TEXT`` or ``raised TYPE:
    TEXT``. If the function did not finish, returns a description of how the child process ended."""
    if not hasattr(os, "fork"):
        raise NotShown("this system does not support os.fork")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12, because the process has threads
        child = os.fork()
    if child == 0:
        try:
            try:
                text = f"returned {function()}"
            except BaseException as error:
                text = f"raised {type(error).__name__}: {error}"
            os.write(writer, text.encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    ready = Clock(child).wait(
        lambda seconds: select.select([reader], [], [], seconds)[0], FORK_SECONDS
    )
    said = os.read(reader, 4000).decode(errors="replace") if ready else ""
    os.close(reader)
    if not ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        return said
    return f"hung for {FORK_SECONDS:g} s" if not ready else Ended(status).how


@cases("device.fork", seconds=60.0)
def after_use(context: CaseContext) -> None:
    """A process that has used the device is forked. Using the device in the child process raises an error whose
    message mentions fork or spawn, and the parent process can still use the device."""
    context.must(
        computes(context.device) == [3.0, 5.0, 7.0], "the parent process could not use the device"
    )
    said = forked(lambda: str(computes(context.device)))
    named = said.startswith("raised ") and ("fork" in said.lower() or "spawn" in said.lower())
    expected = "an error whose message mentions fork or spawn"
    context.check(
        named,
        "using the device in a forked process did not raise an error that mentions the fork",
        expected=expected,
        found=said,
    )
    context.same(
        computes(context.device),
        [3.0, 5.0, 7.0],
        "the parent process gave a wrong result after the fork",
    )


@cases("device.fork", seconds=60.0)
def what_the_parent_made(context: CaseContext) -> None:
    """A process forks that has a tensor, and a stream and an event if the device has them. In the child process, each use of
    them raises an error, and none hangs: an op on the tensor, a copy of it to the host, Stream.synchronize and Event.record."""
    x = torch.ones(1000, device=context.device)
    uses: dict[str, Callable[[], Any]] = {"add_": lambda: x.add_(1), "cpu": x.cpu}
    if context.has("streams"):
        stream = context.stream()
        with stream:
            x.add_(1)
        uses["Stream.synchronize"] = stream.synchronize
    if context.has("streams") and context.has("events"):
        event = context.event()
        event.record(stream)
        uses["Event.record"] = lambda: event.record(stream)
    for use in uses.values():
        use()  # whatever the first use prepares
    context.settle()
    want = context.from_device(x)

    def without_error() -> str:
        found = []
        for name, use in uses.items():
            try:
                use()
            except Exception:  # each use must raise; those that do not are returned
                continue
            found.append(name)
        return ", ".join(found)

    said = forked(without_error)
    text = (
        "uses of what the parent process made raised no error in a forked process, or did not end"
    )
    context.same(said, "returned ", text)
    context.equal(x, want, "a forked process changed a tensor of its parent")


def _computes(context: CaseContext) -> None:
    context.same(
        computes(context.device),
        [3.0, 5.0, 7.0],
        "the device gave a wrong result in a spawned process",
    )


@cases("device.fork", slow=True)
def spawned(context: CaseContext) -> None:
    """A spawned process and its parent process can both use the device."""
    context.must(
        computes(context.device) == [3.0, 5.0, 7.0], "the parent process could not use the device"
    )
    context.ended_well(
        context.child(_computes, spawned=True), "the spawned process did not exit with status 0"
    )


_LAZY = """
import os, signal, sys
{preparation}
module = getattr(torch, {kind!r}, None)
asked = getattr(module, "is_initialized", None)
told = {{"initialized": asked() if asked is not None else None}}


def forked():
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 3
        try:
            {beginning}
            x = torch.tensor([1.0, 2.0, 3.0], device={kind!r})
            code = 0 if (x * 2 + 1).tolist() == [3.0, 5.0, 7.0] else 4
        except BaseException as error:
            print(type(error).__name__, str(error)[:300], file=sys.stderr)
            code = 5 if "fork" in str(error).lower() or "spawn" in str(error).lower() else code
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# Exit statuses: 0 if the fork computes, 5 if an error names the fork.
told["child"] = forked()
for of in (module, getattr(torch, "accelerator", None)):
    for name in ("is_available", "device_count"):
        getattr(of, name, bool)()
told["counted"] = forked()
"""


@cases("device.lazy_init", slow=True)
def imported(context: CaseContext) -> None:
    """Importing the device's module does not initialize the device: a process that is forked after the import can
    use the device. If is_available and device_count were called before the fork, the forked process can either use
    the device or raises an error that mentions fork or spawn."""
    told = fresh(source(context, _LAZY))
    if context.accelerated:  # torch.cpu always reports True
        text = f"torch.{context.kind}.is_initialized() is True after the import"
        context.check(told["initialized"] is not True, text)
    context.same(
        told["child"],
        0,
        "a process that was forked after the import could not use the device: its exit status is not 0",
    )
    # Counting devices may initialize the device, as with CUDA if NVML finds nothing. Then the fork must get
    # an error that says so.
    text = "a process forked after device_count could not use the device, and raised no error that mentions the fork"
    context.check(told["counted"] in (0, 5), text, found=f"exit status {told['counted']}")
    if told["counted"] == 5:
        context.note("a process forked after device_count cannot use the device")


_AUTOLOAD = """
import os, sys
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
told = {{"skipped": "conform_probe" not in sys.modules}}


def load(name):
    import importlib.metadata as metadata

    every = metadata.entry_points
    metadata.entry_points = lambda **query: [e for e in every(**query) if e.name == name]
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
    try:
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()
        return "nothing was raised"
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
    finally:
        metadata.entry_points = every


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ImportError("blocked by the suite")


told["reported"] = load("conform_probe")
sys.meta_path.insert(0, Blocked())
told["own"] = load("conform_own") if {own!r} else None
"""


@cases("device.autoload", slow=True)
def failing_backend(context: CaseContext) -> None:
    """If the autoload entry point of a backend fails, loading the backend raises RuntimeError with the name of
    the entry point in the message. The same holds for the device's own entry point.
    TORCH_DEVICE_BACKEND_AUTOLOAD=0 skips autoloading."""
    own = context.descriptor.autoload
    with tempfile.TemporaryDirectory() as folder:
        about = Path(folder, "conform_probe-1.0.dist-info")
        about.mkdir()
        points = "[torch.backends]\nconform_probe = conform_probe:start\n"
        points += f"conform_own = {own}\n" if own else ""
        Path(about, "entry_points.txt").write_text(points)
        metadata = "Metadata-Version: 2.1\nName: conform-probe\nVersion: 1.0\n"
        Path(about, "METADATA").write_text(metadata)
        fails = "def start():\n    raise OSError('the driver of conform_probe is absent')\n"
        Path(folder, "conform_probe.py").write_text(fails)
        code = _AUTOLOAD.format(module=context.descriptor.module or "", own=bool(own))
        told = fresh(f"import sys; sys.path.insert(0, {folder!r})\n{code}")
    context.check(told["skipped"], "TORCH_DEVICE_BACKEND_AUTOLOAD=0 did not skip autoloading")
    reports = {
        "conform_probe": (
            told["reported"],
            "loading a backend whose entry point fails did not raise RuntimeError with the name of the entry point",
        )
    }
    if own:
        reports["conform_own"] = (
            told["own"],
            "loading the device's backend, whose entry point was made to fail, did not raise RuntimeError with the name of the entry point",
        )
    for name, (said, text) in reports.items():
        context.check("RuntimeError" in said and name in said, text, found=said)


#: Objects that a process still holds when it ends.
HELD: list[Any] = []


def _ends_with_everything(context: CaseContext) -> None:
    """Creates tensors, streams, events and queued work, and keeps them alive until the process ends."""
    x = torch.ones(100_000, device=context.device)
    HELD.append([x, x[::2], (x + 1).sum(), torch.zeros(0, device=context.device)])
    if context.has("multi_device"):
        HELD.append([torch.ones(1000, device=context.at(each)) for each in context.indices])
    if context.has("generator"):
        HELD.append(torch.Generator(context.device))
    if context.has("pinned_memory"):
        HELD.append(torch.ones(1000, pin_memory=True))
    if context.has("streams"):
        stream = context.stream()
        with stream:
            if context.descriptor.busy is not None:
                context.descriptor.busy(300.0)
            y = torch.ones(1000, device=context.device)
            for _ in range(50):
                y = y * 2 - 1
        HELD.extend([stream, y])
        if context.has("events"):
            event = context.event()
            event.record(stream)
            HELD.append(event)
    HELD.append(torch.ones(3, device=context.device, requires_grad=True).exp().sum())
    context.check(HELD, "no object was kept alive")


@cases("device.clean_exit", slow=True)
def with_everything_alive(context: CaseContext) -> None:
    """A process that holds live tensors, streams, events and queued work exits with status 0."""
    done = context.child(_ends_with_everything)
    text = f"the child process did not finish its work ({done.raised or done.ended})"
    context.must(done.answered and not done.raised, text)
    context.ended_well(done, "the process with live tensors did not exit with status 0")


def _fail(context: CaseContext, index: int = 0) -> list[torch.Tensor]:
    """Queues work that fails, and returns its results. Uses the descriptor's ``fail`` function, which fails on
    the current index. If the descriptor has none, uses index_select with an index out of range."""
    if context.descriptor.fail is not None:
        context.descriptor.fail()
        return []
    three = context.to_device(torch.tensor([1.0, 2.0, 3.0]), index)
    return [three.index_select(0, context.to_device(torch.tensor([7]), index))]


def _wait(context: CaseContext, given: list[torch.Tensor]) -> None:
    """Waits for all queued work. On a lazy device, which computes only when results are needed, also computes
    the given tensors."""
    context.opened.settle(given)
    context.settle()


def _surfaces(context: CaseContext) -> None:
    text = "the next synchronize did not raise an exception for the failed work"
    context.raises(Exception, lambda: _wait(context, _fail(context)), text=text)


def _by_its_stream(context: CaseContext) -> None:
    stream = context.stream()

    def fail_and_wait() -> None:
        with stream:
            given = _fail(context)
        stream.synchronize()
        context.opened.settle(given)

    text = "synchronizing the stream did not raise an exception for its failed work"
    context.raises(Exception, fail_and_wait, text=text)


def _on_the_other_index(context: CaseContext) -> None:
    def fail_and_wait() -> None:
        given = _fail(context, 1)
        torch.accelerator.synchronize()
        context.opened.settle(given)

    with context.on(1):
        text = "synchronizing the current index did not raise an exception for its failed work"
        context.raises(Exception, fail_and_wait, text=text)


def _other_index_works(context: CaseContext) -> None:
    """Queues work that fails on index 1. Checks that results on index 0 are right or that reading them raises, and that index 1
    raises the failure afterwards."""
    numbers = torch.arange(1000.0)
    x, raised = context.to_device(numbers), False
    with context.on(1):
        try:
            given = _fail(context, 1)
            context.ends(context.current_stream(1))  # the work fails before index 0 is looked at
        except Exception:  # a call on index 1 may raise the error of its work at once
            given, raised = [], True
    for _ in range(2):
        try:
            with context.on(0):
                got = context.from_device(x * 2)
                torch.accelerator.synchronize(context.at(0))
        except Exception:  # an error is not a wrong result
            continue
        text = "a result on index 0 is wrong after work failed on index 1"
        context.equal(got, numbers * 2, text)
    if not raised:
        with context.on(1):
            text = "index 1 did not raise an exception for its failed work after index 0 had been synchronized"
            context.raises(Exception, lambda: _wait_on(context, 1, given), text=text)


def _wait_on(context: CaseContext, index: int, given: list[torch.Tensor]) -> None:
    torch.accelerator.synchronize(context.at(index))
    context.opened.settle(given)


def _later_results(context: CaseContext) -> None:
    """Queues work that fails, then other work. Checks that the results of the other work are right or that reading
    them raises an exception, and that the failure is raised at some point."""
    numbers = torch.arange(1000.0)
    x, given, told = context.to_device(numbers), [], 0
    for step in range(3):
        try:
            if step == 0:
                given = _fail(context)
            got = context.from_device(x * 2)
        except Exception:  # an error is not a wrong result
            told += 1
            continue
        context.equal(
            got,
            numbers * 2,
            "a result that was computed after the failure is wrong, and the call raised no exception",
        )
    try:
        _wait(context, given)
    except Exception:  # raised, which is what this case counts
        told += 1
    context.check(told, "no exception was raised for the failed work")


def _behind_other_work(context: CaseContext) -> None:
    """Checks that a failure of work that is queued behind other work is raised by the call itself or by the
    synchronize that waits for the work."""
    given, at_once = list[torch.Tensor](), False
    with context.hold(needed=False):
        try:
            given = _fail(context)
        except Exception:  # reported by the call itself, which is allowed
            at_once = True
    if at_once:
        context.settle()
        context.check(
            True, "neither the call nor synchronize raised an exception for the failed work"
        )
        return
    text = "synchronize did not raise an exception for the failed work"
    context.raises(Exception, lambda: _wait(context, given), text=text)


@cases(
    "device.async_error",
    over={"behind_other_work": ("_behind_other_work",), "by_its_stream": ("_by_its_stream",)},
    requires={"streams"},
)
@cases(
    "device.async_error",
    over={
        "on_the_other_index": ("_on_the_other_index",),
        "other_index_works": ("_other_index_works",),
    },
    requires={"multi_device", "streams"},
    indices=2,
)
@cases(
    "device.async_error", over={"surfaces": ("_surfaces",), "later_results": ("_later_results",)}
)
def fails(context: CaseContext, check: str) -> None:
    """Work that fails is queued. The failure is raised at the latest by the next synchronize that waits for
    the work, and no later result is silently wrong."""
    if context.descriptor.fail is not None:  # the descriptor's failure is harmless
        globals()[check](context)
        return
    result = context.child(globals()[check])
    found, excepted = result.raised or result.ended.how, result.answered and not result.raised
    context.check(
        excepted,
        "the failed work ended the process instead of raising an exception",
        found=found,
        kind=Kind.ENDED,
    )
