"""Mutants that were reached and not noticed once: the clause that notices each now."""

from __future__ import annotations

from random import Random

import pytest

from tests.mutation import kernels
from tests.mutation.effects import GENERAL, conditioned
from tests.mutation.kernels import Mutant
from tests.mutation.plant import NOT_MET, Effect, Invocation


def raises() -> Effect:
    made: tuple[str, Effect] = GENERAL["raises"](None, Random(0))  # type: ignore[arg-type,assignment]
    return made[1]


def is_empty(call: Invocation) -> bool:
    return not call.operands[0].tensor.numel()


def made_contiguous(call: Invocation) -> object:
    first = call.operands[0]
    if first.tensor.is_contiguous():
        return NOT_MET
    return call.honest_with(first, first.tensor.contiguous())


def transposes_its_input(call: Invocation) -> object:
    first = call.operands[0].tensor
    if call.form != "functional" or first.dim() < 2:
        return NOT_MET
    result = call.honest()
    first.transpose_(0, 1)
    return result


MENDED: list[tuple[str, tuple[str, ...], Effect, str]] = [
    # An op whose values are unspecified may still not raise.
    ("new_empty", ("new_empty",), conditioned(is_empty, raises()), "layout.values"),
    # as_strided of a view addresses its storage, whatever the view's own strides are.
    (
        "as_strided_copy",
        ("as_strided_copy",),
        made_contiguous,
        "layout.as_strided",
    ),
    # An input keeps its strides, and not only its bytes.
    ("matmul", ("mm",), transposes_its_input, "layout.inputs_intact"),
]


@pytest.mark.parametrize(("op", "overloads", "effect", "clause"), MENDED)
def test_what_survived_is_noticed(
    op: str, overloads: tuple[str, ...], effect: Effect, clause: str
) -> None:
    mutant = Mutant("k0000", op, "", "", overloads, effect)
    found = kernels.judged(mutant, lambda: mutant, Random(0))
    assert found.result == "noticed" and clause in found.by
