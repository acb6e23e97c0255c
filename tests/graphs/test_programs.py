"""Drawn programs: every part of one is a program, and what it means in a capture it means in one order."""

from __future__ import annotations

import random

import pytest
import torch

from conformance.suites.graphs import graph_programs as program
from conformance.suites.graphs.graph_programs import GRAPHS, INPUTS, Model

STEPS = [
    ("make", 0, 0, 0, 1),
    ("fork", 1),
    ("make", 1, 1, 3, 2),
    ("write", 0, 0, 1),
    ("join", 1),
    ("free", 0),
    ("write", 2, 4, 0),
]


def left(steps: list[tuple[object, ...]]) -> list[torch.Tensor]:
    return program.run(steps, *(torch.full(program.SHAPE, float(n)) for n in range(INPUTS)))


def test_a_program_leaves_its_inputs_and_the_values_it_made() -> None:
    assert len(left([])) == INPUTS
    assert len(left(STEPS)) == INPUTS + 1
    assert left(STEPS[:1])[-1].unique().tolist() == [1.0]


def test_nothing_is_written_in_place_while_a_fork_is_open() -> None:
    inside = left([("fork", 1), ("write", 0, 0, 1), ("join", 1)])
    assert inside[0].unique().tolist() == [0.0]
    assert left([("write", 0, 0, 1)])[0].unique().tolist() == [1.0]


def test_an_open_fork_is_joined_at_the_end() -> None:
    assert len(left([("fork", 1), ("make", 1, 0, 0, 0)])) == INPUTS + 1


@pytest.mark.parametrize("number", range(20))
def test_every_part_of_a_program_is_one(number: int) -> None:
    drawn = random.Random(number)
    part = [step for step in STEPS * 2 if drawn.random() < 0.5]
    drawn.shuffle(part)
    assert len(left(part)) >= INPUTS


def test_programs_are_told_in_a_line() -> None:
    assert GRAPHS.describe(STEPS[:2]) == "make 0 0 0 1; fork 1"


def aside(steps: list[tuple[object, ...]]) -> bool:
    return any(key[0] == "make aside" for key in Model().reached(steps))


def test_work_on_a_side_stream_is_told_apart() -> None:
    assert aside(STEPS)
    assert not aside([("make", 1, 0, 0, 0), ("fork", 2), ("make", 1, 0, 0, 0)])
    assert not aside([("fork", 1), ("join", 1), ("make", 1, 0, 0, 0)])
