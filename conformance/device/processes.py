"""device.fork, device.lazy_init, device.autoload, device.clean_exit: the device and processes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.device.judging import (
    beginning,
    computes,
    forked,
    fresh,
    is_accelerator,
    preparation,
)

cases = Cases()


@cases("device.fork", seconds=60.0)
def after_use(context: Context) -> None:
    """In a fork of a process that has used the device, using it raises an error that names the fork."""
    context.must(computes(context.device) == [3.0, 5.0, 7.0], "the parent has used the device")
    said = forked(lambda: str(computes(context.device)))
    context.check(
        said.startswith("raised ") and ("fork" in said.lower() or "spawn" in said.lower()),
        "use after fork raises, and says why",
        expected="raised RuntimeError: … fork …",
        got=said,
    )
    context.same(computes(context.device), [3.0, 5.0, 7.0], "the parent goes on")


def _computes(context: Context) -> None:
    context.same(computes(context.device), [3.0, 5.0, 7.0], "the device works in a spawned process")


@cases("device.fork", slow=True)
def spawned(context: Context) -> None:
    """A process that is started afresh uses the device, though its parent does."""
    context.must(computes(context.device) == [3.0, 5.0, 7.0], "the parent uses the device")
    ended = context.child(_computes)
    context.same((ended.raised, ended.returncode), ("", 0), "the child ends well")


_LAZY = """
import json, os, signal, sys, traceback
{preparation}
module = getattr(torch, {kind!r}, None)
asked = getattr(module, "is_initialized", None)
told = {{"initialized": asked() if asked is not None else None}}
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
    os._exit(code)
told["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(told))
"""


@cases("device.lazy_init", slow=True)
def imported(context: Context) -> None:
    """Importing the module does not initialise the device: a fork made after it may use the device."""
    told = fresh(
        _LAZY.format(
            preparation=preparation(context), beginning=beginning(context), kind=context.kind
        )
    )
    if is_accelerator(context):  # torch.cpu says that it always is
        context.check(
            told["initialized"] is not True, f"torch.{context.kind}.is_initialized() is not True"
        )
    context.same(told["child"], 0, "a fork made after the import uses the device (its exit status)")


_AUTOLOAD = """
import json, os, sys
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
print(json.dumps(told))
"""


@cases("device.autoload", slow=True)
def failing_backend(context: Context) -> None:
    """A backend that fails to load is reported by name, the device's own too; autoloading can be skipped."""
    own = context.descriptor.autoload
    with tempfile.TemporaryDirectory() as folder:
        points = "[torch.backends]\nconform_probe = conform_probe:start\n"
        if own:
            points += f"conform_own = {own}\n"
        about = Path(folder, "conform_probe-1.0.dist-info")
        about.mkdir()
        (about / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: conform-probe\nVersion: 1.0\n"
        )
        (about / "entry_points.txt").write_text(points)
        Path(folder, "conform_probe.py").write_text(
            "def start():\n    raise OSError('the driver of conform_probe is absent')\n"
        )
        module = context.descriptor.module or ""
        code = f"import sys; sys.path.insert(0, {folder!r})\n"
        told = fresh(code + _AUTOLOAD.format(module=module, own=bool(own)))
    context.check(told["skipped"], "TORCH_DEVICE_BACKEND_AUTOLOAD=0 skips autoloading")
    context.check(
        "RuntimeError" in told["reported"] and "conform_probe" in told["reported"],
        "a backend that fails is reported by name",
        got=told["reported"],
    )
    if own:
        context.check(
            "RuntimeError" in told["own"] and "conform_own" in told["own"],
            "the device's own failure to load is reported",
            got=told["own"],
        )


#: What a process that ends still holds.
HELD: list[Any] = []


def _ends_with_everything(context: Context) -> None:
    """Leave tensors, streams, events and queued work behind, and return."""
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
    ended = context.child(_ends_with_everything)
    context.must(ended.answered, f"the child came to its end (it {ended.how}; {ended.raised})")
    context.same(ended.how, "exited with status 0", "how the process ended")
