"""The device and processes: forks, first use, loading, exit, errors that come late."""

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

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.checks.cases.endings import CheckFailed, NotShown
from conformance.checks.child import Child, Ended, Limits, ask
from conformance.checks.clock import Clock
from devices.autoload import switched_back
from devices.failure import Kind

cases = Cases(Kind.STATE)


# -- what other suites use too

FORK_SECONDS = 8.0
SCRIPT_SECONDS = 180.0


def counted(context: Context) -> int:
    """How many devices there are, as torch says if it does, else as declared."""
    if context.accelerated:
        return torch.accelerator.device_count()
    count = getattr(getattr(torch, context.kind, None), "device_count", None)
    return int(count()) if count is not None else context.descriptor.device_count()


def computes(device: torch.device) -> list[float]:
    """A tiny op on a device, read back."""
    return list((torch.tensor([1.0, 2.0, 3.0], device=device) * 2 + 1).tolist())


def forked(function: Callable[[], str]) -> str:
    """What a function says in a fork of this process: ``returned TEXT``, ``raised TYPE: TEXT``, or how the child
    ended without a word. Nothing of the child's but the function is run."""
    if not hasattr(os, "fork"):
        raise NotShown("this system has no fork")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads: the child runs one function
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


def fresh(code: str) -> dict[str, Any]:
    """Run a program in a fresh interpreter, without torch. Returns what the program leaves in ``told``.

    Raises CheckFailed if it fails or exceeds its time limit.
    """
    target, limits = "conformance.checks.child:execute", Limits(start=SCRIPT_SECONDS)
    told, ended = ask(Child(target, code, limits, switched_back()))
    if told is None or not ended.well:
        text = "a program in a fresh process exits with status 0"
        raise CheckFailed.of(Kind.ENDED, text, expected="exit status 0", found=str(ended))
    return dict(told)


def source(context: Context, text: str, **named: Any) -> str:
    """A program for ``fresh``. ``{preparation}`` imports the device's module and nothing more; ``{beginning}`` is what
    to call before the device is used."""
    module, init = context.descriptor.module, context.descriptor.init
    return text.format(
        preparation="import torch\n" + (f"import {module}\n" if module else ""),
        beginning=f"{module}.{init}()" if init else "pass",
        kind=context.kind,
        **named,
    )


@cases("device.fork", seconds=60.0)
def after_use(context: Context) -> None:
    """In a fork of a process that has used the device, using it raises an error that names the fork."""
    context.must(computes(context.device) == [3.0, 5.0, 7.0], "the parent has used the device")
    said = forked(lambda: str(computes(context.device)))
    named = said.startswith("raised ") and ("fork" in said.lower() or "spawn" in said.lower())
    expected = "raised RuntimeError: … fork …"
    context.check(named, "use after fork raises, and says why", expected=expected, found=said)
    context.same(computes(context.device), [3.0, 5.0, 7.0], "the parent still works")


def _computes(context: Context) -> None:
    context.same(computes(context.device), [3.0, 5.0, 7.0], "the device works in a spawned process")


@cases("device.fork", slow=True)
def spawned(context: Context) -> None:
    """A freshly started process uses the device, although its parent uses it, too."""
    context.must(computes(context.device) == [3.0, 5.0, 7.0], "the parent uses the device")
    context.ended_well(context.child(_computes, spawned=True), "the child exits normally")


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
def imported(context: Context) -> None:
    """Importing the module does not initialise the device: a fork made after it may use the device."""
    told = fresh(source(context, _LAZY))
    if context.accelerated:  # torch.cpu says that it always is
        text = f"torch.{context.kind}.is_initialized() is not True"
        context.check(told["initialized"] is not True, text)
    context.same(told["child"], 0, "a fork made after the import uses the device (its exit status)")
    # To count may initialise, as it does with CUDA where NVML finds nothing: then the fork must be told so.
    text = "a fork made after devices were counted uses the device, or an error names the fork"
    context.check(told["counted"] in (0, 5), text, found=f"exit status {told['counted']}")
    if told["counted"] == 5:
        context.note("once its devices are counted, no fork can use the device")


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
def failing_backend(context: Context) -> None:
    """A backend that fails to load is reported by name, the device's own too; autoloading can be skipped."""
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
    context.check(told["skipped"], "TORCH_DEVICE_BACKEND_AUTOLOAD=0 skips autoloading")
    reports = {"conform_probe": (told["reported"], "a backend that fails is reported by name")}
    if own:
        reports["conform_own"] = told["own"], "the device's own failure to load is reported"
    for name, (said, text) in reports.items():
        context.check("RuntimeError" in said and name in said, text, found=said)


#: What a process that ends still holds.
HELD: list[Any] = []


def _ends_with_everything(context: Context) -> None:
    """Leave tensors, streams, events and queued work alive, and return."""
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
    context.check(HELD, "everything is alive")


@cases("device.clean_exit", slow=True)
def with_everything_alive(context: Context) -> None:
    """A process that ends with live tensors, streams and queued work exits with status 0."""
    done = context.child(_ends_with_everything)
    text = f"the child has done its work ({done.raised or done.ended})"
    context.must(done.answered and not done.raised, text)
    context.ended_well(done, "the process exits with status 0")


def _fail(context: Context, index: int = 0) -> list[torch.Tensor]:
    """Queue work that fails: by the descriptor's own way on the current index, or an index that is out of range; what
    it gives."""
    if context.descriptor.fail is not None:
        context.descriptor.fail()
        return []
    three = context.to_device(torch.tensor([1.0, 2.0, 3.0]), index)
    return [three.index_select(0, context.to_device(torch.tensor([7]), index))]


def _wait(context: Context, given: list[torch.Tensor]) -> None:
    """Wait for all work, and on a device that computes nothing before it is asked, for this."""
    context.opened.settle(given)
    context.settle()


def _surfaces(context: Context) -> None:
    text = "the next synchronise raises the failure"
    context.raises(Exception, lambda: _wait(context, _fail(context)), text=text)


def _by_its_stream(context: Context) -> None:
    stream = context.stream()

    def fail_and_wait() -> None:
        with stream:
            given = _fail(context)
        stream.synchronize()
        context.opened.settle(given)

    text = "synchronising the stream raises the failure of its work"
    context.raises(Exception, fail_and_wait, text=text)


def _on_the_other_index(context: Context) -> None:
    def fail_and_wait() -> None:
        given = _fail(context, 1)
        torch.accelerator.synchronize()
        context.opened.settle(given)

    with context.on(1):
        text = "synchronising the current index raises the failure of its work"
        context.raises(Exception, fail_and_wait, text=text)


def _later_results(context: Context) -> None:
    """No later result is silently wrong."""
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
        context.equal(got, numbers * 2, "a result after the failure is right, or raises")
    try:
        _wait(context, given)
    except Exception:  # told, which is what is counted
        told += 1
    context.check(told, "the failure has been reported by then")


def _behind_other_work(context: Context) -> None:
    """The synchronise that waits for a failure queued after other work raises it, unless the call has."""
    given, at_once = list[torch.Tensor](), False
    with context.hold(needed=False):
        try:
            given = _fail(context)
        except Exception:  # reported earlier than it must be
            at_once = True
    if at_once:
        context.settle()
        context.check(True, "the call reports the failure")
        return
    text = "the synchronise reports the failure"
    context.raises(Exception, lambda: _wait(context, given), text=text)


@cases(
    "device.async_error",
    over={"behind_other_work": ("_behind_other_work",), "by_its_stream": ("_by_its_stream",)},
    requires={"streams"},
)
@cases(
    "device.async_error",
    over={"on_the_other_index": ("_on_the_other_index",)},
    requires={"multi_device", "streams"},
    indices=2,
)
@cases(
    "device.async_error", over={"surfaces": ("_surfaces",), "later_results": ("_later_results",)}
)
def fails(context: Context, check: str) -> None:
    """The failure of a kernel is raised by a synchronise after it, and no later result is silently wrong."""
    if context.descriptor.fail is not None:  # a harmless failure: in this process
        globals()[check](context)
        return
    result = context.child(globals()[check])
    found, excepted = result.raised or result.ended.how, result.answered and not result.raised
    context.check(excepted, "the failure is an exception", found=found, kind=Kind.ENDED)
