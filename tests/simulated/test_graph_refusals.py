"""Graphs: what is refused while capturing, and how the device goes on after it; capture modes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.simulated.graphs import Graph, ones, run

# What is refused while capturing


def _event_of_capture(ask: Callable[[torch.Event], Any]) -> Callable[[torch.Tensor], Any]:
    return lambda x: ask(torch.accelerator.current_stream().record_event())


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "to the host": lambda x: x.cpu(),
    "from the host": lambda x: x.copy_(torch.zeros(2)),
    "a mask": lambda x: x[x > 0],
    "a shape of values": lambda x: x.nonzero(),
    "a comparison": lambda x: torch.equal(x, x),
    "the device": lambda x: torch.accelerator.synchronize(),
    "the stream": lambda x: torch.accelerator.current_stream().synchronize(),
    "a query": lambda x: torch.accelerator.current_stream().query(),
    "an event": _event_of_capture(lambda event: event.synchronize()),
    "a query of an event": _event_of_capture(lambda event: event.query()),
    "another device": lambda x: x.to("simulated:1"),
    "indices of the host": lambda x: x[torch.tensor([1])],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_wait_is_refused_and_the_device_goes_on(name: str, stream: torch.Stream) -> None:
    x, graph = ones(), Graph()
    with pytest.raises(RuntimeError, match="the capture failed") as caught, graph:
        x.add_(1)
        REFUSED[name](x)
    assert "permitted" in str(caught.value.__context__)
    assert x.tolist() == [1.0, 1.0] and not stream.is_capturing()
    with pytest.raises(RuntimeError, match="without a successful capture"):
        graph.replay()
    with graph:
        x.add_(1)
    run(graph, stream)
    assert x.tolist() == [2.0, 2.0]


def test_an_error_of_the_program_is_raised_and_the_device_goes_on(stream: torch.Stream) -> None:
    x, longer, graph = ones(), ones(3), Graph()
    with pytest.raises(KeyError, match="mine"), graph:
        x.add_(1)
        raise KeyError("mine")
    with pytest.raises(RuntimeError, match="must match the size"), Graph():
        x + longer
    assert x.tolist() == [1.0, 1.0] and not stream.is_capturing()
    run(graph, stream)  # what was recorded before the error
    assert x.tolist() == [2.0, 2.0]


def test_running_out_of_memory_is_raised_and_the_device_goes_on(stream: torch.Stream) -> None:
    x, graph = ones(), Graph()
    with pytest.raises(torch.OutOfMemoryError), graph:
        x.add_(0)
        torch.empty(2**40, dtype=torch.uint8, device="simulated")
    graph.reset()
    with graph:
        y = x + 1
    run(graph, stream)
    assert y.tolist() == [2.0, 2.0]


def test_a_capture_inside_a_capture_is_refused_and_the_outer_one_goes_on(
    stream: torch.Stream,
) -> None:
    x, outer, inner = ones(), Graph(), Graph()
    with outer:
        with pytest.raises(RuntimeError, match="is already capturing"):
            inner.capture_begin()
        with pytest.raises(RuntimeError, match="capture_end\\(\\) without"):
            inner.capture_end()
        x.add_(1)
    run(outer, stream)
    assert x.tolist() == [2.0, 2.0]


def test_the_default_stream_is_refused() -> None:
    graph = Graph()
    with pytest.raises(RuntimeError, match="other than the default one"):
        graph.capture_begin()
    assert not torch.simulated.is_current_stream_capturing()


def test_a_graph_that_nobody_ends_ends_its_capture(stream: torch.Stream) -> None:
    graph = Graph()
    graph.capture_begin()
    del graph
    assert not stream.is_capturing()


def test_a_capture_that_ends_elsewhere_is_lost_and_ended(stream: torch.Stream) -> None:
    x, graph = ones(), Graph()
    graph.capture_begin()
    x.add_(1)
    with (
        torch.Stream("simulated"),
        pytest.raises(RuntimeError, match="ended on another stream"),
    ):
        graph.capture_end()
    assert not stream.is_capturing()


def test_an_empty_capture_warns(stream: torch.Stream) -> None:
    graph = Graph()
    with pytest.warns(UserWarning, match="The graph is empty"), graph:
        pass
    run(graph, stream)


def test_work_for_another_device_runs_at_once(stream: torch.Stream) -> None:
    x, there = ones(), torch.ones(2, device="simulated:1")
    torch.simulated.synchronize(1)
    with Graph():
        x.add_(1)
        there.add_(1)
        torch.simulated.synchronize(1)
        assert there.tolist() == [2.0, 2.0]


# Modes


@pytest.mark.parametrize("mode", ["default", "global", "thread_local", "relaxed"])
def test_the_mode_says_what_other_threads_may_do(mode: Any, stream: torch.Stream) -> None:
    x, graph, said = ones(), Graph(capture_error_mode=mode), []

    def work() -> None:
        try:
            with torch.Stream("simulated"):
                torch.empty(64 * 2**20, dtype=torch.uint8, device="simulated")
            torch.simulated.synchronize()
        except RuntimeError as error:
            said.append(str(error))

    torch.simulated.empty_cache()
    with graph:
        x.add_(1)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    run(graph, stream)
    assert x.tolist() == [2.0, 2.0]
    if mode in ("default", "global"):
        assert "mode 'global'" in said[0]
    else:
        assert said == []


def test_two_threads_capture_beside_one_another() -> None:
    both, results = threading.Barrier(2), {}

    def work(start: float) -> None:
        graph = Graph(capture_error_mode="thread_local")
        with torch.Stream("simulated") as stream:
            x = torch.full((2,), start, device="simulated")  # on the stream that reads it
            both.wait()  # neither capture has begun: making x may take memory from the device
            graph.capture_begin()
            both.wait()
            y = x * 2
            both.wait()
            graph.capture_end()
            run(graph, stream)
            results[start] = y.tolist()

    threads = [threading.Thread(target=work, args=(start,)) for start in (1.0, 5.0)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert results == {1.0: [2.0, 2.0], 5.0: [10.0, 10.0]}
