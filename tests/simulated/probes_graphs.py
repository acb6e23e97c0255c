"""Direct probes of faults of graphs: what is captured, what a replay does, pools, random numbers, refusals."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.simulated.probes import ones, probe, raises
from tests.simulated.probes_memory import segments, take
from tests.simulated.probes_streams import held, in_a_thread, new_stream

Graph = torch.accelerator.Graph


@contextlib.contextmanager
def captured(graph: Graph | None = None) -> Iterator[Graph]:
    """What the block queues on a stream of its own, as a graph."""
    made = Graph() if graph is None else graph
    with new_stream(), made:
        yield made


def settled(function: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor that no queued work will change."""
    made = function()
    torch.simulated.synchronize()
    return made


def replayed(graph: Graph, times: int = 1) -> None:
    with new_stream() as stream:
        for _ in range(times):
            graph.replay()
        stream.synchronize()


# What is captured


@probe("graphs.capture_runs_work")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured():
        x.add_(1)
    torch.simulated.synchronize()
    return x.tolist() != [1.0, 1.0]


@probe("graphs.is_capturing_false")
def _() -> bool:
    x = ones(2)
    with captured():
        x.add_(1)
        return not torch.simulated.is_current_stream_capturing()


@probe("graphs.op_runs_at_capture")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured() as graph:
        y = torch.neg(x)
        z = y + 0
    x.fill_(3)
    torch.simulated.synchronize()
    replayed(graph)
    return z.tolist() != [-3.0, -3.0]


@probe("graphs.side_stream_not_captured")
def _() -> bool:
    x, side = settled(lambda: ones(2)), new_stream()
    with captured():
        main = torch.accelerator.current_stream()
        x.add_(0)
        side.wait_stream(main)
        with side:
            x.add_(1)
        main.wait_stream(side)
    side.synchronize()
    return x.tolist() != [1.0, 1.0]


@probe("graphs.unjoined_fork_accepted")
def _() -> bool:
    x, side, graph = settled(lambda: ones(2)), new_stream(), Graph()

    def capture() -> None:
        with captured(graph):
            x.add_(0)
            side.wait_stream(torch.accelerator.current_stream())
            with side:
                x.add_(1)

    return not raises(capture)


@probe("graphs.empty_capture_silent")
def _() -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with captured():
            pass
    return not caught


@probe("graphs.every_capture_warns")
def _() -> bool:
    x = settled(lambda: ones(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with captured():
            x.add_(1)
    return bool(caught)


@probe("graphs.other_index_work_lost")
def _() -> bool:
    x, there = ones(2), torch.ones(2, device="simulated:1")
    torch.simulated.synchronize(0)
    torch.simulated.synchronize(1)
    with captured():
        x.add_(1)
        there.add_(1)
    return there.tolist() != [2.0, 2.0]


# What a replay does


@probe("graphs.replay_stale_input")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured() as graph:
        y = x + 1
    x.fill_(5)
    torch.simulated.synchronize()
    replayed(graph)
    return y.tolist() != [6.0, 6.0]


@probe("graphs.replay_once_only")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured() as graph:
        x.add_(1)
    replayed(graph, 3)
    return x.tolist() != [4.0, 4.0]


@probe("graphs.drop_node")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured() as graph:
        x.add_(1)
        x.mul_(10)
    replayed(graph)
    return x.tolist() != [20.0, 20.0]


@probe("graphs.long_program_cut")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured() as graph:
        for _ in range(3000):
            x.add_(1)
    replayed(graph)
    return x.tolist() != [3001.0, 3001.0]


@probe("graphs.replay_before_capture_silent")
def _() -> bool:
    return not raises(Graph().replay)


@probe("graphs.output_moves")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured() as graph:
        y = x + 1
    address = y.data_ptr()
    replayed(graph)
    return y.data_ptr() != address


# Pools


@probe("graphs.pool_block_given_away")
def _() -> bool:
    x = settled(lambda: ones(1000))
    with new_stream():
        graph = Graph()
        with graph:
            y = x + 1
            address = y.data_ptr()
            z = y * 2
            del y
        others = [take(4000).data_ptr() for _ in range(2)]
    return address in others and z.numel() > 0


@probe("graphs.unshared_pools_overlap")
def _() -> bool:
    x = settled(lambda: ones(4))
    with new_stream() as stream:
        first, second = Graph(), Graph()
        with first:
            y = (x + 1) * 2  # what is freed here belongs to the first graph alone
        with second:
            z = x + 10
        second.replay()
        first.replay()
        stream.synchronize()
    return (y.tolist(), z.tolist()) != ([4.0] * 4, [11.0] * 4)


@probe("graphs.pool_never_returned")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured() as graph:
        y = x + 1
    pool = graph.pool()
    del y, graph
    torch.simulated.empty_cache()
    return any(one["segment_pool_id"] == pool for one in segments())


def failed_capture(made: list[torch.Tensor]) -> Graph:
    """A graph whose capture, which made a tensor, has failed."""
    x, graph = settled(lambda: ones(2)), Graph()

    def fail() -> None:
        with new_stream(), graph:
            made.append(x + 1)
            x.tolist()

    assert raises(fail)
    made.clear()
    return graph


@probe("graphs.failed_pool_kept")
def _() -> bool:
    torch.simulated.empty_cache()
    before = torch.simulated.memory_reserved()
    failed_capture([])
    torch.simulated.empty_cache()
    return torch.simulated.memory_reserved() != before


@probe("graphs.marked_block_lost")
def _() -> bool:
    torch.simulated.empty_cache()
    before, x = torch.simulated.memory_reserved(), settled(lambda: ones(2))
    with new_stream():
        block = take(24 * 2**20)
    torch.simulated.synchronize()
    with captured():
        x.add_(1)
        block.record_stream(torch.accelerator.current_stream())
        del block
    torch.simulated.empty_cache()
    return torch.simulated.memory_reserved() - before > 20 * 2**20


@probe("graphs.instantiated_once")
def _() -> bool:
    graph = Graph(keep_graph=True)
    with captured(graph):
        ones(2)
    graph.instantiate()
    return raises(graph.instantiate)


@probe("graphs.kept_graph_not_reset")
def _() -> bool:
    graph, x = Graph(keep_graph=True), settled(lambda: ones(2))

    def capture() -> None:
        with captured(graph):
            x.add_(1)

    capture()
    graph.reset()
    return raises(capture)


# Refusals, recovery


@probe("graphs.failure_stops_empty_cache")
def _() -> bool:
    failed_capture([])
    torch.simulated.synchronize()
    torch.simulated.empty_cache()
    before = torch.simulated.memory_reserved()
    torch.empty(48 * 2**20, dtype=torch.uint8, device="simulated")
    torch.simulated.empty_cache()
    return torch.simulated.memory_reserved() != before


@probe("graphs.failure_stops_drawing")
def _() -> bool:
    failed_capture([])
    refused = raises(lambda: torch.rand(1, device="simulated"))
    x = settled(lambda: ones(2))
    with captured(Graph()):
        x.add_(1)
    assert torch.rand(1, device="simulated").numel() == 1
    return refused


@probe("graphs.sync_allowed_in_capture")
def _() -> bool:
    x, graph = settled(lambda: ones(2)), Graph()

    def capture() -> None:
        with captured(graph):
            x.add_(1)
            torch.accelerator.current_stream().synchronize()

    return not raises(capture)


@probe("graphs.nested_capture_accepted")
def _() -> bool:
    x, inner = settled(lambda: ones(2)), Graph()
    with captured():
        x.add_(1)
        accepted = not raises(inner.capture_begin)
        if accepted:
            inner.capture_end()
    return accepted


@probe("graphs.error_lost")
def _() -> bool:
    x, original = settled(lambda: ones(2)), KeyError("of the program")
    try:
        with new_stream(), Graph():
            x.add_(1)
            raise original
    except Exception as error:
        seen: BaseException | None = error
        while seen is not None and seen is not original:
            seen = seen.__context__
        return seen is None
    return True


@probe("graphs.stays_capturing")
def _() -> bool:
    x, first = settled(lambda: ones(2)), Graph()
    with new_stream():

        def fail() -> None:
            with first:
                x.add_(1)
                x.tolist()

        assert raises(fail)
        second = Graph()
        stays = raises(second.capture_begin)
        if not stays:
            x.add_(1)
            second.capture_end()
    return stays


@probe("graphs.mode_ignored")
def _() -> bool:
    x = settled(lambda: ones(2))
    torch.simulated.empty_cache()

    def needs_a_segment() -> bool:
        with new_stream():
            return raises(take, 64 * 2**20)

    with captured(Graph(capture_error_mode="global")):
        x.add_(1)
        return not in_a_thread(needs_a_segment)


# Random numbers


def _drawn(times: int) -> tuple[list[list[float]], list[list[float]]]:
    """What an eager program and a graph draw from the same seed, that many times, and once more eagerly."""
    torch.simulated.manual_seed(3)
    eager = [torch.rand(2, device="simulated").tolist() for _ in range(times + 1)]
    with captured() as graph:
        y = torch.rand(2, device="simulated")
    torch.simulated.manual_seed(3)
    drawn = []
    for _ in range(times):
        replayed(graph)
        drawn.append(y.tolist())
    return eager, [*drawn, torch.rand(2, device="simulated").tolist()]


@probe("graphs.replay_repeats_random")
def _() -> bool:
    eager, drawn = _drawn(2)
    return eager[:2] != drawn[:2]


@probe("graphs.generator_not_advanced")
def _() -> bool:
    eager, drawn = _drawn(1)
    return eager != drawn


@probe("graphs.seed_of_capture")
def _() -> bool:
    torch.manual_seed(7)
    with captured() as graph:
        drawn = torch.rand(4, device="simulated")
    torch.manual_seed(8)
    replayed(graph)
    found = drawn.tolist()
    torch.manual_seed(8)
    return found != torch.rand(4, device="simulated").tolist()


@probe("graphs.overlapping_captures_share_pool")
def _() -> bool:
    x, streams, graphs, made = settled(lambda: ones(2)), [new_stream() for _ in range(2)], [], []
    for stream in streams:
        with stream:
            graphs.append(Graph())
            graphs[-1].capture_begin()
    for stream in streams:
        with stream:
            made.append(x + 1)
    for stream, graph in zip(streams, graphs):
        with stream:
            graph.capture_end()
    first = graphs[0].pool()
    return not any(one["segment_pool_id"] == first for one in segments())


# Life


@probe("graphs.reset_keeps_graph")
def _() -> bool:
    x = settled(lambda: ones(2))
    with captured() as graph:
        x.add_(1)
    graph.reset()
    return not raises(graph.replay)


@probe("graphs.destroy_while_queued")
def _() -> bool:
    x, stream = settled(lambda: ones(2)), new_stream()
    with captured() as graph:
        x.add_(1)
    with held(stream), stream:
        graph.replay()
        del graph
    stream.synchronize()
    return x.tolist() != [2.0, 2.0]


@probe("graphs.random_state_freed")
def _() -> bool:
    x, stream = settled(lambda: torch.zeros(2, device="simulated")), new_stream()
    with captured() as graph:
        x.uniform_(1, 2)
    with held(stream), stream:
        graph.replay()
        del graph
    stream.synchronize()
    return x.tolist() == [0.0, 0.0]


@probe("graphs.callable_backward_stale")
def _() -> bool:
    x = torch.ones(2, device="simulated", requires_grad=True)
    graphed: Any = torch.simulated.make_graphed_callables(lambda x: x * x, (x,))
    given = torch.full((2,), 3.0, device="simulated", requires_grad=True)
    (graphed(given) * 2).sum().backward()
    torch.simulated.synchronize()
    return given.grad is None or given.grad.tolist() != [12.0, 12.0]


# Waits


@probe("graphs.foreign_event_ignored")
def _() -> bool:
    event, stream = new_stream().record_event(), new_stream()
    x = settled(lambda: ones(2))

    def capture() -> None:
        with stream, Graph():
            x.add_(1)
            stream.wait_event(event)

    return not raises(capture)


@probe("graphs.ended_capture_joined")
def _() -> bool:
    stream, other = new_stream(), new_stream()
    x = settled(lambda: ones(2))
    with stream, Graph():
        x.add_(1)
        event = stream.record_event()
    with contextlib.suppress(RuntimeError):
        other.wait_event(event)
    return bool(other.is_capturing())
