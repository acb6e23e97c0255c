"""Graphs: capture, replay, forks and joins, random numbers, life and death."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.simulated.graphs import Graph, ones, run

# Capture and replay


def test_capture_records_and_does_not_run(stream: torch.Stream) -> None:
    x, graph, states = ones(), Graph(), [stream.is_capturing()]
    with graph:
        x.add_(1)
        states.append(stream.is_capturing())
        assert not torch.Stream("simulated").is_capturing()
        assert torch.simulated.is_current_stream_capturing()
    states.append(stream.is_capturing())
    stream.synchronize()
    assert (states, x.tolist()) == ([False, True, False], [1.0, 1.0])


#: Calls of one tensor of shape (2, 2): queued ones, ones that are waited for outside of captures, and composites.
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: x * 2 + 1,
    "in place": lambda x: x.clone().add_(3).mul_(x),
    "out": lambda x: torch.exp(x, out=torch.empty_like(x)),
    "product": lambda x: x @ x,
    "view": lambda x: x.t()[:1].expand(3, 2) + x[0],
    "sort": lambda x: x.sort(dim=1, descending=True).values,
    "cumsum": lambda x: x.cumsum(0),
    "index": lambda x: x[torch.zeros(3, dtype=torch.int64, device=x.device)],
    "index_put": lambda x: x.clone().index_put_(
        (torch.zeros(1, dtype=torch.int64, device=x.device),), x[:1] * 9
    ),
    "masked_fill": lambda x: x.masked_fill(x > 2, -1),
    "whole division": lambda x: (x.long() // (x.long() + 1)).float(),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (2,)),
    "linear algebra": lambda x: torch.linalg.inv_ex(x + torch.eye(2, device=x.device) * 9).inverse,
    "convolution": lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_replay_is_the_work_on_what_inputs_hold_then(name: str, stream: torch.Stream) -> None:
    call, x, graph = CALLS[name], ones(2, 2), Graph()
    with graph:
        y = call(x)
    for step in range(3):
        values = torch.tensor([[1.0, 4.0], [3.0, 2.0]]) + step
        x.copy_(values)
        run(graph, stream)
        assert torch.allclose(y.cpu(), call(values))


def test_each_replay_does_the_work_again(stream: torch.Stream) -> None:
    x, graph = ones(), Graph()
    with graph:
        x.add_(1).mul_(2)
    run(graph, stream, 5)
    assert x.tolist() == [94.0, 94.0]


def test_a_replay_is_queued_on_the_current_stream(stream: torch.Stream) -> None:
    x, graph, gate = ones(), Graph(), torch.simulated.Gate()
    with graph:
        x.add_(1)
    gate.close()
    graph.replay()
    x.mul_(10)
    assert not stream.query()
    gate.open()
    assert x.tolist() == [20.0, 20.0]


def test_a_graph_is_a_part_of_another_stream_s_order(stream: torch.Stream) -> None:
    x, graph, gate, other = ones(), Graph(), torch.simulated.Gate(), torch.Stream("simulated")
    with graph:
        x.add_(1)
    gate.close()
    graph.replay()
    with other:
        graph.replay()  # behind the first, though on another stream
        assert not other.query()
    gate.open()
    other.synchronize()
    assert x.tolist() == [3.0, 3.0]


def test_pinned_memory_is_read_when_the_graph_is_replayed(stream: torch.Stream) -> None:
    given, taken = torch.ones(2).pin_memory(), torch.zeros(2).pin_memory()
    x, graph = ones(), Graph()
    with graph:
        x.copy_(given, non_blocking=True)
        taken.copy_(x * 2, non_blocking=True)
    given.fill_(7)
    run(graph, stream)
    assert taken.tolist() == [14.0, 14.0]


def test_backward_is_captured(stream: torch.Stream) -> None:
    weight = torch.ones(2, 2, device="simulated", requires_grad=True)
    x, graph = ones(1, 2), Graph()
    torch.autograd.grad((x @ weight).pow(2).sum(), weight)
    with graph:
        (gradient,) = torch.autograd.grad((x @ weight).pow(2).sum(), weight)
    x.fill_(3)
    run(graph, stream)
    assert gradient.tolist() == [[36.0, 36.0]] * 2


# Forks and joins


def test_a_side_stream_is_captured_and_keeps_its_place(stream: torch.Stream) -> None:
    x, y, side, gate = ones(), ones(), torch.Stream("simulated"), torch.simulated.Gate()
    graph = Graph()
    with graph:
        x.add_(1)
        side.wait_stream(stream)
        with side:
            assert side.is_capturing()
            gate.close()  # recorded as well: it holds the replay's branch
            x.mul_(10)
        y.add_(5)
        stream.wait_stream(side)
        z = x + y
    assert not side.is_capturing() and side.query()
    graph.replay()
    while not gate.reached():
        pass
    assert not stream.query()
    gate.open()
    stream.synchronize()
    assert (x.tolist(), y.tolist(), z.tolist()) == ([20.0] * 2, [6.0] * 2, [26.0] * 2)


def test_branches_of_a_replay_run_beside_one_another(stream: torch.Stream) -> None:
    first, second = torch.simulated.Gate(), torch.simulated.Gate()
    x, side, graph = ones(), torch.Stream("simulated"), Graph()
    with graph:
        x.add_(1)
        side.wait_stream(stream)
        with side:
            first.close()
        second.close()
        stream.wait_stream(side)
    graph.replay()
    while not (first.reached() and second.reached()):  # both are held at the same time
        pass
    first.open()
    second.open()
    stream.synchronize()


def test_a_fork_of_a_fork_that_comes_back_is_joined(stream: torch.Stream) -> None:
    x, graph = ones(), Graph()
    one, two = torch.Stream("simulated"), torch.Stream("simulated")
    with graph:
        one.wait_stream(stream)
        two.wait_stream(one)
        with two:
            x.add_(1)
        one.wait_stream(two)
        with one:
            x.mul_(3)
        stream.wait_stream(one)
    run(graph, stream)
    assert x.tolist() == [6.0, 6.0]


def test_a_fork_that_is_not_joined_is_refused(stream: torch.Stream) -> None:
    x, side, graph = ones(), torch.Stream("simulated"), Graph()
    with pytest.raises(RuntimeError, match="was not joined"), graph:
        side.wait_stream(stream)
        with side:
            x.add_(1)
    assert not side.is_capturing() and not stream.is_capturing()


def test_events_do_not_lead_into_a_capture_or_out_of_it(stream: torch.Stream) -> None:
    x, before, other = ones(), torch.Event("simulated"), torch.Stream("simulated")
    before.record(other)
    with pytest.raises(RuntimeError, match="recorded outside of the capture"), Graph():
        stream.wait_event(before)
    with Graph():
        x.add_(1)
        within = stream.record_event()
    with pytest.raises(RuntimeError, match="capture that has ended"):
        other.wait_event(within)


# Random numbers


def generator() -> torch.Generator:
    return torch.Generator("simulated")


@pytest.mark.parametrize("source", [None, generator], ids=["default", "registered"])
def test_replays_draw_as_eager_execution_does(
    source: Callable[[], torch.Generator] | None, stream: torch.Stream
) -> None:
    made = source() if source is not None else torch.simulated.default_generators()[0]

    def draw() -> torch.Tensor:
        return torch.rand(3, device="simulated", generator=made) + torch.randint(
            9, (3,), device="simulated", generator=made
        )

    graph = Graph()
    made.manual_seed(4)
    state = made.get_state()
    with graph:
        y = draw()
    assert torch.equal(made.get_state(), state)  # a capture draws nothing
    eager = [draw().tolist() for _ in range(4)]
    for _ in range(2):
        made.manual_seed(4)
        got = []
        for step in range(4):
            if step == 2:
                got.append(draw().tolist())  # between the replays
                continue
            run(graph, stream)
            got.append(y.tolist())
        assert got == eager


def test_a_seed_given_while_a_replay_waits_does_not_change_it(stream: torch.Stream) -> None:
    made, graph, gate = generator(), Graph(), torch.simulated.Gate()
    with graph:
        y = torch.rand(3, device="simulated", generator=made)
    made.manual_seed(4)
    want = torch.rand(3, device="simulated", generator=made).tolist()
    made.manual_seed(4)
    gate.close()
    graph.replay()
    made.manual_seed(5)  # returns although nothing can run
    gate.open()
    stream.synchronize()
    assert (y.tolist(), made.initial_seed()) == (want, 5)


def test_dropout_is_captured(stream: torch.Stream) -> None:
    x, graph = ones(100), Graph()
    with graph:
        y = torch.nn.functional.dropout(x, 0.5)
    torch.simulated.manual_seed(1)
    run(graph, stream)
    first = y.tolist()
    run(graph, stream)
    assert set(first) == {0.0, 2.0} and y.tolist() != first


# Life


def test_a_kept_graph_is_instantiated_when_it_is_needed_or_asked_for(stream: torch.Stream) -> None:
    x = ones()
    for ask in (False, True):
        graph = Graph(keep_graph=True)
        with graph:
            x.add_(1)
        if ask:
            graph.instantiate()
            graph.instantiate()  # again, as often as one likes
        run(graph, stream)
    assert x.tolist() == [3.0, 3.0]


def test_instantiate_is_refused_where_it_is_done_already(stream: torch.Stream) -> None:
    x, graph = ones(), Graph()
    with pytest.raises(RuntimeError, match="without a capture"):
        graph.instantiate()
    with graph:
        x.add_(1)
    with pytest.raises(RuntimeError, match="keep_graph=True"):
        graph.instantiate()


def test_a_graph_is_captured_again_after_a_reset_only(stream: torch.Stream) -> None:
    x, graph = ones(), Graph()
    with graph:
        x.add_(1)
    with pytest.raises(RuntimeError, match="call reset"):
        graph.capture_begin()
    graph.reset()
    with pytest.raises(RuntimeError, match="without a successful capture"):
        graph.replay()
    with graph:
        x.mul_(7)
    run(graph, stream)
    assert x.tolist() == [7.0, 7.0]


def test_a_graph_is_dumped_as_a_drawing(stream: torch.Stream, tmp_path: Path) -> None:
    x, graph, side = ones(), Graph(), torch.Stream("simulated")
    graph.enable_debug_mode()
    with graph:
        y = x + 1
        side.wait_stream(stream)
        with side:
            torch.exp(y)
        stream.wait_stream(side)
    file = tmp_path / "graph.dot"
    graph.debug_dump(str(file))
    text = file.read_text(encoding="utf-8")
    assert text.startswith("digraph") and text.count("{") == text.count("}")
    assert '"0: aten::add.Tensor"' in text and '"1: aten::exp' in text and "n0 -> n1" in text
    plain = Graph()
    with plain:
        x.add_(1)
    with pytest.warns(UserWarning, match="enable_debug_mode"):
        plain.debug_dump(str(tmp_path / "none.dot"))
    assert not (tmp_path / "none.dot").exists()


def test_a_graph_may_die_while_its_work_is_queued(stream: torch.Stream) -> None:
    x, gate, graph = ones(), torch.simulated.Gate(), Graph()
    with graph:
        y = x + 1
        x.add_(y)
    gate.close()
    graph.replay()
    del graph, y
    gate.open()
    stream.synchronize()
    torch.simulated.empty_cache()
    assert x.tolist() == [3.0, 3.0]


# Callables


def test_graphed_callables_are_what_they_were_made_of(stream: torch.Stream) -> None:
    torch.manual_seed(2)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    there = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    there.load_state_dict(module.state_dict())
    graphed = torch.simulated.make_graphed_callables(
        there.to("simulated"), (torch.randn(2, 3).to("simulated"),)
    )
    for _ in range(3):
        x = torch.randn(2, 3)
        module.zero_grad()
        graphed.zero_grad()
        want, got = module(x), graphed(x.to("simulated"))
        (want * 3).sum().backward()
        (got * 3).sum().backward()
        torch.simulated.synchronize()
        assert torch.allclose(got.cpu(), want)
        for mine, theirs in zip(graphed.parameters(), module.parameters()):
            assert torch.allclose(mine.grad.cpu(), theirs.grad)
    graphed.eval()
    assert torch.allclose(graphed(x.to("simulated")).cpu(), want)  # the original forward


def test_several_callables_and_unused_inputs(stream: torch.Stream) -> None:
    given, others = (
        tuple(torch.ones(2, device="simulated", requires_grad=True) for _ in range(2))
        for _ in range(2)
    )
    functions = (lambda a, b: a * 2, lambda a, b: a + b)
    first, second = torch.simulated.make_graphed_callables(
        functions, (given, others), allow_unused_input=True
    )
    x = torch.full((2,), 5.0, device="simulated", requires_grad=True)
    second(first(x, x), x).sum().backward()
    torch.simulated.synchronize()
    assert x.grad.tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="unused|not have been used"):
        torch.simulated.make_graphed_callables(functions[0], given)


def test_what_cannot_be_graphed_is_refused() -> None:
    module = torch.nn.Linear(1, 1).to("simulated")
    handle = module.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="must have no hooks"):
        torch.simulated.make_graphed_callables(module, (ones(1, 1),))
    handle.remove()
    with pytest.raises(TypeError, match="takes tensors"):
        torch.simulated.make_graphed_callables(module, (3,))
