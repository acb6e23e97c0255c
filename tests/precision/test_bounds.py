"""What the bounds notice, op by op: twice the bound fails, half of it passes; so does 2 % in 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext
from conformance.suites import load
from conformance.suites.precision.bounds import entries, is_exact, limit_of, on_samples
from conformance.suites.precision.elementwise import ULP, correctly_rounded, variants
from conformance.suites.precision.sampled_ulp import off_by
from conformance.suites.precision.ulps import FORMATS
from devices.cpu.descriptor import DESCRIPTOR as CPU
from opinfo.catalog import catalogue
from opinfo.device import open_device
from opinfo.exceptions import exceptions, names
from opinfo.reference import StrideReference
from opinfo.samples import choose, draw, probe
from tests.precision.test_ulps import kind, stepped

SUITE = load("precision")
ASKED = [
    (op, dtype)
    for op in ("exp", "sin", "rsqrt", "atan2", "pow", "sqrt", "mul", "erfc", "log2", "expm1")
    for dtype in FORMATS
]


def asked(op: str, dtype: str, back: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether a device whose results are changed by ``back`` fails."""
    operands = 2 if op in ("atan2", "pow", "mul") else 1
    given: dict[str, Any] = {"args": (), "kwargs": {}, "operands": operands}
    found = correctly_rounded(
        getattr(torch, op), torch.clone, back, dtype=dtype, limit=limit_of(op, dtype), **given
    )
    return found.wrong is not None


def off(steps: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Every finite normal result so many steps from zero further."""

    def back(value: torch.Tensor) -> torch.Tensor:
        normal = value.isfinite() & (value.abs() > torch.finfo(value.dtype).tiny)
        return torch.where(normal, stepped(value, steps), value)

    return back


@pytest.mark.parametrize(("op", "dtype"), ASKED)
def test_twice_the_bound_fails_and_half_of_it_passes(op: str, dtype: str) -> None:
    bound = limit_of(op, dtype)["ulps"]
    assert not asked(op, dtype, off(int(bound / 2 - 0.1)))
    assert asked(op, dtype, off(int(2 * bound)))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("op", "low", "high"), [("byte", 0, 255), ("char", -128, 127)])
def test_conversions_of_what_no_integer_holds_are_not_judged(
    op: str, low: int, high: int, dtype: str
) -> None:
    """There, some devices give the nearest integer."""
    convert, limit = getattr(torch.Tensor, op), limit_of(op, dtype)
    given: dict[str, Any] = {"args": (), "kwargs": {}, "operands": 1, "limit": limit}

    def wrong(move: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        return correctly_rounded(convert, move, torch.clone, dtype=dtype, **given).wrong is not None

    assert not wrong(lambda value: value.clamp(low, high))
    assert wrong(lambda value: value.round())


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("part", [0.5, 2.0])
def test_the_same_on_samples(dtype: str, part: float) -> None:
    bound = on_samples("softmax", dtype)
    unit = 2.0 ** (1 - FORMATS[dtype][0])
    want = torch.tensor([0.25, -1.0, 0.5], dtype=torch.float64)
    got = want + part * bound * unit
    assert (off_by(got, want, dtype, bound, "") is not None) is (part > 1)


# The data


def test_every_entry_names_ops_of_the_database() -> None:
    known = list(catalogue())
    unknown = [p for e in entries() for p in e.ops if not any(names(p, op) for op in known)]
    assert unknown == []


def test_an_exact_op_has_no_ulps() -> None:
    assert [
        op for op in catalogue() if is_exact(op) and limit_of(op, "float32").get("absolute")
    ] == []


def test_values_that_the_database_asks_in_no_sample_make_no_variant() -> None:
    assert kind("float32") == torch.float32
    op, known = catalogue()["nn.functional.prelu"], exceptions()
    samples = choose(draw(op, "float32"), 6)  # its second tensor is a weight of each channel
    traits = probe(op, "float32", samples, known)
    recorder, strides = Recorder(op.id, "float32", [ULP]), StrideReference("cpu", None)
    context = OpContext(op, "float32", traits, samples, open_device(CPU), strides, recorder, known)
    assert variants(context) == []
