"""What the bounds notice, op by op: twice the bound fails, half of it passes; so does 2 % in 16 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from conformance.checks.cells import Recorder
from conformance.checks.ops.context import ItemContext, run_checks
from conformance.suites import load
from conformance.suites.precision.bounds import entries, is_exact, limit_of, on_samples
from conformance.suites.precision.elementwise import ULP, correctly_rounded, variants
from conformance.suites.precision.samples import off_by
from conformance.suites.precision.ulps import FORMATS
from devices.cell import Outcome
from devices.cpu.descriptor import DESCRIPTOR as CPU
from opinfo.catalog import catalogue
from opinfo.compare import replace_tensors
from opinfo.device import open_device
from opinfo.exceptions import exceptions, names
from opinfo.reference import StrideReference
from opinfo.samples import choose, draw, probe
from tests.precision.test_ulps import kind, stepped
from tests.trials import one_thread

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
@pytest.mark.parametrize("part", [0.5, 2.0])
def test_the_same_on_samples(dtype: str, part: float) -> None:
    bound = on_samples("softmax", dtype)
    unit = 2.0 ** (1 - FORMATS[dtype][0])
    want = torch.tensor([0.25, -1.0, 0.5], dtype=torch.float64)
    got = want + part * bound * unit
    assert (off_by(got, want, dtype, bound, "") is not None) is (part > 1)


# Every op


class Wrapped:
    """The CPU with results that a function changes as they are read back."""

    def __init__(self, back: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.device = replace(open_device(CPU), from_device=back)

    def cells(self, op_id: str, dtype: str, *clauses: str) -> dict[str, Outcome]:
        """The outcomes of the cells of these clauses; empty where none applies."""
        op, known = catalogue()[op_id], exceptions()
        samples = choose(draw(op, dtype), 6)
        traits = probe(op, dtype, samples, known)
        checks = [c for name in ("precision", "layout") for c in load(name).op_checks]
        wanted = [
            check.clause
            for check in checks
            if check.clause in clauses
            and traits.returns
            and check.applies(traits)
            and known.excluded(check.clause, op_id, dtype, fake_only=True) is None
        ]
        recorder = Recorder(op_id, dtype, wanted)
        strides = StrideReference("cpu", None)
        context = ItemContext(op, dtype, traits, samples, self.device, strides, recorder, known)
        with one_thread():
            run_checks(context, [check for check in checks if check.clause in wanted])
        return {clause: record.outcome() for clause, record in recorder.cells.items()}


def some(dtype: str, count: int, seed: int = 1) -> Iterator[str]:
    """Ops with a precision cell of the dtype, at random."""
    ops = [op.id for op in catalogue().values() if dtype in op.dtypes]
    Random(seed).shuffle(ops)
    for op in ops:
        samples = choose(draw(catalogue()[op], dtype), 6)
        traits = probe(catalogue()[op], dtype, samples, exceptions())
        (check,) = (each for each in SUITE.op_checks if each.clause == ULP)
        if traits.returns and check.applies(traits) and not _constant(op):
            yield op
            count -= 1
        if not count:
            return


def _constant(op: str) -> bool:
    """Whether the results of an op are zeros, truth values or infinities, which 2 % do not change."""
    return op in ("zeros_like", "new_zeros", "zero_", "zero") or op.startswith("is")


def larger(part: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A result that is wrong by this part everywhere."""

    def back(value: torch.Tensor) -> torch.Tensor:
        if value.layout != torch.strided or not (value.is_floating_point() or value.is_complex()):
            return value
        return (value.to(torch.complex128 if value.is_complex() else torch.float64) * part).to(
            value.dtype
        )

    return back


@pytest.mark.parametrize(("dtype", "part"), [("bfloat16", 1.02), ("float16", 1.02), ("float32", 1.0001)])  # fmt: skip
def test_results_that_are_wrong_everywhere_fail_for_any_op(dtype: str, part: float) -> None:
    device, missed = Wrapped(larger(part)), []
    for op in some(dtype, 40):
        found = device.cells(op, dtype, ULP, "layout.values")
        if Outcome.FAIL not in found.values() and _has_floats(op, dtype):
            missed.append((op, found))
    assert missed == []


def _has_floats(op: str, dtype: str) -> bool:
    """Whether some result of the first samples is a finite number of a floating dtype that is not zero."""
    entry, found = catalogue()[op], False
    for sample in choose(draw(entry, dtype), 6):
        seen: list[torch.Tensor] = []
        try:
            result = entry.function(*sample.call.args, **sample.call.kwargs)
        except Exception:
            continue
        replace_tensors(result, seen.append)
        for each in seen:
            if each.layout == torch.strided and each.is_floating_point():
                found = found or bool((each[each.isfinite()] != 0).any())
    return found


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
    context = ItemContext(
        op, "float32", traits, samples, open_device(CPU), strides, recorder, known
    )
    assert variants(context) == []
