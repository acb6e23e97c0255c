"""The CPU rounds as well: a device that is nearer to the exact result is right, and one that is further off is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks.ops.roundings import as_exact, exact_answer
from conformance.suites.layout import SUITE
from devices.cell import CellKey, Outcome
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from opinfo.compare import DEFAULT_TOLERANCES, replace_tensors, tensors_of
from tests.faulty import run_faulty
from tests.planting.calls import Effect, KernelCall
from tests.plugin.running import cells_of, run_pytest
from tests.strangers.bench import known_of

NAN, INF = math.nan, math.inf


def judged(got: list[float], cpu: list[float], exact: list[float], dtype: torch.dtype) -> bool:
    mine, theirs = (torch.tensor(each, dtype=dtype) for each in (got, cpu))
    true = torch.tensor(exact, dtype=torch.float64)
    return as_exact(mine, theirs, true, DEFAULT_TOLERANCES, 0.0)


@pytest.mark.parametrize(
    ("got", "cpu", "exact", "right"),
    [
        ([2.0], [2.5], [2.0], True),  # the CPU is off
        ([2.3], [2.5], [2.0], True),  # … by more
        ([1.6], [2.5], [2.0], True),  # … on the other side
        ([2.6], [2.5], [2.0], False),
        ([1.4], [2.5], [2.0], False),
        ([2.0, 9.0], [2.0, 9.5], [2.0, 9.0], True),
        ([2.5, 9.0], [2.0, 9.5], [2.0, 9.0], False),  # each by itself
        ([2.0], [NAN], [2.0], True),  # it overflowed on the way
        ([NAN], [NAN], [2.0], True),
        ([3.0], [NAN], [2.0], False),
        ([NAN], [2.5], [2.0], False),
        ([INF], [1e38], [1e300], False),  # float64 has another largest number
        ([INF], [INF], [1e300], True),
        ([1e38], [INF], [1e300], False),
        ([NAN], [0.0], [NAN], False),
    ],
)
def test_each_element_is_as_near_as_the_cpu_s(
    got: list[float], cpu: list[float], exact: list[float], right: bool
) -> None:
    assert judged(got, cpu, exact, torch.float32) == right


def test_the_exact_result_is_rounded_as_the_dtype_rounds() -> None:
    assert judged([0.3], [0.5], [0.3004], torch.bfloat16)
    assert judged([0.3], [0.5], [0.3004], torch.float16)
    assert not judged([0.3], [0.3001], [0.3004], torch.float32)


def test_an_index_is_one_of_the_two_beside_numbers_and_the_cpu_s_alone() -> None:
    def of(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index)]), torch.tensor([index])

    true = torch.tensor([3.0], dtype=torch.float64), torch.tensor([3])
    assert as_exact(of(3), of(5), true, DEFAULT_TOLERANCES, 0.0)
    assert not as_exact(of(4), (of(4)[0], of(5)[1]), true, DEFAULT_TOLERANCES, 0.0)
    # Not of ranks, which a tolerance that depends on the dtype decides.
    assert not as_exact(of(3)[1], of(5)[1], true[1], DEFAULT_TOLERANCES, 0.0)


def test_of_other_shapes_dtypes_and_numbers_of_results_nothing_is_near() -> None:
    one, two = torch.ones(1), torch.ones(2)
    exact = one.double()
    for got, want, true in (
        (two, one, exact),
        (one, two, two.double()),
        (one.half(), one, exact),
        ([one, one], one, exact),
        (one, one * 2, two.double()),
        (one, one * 2, None),
    ):
        assert not as_exact(got, want, true, DEFAULT_TOLERANCES, 0.0)


def test_float64_is_asked_with_the_dtypes_that_a_call_names() -> None:
    def total(x: torch.Tensor, dtype: Any) -> torch.Tensor:
        return x.sum(dtype=dtype)

    x = torch.tensor([1.0, 2.0**-20]).bfloat16()
    answer = exact_answer(total, lambda t, _: ((t[0], torch.float32), {}), [x])
    assert answer.result.item() == 1 + 2.0**-20
    assert answer.result.dtype == torch.float64
    assert exact_answer(total, lambda t, _: ((t[0], torch.int64), {}), [x]).result.item() == 1
    # Without elements nothing is rounded, and one op ends the process.
    assert exact_answer(total, lambda t, _: ((t[0], None), {}), [x[:0]]).result is None


# -- on calls of ops


def in_float64(then: Callable[[torch.Tensor], torch.Tensor]) -> Effect:
    """The result for operands in float64, rounded once, and changed ``then``."""

    def widest(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().double() if tensor.is_floating_point() else tensor.detach()

    def computed(call: KernelCall) -> Any:
        result = call.honest()  # which has the strides
        args, kwargs = replace_tensors((call.args, call.kwargs), widest)
        wide = call.function(*args, **kwargs)
        for mine, true in zip(tensors_of(result), tensors_of(wide), strict=True):
            if mine.is_floating_point():
                mine.copy_(then(true))
        return result

    return computed


#: Ops of which the CPU's own result is off by more than the tolerances, and by how much one in float64 may not be.
OFF = {
    ("special.hermite_polynomial_h", "float32"): 1e-2,
    ("grid_sampler_2d", "bfloat16"): 0.1,
    ("div.trunc_rounding", "bfloat16"): 0.1,
    ("nn.functional.fractional_max_pool2d", "bfloat16"): 0.1,
}


@pytest.mark.parametrize(("op", "dtype"), OFF)
def test_what_is_rounded_once_passes_and_what_is_wrong_by_more_does_not(
    op: str, dtype: str
) -> None:
    checks = [check for check in SUITE.op_checks if check.clause == "layout.values"]
    samples = samples_of(catalogue()[op], dtype, 4)

    def failing(then: Callable[[torch.Tensor], torch.Tensor]) -> tuple[int, int]:
        (cell,) = run_faulty(op, dtype, samples, checks, in_float64(then)).cells.values()
        return cell.failed, cell.checks

    assert failing(lambda true: true)[0] == 0
    failed, made = failing(lambda true: true * (1 + OFF[op, dtype]))
    assert failed > made / 2


# -- the simulated device, right and other than the CPU

#: Of each kind that was red once, and some that branch on strides or read numbers beside their operands.
_OPS = (
    *("special.hermite_polynomial_he", "addbmm", "masked.var", "grid_sampler_2d", "linalg.det"),
    *("linalg.tensorsolve", "nn.functional.embedding_bag", "cross"),
)


@pytest.mark.slow
def test_a_device_that_computes_in_float64_is_right(cache: Path, tmp_path: Path) -> None:
    ran = run_pytest(
        *("--device", "simulated", "--plan", "core", "--dtypes", "float32,bfloat16,complex64"),
        *("--ops", ",".join(_OPS), "--expectations", "none", f"--results={tmp_path / 'run'}"),
        cache=cache,
        SIMULATED_ARITHMETIC="float64",
    )
    cells = cells_of(tmp_path / "run")
    assert len(cells) > 200, ran.text
    assert {key: cell.message for key, cell in cells.items() if red(key, cell.outcome)} == {}


def red(key: CellKey, outcome: Outcome) -> bool:
    """Whether a cell is red that is not so on the device by default, nor on the CPU."""
    known = any(known_of(name).expect(key) is not None for name in ("simulated", "cpu"))
    return outcome not in (Outcome.PASS, Outcome.UNSUPPORTED) and not known


@pytest.mark.slow
def test_another_arithmetic_is_refused(cache: Path) -> None:
    ran = run_pytest(
        *("--device", "simulated", "--ops", "neg"), cache=cache, SIMULATED_ARITHMETIC="float8"
    )
    assert ran.code == 3 and "SIMULATED_ARITHMETIC: expected cpu or float64, found 'float8'" in (
        ran.text
    )


def test_sparse_results_are_compared_with_all_their_elements() -> None:
    right = torch.eye(3)
    wrong = right.clone()
    wrong[1, 2] = 1.0
    want, true = right.to_sparse_csr(), [right.double().to_sparse_csr()]
    assert as_exact(right.to_sparse_csr(), want, true, DEFAULT_TOLERANCES, 0.0)
    assert not as_exact(wrong.to_sparse_csr(), want, true, DEFAULT_TOLERANCES, 0.0)
