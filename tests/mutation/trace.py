"""A long program that writes down all that can be observed of the runtime, line by line.

A mutant that changes no line is taken to be equivalent. The direct probes of planted faults are part of the program.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch

from tests.mutation.trace_profiles import profiles

KIND = "simulated"
ROOMS = ("memory", "streams", "transfer", "device", "calls", "graphs")


def trace(index: int = 0) -> Iterator[str]:
    """The lines of the program. Times and addresses are left out, except their order."""
    for part in (
        _memory,
        _streams,
        _events,
        _graphs,
        _random,
        _queued,
        _transfer,
        _device,
        profiles,
    ):
        lines: list[str] = []
        try:
            part(lines.append)
        except Exception as error:
            lines.append(f"{type(error).__name__}: {error}"[:200])
        yield from (f"{part.__name__}: {line}" for line in lines)
    from tests.simulated.probes import PROBES

    for room in ROOMS:
        importlib.import_module(f"tests.simulated.probes_{room}")
    for name, probe in PROBES.items():
        if PROBES[name].__module__.endswith("probes_process") or ".unlocked_" in name:
            continue  # whether threads meet is chance
        try:
            yield f"{name}: {probe()}"
        except Exception as error:
            yield f"{name}: {type(error).__name__}"


Say = Callable[[str], None]


def _tried(say: Say, name: str, call: Callable[[], Any]) -> None:
    try:
        say(f"{name}: {call()!r}"[:400])
    except Exception as error:
        say(f"{name}: {type(error).__name__}: {str(error)[:120]}")


def _module() -> Any:
    return getattr(torch, KIND)


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device=f"{KIND}:0")


def _stats(say: Say) -> None:
    stats = _module().memory_stats(0)
    say(repr({k: v for k, v in stats.items() if v})[:3000])
    free, total = torch.accelerator.get_memory_info(0)
    say(f"{free} {total}")
    segments = [
        (
            s["total_size"],
            s["stream"],
            s["allocated_size"],
            s["active_size"],
            [(b["size"], b["state"]) for b in s["blocks"]],
        )
        for s in _module().memory_snapshot()
        if s["device"] == 0
    ]
    say(repr(sorted(segments, key=repr))[:3000])


def _memory(say: Say) -> None:
    module, rng = _module(), Random(5)
    module.memory._record_memory_history()
    streams = [torch.Stream(KIND, priority=p) for p in (0, -1)]
    held: list[torch.Tensor] = []
    for step in range(120):
        size = rng.choice((1, 300, 512, 513, 4000, 2**19, 2**20, 2**20 + 1, 3 * 2**20, 11 * 2**20))
        with rng.choice([contextlib.nullcontext(), streams[0], streams[1]]):
            how = rng.random()
            if how < 0.5 and len(held) < 12:
                held.append(_bytes(size))
                order = sorted(range(len(held)), key=lambda n: held[n].data_ptr())
                say(f"{order}")
            elif how < 0.6 and held:
                rng.choice(held).record_stream(rng.choice(streams))
            elif held:
                held.pop(rng.randrange(len(held)))
        if step % 10 == 0:
            torch.accelerator.synchronize()
            _stats(say)
        if step % 37 == 36:
            torch.accelerator.empty_cache()
            module.reset_peak_memory_stats(0)
        if step % 50 == 49:
            module.reset_accumulated_memory_stats(0)
            _tried(say, "too much", lambda: _bytes(2**40))
    held.clear()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    _stats(say)
    pool = module.MemPool()
    with module.use_mem_pool(pool):
        kept = _bytes(5000)
    _stats(say)
    del kept, pool
    _stats(say)
    _tried(say, "fraction", lambda: module.set_per_process_memory_fraction(0.01))
    _tried(say, "beyond", lambda: _bytes(100 * 2**20))
    module.set_per_process_memory_fraction(1.0)
    snapshot = __import__(
        "devices.simulated.backend", fromlist=["library"]
    ).library.memory_snapshot()
    for trace in snapshot["device_traces"]:
        say(repr([(e["action"], e["size"], e["stream"]) for e in trace])[:4000])
        say(repr({tuple(sorted(e)) for e in trace}))
    module.memory._record_memory_history(None)


def _streams(say: Say) -> None:
    module = _module()
    streams = [torch.Stream(KIND), torch.Stream(KIND, priority=-1), torch.Stream(f"{KIND}:1")]
    say(repr([(s.device.index, s == streams[0]) for s in streams]))
    x = torch.zeros(64, device=f"{KIND}:0")
    torch.accelerator.synchronize()  # other streams change it next
    gate = module.Gate()
    gate.close()
    with streams[0]:
        say(repr(torch.accelerator.current_stream() == streams[0]))
        x.add_(1)
    say(repr([s.query() for s in streams]))
    gate.open()
    streams[0].synchronize()
    say(repr([s.query() for s in streams]))
    streams[1].wait_stream(streams[0])
    with streams[1]:
        x.mul_(3)
    event = streams[1].record_event()
    torch.accelerator.current_stream().wait_event(event)
    x.add_(5)
    torch.accelerator.synchronize()
    say(repr(x.tolist()[:3]))
    with streams[2]:
        say(
            repr(
                (
                    torch.accelerator.current_device_index(),
                    torch.accelerator.current_stream() == streams[2],
                )
            )
        )
    say(repr(torch.accelerator.current_device_index()))


def _events(say: Say) -> None:
    a, b = (torch.Event(KIND, enable_timing=True) for _ in range(2))
    stream = torch.Stream(KIND)
    _tried(say, "early", lambda: a.elapsed_time(b))
    a.record()
    with stream:
        torch.ones(1000, device=KIND).sum()
        b.record()
    torch.accelerator.synchronize()
    say(
        repr(
            (
                a.query(),
                b.query(),
                0 <= a.elapsed_time(b) < 60_000,
                a.device.index,
                b.event_id != a.event_id,
            )
        )
    )
    plain = torch.Event(KIND)
    plain.record()
    plain.synchronize()
    _tried(say, "untimed", lambda: plain.elapsed_time(a))
    with torch.Stream(f"{KIND}:1"):
        _tried(say, "elsewhere", lambda: plain.record())
    other = torch.Event(KIND)
    say(repr(other.query()))


def _graphs(say: Say) -> None:
    module = _module()
    x = torch.arange(8.0, device=KIND)
    for keep in (False, True):
        graph, side = torch.accelerator.Graph(), torch.Stream(KIND)
        stream = torch.Stream(KIND)
        with stream, graph:
            y = x * 2
            side.wait_stream(stream)
            with side:
                z = y + torch.rand(8, device=KIND)
            stream.wait_stream(side)
            w = z.sum()
            _tried(say, "read", lambda: module.is_current_stream_capturing())
        for seed in (1, 2):
            module.manual_seed(seed)
            x.fill_(seed)
            graph.replay()
            torch.accelerator.synchronize()
            say(repr((y.tolist()[0], w.item(), module.get_rng_state().sum().item())))
        if keep:
            _stats(say)
            graph.reset()
        del graph, y, z, w
    bad = torch.accelerator.Graph()

    def refused(how: Callable[[], Any]) -> None:
        with torch.Stream(KIND), torch.accelerator.Graph():
            how()

    for name, how in {
        "item": lambda: x.sum().item(),
        "synchronize": torch.accelerator.synchronize,
        "copy": lambda: x.cpu(),
        "nested": lambda: bad.capture_begin(),
        "nonzero": lambda: x.nonzero(),
    }.items():
        _tried(say, name, lambda how=how: refused(how))
    _tried(say, "early replay", torch.accelerator.Graph().replay)
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    _stats(say)


def _random(say: Say) -> None:
    module = _module()
    for seed in (0, 1, 257, 2**31, 2**40 + 1, -1):
        _tried(say, f"seed {seed}", lambda seed=seed: module.manual_seed(seed))
        say(repr((module.initial_seed(), torch.rand(3, device=KIND).tolist())))
    state = module.get_rng_state()
    first = torch.randn(5, device=KIND)
    module.set_rng_state(state)
    say(repr(torch.equal(first, torch.randn(5, device=KIND))))
    generator = torch.Generator(KIND)
    generator.manual_seed(7)
    twin = generator.clone_state()
    shared = generator.graphsafe_get_state()
    # A state that is shared stays shared, and a clone does not.
    adopted = torch.Generator(KIND)
    adopted.graphsafe_set_state(shared)
    pair = [torch.rand(2, device=KIND, generator=g).tolist() for g in (adopted, generator, twin)]
    say(repr(pair))
    draws = [
        torch.rand(2, device=KIND, generator=g).tolist()
        for g in (generator, twin, generator, shared)
    ]
    say(repr((draws, generator.initial_seed(), generator.device.index)))
    _tried(say, "offset", generator.get_offset)
    _tried(say, "other", lambda: torch.rand(2, device=KIND, generator=torch.Generator("cpu")))
    _tried(say, "index", lambda: torch.rand(2, device=f"{KIND}:1", generator=generator))
    say(repr(torch.randperm(9, device=f"{KIND}:1").tolist()))


def _queued(say: Say) -> None:
    """Questions that are asked while work is queued on the first of two streams."""
    module = _module()
    one, two = torch.Stream(KIND), torch.Stream(KIND)
    big = torch.zeros(2**18, device=KIND)
    generator = torch.Generator(KIND)

    def busy() -> None:
        with one:
            for _ in range(50):
                big.add_(1)

    def draw(stream: torch.Stream) -> torch.Tensor:
        with stream:
            return torch.rand(4, device=KIND, generator=generator)

    x = torch.ones(4, device=KIND)
    torch.accelerator.synchronize()
    graph, branches = torch.accelerator.Graph(), torch.accelerator.Graph()
    with one, graph:
        x.add_(1)
        x.mul_(2)
        drawn = torch.rand(4, device=KIND)
    with one, branches:
        two.wait_stream(one)
        made = [torch.rand(4, device=KIND)]
        with two:
            made.append(torch.rand(4, device=KIND))
        made.append(torch.rand(4, device=KIND))
        one.wait_stream(two)
    torch.accelerator.synchronize()
    module.manual_seed(3)
    busy()
    with one:
        x.fill_(5)
        graph.replay()
    with two:
        graph.replay()
    say(repr(module.get_rng_state().sum().item()))
    torch.accelerator.synchronize()
    say(repr((x.tolist(), drawn.tolist())))
    busy()
    with one:
        graph.replay()
    with two:
        branches.replay()
        later = torch.rand(4, device=KIND)
    torch.accelerator.synchronize()
    say(repr([each.tolist() for each in (drawn, *made, later)]))
    generator.manual_seed(9)
    busy()
    eager = [draw(stream) for stream in (one, two, one)]
    generator.manual_seed(10)
    eager.append(draw(two))
    say(repr(generator.get_state().sum().item()))
    scalar = torch.tensor(3.0)
    busy()
    with one:
        y = x * scalar
    scalar.fill_(7)
    torch.accelerator.synchronize()
    say(repr(([each.tolist() for each in eager], y.tolist())))


def _transfer(say: Say) -> None:
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        base = (torch.arange(60) % 7).to(dtype).view(3, 4, 5)
        for view in (
            base,
            base.transpose(0, 2),
            base[:, ::2],
            base[1:, 1:],
            base[:1].expand(3, 4, 5),
        ):
            for pinned in (False, True):
                for blocking in (False, True):
                    host = view.contiguous().pin_memory() if pinned else view
                    there = host.to(f"{KIND}:0", non_blocking=not blocking)
                    other = there.to(f"{KIND}:1", non_blocking=not blocking)
                    target = torch.zeros_like(host, pin_memory=pinned)
                    target.copy_(other, non_blocking=not blocking)
                    torch.accelerator.synchronize(0)
                    torch.accelerator.synchronize(1)
                    say(
                        repr(
                            (
                                there.stride(),
                                other.stride(),
                                torch.equal(target, view),
                                target.float().sum().item(),
                            )
                        )
                    )
                    wide = there.to(torch.float64)
                    say(repr((wide.stride(), wide.sum().item(), host.is_pinned())))
    _tried(say, "host stats", lambda: _module().host_memory_stats())


def _device(say: Say) -> None:
    module = _module()
    for index in (0, 1, 2, -1):
        _tried(
            say,
            f"set {index}",
            lambda index=index: (module.set_device(index), module.current_device()),
        )
        _tried(say, "properties", lambda index=index: repr(module.get_device_properties(index)))
    with module.device(1):
        say(repr((module.current_device(), torch.empty(1, device=KIND).device.index)))
    module.set_device(0)
    say(repr((module.current_device(), module.device_count(), module.is_available())))
    _tried(
        say, "peer", lambda: [module.can_device_access_peer(a, b) for a in (0, 1) for b in (0, 1)]
    )
    _tried(say, "absent", lambda: torch.empty(1, device=f"{KIND}:7"))
    _tried(
        say, "mixed", lambda: torch.ones(2, device=f"{KIND}:0") + torch.ones(2, device=f"{KIND}:1")
    )
    _tried(say, "index", lambda: torch.ones(3, device=KIND)[torch.tensor([5], device=KIND)])
    _tried(say, "after", lambda: torch.ones(3, device=KIND).sum().item())
    for work in (
        lambda: torch.ones(3, 4, device=KIND).t().add(1).stride(),
        lambda: torch.ones(3, 4, device=KIND)[:, ::2].mul(2).sum().item(),
        lambda: torch.ones(3, device=KIND).resize_(40).shape,
        lambda: torch.zeros(0, device=KIND).sum().item(),
        lambda: torch.add(torch.ones(3, device=KIND), 1, out=torch.empty(0, device=KIND)).tolist(),
    ):
        _tried(say, "work", work)
