"""The judge of compiled calls compares everything that a caller can see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checks.ops.calls import Unjudged
from conformance.checks.ops.evidence import OutputFacts
from conformance.suites.compile.compiled_calls import (
    Answer,
    Compared,
    Gradient,
    Pair,
    shared_with,
    unseeded,
)
from conformance.suites.compile.compiled_judge import judge_compiled
from opinfo.compare import DEFAULT_TOLERANCES, Wrong

REFERENCE: Any = SimpleNamespace(
    tolerances=DEFAULT_TOLERANCES,
    gradient_tolerances=DEFAULT_TOLERANCES,
    roundings=0.0,
    unspecified=False,
    cloned=False,
)
FACTS = OutputFacts((2, 3), (3, 1), 0, torch.float32, False, False, 24)


def answer() -> Answer:
    return Answer(
        form="strided",
        values=[torch.arange(6.0).view(2, 3)],
        outputs=[FACTS],
        same=[None],
        shares=[None],
        requires_grad=[True],
        after=[torch.ones(8)],
        shapes=[((2, 3), (3, 1))],
        wrote=[False],
        gradients=[Gradient(torch.ones(2, 3), (3, 1))],
    )


def found(pair: Pair, **reference: Any) -> list[str]:
    given = SimpleNamespace(**{**vars(REFERENCE), **reference})
    verdicts = judge_compiled(Compared([pair]), given)
    return [each.kind for each in verdicts if isinstance(each, Wrong)]


def rows(eager: Answer, made: Answer) -> Pair:
    return Pair(eager, made, graphs=1, row_major=True)


def test_equal_answers_pass() -> None:
    assert found(Pair(answer(), answer(), graphs=1)) == []


CHANGES: dict[str, tuple[str, Callable[[Answer], object]]] = {
    "values": ("values", lambda a: a.values[0].add_(1)),
    "dtype": ("dtype", lambda a: facts(a, dtype=torch.float64)),
    "shape": ("shape", lambda a: facts(a, shape=(3, 2))),
    "strides": ("strides", lambda a: facts(a, stride=(1, 2))),
    "offset": ("offset", lambda a: facts(a, offset=1)),
    "conjugate bit": ("bits", lambda a: facts(a, conj=True)),
    "storage of an input": ("alias", lambda a: facts(a, storage=0)),
    "an input itself": ("alias", lambda a: setattr(a, "same", [0])),
    "storage of an output": ("alias", lambda a: setattr(a, "shares", [0])),
    "requires_grad": ("state", lambda a: setattr(a, "requires_grad", [False])),
    "write to an input": ("values", lambda a: a.after[0].zero_()),  # type: ignore[union-attr]
    "strides of an input": ("moved", lambda a: setattr(a, "shapes", [((2, 3), (1, 2))])),
    "form": ("count", lambda a: setattr(a, "form", "(strided, strided)")),
    "gradient": ("values", lambda a: a.gradients[0].values.zero_()),  # type: ignore[union-attr]
    "strides of a gradient": (
        "strides",
        lambda a: setattr(a, "gradients", [Gradient(torch.ones(2, 3), (1, 2))]),
    ),
    "no gradient": ("values", lambda a: setattr(a, "gradients", [None])),
    "too few gradients": ("count", lambda a: a.gradients.clear()),
    "result that changes later": ("values", lambda a: a.later.append(torch.zeros(2, 3))),
    "exception": ("raised", lambda a: setattr(a, "raised", ValueError("no"))),
}


def facts(given: Answer, **changed: Any) -> None:
    given.outputs = [replace(given.outputs[0], **changed)]


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_a_failure(change: str) -> None:
    made, (kind, apply) = answer(), CHANGES[change]
    apply(made)
    assert found(rows(answer(), made)) == [kind]


def test_a_write_that_no_version_counter_counts_is_a_failure() -> None:
    eager = answer()
    eager.wrote = [True]
    assert found(Pair(eager, answer(), graphs=1)) == ["state"]
    assert found(Pair(answer(), eager, graphs=1)) == []


def test_a_call_without_a_graph_is_a_failure() -> None:
    assert found(Pair(answer(), answer(), graphs=0)) == ["count"]


@pytest.mark.parametrize(("graphs", "kinds"), [(0, []), (1, ["count"])])
def test_a_repeated_call_must_compile_nothing(graphs: int, kinds: list[str]) -> None:
    first = Pair(answer(), answer(), graphs=1)
    again = Pair(answer(), answer(), graphs, repeated=True)
    verdicts = judge_compiled(Compared([first, again]), REFERENCE)
    assert [each.kind for each in verdicts if isinstance(each, Wrong)] == kinds


def test_strides_of_gradients_count_only_if_all_inputs_are_row_major() -> None:
    made = answer()
    made.gradients = [Gradient(torch.ones(2, 3), (1, 2))]
    assert found(Pair(answer(), made, graphs=1)) == []


def test_a_view_may_be_a_copy_where_torch_itself_copies() -> None:
    eager = answer()
    facts(eager, storage=0)
    assert found(Pair(eager, answer(), graphs=1)) == ["not_aliased"]
    assert found(Pair(eager, answer(), graphs=1), cloned=True) == []


def test_gradients_share_memory_only_if_they_do_in_eager_execution() -> None:
    eager, made = answer(), answer()
    eager.gradients, made.gradients = (
        [Gradient(torch.ones(3), (1,)), Gradient(torch.ones(3), (1,), shares)]
        for shares in (None, 0)
    )
    assert found(Pair(eager, made, graphs=1)) == ["alias"]
    assert found(Pair(made, eager, graphs=1)) == []
    assert found(Pair(made, made, graphs=1)) == []


def test_gradients_share_memory_if_they_have_an_element_in_common() -> None:
    call: Any = SimpleNamespace(storage=True)
    memory = torch.zeros(6)
    even, odd, last = memory[::2], memory[1::2], memory[4:]
    assert shared_with(call, [even, None], odd) is None
    assert shared_with(call, [odd, even], last) == 0
    assert shared_with(call, [None, memory], memory) == 1
    assert shared_with(call, [torch.zeros(6)], memory) is None
    assert shared_with(SimpleNamespace(storage=False), [memory], memory) is None  # type: ignore[arg-type]


def test_a_gradient_of_none_counts_as_zeros() -> None:
    eager, made = answer(), answer()
    eager.gradients, made.gradients = [None], [Gradient(torch.zeros(2, 3), (3, 1))]
    assert found(Pair(eager, made, graphs=1)) == []


def test_values_that_are_not_specified_are_not_compared() -> None:
    made = answer()
    made.values[0].add_(1)
    assert found(Pair(answer(), made, graphs=1), unspecified=True) == []


def test_a_call_that_raises_in_eager_execution_is_not_judged() -> None:
    error = RuntimeError("no kernel")
    assert list(judge_compiled(Compared([], error), REFERENCE)) == [Unjudged(error)]


def test_the_seeding_wrapper_of_torchs_database_is_left_out() -> None:
    names = {"wrapper_set_seed": None, "torch": torch}
    seeded = eval("lambda x: wrapper_set_seed(torch.neg, x)", names)
    assert unseeded(seeded)(torch.ones(1)).item() == -1
    assert unseeded(torch.neg) is torch.neg
