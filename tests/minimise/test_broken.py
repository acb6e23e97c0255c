"""A device with a dozen causes: every new failure minimised, their causes found and shown to people."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import pytest

from conformance import suites
from devices.cell import CellKey, Outcome
from reports.causes import DERIVATIVE, Cause, causes_of
from reports.gate import gate
from reports.model import Example, Run
from reports.run import load_run
from tests.minimise.broken import arguments
from tests.plugin.running import ForkServer, Ran
from tests.wrapped.causes import CAUSE_OF, CAUSES

#: The run takes more than a minute; tests/reports/test_causes.py has the rules one by one.
pytestmark = pytest.mark.slow

#: One op of every cause, two of some: the others are for `python -m tests.minimise.broken`.
OPS = tuple(op for cause in CAUSES for op in cause.ops[: 2 if cause in CAUSES[:4] else 1])


@dataclass(frozen=True)
class Broken:
    """The run, what it said, and its causes."""

    run: Run
    ran: Ran
    causes: tuple[Cause, ...]

    def example(self, op: str, clause: str) -> Example:
        found = self.run.results[CellKey(f"layout.{clause}", op, "float32")].example
        assert found is not None
        return found


@pytest.fixture(scope="module")
def broken(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Broken:
    folder = tmp_path_factory.mktemp("broken") / "run"
    ran = fork.pytest(*arguments(folder, OPS), "-n", "0", "--minimise", "200")
    assert folder.joinpath("run.conform").exists(), ran.text
    run = load_run(folder)
    return Broken(run, ran, causes_of(run, gate(run, partial=True).new))


def test_every_new_failure_is_minimised_within_the_budget(broken: Broken) -> None:
    failing = [r for r in broken.run.results.values() if r.outcome is Outcome.FAIL]
    searched = {c.clause for name in suites.SEARCHED for c in suites.load(name).op_checks}
    minimised = [r for r in failing if r.key.clause in searched]  # no other suite's are
    assert len(minimised) >= 20
    assert [str(r.key) for r in minimised if r.example is None] == []
    assert all(r.example is not None and r.example.tried <= 500 for r in minimised)
    assert all(r.repro and (broken.run.folder / r.repro).is_file() for r in failing)


def ops_of(cause: Cause) -> set[str]:
    return {result.key.unit for result in cause.results}


def planted(cause: Cause) -> set[str]:
    return {CAUSE_OF[op].name for op in ops_of(cause)}


def of_derivatives(cause: Cause) -> bool:
    """True for causes of wrong derivatives alone. torch computes them with kernels of other ops: where ``mul`` takes an
    expanded gradient for a dense one, the derivatives of ``cos`` are wrong too."""
    return cause.key.about[1:2] == (DERIVATIVE,)


def test_no_cause_mixes_two_that_are_planted(broken: Broken) -> None:
    found = {str(cause.key): planted(cause) for cause in broken.causes if not of_derivatives(cause)}
    assert {key: causes for key, causes in found.items() if len(causes) > 1} == {}


def test_derivatives_that_another_op_spoils_have_a_cause_of_their_own(broken: Broken) -> None:
    """``mul`` ignores stride 0, which derivatives of most ops meet: they are one cause, and no cause of the op's own."""
    (spoilt,) = (c for c in broken.causes if of_derivatives(c) and "expand" in c.key.about)
    assert ops_of(spoilt) >= {"cos", "sin", "abs", "erfinv", "lgamma"}
    clauses = {
        result.key.clause
        for cause in broken.causes
        if of_derivatives(cause)
        for result in cause.results
    }
    assert clauses <= {"layout.grad", "autograd.first", "autograd.second", "autograd.forward_ad"}


def test_every_planted_cause_is_seen(broken: Broken) -> None:
    seen = set().union(*map(planted, broken.causes))
    assert seen == {cause.name for cause in CAUSES}


def test_fifteen_causes_explain_nine_cells_in_ten(broken: Broken) -> None:
    counts = [len(cause.results) for cause in broken.causes]
    assert sum(counts[:15]) >= 0.9 * sum(counts)


def test_ops_with_one_cause_are_together(broken: Broken) -> None:
    together = [ops_of(cause) for cause in broken.causes]
    for pair in ({"cos", "sin"}, {"neg", "abs"}, {"mul", "xlogy"}, {"maximum", "minimum"}):
        assert pair in together


@pytest.mark.parametrize(
    ("op", "clause", "call", "layout", "shapes"),
    [
        ("cos", "values", "torch.cos(t[0])", "contiguous+step_inner", [(2,)]),
        ("abs", "values", "torch.abs(t[0])", "contiguous+offset", [()]),
        ("mul", "expanded_read", "torch.mul(t[0], t[1])", "contiguous+expand_first/contiguous", [(2,), ()]),
        ("maximum", "output_strides", "torch.maximum(t[0], t[1])", "transposed/contiguous", [(2, 2), ()]),
        ("amax", "values", "torch.amax(t[0])", "contiguous+offset", [()]),
        ("nn.functional.avg_pool2d", "values", "torch.nn.functional.avg_pool2d(t[0], 1)", "channels_last", [(1, 2, 2, 2)]),
        ("lgamma", "out_kept", "torch.lgamma(t[0], out=…)", "out=contiguous+step_inner", [(2,)]),
        ("heaviside", "bounds", "torch.heaviside(t[0], t[1], out=…)", "out=contiguous", [(), ()]),
        ("erfinv", "inplace", "torch.Tensor.erfinv_(t[0])", "contiguous+step_inner", [(2,)]),
        ("gather", "determinism", None, "contiguous", [(), ()]),
    ],
)  # fmt: skip
def test_the_example_is_minimal(
    broken: Broken,
    op: str,
    clause: str,
    call: str | None,
    layout: str,
    shapes: list[tuple[int, ...]],
) -> None:
    example = broken.example(op, clause)
    if not example.whole:
        pytest.skip("the machine is too busy: 2 s were over before the search was")
    assert call is None or example.call == call
    assert example.layout == layout
    assert [t.shape for t in example.tensors] == shapes


def test_the_end_shows_the_causes_and_the_report_holds_them(broken: Broken) -> None:
    text = broken.ran.text
    shown = [line for line in text.splitlines() if line.startswith("regression: ")]
    assert 0 < len(shown) < len(broken.causes)
    data = json.loads((broken.run.folder / "failures.json").read_text())
    # It holds the failures of provisional clauses too, which can join the causes of the others.
    judged = gate(broken.run, partial=True)
    causes = causes_of(broken.run, (*judged.new, *judged.provisional))
    told = Counter(frozenset(cause["cells"]) for cause in data["causes"])
    assert told == Counter(frozenset(str(r.key) for r in cause.results) for cause in causes)
    red = {str(result.key) for cause in broken.causes for result in cause.results}
    assert red <= set().union(*told)
