"""``python -m tests.compile.drawn_mutants --seed N [--count K]``: wrong compilers that are drawn, and how many are noticed.

A mutant is an op and an effect on a result, a gradient or an input of its compiled graph. A mutant whose effect changed
nothing that a caller could see does not count.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from devices.cell import Outcome
from opinfo.database import DATABASE
from tests.compile.mutants import around, column_major, detaches, graphs, outputs, with_offset
from tests.compile.running import EQUAL, record_of


@dataclass(slots=True)
class Reached:
    """How often an effect changed something."""

    times: int = 0
    kept: dict[str, Any] = field(default_factory=dict)

    def changed(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        self.times += _differ(before, after)
        return after


def _differ(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.numel() == 0:
        return False
    if before.dtype != after.dtype or before.shape != after.shape:
        return True
    sizes = [n for n, size in enumerate(before.shape) if size > 1]
    strides = [before.stride(n) != after.stride(n) for n in sizes]
    if any(strides) or before.storage_offset() != after.storage_offset():
        return True
    return not torch.allclose(before, after, rtol=1e-3, atol=1e-3, equal_nan=True)


def _last_wrong(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.clone()
    last = made[tuple(size - 1 for size in made.shape)] if made.numel() else made
    last.logical_not_() if made.dtype == torch.bool else last.add_(1)
    return made


#: What a changed graph gives in place of a tensor.
EFFECTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scaled": lambda t: t * 1.01 if t.is_floating_point() or t.is_complex() else t,
    "last element wrong": _last_wrong,
    "zeros": torch.zeros_like,
    "negated": lambda t: t if t.dtype in (torch.bool, torch.uint8) else -t,
    "dimensions reversed in memory": column_major,
    "offset": with_offset,
    "widened": lambda t: t.double() if t.dtype == torch.float32 else t,
    "rolled": lambda t: t.roll(1, -1) if t.dim() else t,
}


@contextmanager
def planted(effect: str, place: str, reached: Reached) -> Iterator[None]:
    """Makes the compiler give wrong results, gradients or inputs for a block."""
    if place == "call":
        with around(_CALLS[effect](reached)):
            yield
        return

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return reached.changed(tensor, EFFECTS[effect](tensor))

    def graph(module: Any) -> None:
        outputs(module, change, 0)

    with graphs(graph) if place == "result" else graphs(None, graph):
        yield


def _input_written(reached: Reached) -> Callable[..., Any]:
    def call(function: Any, *given: Any) -> Any:
        result = function(*given)
        first = given[0].data if isinstance(given[0], torch.Tensor) else None
        if first is not None and first.is_floating_point() and first.numel():
            before = first.clone()
            first.add_(1)
            reached.changed(before, first)
        return result

    return call


def _stale(reached: Reached) -> Callable[..., Any]:
    def call(function: Any, *given: Any) -> Any:
        result = function(*given)
        before = reached.kept.setdefault("result", result)
        if before is not result:
            for old, new in zip(before, result):
                if isinstance(new, torch.Tensor):
                    reached.changed(new.detach(), old.detach())
        return before

    return call


def _detached(reached: Reached) -> Callable[..., Any]:
    def call(function: Any, *given: Any) -> Any:
        result = function(*given)
        made = detaches(lambda: result)
        reached.times += any(isinstance(t, torch.Tensor) and t.requires_grad for t in result)
        return made

    return call


_CALLS = {"input written": _input_written, "stale": _stale, "detached": _detached}


def draw(chance: random.Random) -> tuple[str, str, str]:
    """Returns an op, a place and an effect."""
    op = chance.choice(sorted(DATABASE.subjects()))
    place = chance.choice(("result", "result", "gradient", "call"))
    effect = chance.choice(sorted(_CALLS if place == "call" else EFFECTS))
    return op, place, effect


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=40)
    asked = parser.parse_args()
    chance, live, noticed = random.Random(asked.seed), 0, 0
    while live < asked.count:
        op, place, effect = draw(chance)
        reached = Reached()
        try:
            with planted(effect, place, reached):
                record = record_of(EQUAL, op)
        except AssertionError:  # the clause does not apply to the op
            continue
        if not reached.times:
            continue
        live += 1
        noticed += record.outcome() is Outcome.FAIL
        print(record.outcome().value, op, place, effect, flush=True)
    print(f"seed {asked.seed}: {noticed} of {live} noticed")
    return int(noticed < 0.9 * live)


if __name__ == "__main__":
    sys.exit(main())
