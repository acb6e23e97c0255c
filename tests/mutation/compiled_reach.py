"""Which ops of compiled graphs the cases reach, and with which operands.

``python -m tests.mutation.compiled_reach`` runs the cases of ``compile.programs`` and ``compile.autograd`` once, with the compiler
that is right, and lists for each op of a mutant (``tests/mutation/compilers.py``) the conditions under which no case calls it: a mutant
under such a condition is not reached, so these operands are missing. It takes about a minute on an idle core.

``python -m tests.mutation.compiled_reach FILE`` writes to FILE which mutants each case reaches, and how long it takes. A mutant is
then tried with the cases that reach it, the quickest first.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import msgspec
import torch
from torch import fx
from torch.utils import _pytree as pytree

from conformance.checks.cases.cases import BehaviourCase
from tests.mutation import compilers
from tests.mutation.compile import runtime_wrappers, traced_backward
from tests.mutation.compile.reach_table import Reach
from tests.mutation.compilers import Spec

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


# -- which mutants a case reaches

#: Kinds of mutants of one op.
_OF_OPS: Final = tuple(
    kind for kind in compilers.KINDS if kind not in ("outputs", "run", "guard left out")
)
_LOST_WRITES: Final = "written inputs are not written"
_WHOLE_GRAPHS: Final = tuple(each for each in compilers.RUNS if each != _LOST_WRITES)


def _may_matter(kind: str, given: Sequence[Any], made: Sequence[Any], drew: bool) -> bool:
    """Whether a fault of the run of a graph can change something, by its inputs and outputs and by whether it ``drew`` random
    numbers. Most depend on other calls too."""
    if kind == "random numbers leave the generator as it was":
        return drew
    if kind.startswith("sizes"):
        return any(type(each) is int for each in given)
    if kind == "gradients are recorded":
        return any(each.is_floating_point() for each in compilers.tensors_in(made))
    if kind.startswith("two outputs"):
        return compilers.equal_outputs(made) is not None
    return True


def _met(given: Any) -> list[str]:
    tensors = compilers.tensors_in(given)
    return [each for each, holds in compilers.CONDITIONS.items() if tensors and holds(tensors)]


class _NotingMutants(fx.Interpreter):
    """Runs a graph op by op and notes the mutants that would change a call. With ``ops``, these are mutants of all ops, not
    only of those in ``KINDS``."""

    def __init__(self, graph: Any, part: str, notes: set[Spec], ops: bool) -> None:
        super().__init__(graph)
        self._part, self._notes, self._ops = part, notes, ops

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(getattr(target, "overloadpacket", None), "__name__", "")
        kinds = [kind for kind in _OF_OPS if self._takes(kind, name)]
        if met := _met(args) if kinds else []:
            for kind in kinds:
                if compilers.changed_call(kind, name, target, args)[0]:
                    self._notes.update(Spec(kind, name, self._part, each) for each in met)
        if target is torch.ops.aten.copy_.default:
            self._notes.update(
                Spec("run", _LOST_WRITES, self._part, each) for each in _met(args[:1])
            )
        return super().call_function(target, args, kwargs)

    def _takes(self, kind: str, name: str) -> bool:
        known = compilers.KINDS[kind]
        return bool(name) and (name in known or (self._ops and kind != "replaced"))


@contextmanager
def noting_mutants(*, all_ops: bool = False) -> Iterator[set[Spec]]:
    """Notes the mutants that would change something in a block, where nothing is changed. Faults of whole runs are noted
    wherever their condition is met, because some of them depend on earlier calls."""
    notes: set[Spec] = set()
    compile_it = torch.compile

    def run(graph: Any, given: list[Any], part: str) -> list[Any]:
        met, before = _met(given), torch.get_rng_state()
        made = list(_NotingMutants(graph, part, notes, all_ops).run(*given))
        drew = not torch.equal(before, torch.get_rng_state())
        for name, change in compilers.OUTPUTS.items():
            if met and any(change(each) is not each for each in compilers.tensors_in(made)):
                notes.update(Spec("outputs", name, part, each) for each in met)
        kinds = [name for name in _WHOLE_GRAPHS if _may_matter(name, given, made, drew)]
        notes.update(Spec("run", name, part, each) for name in kinds for each in met)
        return made

    def kept(guards: Sequence[Any]) -> list[bool]:
        notes.update(Spec("guard left out", each.guard_type, "all", "always") for each in guards)
        return [True for _ in guards]

    def noted(*args: Any, **given: Any) -> Any:
        options = {**(given.pop("options", None) or {}), "guard_filter_fn": kept}
        return compile_it(*args, **given, options=options)

    with mock.patch.object(compilers, "_run", run), mock.patch.object(torch, "compile", noted):
        yield notes


def measure(case: BehaviourCase) -> Reach:
    """Runs a case with the right compiler, and returns which mutants it reaches."""
    begin = time.perf_counter()
    with (
        warnings.catch_warnings(),
        noting_mutants() as notes,
        traced_backward.noting() as methods,
        runtime_wrappers.noting() as wrappers,
    ):
        warnings.simplefilter("ignore")
        compilers.outcome(case)
    found = {"|".join(each) for each in notes}
    return Reach(time.perf_counter() - begin, found | methods | wrappers)


def write(target: Path) -> None:
    target.write_bytes(msgspec.json.encode({each.id: measure(each) for each in compilers.cases()}))


def main(arguments: Sequence[str]) -> int:
    if arguments:
        write(Path(arguments[0]))
        return 0
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
    sys.exit(main(sys.argv[1:]))
