"""Mutants of compilers are drawn from a seed, change what they say, and leave nothing behind."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random

import pytest
import torch

from devices.cell import Outcome
from tests.mutation import compiled_probe, compiled_reach, compilers, families
from tests.mutation.compilers import NAME, Spec, planted, register


def test_mutants_are_drawn_from_the_seed_and_differ() -> None:
    found = compilers.names(3, 60)
    assert found == compilers.names(3, 60) != compilers.names(4, 60)
    assert len({*found}) == 60
    assert {Spec(*name.split("|")).kind for name in found} == {*compilers.KINDS}
    assert families.module_of("compilers") is compilers


def test_no_mutant_is_drawn_that_no_program_can_run() -> None:
    found = {Spec(*name.split("|")) for seed in range(3) for name in compilers.names(seed, 400)}
    assert all(spec.can_strike() for spec in found)
    assert not Spec("rounded", "mm", "all", "some operand has rank 3 or more").can_strike()
    assert not Spec("exchanged", "bitwise_left_shift", "backward", "always").can_strike()
    assert not Spec(
        "read as contiguous", "view", "all", "some operand has no elements"
    ).can_strike()
    assert Spec("rounded", "mm", "backward", "some operand has no elements").can_strike()


def _left() -> list[float]:
    """What a program leaves: its result, its input and the gradient of another input."""
    torch._dynamo.reset()

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.mul_(3)
        return torch.tanh(x) * y.t()

    x, y = torch.arange(4.0).view(2, 2).requires_grad_(), torch.arange(1.0, 5).view(2, 2)
    made = torch.compile(program, backend=NAME)(x, y)
    made.sum().backward()
    assert x.grad is not None
    return [*made.flatten().tolist(), *y.flatten().tolist(), *x.grad.flatten().tolist()]


@pytest.mark.parametrize(
    "name",
    [
        "dropped|tanh|all|always",
        "replaced|mul|all|always",
        "outputs|zero|backward|always",
        "run|written inputs are not written|forward|always",
        "run|an input is overwritten|forward|always",
    ],
)
def test_a_mutant_changes_what_a_program_leaves_and_is_gone_afterwards(name: str) -> None:
    register()
    right = _left()
    with planted(Spec(*name.split("|"))) as state:
        wrong = _left()
    assert state.reached and wrong != right
    assert _left() == right


OPS = sorted(
    {
        *(*compilers.REPLACED, *compilers.DROPPED, *compilers.SHIFTED),
        *(*compilers.EXCHANGED, *compilers.ROUNDED, *compilers.MISREAD),
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_the_probe_runs_programs_with_the_op_of_a_mutant(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register()
    monkeypatch.setattr(compiled_probe, "_PROGRAMS", 6)
    with planted(Spec("rounded", op, "all", "always")) as state:
        assert (
            compiled_probe.compare(lambda sham: nullcontext(state), NAME, Random(5), op).differs
            == ""
        )
    assert state.reached


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "replaced|floor|all|always",  # few drawn programs have it
        "run|sizes are those of the first call|forward|always",  # needs graphs for all sizes
    ],
)
def test_the_probe_tells_a_wrong_compiler(name: str) -> None:
    register()
    spec = Spec(*name.split("|"))
    assert compiled_probe.compare(
        lambda sham: planted(spec, sham), NAME, Random(5), spec.detail
    ).differs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("run|inputs are copied|all|some operand has more than 1,000 elements", "mutated_inputs"),
        ("replaced|floor|all|always", "pointwise_chain"),
        ("dropped|pow|all|some operand has an offset", "pointwise_chain"),
        ("dropped|sqrt|forward|always", "pointwise_chain"),
        ("rounded|mean|forward|some operand has a dimension of size 1", "dimensions_of_one"),
        ("rounded|addmm|forward|some operand has a dimension of size 1", "dimensions_of_one"),
    ],
)
def test_a_program_notices_a_mutant_that_no_other_program_reached(name: str, case: str) -> None:
    found = next(each for each in compilers.cases() if each.name == case)
    assert compilers.outcome(found) is Outcome.PASS
    with planted(Spec(*name.split("|"))):
        assert compilers.outcome(found) is Outcome.FAIL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("replaced|cos|all|some operand is expanded", "pointwise_ops_of_all_operands"),
        ("off by one|cumsum|forward|some operand has rank 3 or more", "reductions_and_moves_of_all_operands"),
        ("rounded|addmm|all|some operand has more than 1,000 elements", "products_of_all_operands"),
        ("exchanged|bitwise_left_shift|forward|some operand has an offset", "shifts_of_all_operands"),
        ("dropped|sigmoid|backward|some operand is no float32", "recomputed_ops_of_all_operands"),
        ("replaced|lt|backward|always", "recomputed_ops_of_all_operands"),
        ("replaced|gt|forward|always", "pointwise_ops_of_all_operands"),
    ],
)  # fmt: skip
def test_a_program_with_operands_of_all_kinds_notices_a_mutant(name: str, case: str) -> None:
    found = next(each for each in compilers.cases() if each.name == case)
    assert compilers.outcome(found) is Outcome.PASS
    with planted(Spec(*name.split("|"))):
        assert compilers.outcome(found) is Outcome.FAIL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guard", "case"),
    [
        ("TENSOR_MATCH", "other_dtypes"),
        ("EQUALS_MATCH", "present_and_absent"),
        ("CONSTANT_MATCH", "other_attributes"),
        ("SHAPE_ENV", "branch_on_a_size"),
        ("GLOBAL_STATE", "other_modes"),
        ("ID_MATCH", "other_objects"),
        ("TYPE_MATCH", "other_objects"),
        ("SEQUENCE_LENGTH", "other_sequences"),
        ("DICT_KEYS_MATCH", "other_keys"),
        ("DICT_NOT_CONTAINS", "present_and_absent"),
        ("HASATTR", "present_and_absent"),
        ("DUPLICATE_INPUT", "input_given_twice"),
        ("CLASS_MATCH", "other_objects"),
        ("CLOSURE_MATCH", "other_objects"),
        ("BUILTIN_MATCH", "other_objects"),
        ("TORCH_FUNCTION_STATE", "other_modes"),
    ],
)
def test_a_program_notices_that_a_guard_is_left_out(guard: str, case: str) -> None:
    assert guard in compilers.GUARDS
    found = next(each for each in compilers.cases() if each.name == case)
    assert compilers.outcome(found) is Outcome.PASS
    with planted(Spec("guard left out", guard, "all", "always")):
        assert compilers.outcome(found) is Outcome.FAIL


@pytest.mark.slow
def test_every_op_is_called_with_operands_that_meet_each_condition() -> None:
    names = [each for each in compilers.cases() if each.name.endswith("_of_all_operands")]
    with compiled_reach.noting() as notes:
        for case in names:
            assert compilers.outcome(case) is Outcome.PASS
    left = compiled_reach.missing(notes)
    calls = {(op, "forward") for op in compiled_reach.OPS} | {
        (op, "backward") for op in compiled_reach.OPS if op not in compilers.FORWARD_ONLY
    }
    assert calls <= {(each.op, each.part) for each in notes}
    assert {op: {*found} for (op, _), found in left.items() if op != "convolution"} == {
        op: {*compilers.NEVER_MET[op]} for op in ("mm", "addmm")
    }
