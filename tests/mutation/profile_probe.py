"""A program that does what a profile can list: many kernels and copies, on two indices and several streams, in threads, in
nested regions, with backward, memory, exceptions and a schedule. It reads all that the profiles list."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import record_function

from conformance.checks.cases.context import CaseContext
from conformance.suites.profiler import sessions
from conformance.suites.profiler.executions import busy
from conformance.suites.profiler.recording import Recording, in_every_thread, labelled
from tests.mutation.items import device

#: More than any condition of a mutant asks for.
MANY, DEEP = 1100, 30


def _work(context: CaseContext, x: torch.Tensor, other: torch.Tensor, many: int) -> None:
    for place in range(many):
        x.add_(1)
        x.copy_(torch.ones(x.shape))
        other.copy_(x) if place % 100 == 0 else None
    with ExitStack() as stack:
        for level in range(DEEP):
            stack.enter_context(record_function(f"level {level}"))
        other.add_(1)
    for stream in context.streams(2):
        with stream:
            labelled("a stream", x.mul, 2)
            x.to("cpu")
    busy(context, 2)
    context.together(lambda: labelled("one", x.neg), lambda: labelled("other", x.exp))
    leaf = torch.ones(8, device=x.device, requires_grad=True)
    y = leaf
    for _ in range(DEEP):
        y = y.exp().mul(leaf).sin()
    y.sum().backward()
    blocks = [context.bytes_of(size, index) for size in (33, 1000, 4096, 20000, 3 * 2**20) for index in (0, 1)]  # fmt: skip
    del blocks
    with suppress(RuntimeError), record_function("fails"):
        x.mm(x)
    labelled('C:\\temp\n "in" Größe 大きさ', torch.cat, [x, x])


def _read(seen: Recording, folder: str) -> None:
    _ = seen.host, seen.executions, seen.regions, seen.trace
    seen.profile.events()
    seen.profile.key_averages()
    path = Path(folder) / "trace.json.gz"
    with suppress(RuntimeError):  # torch exports a trace once
        seen.profile.export_chrome_trace(str(path))


def probe() -> None:
    context = CaseContext(device(), "the probe of profiles")
    x, other = (torch.ones(64, device=context.named(index)) for index in (0, 1))
    options: dict[str, Any] = {"record_shapes": True, "profile_memory": True, **in_every_thread()}
    with TemporaryDirectory() as folder:
        for many in (10, MANY):
            with Recording(context, **options) as seen:
                _work(context, x, other, many)
                context.settle()
            _read(seen, folder)
        plan = sessions.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
        with Recording(context, schedule=plan, on_trace_ready=lambda _: None) as seen:
            for _ in range(12):
                x.add_(1)
                seen.step()
        _read(seen, folder)
