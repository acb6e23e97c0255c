"""The tables of figures in the pages are what docs/figures/ says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import pages
from tests.mutation.figures import row_of


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


def test_a_row_of_mutants_counts_the_live_ones() -> None:
    results = ["noticed", "noticed", "not_gated", "survived", "not_reached", "equivalent", "broken"]
    assert row_of("kernels", 7, results) == pages.MutantFigures(
        family="kernels", seed=7, live=5, gate_red=2, cells_only=1, reached=1, not_reached=1
    )
