"""Graphs: whose memory captured work uses, and when it comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.simulated.graphs import Graph, ones, run

# Memory


def segments_of(pool: tuple[int, int]) -> list[dict[str, Any]]:
    snapshot = torch.simulated.memory._snapshot()
    return [one for one in snapshot["segments"] if one["segment_pool_id"] == pool]


def test_memory_of_a_capture_is_the_graph_s_until_it_dies(stream: torch.Stream) -> None:
    x, graph = ones(), Graph()
    with graph:
        y = (x + 1) * 2
    pool, address = graph.pool(), y.data_ptr()
    held = segments_of(pool)
    assert any(one["address"] <= address < one["address"] + one["total_size"] for one in held)
    counter = f"reserved_bytes_by_private_pools.{pool[0]}_{pool[1]}.all.current"
    assert torch.simulated.memory_stats()[counter] == sum(one["total_size"] for one in held)
    torch.simulated.empty_cache()
    taken = {torch.empty(2, device="simulated").data_ptr() for _ in range(8)}
    assert not any(
        one["address"] <= each < one["address"] + one["total_size"]
        for one in held
        for each in taken
    )
    run(graph, stream)
    assert y.data_ptr() == address
    graph.reset()
    torch.simulated.empty_cache()
    assert segments_of(pool) != []  # y lives
    del y
    torch.simulated.empty_cache()
    assert segments_of(pool) == [] and counter not in torch.simulated.memory_stats()


def test_graphs_share_a_pool_in_the_order_of_their_capture(stream: torch.Stream) -> None:
    x, pool = ones(), torch.simulated.graph_pool_handle()
    first, second = Graph(pool=pool), Graph(pool=pool)
    with first:
        y = (x + 1) * 2
    with second:
        z = (y + 1) * 2
    assert first.pool() == second.pool() == pool
    before = sum(one["total_size"] for one in segments_of(pool))
    for step in range(3):
        x.fill_(step)
        first.replay()
        second.replay()
        assert z.tolist() == [((step + 1) * 2 + 1) * 2] * 2
    assert sum(one["total_size"] for one in segments_of(pool)) == before
    first.reset()
    torch.simulated.empty_cache()
    assert segments_of(pool) != []  # the second needs it
    with pytest.raises(RuntimeError, match="without a capture"):
        first.pool()


def test_a_block_that_a_side_stream_uses_is_not_handed_out_in_the_capture(
    stream: torch.Stream,
) -> None:
    x, side, graph = ones(), torch.Stream("simulated"), Graph()
    with graph:
        y = x + 1
        side.wait_stream(stream)
        with side:
            z = y * 10
        address = y.data_ptr()
        y.record_stream(side)
        del y
        again = x + 5
        assert again.data_ptr() != address
        stream.wait_stream(side)
    run(graph, stream)
    assert z.tolist() == [20.0, 20.0]


def test_pinned_memory_that_only_a_graph_uses_stays(stream: torch.Stream) -> None:
    given, x, graph = torch.ones(2).pin_memory(), ones(), Graph()
    with graph:
        x.copy_(given, non_blocking=True)
    address = given.data_ptr()
    del given
    assert torch.zeros(2).pin_memory().data_ptr() != address
    x.fill_(9)
    run(graph, stream)
    assert x.tolist() == [1.0, 1.0]
