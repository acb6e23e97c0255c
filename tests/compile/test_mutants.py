"""The cells of the compile suite fail for wrong compilers and for wrong fake kernels, and pass for the right ones."""

from __future__ import annotations

import pytest

from devices.cell import Outcome
from tests.compile.mutants import FAKES, MUTANTS, Mutant
from tests.compile.running import EQUAL, META, record_of

#: The fast tests try these; the slow tests try every mutant.
_FAST = {"mutation_lost", "result_row_major", "gradient_negated", "nothing_compiled", "no_guards"}
_FAST_FAKES = {"fake_strides", "fake_view_copied", "fake_gradient_strides"}


def each(mutants: tuple[Mutant, ...], fast: set[str]) -> list[object]:
    return [
        pytest.param(mutant, id=mutant.name, marks=() if mutant.name in fast else pytest.mark.slow)
        for mutant in mutants
    ]


@pytest.mark.parametrize("mutant", each(MUTANTS, _FAST))
def test_a_wrong_compiler_is_noticed(mutant: Mutant) -> None:
    with mutant.plant():
        record = record_of(EQUAL, mutant.op, mutant.dtype, variant=mutant.variant)
    assert record.outcome() is Outcome.FAIL, record.to_outcome().note


@pytest.mark.parametrize("mutant", each(FAKES, _FAST_FAKES))
def test_a_wrong_fake_kernel_is_noticed(mutant: Mutant) -> None:
    with mutant.plant():
        record = record_of(META, mutant.op, mutant.dtype)
    assert record.outcome() is Outcome.FAIL, record.to_outcome().note


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "dtype", "variant"), sorted({(each.op, each.dtype, each.variant) for each in MUTANTS})
)
def test_the_compiler_of_torch_passes(op: str, dtype: str, variant: str) -> None:
    outcome = record_of(EQUAL, op, dtype, variant=variant).to_outcome()
    assert (outcome.outcome, outcome.message) == (Outcome.PASS, "")


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted({each.op for each in FAKES}))
def test_the_fake_kernels_of_torch_pass(op: str) -> None:
    outcome = record_of(META, op).to_outcome()
    assert (outcome.outcome, outcome.message) == (Outcome.PASS, "")
