"""What a profile of the simulated device lists, line by line: the part of the long program (trace.py) about the profiler."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from opinfo.torch_private import kineto_events, quiet_kineto

KIND = "simulated"
Say = Callable[[str], None]


def _busy(milliseconds: float) -> None:
    getattr(torch, KIND).busy(milliseconds)


def _listed(say: Say, made: Any) -> None:
    """Writes down what a profile lists. Times are left out, except their order and whether they are long."""
    events = kineto_events(made)
    host = {
        e.correlation_id(): e
        for e in events
        if e.device_type() == torch.profiler.DeviceType.CPU
        and e.linked_correlation_id() == 0
        and e.name() != "[memory]"
    }
    there = [e for e in events if e.device_type() != torch.profiler.DeviceType.CPU]
    there = [e for e in there if e.name() != "[memory]"]
    there.sort(key=lambda e: (e.device_index(), e.device_resource_id(), e.start_ns(), e.name()))
    streams: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], int] = {}
    for event in there:
        place = event.device_index(), event.device_resource_id()
        op = host.get(event.linked_correlation_id())
        took, region = event.duration_ns(), event.is_user_annotation()
        late = op is not None and event.start_ns() < op.start_ns()
        overlaps = not region and event.start_ns() < ends.get(place, 0)
        if not region:
            ends[place] = event.start_ns() + took
        about = (
            *(event.name(), event.device_index(), streams.setdefault(place, len(streams)), region),
            *(op and op.name(), late, overlaps, took > 0, took > 15_000_000, event.start_ns() > 10**18),
        )  # fmt: skip
        say(repr(about))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        made.export_chrome_trace(str(path))
        text = path.read_text()
    say(f"{len(text) > 0} {text.count('nan')}")
    trace = json.loads(text)["traceEvents"]
    say(repr(sorted((e.get("cat"), e.get("ph"), e["name"]) for e in trace if e.get("cat") in ("ac2g", "privateuse1_runtime", "gpu_user_annotation"))))  # fmt: skip
    launches = [e for e in trace if e.get("cat") == "privateuse1_runtime"]
    say(repr([(e["pid"] == os.getpid(), e["tid"] == e["pid"], e["dur"] > 0) for e in launches]))
    say(repr([sorted(e.get("args", {})) for e in trace if e.get("cat") in ("kernel", "gpu_memcpy")]))  # fmt: skip
    say(repr([(e["args"]["device"], e["args"]["stream"]) for e in trace if e.get("cat") in ("kernel", "gpu_memcpy")]))  # fmt: skip
    say(repr(sorted((e["name"], str(e["pid"]), str(e["args"])) for e in trace if e.get("ph") == "M" and e["pid"] != os.getpid())))  # fmt: skip
    memory = [e["args"] for e in trace if e["name"] == "[memory]" and e["args"]["Device Type"] != 0]
    say(repr([(m["Bytes"], m["Device Id"], m["Total Allocated"], m["Total Reserved"]) for m in memory]))  # fmt: skip
    addresses: dict[int, int] = {}
    say(repr([addresses.setdefault(m["Addr"], len(addresses)) for m in memory]))


def _session(x: torch.Tensor, y: torch.Tensor) -> None:
    module: Any = getattr(torch, KIND)
    side = module.Stream()
    with record_function("outer"):
        x.add_(1)
        with record_function("inner"):
            x.mul_(2)
            y.copy_(x)
        x.to("cpu")
        with side:
            x.neg()
            x.exp()
    with record_function("again"):
        x.add_(1)
        y.mul_(2)
    thread = threading.Thread(target=lambda: (x.sin(), y.cos()))
    thread.start()
    thread.join()
    leaf = torch.ones(4, device=KIND, requires_grad=True)
    leaf.exp().sum().backward()


def profiles(say: Say) -> None:
    quiet_kineto()
    x, y = (torch.ones(64, device=f"{KIND}:{index}") for index in (0, 1))
    both = {ProfilerActivity.CPU, ProfilerActivity.PrivateUse1}
    for activities in (both, {ProfilerActivity.PrivateUse1}, {ProfilerActivity.CPU}, both):
        with profile(activities=activities, profile_memory=True) as made:
            _session(x, y)
            torch.accelerator.synchronize(0)
            torch.accelerator.synchronize(1)
        _listed(say, made)
        x.add(1)  # of no session
    # Work that is queued at the start, and at the end.
    for index, given in ((0, x), (1, y)):
        with torch.accelerator.device_index(index):
            _busy(60)
            given.sin()
            made = profile(activities=both)
            made.start()
            given.neg()
            _busy(20)
            given.exp()
        began = time.perf_counter()
        made.stop()
        say(f"stopped in time: {time.perf_counter() - began < 2}")
        _listed(say, made)
    with record_function("open before"), profile(activities=both) as made:
        x.add(1)
        torch.accelerator.synchronize()
    _listed(say, made)
    made = profile(activities=both)
    made.start()
    region = record_function("open after")
    region.__enter__()
    x.add(1)
    torch.accelerator.synchronize()
    made.stop()
    x.add(1)
    region.__exit__(None, None, None)
    _listed(say, made)
    with profile(activities=both) as made:
        x.mul(1)
        torch.accelerator.synchronize()
    _listed(say, made)
    with profile(activities=both) as made:
        try:
            x.mm(x)
        except RuntimeError as error:
            say(str(error)[:80])
        for _ in range(3):
            x.add_(1)
        torch.accelerator.synchronize()
    _listed(say, made)
