"""Wrong answers fail, for a sample of all ops and dtypes, or ``right.toml`` says why they pass."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from opinfo.catalog import catalogue
from tests.precision.__main__ import passing
from tests.precision.right import Pass, reasons, table, without_reason
from tests.precision.wrong import Impostor, general, same, told_of

PAGE = Path(__file__).parents[2] / "docs" / "precision.md"


#: Forty ops and some that are known, a few of them in the fast part.
OPS = ["isnan", "eq", "sum", "zeros_like", *Random(5).sample(sorted(catalogue()), 40)]


@pytest.mark.parametrize(
    "ops", [OPS[:3], pytest.param(OPS[3:], marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_wrong_answers_fail_or_there_is_a_reason(ops: list[str]) -> None:
    found, _ = passing(ops)
    assert without_reason(found) == []
    assert "zeros_like" not in ops or Pass("zeros", "zeros_like", "float32") in found


def test_the_page_has_the_table() -> None:
    assert "\n".join(table()) in PAGE.read_text(encoding="utf-8")


def test_every_reason_names_ops_of_the_database() -> None:
    assert [op for each in reasons() for op in each.ops if op not in catalogue()] == []


def test_every_wrong_answer_is_made() -> None:
    value, stale = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    found = dict(general(value * 3, [value], stale))
    assert found["scaled"].tolist() == torch.tensor([3.0003, 6.0006]).tolist()
    assert [found[name].tolist() for name in ("zeros", "a constant", "an operand")] == [
        [0.0, 0.0],
        [3.0, 3.0],
        [1.0, 2.0],
    ]
    assert same(found["the last result"], stale)


def test_an_op_that_is_a_constant_lets_a_constant_pass() -> None:
    told = told_of("ones_like", "float32")
    assert told is not None and told.passing() == ["a constant", "the last result"]


def test_only_calls_with_moved_tensors_are_answered_wrongly() -> None:
    op = Impostor(torch.neg, lambda args, kwargs, result: result + 1)
    value = torch.ones(2)
    assert op(value).tolist() == [-1.0, -1.0] and not op.differs
    assert op(op.move(value)).tolist() == [0.0, 0.0] and op.differs
