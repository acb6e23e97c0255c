"""Which ops of compiled graphs the cases reach, and with which operands.

``python -m tests.mutation.compiled_reach`` runs the cases of ``compile.programs`` and ``compile.autograd`` once, with the compiler
that is right, and lists for each op of a mutant (``tests/mutation/compilers.py``) the conditions under which no case calls it: a mutant
under such a condition is not reached, so these operands are missing. It takes about a minute on an idle core.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tests.mutation import compilers

#: Cases of other clauses take longer and have no ops of their own.
CLAUSES: Final = ("compile.programs", "compile.autograd")
#: All ops that mutants change.
OPS: Final = frozenset(
    op for kind, ops in compilers.KINDS.items() if kind not in ("outputs", "run", "guard left out")
    for op in ops
)  # fmt: skip


class Call(NamedTuple):
    """A call of an op in a graph: the part of the program, and a condition that its operands meet."""

    op: str
    part: str
    condition: str


class _Noting(fx.Interpreter):
    """Runs a graph op by op and notes its calls."""

    def __init__(self, graph: Any, part: str, notes: set[Call]) -> None:
        super().__init__(graph)
        self._part, self._notes = part, notes

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(getattr(target, "overloadpacket", None), "__name__", "")
        tensors = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
        if name in OPS and tensors:
            met = [each for each, holds in compilers.CONDITIONS.items() if holds(tensors)]
            self._notes.update(Call(name, self._part, each) for each in met)
        return super().call_function(target, args, kwargs)


@contextmanager
def noting() -> Iterator[set[Call]]:
    """Notes the calls of all graphs that the compiler runs in a block."""
    notes: set[Call] = set()

    def run(graph: Any, given: list[Any], part: str) -> list[Any]:
        return list(_Noting(graph, part, notes).run(*given))

    with mock.patch.object(compilers, "_run", run):
        yield notes


def missing(notes: set[Call]) -> dict[tuple[str, str], list[str]]:
    """For each op and part with a call, the conditions that no call meets."""
    called = sorted({(each.op, each.part) for each in notes})
    return {
        (op, part): found
        for op, part in called
        if (found := [c for c in compilers.CONDITIONS if Call(op, part, c) not in notes])
    }


def main() -> int:
    chosen = [case for case in compilers.cases() if case.clause in CLAUSES]
    with warnings.catch_warnings(), noting() as notes:
        warnings.simplefilter("ignore")
        for case in chosen:
            compilers.outcome(case)
    for (op, part), conditions in missing(notes).items():
        print(f"{op}, {part}: {'; '.join(conditions)}")
    never = [f"{op}, {part}" for op in sorted(OPS) for part in ("forward", "backward")]
    never = [each for each in never if tuple(each.split(", ")) not in {n[:2] for n in notes}]
    print("never called:", "; ".join(never))
    return 0


if __name__ == "__main__":
    sys.exit(main())
