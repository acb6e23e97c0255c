"""The tables of figures in the pages are what docs/figures/ says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks import pages
from conformance import contract
from tests.mutation.figures import Tried, row_of
from tests.mutation.kernels import Result


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_that_were_measured(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert pages.rendered(text) == text, "run `python -m benchmarks.pages`"


def test_a_figure_typed_by_hand_is_found() -> None:
    text = "<!-- figures plans -->\n| `quick` | 5 s |\n<!-- end of figures -->\n"
    assert "5 s |" not in pages.rendered(text)


def test_a_block_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        pages.rendered("<!-- figures nothing -->\n<!-- end of figures -->")


def mutant(result: str, *not_gating: str) -> Result:
    return Result("k0000", "f", "abs", "rank", "raises", result, not_gating=[*not_gating])


def test_a_row_of_mutants_counts_the_live_ones() -> None:
    results = ["noticed", "noticed", "survived", "not_reached", "equivalent", "broken"]
    assert row_of("kernels", Tried(7, [*map(mutant, results)])) == pages.MutantFigures(
        family="kernels",
        seed=7,
        mutants=6,
        live=4,
        earlier=None,
        gate_red=2,
        cells_only=0,
        reached=1,
        not_reached=1,
    )


def test_a_run_without_some_clauses_counts_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contract.load()
    newest = msgspec.structs.replace(whole.clauses["nn.rnn"], provisional_since="0.2")
    clauses = {**whole.clauses, newest.id: newest}
    monkeypatch.setattr(contract, "load", lambda: contract.Contract(clauses, whole.families))
    mutants = [
        mutant("noticed"),
        mutant("not_gated", "nn.rnn", "optim.steps"),
        mutant("not_gated", "nn.rnn"),
        mutant("survived"),
    ]
    row = row_of("nn", Tried(7, mutants, not_gating="nn.*,optim.*"))
    assert (row.live, row.earlier, row.gate_red, row.cells_only) == (4, 1, 2, 1)
