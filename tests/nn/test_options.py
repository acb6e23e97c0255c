"""Covering arrays of options: each pair occurs that the module accepts, and fast paths are taken."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest
import torch

from conformance.suites.nn.covering import Combination, covering_array
from conformance.suites.nn.forward_backward import WAYS
from conformance.suites.nn.modules import built
from conformance.suites.nn.option_table import OptionTable
from conformance.suites.nn.option_tables import MODULES
from conformance.suites.nn.options import FAST, PRODUCTS, QUICK, combined
from conformance.suites.nn.sequence_option_tables import ATTENTION, RECURRENT

LEVELS: dict[str, tuple[Any, ...]] = {
    "size": (1, 2, 3),
    "mode": ("sum", "mean", "max"),
    "last": (False, True),
    "other": ("x", "y"),
}


def refused(options: Combination) -> bool:
    """``max`` is not accepted with the size 3, nor ``y`` together with the size 1 (either of ``last``)."""
    size = options.get("size")
    return (options.get("mode") == "max" and size == 3) or (
        options.get("other") == "y" and size == 1
    )


def pairs(rows: list[Combination]) -> set[frozenset[tuple[str, Any]]]:
    return {frozenset(pair) for row in rows for pair in combinations(row.items(), 2)}


def all_rows(levels: dict[str, tuple[Any, ...]]) -> list[Combination]:
    return [dict(zip(levels, values, strict=True)) for values in product(*levels.values())]


def test_each_accepted_pair_occurs() -> None:
    accepted = [row for row in all_rows(LEVELS) if not refused(row)]
    found = covering_array(LEVELS, refused, 2)
    assert pairs(found) == pairs(accepted)
    assert not any(map(refused, found))
    assert len(found) < len(accepted) / 2


def test_each_value_occurs() -> None:
    found = covering_array(LEVELS, refused, 1)
    assert {fact for row in found for fact in row.items()} == {
        (name, value) for name, values in LEVELS.items() for value in values
    }
    assert len(found) <= 4


def test_the_array_is_the_same_each_time() -> None:
    assert covering_array(LEVELS, refused, 2) == covering_array(LEVELS, refused, 2)


TABLES = MODULES | FAST | RECURRENT | ATTENTION


@pytest.mark.parametrize("name", TABLES)
def test_each_value_of_a_table_occurs(name: str) -> None:
    """A value that every combination refuses is a mistake of the table."""
    rows = combined(TABLES[name], 1)
    for option, values in TABLES[name].levels.items():
        assert {row[option] for row in rows} == set(values)
    assert {row["way"] for row in rows} == set(range(len(WAYS)))


def test_the_modules_of_plan_quick_have_tables() -> None:
    assert set(QUICK) <= set(MODULES)
    assert len(covering_array(PRODUCTS, lambda options: False, 1)) == max(
        map(len, PRODUCTS.values())
    )


def fast_calls(table: OptionTable, monkeypatch: pytest.MonkeyPatch, function: str) -> int:
    """How often a module takes its fast path, on the CPU and in all combinations of two options."""
    honest, calls = getattr(torch, function), []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return honest(*args)

    monkeypatch.setattr(torch, function, counted)
    for row in combined(table, 2):
        draw = torch.Generator().manual_seed(1)
        options = {name: value for name, value in row.items() if name not in ("run", "way")}
        sample = table.sample(options, draw)
        module = built(getattr(torch.nn, table.module), sample, draw).eval()
        with torch.no_grad():
            module(*sample.inputs, **sample.named)
    return len(calls)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("MultiheadAttention_fast_path", "_native_multi_head_attention"),
        ("TransformerEncoderLayer_fast_path", "_transformer_encoder_layer_fwd"),
        ("TransformerEncoderLayer_float_masks_on_fast_path", "_transformer_encoder_layer_fwd"),
    ],
)
def test_modules_take_their_fast_path(
    name: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ATTENTION[name]
    assert fast_calls(table, monkeypatch, function) >= 0.9 * len(combined(table, 2))
