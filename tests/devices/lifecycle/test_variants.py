"""Blocks of an update never reach from one variant of a cell into another."""

from __future__ import annotations

from devices.cell import CellKey
from devices.lifecycle.narrow import Box, Forbidden, _with_prefix, decompose
from devices.manifest import Block, ExpectedOutcome
from tests.devices.lifecycle.builders import cell


def test_ops_that_fail_in_one_variant_alone_share_a_product() -> None:
    eager = [cell(f"layout.values::{op}[float32]") for op in ("add", "mul")]
    compiled = [key._replace(variant="compiled") for key in eager]
    assert decompose(compiled, Forbidden(eager)) == [
        Box(
            frozenset({"layout.values"}),
            frozenset({"add", "mul"}),
            frozenset({"float32"}),
            frozenset({"compiled"}),
        )
    ]


def test_two_variants_share_a_product_unless_it_would_contain_a_cell_that_passes() -> None:
    failing = [
        CellKey("layout.values", "add", "float32", "compiled"),
        CellKey("layout.values", "mul", "float32", ""),
    ]
    passing = CellKey("layout.values", "mul", "float32", "compiled")
    assert len(decompose(failing, Forbidden([]))) == 1
    assert len(decompose(failing, Forbidden([passing]))) == 2


def test_a_prefix_of_unplanned_ops_is_not_moved_into_a_block_of_one_variant() -> None:
    block = Block(
        line=1,
        clause=("layout.values",),
        op=("fft.*",),
        dtype=("float32",),
        outcome=ExpectedOutcome.FAIL,
        reason="x",
    )
    piece = Block(
        line=1,
        clause=("layout.values",),
        op=("fft.fft",),
        dtype=("float32",),
        variant=("compiled",),
        outcome=ExpectedOutcome.FAIL,
        reason="x",
    )
    kept, added = _with_prefix(block, [piece], "fft.*", ["layout.values"], {"float32"})
    assert kept == piece
    assert (added.op, added.variant) == (("fft.*",), ("*",))
