"""Programs of streams: their order, their text, what is drawn; and that broken order is found and shrunk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conformance.checks.programs.language import Step
from conformance.suites.streams.drawn import drawn_programs, ordered
from conformance.suites.streams.stream_programs import (
    STREAMS,
    Model,
    Program,
    afterwards,
    arange,
    fresh_buffers,
    on_the_cpu,
    validate,
)
from devices.cell import CellKey, Outcome
from tests.behaviour.server import Server, serving
from tests.plugin.running import environment


def after(*instructions: Step, indices: int = 1) -> Model:
    model = Model(indices, range(2) if indices > 1 else (0, 0))
    model.take_all(instructions)
    return model


def unseen(model: Model, *instruction: str | int) -> list[int]:
    return model.unseen(model.operands(instruction))


# What is ordered


def test_another_streams_write_is_unseen() -> None:
    assert unseen(after(("step", 0, 0, 1)), "copy", 1, 0, 1) == [0]


def test_two_reads_need_no_order() -> None:
    assert unseen(after(("copy", 0, 0, 1)), "copy", 1, 0, 2) == []


def test_a_read_is_before_a_later_write() -> None:
    assert unseen(after(("copy", 0, 0, 1)), "copy", 1, 2, 0) == [0]


def test_a_stream_sees_its_own_work() -> None:
    assert unseen(after(("step", 0, 0, 1)), "step", 0, 0, 1) == []


@pytest.mark.parametrize(
    "waits", [(("record", 0, 0), ("wait", 1, 0)), (("wait_stream", 1, 0),)], ids=["event", "stream"]
)
def test_a_wait_orders(waits: tuple[Step, ...]) -> None:
    assert unseen(after(("step", 0, 0, 1), *waits), "copy", 1, 0, 1) == []


def test_a_wait_takes_the_record_of_the_call() -> None:
    late = after(("record", 0, 0), ("wait", 1, 0), ("step", 0, 0, 1), ("record", 0, 0))
    assert unseen(late, "copy", 1, 0, 1) == [0]


def test_a_record_is_of_the_work_before_it() -> None:
    early = after(("record", 0, 0), ("step", 0, 0, 1), ("wait", 1, 0))
    assert unseen(early, "copy", 1, 0, 1) == [0]


def test_waiting_for_no_record_orders_nothing() -> None:
    assert unseen(after(("step", 0, 0, 1), ("wait", 1, 0)), "copy", 1, 0, 1) == [0]


def test_a_copy_between_indices_orders_both_streams() -> None:
    copied = after(("across", 0, 1, 0, 1), indices=2)
    assert unseen(copied, "copy", 1, 1, 0) == []
    assert unseen(copied, "copy", 0, 1, 0) == []


@pytest.mark.parametrize(
    "literal", [("sleep", 0), ("step", 0), ("step", 0, 0, "x"), ("wait", 1, 2, 3)]
)
def test_an_unknown_instruction_is_refused(literal: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="not an instruction"):
        STREAMS.validate([literal])


@pytest.mark.parametrize(
    ("literal", "wrong"),
    [
        (("step", 2, 0, 1), "does not exist"),
        (("copy", 0, 0, 3), "does not exist"),
        (("add", 0, 1, 1), "twice"),
        (("wait_stream", 1, 1), "twice"),
        (("across", 0, 1, 0, 1), "of one device index"),
        (("copy", 1, 0, 1), "no wait orders the two"),
    ],
)
def test_an_instruction_that_cannot_run_is_refused(literal: Step, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        validate(1, (0, 0), (("step", 0, 0, 1), literal), (0, 1))


# What is drawn


def test_missing_waits_are_put_in() -> None:
    made = ordered((0, 0), [("step", 0, 0, 1), ("step", 1, 0, 1)], (0, 1), 1)
    assert made.instructions == (("step", 0, 0, 1), ("wait_stream", 1, 0), ("step", 1, 0, 1))


def test_drawn_programs_hold_no_race() -> None:
    raced = []
    for program in _sample(60):
        model = program.begin()
        for instruction in program.instructions:
            raced += model.unseen(model.operands(instruction))
            model.take(instruction)
    assert raced == []


def test_the_same_programs_are_drawn_every_time() -> None:
    assert _sample(20) == _sample(20)


def test_drawn_programs_use_every_instruction() -> None:
    used = {each[0] for program in _sample(60) for each in program.instructions}
    assert used == {"step", "add", "copy", "across", "record", "wait", "wait_stream"}


def test_drawn_programs_use_every_instruction_on_every_kind_of_stream() -> None:
    used = {
        (each[0], model.kind(model.operands(each)["on"]))
        for program in _sample(80)
        for model in [program.begin()]
        for each in program.instructions
    }
    assert used == {(name, kind) for name in {name for name, _ in used} for kind in range(3)}


def test_an_index_has_one_default_stream() -> None:
    for program in _sample(80):
        validate(*program.literal)
    with pytest.raises(ValueError, match="one default stream"):
        validate(1, (1, 1), (), (0, 1))


def test_a_kind_of_stream_is_told() -> None:
    told = str(Program(2, (2, 1, 5), (), (0, 1, 2)))
    assert told.startswith("[s0 on 0 (the default), s1 on 1, s2 on 1 (of high priority)] nothing")


def _sample(count: int) -> list[Program]:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    found: list[Program] = []

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn_programs(2))
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return found


# What they compute, and say


def test_the_reference_is_one_instruction_after_the_other() -> None:
    steps = (("step", 0, 0, 4), ("wait_stream", 1, 0), ("copy", 1, 0, 1))
    program = Program(1, (0, 0), steps, (0, 1))
    first, second, third = on_the_cpu(program)
    start = fresh_buffers(1)
    assert torch.equal(first, start[0] * 3 + 4)
    assert torch.equal(second, first)
    assert torch.equal(third, start[2])


def test_a_program_is_told_in_words() -> None:
    instructions = (
        ("step", 0, 0, 4), ("add", 0, 0, 2), ("copy", 0, 0, 2), ("across", 0, 1, 0, 1),
        ("record", 0, 0), ("wait", 1, 0), ("wait_stream", 1, 0),
    )  # fmt: skip
    assert str(Program(2, (0, 1), instructions, (1, 0))) == (
        "[s0 on 0, s1 on 1] s0: x0 = 3 x0 + 4; s0: x0 += x2; s0: x2 = x0; s0 to s1: x1 = x0; "
        "record e0 on s0; s1 waits for e0; s1 waits for s0 [unblocked: s1, s0]"
    )


def test_a_program_is_written_down_and_read_back() -> None:
    for program in _sample(20):
        assert Program(*program.literal) == program


def test_what_is_expected_of_a_buffer_is_what_one_order_leaves() -> None:
    for program in _sample(60):
        wanted = [each.given.values() for each in afterwards(program) if each.name == "equal"]
        for (_, factor, more), want in zip(wanted, on_the_cpu(program), strict=True):
            assert torch.equal(arange(factor, more), want)


# What they find


@pytest.fixture(scope="module")
def server(cache: Path, shared: Path) -> Iterator[Server]:
    with serving(environment(cache)) as started:
        yield started


@pytest.mark.parametrize(
    ("fault", "cell"),
    [
        ("streams.ignore_wait", "streams.wait"),
        ("streams.reorder_tasks", "streams.wait"),
        ("streams.copy_ignores_peer_stream", "streams.cross_device"),
    ],
)
def test_broken_order_is_found_and_shrunk(server: Server, fault: str, cell: str) -> None:
    [seen] = server.run(fault, [CellKey(cell, "drawn", "")]).values()
    assert seen.outcome is Outcome.FAIL
    program = seen.message.partition("]")[2].partition(" [unblocked")[0]
    assert 1 <= len(program.split(";")) <= 6, seen.message
    assert "def once(context: CaseContext)" in seen.script


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "clause", "steps"),
    [
        ("graphs.drop_node", "graphs.replay_equals_eager", ["make"]),
        ("graphs.replay_once_only", "graphs.replay_equals_eager", ["make"]),
        ("graphs.side_stream_not_captured", "graphs.fork_join", ["fork", "make"]),
    ],
)
def test_broken_graphs_are_found_and_shrunk(
    server: Server, fault: str, clause: str, steps: list[str]
) -> None:
    [seen] = server.run(fault, [CellKey(clause, "drawn", "")]).values()
    assert seen.outcome is Outcome.FAIL
    program = seen.message.removeprefix("after ").partition(":")[0]
    assert [step.split()[0] for step in program.split("; ")] == steps, seen.message
    assert "def eager(v0, v1, v2):" in seen.script
