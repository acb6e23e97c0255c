"""The tables of figures in the pages are what docs/figures/ says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import pages
from conformance import contract
from tests.mutation import figures
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
        gate_red=2,
        cells_only=0,
        reached=1,
        not_reached=1,
    )


def test_a_clause_that_a_run_treats_as_not_gating_counts_if_it_gates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    assert (row.live, row.gate_red, row.cells_only) == (4, 2, 1)


def test_new_figures_of_a_family_take_the_place_of_its_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, run = tmp_path / "mutants.json", tmp_path / "run.json"
    old = [row_of(family, Tried(seed, [mutant("survived")])) for family in ("nn", "optim") for seed in (1, 2)]  # fmt: skip
    kept.write_bytes(msgspec.json.encode(old))
    run.write_bytes(msgspec.json.encode(Tried(3, [mutant("noticed")])))
    monkeypatch.setattr(figures, "MUTANTS", kept)
    monkeypatch.setattr(figures, "read_mutants", lambda: old)
    monkeypatch.setattr(figures, "write_pages", list)
    assert CliRunner().invoke(figures.main, [f"nn={run}"]).exit_code == 0
    new = msgspec.json.decode(kept.read_bytes(), type=list[pages.MutantFigures])
    assert [(row.family, row.seed) for row in new] == [("nn", 3), ("optim", 1), ("optim", 2)]
