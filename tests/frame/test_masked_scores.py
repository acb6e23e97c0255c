"""Attention with NaN in keys and values that the mask removes: several results are right, and only there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from conformance.checks.ops.masked_scores import with_masked_scores
from opinfo.compare import DEFAULT_TOLERANCES, difference

NAN = math.nan
attention = torch.nn.functional.scaled_dot_product_attention


def operands(place: str, key: int, special: float = NAN) -> list[torch.Tensor]:
    """Query, key and value, with a special element in one key or value."""
    torch.manual_seed(0)
    found = [torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)]
    if place:
        found["qkv".index(place)][0, key, 2] = special
    return found


def accepted(read: torch.Tensor, given: list[torch.Tensor], **options: Any) -> bool:
    """Whether a result is accepted beside that of the documented formula."""
    q, k, v = given
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores + torch.zeros(scores.shape).masked_fill(removed(**options), -math.inf)
    want = scores.softmax(-1) @ v
    found = with_masked_scores(read, want, lambda t, _: ((*t,), options), given, DEFAULT_TOLERANCES)
    return difference(found, want, DEFAULT_TOLERANCES) is None


def removed(*, is_causal: bool = False, attn_mask: Any = None) -> torch.Tensor:
    if is_causal:
        return torch.ones(3, 5, dtype=torch.bool).triu(1)
    return ~attn_mask if attn_mask.dtype == torch.bool else attn_mask == -math.inf


def without(given: list[torch.Tensor], **options: Any) -> torch.Tensor:
    """The result for finite elements in place of the special ones: that of a kernel which loses them."""
    return attention(*(t.nan_to_num(0.5, 0.5, 0.5) for t in given), **options)


SEEN_BY_NONE = torch.tensor([True, True, True, True, False]).expand(3, 5)
MASKS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "bool": {"attn_mask": SEEN_BY_NONE},
    "float": {"attn_mask": torch.zeros(3, 5).masked_fill(~SEEN_BY_NONE, -math.inf)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("place", ["k", "v"])
@pytest.mark.parametrize("special", [NAN, math.inf])
def test_a_removed_key_need_not_reach_the_result(mask: str, place: str, special: float) -> None:
    given = operands(place, 4, special)
    assert accepted(without(given, **MASKS[mask]), given, **MASKS[mask])


def test_nan_in_a_key_that_a_query_sees_must_reach_its_row() -> None:
    given, causal = operands("k", 1), MASKS["causal"]
    lost = without(given, **causal)
    assert not accepted(lost, given, **causal)
    kept = lost.clone()
    kept[0, 1:] = NAN  # queries 1 and 2 see key 1, and query 0 does not
    assert accepted(kept, given, **causal)
    kept[0, 2, 0] = lost[0, 2, 0]
    assert not accepted(kept, given, **causal)


def test_beside_a_removed_nan_other_values_are_wrong() -> None:
    given, causal = operands("k", 4), MASKS["causal"]
    assert not accepted(without(given, **causal) + 0.01, given, **causal)


def test_nan_in_the_query_must_reach_its_row() -> None:
    given, causal = operands("q", 1), MASKS["causal"]
    given[1][0, 4, 0] = NAN
    assert not accepted(without(given, **causal), given, **causal)


def test_a_nan_in_a_removed_key_may_be_lost_where_that_of_its_value_is_kept() -> None:
    given, causal = operands("k", 4), MASKS["causal"]
    given[2][0, 4, 3] = NAN
    found = without(given, **causal)
    found[0, :, 3] = NAN  # the removed weight is 0, and 0 x NaN is NaN
    assert accepted(found, given, **causal)


def test_finite_operands_are_compared_with_the_cpu_alone() -> None:
    given, causal = operands("", 0), MASKS["causal"]
    assert not accepted(without(given), given, **causal)
