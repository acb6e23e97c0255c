"""Which calls are asked: those whose answer is fixed by their arguments, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance import contract
from conformance.checks.ops.calls import elements_named
from conformance.checks.ops.roundings import allowance, within
from conformance.suites import planned_op_checks
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from opinfo.compare import DEFAULT_TOLERANCES, Arguments, difference, turned
from opinfo.determinate_calls import (
    all_differ,
    depends_on_order,
    depends_on_seed,
    draws_random_numbers,
    specified,
    untied,
)
from opinfo.exceptions import exceptions
from opinfo.reference import ieee
from opinfo.samples import draw
from tests.faulty import run_faulty
from tests.planting.calls import NOT_MET, KernelCall

OP_CHECKS = planned_op_checks(contract.load())
DRAWN = sorted(op for op in catalogue() if "values.drawn" in exceptions().families_of(op))


@pytest.mark.parametrize("op", DRAWN)
def test_a_call_that_draws_random_numbers_is_left_out(op: str) -> None:
    """A device with a generator of its own draws other ones."""
    entry = catalogue()[op]
    samples = draw(entry, "float32")
    assert samples
    assert not any(depends_on_seed(entry, each.call, each.process) for each in samples[:8])


def test_what_depends_on_the_seed_is_noticed() -> None:
    entry, x = catalogue()["nn.functional.rrelu"], torch.linspace(-1, 1, 9)
    calls = [Arguments((x,), {"training": training}) for training in (True, False)]
    assert [depends_on_seed(entry, call) for call in calls] == [True, False]


def test_a_draw_for_negative_numbers_alone_is_noticed() -> None:
    """A layout may hold a number as the negative of another."""
    call = Arguments((torch.tensor(2.0),), {"training": True})
    assert depends_on_seed(catalogue()["nn.functional.rrelu"], call)


def test_a_draw_that_two_seeds_may_make_alike_is_noticed() -> None:
    entry = catalogue()["nn.functional.feature_alpha_dropout.without_train"]
    call = Arguments((torch.ones(2, 2),), {"p": 0.5, "training": True})
    assert depends_on_seed(entry, call)


def test_what_depends_on_the_order_of_writes_is_noticed() -> None:
    entry, x = catalogue()["nn.functional.max_unpool1d"], torch.tensor([[1.0, 2.0]])
    calls = [Arguments((x, torch.tensor([[0, place]])), {"kernel_size": 2}) for place in (0, 3)]
    assert [depends_on_order(entry, call) for call in calls] == [True, False]
    assert entry.spatial == 1
    equal = Arguments((torch.ones(1, 2), torch.tensor([[0, 0]])), {"kernel_size": 2})
    assert depends_on_order(entry, equal)  # their tangents differ


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_are_made_to_differ_in_their_order(dtype: torch.dtype) -> None:
    given = torch.tensor([3.0, -1, 3, 0, -0.0, 3, -1, torch.inf, torch.nan, 5], dtype=dtype)
    found = untied(given)
    finite = found[found.isfinite()]
    assert finite.unique().numel() == finite.numel() == 8
    assert torch.equal(found.isfinite(), given.isfinite())
    before, after = given[given.isfinite()], finite
    assert not ((before[:, None] < before) & (after[:, None] > after)).any()
    assert torch.allclose(after.double(), before.double(), rtol=0.05, atol=1e-4)
    assert untied(found) is found
    assert untied(torch.tensor([1, 1])).tolist() == [1, 1]


@pytest.mark.parametrize("op", ["sort", "kthvalue", "median", "topk"])
def test_an_op_that_takes_any_of_equal_elements_is_given_none(op: str) -> None:
    for sample in samples_of(catalogue()[op], "float32", 8):
        first = sample.tensors[0]
        if not sample.call.kwargs.get("stable"):
            assert untied(first) is first, sample.call.form


@pytest.mark.parametrize(
    ("op", "least", "most"), [("char", -128.0, 127.0), ("fft.rfft", -(2.0**60), 2.0**60)]
)
def test_what_has_no_specified_answer_is_not_given(op: str, least: float, most: float) -> None:
    given = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 2.5])
    found = specified(Arguments((given,), {}), exceptions().families_of(op)).tensors[0]
    assert found.tolist() == [0.0, 0.0, 0.0, most, least, 2.5]
    for each in samples_of(catalogue()[op], "float32", 8):
        values = each.tensors[0]
        assert values.isfinite().all()
        assert values.numel() == 0 or float(values.abs().max()) <= max(-least, most)


def test_what_the_database_lists_as_nothing_is_nothing() -> None:
    entry = catalogue()["histogram"]
    assert entry.dtypes_on("cuda") == frozenset()  # only the CPU has kernels
    assert entry.dtypes_on("privateuseone") == entry.dtypes
    only = catalogue()["torch.ops.aten._efficient_attention_forward"]
    assert only.dtypes == frozenset()
    assert "float32" in only.dtypes_anywhere


def test_a_device_among_the_arguments_is_replaced() -> None:
    """Where there is an accelerator, the database names it in samples of ``to``."""
    call = Arguments((torch.ones(2), torch.device("cpu"), 3), {"device": "cpu"})
    args, kwargs = call.on(call.tensors, torch.device("meta"))
    assert args[1:] == (torch.device("meta"), 3)
    assert kwargs == {"device": torch.device("meta")}


def test_float32_is_float32_within_the_block_and_as_before_after_it() -> None:
    def state() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = state()
    with ieee():
        assert state() == ("highest", False)
    assert state() == before


# -- of several equal elements, any may be named


def test_an_index_of_any_of_equal_elements_is_right_and_no_other() -> None:
    given = torch.tensor([[3.0, 1.0, 3.0], [2.0, 5.0, 5.0]])
    want = elements_named((torch.tensor([3.0, 5.0]), torch.tensor([0, 1])), given, -1)

    def same(values: list[float], index: torch.Tensor) -> bool:
        found = elements_named((torch.tensor(values), index), given, -1)
        return difference(found, want, DEFAULT_TOLERANCES) is None

    assert same([3.0, 5.0], torch.tensor([2, 2]))
    assert not same([3.0, 5.0], torch.tensor([1, 2]))  # names another element
    assert not same([3.0, 2.0], torch.tensor([0, 0]))  # another value, which it names
    assert not same([3.0, 5.0], torch.tensor([2, 7]))  # out of range
    assert not same([3.0, 5.0], torch.tensor([2, 2], dtype=torch.int32))
    assert not same([3.0, 5.0], torch.tensor([[2, 2]]))


def test_an_element_is_named_once() -> None:
    given = torch.tensor([[2.0, 2.0, 1.0]])
    values = torch.tensor([[2.0, 2.0]])
    right, other, twice = (
        elements_named((values, torch.tensor([index])), given, -1)
        for index in ([0, 1], [1, 0], [1, 1])
    )
    assert difference(other, right, DEFAULT_TOLERANCES) is None
    assert difference(twice, right, DEFAULT_TOLERANCES) is not None


def test_an_index_alone_names_elements_too() -> None:
    given = torch.tensor([2.0, 1.0, 2.0])
    right, other, wrong = (
        elements_named(torch.tensor(index), given, -1)
        for index in ([1, 0, 2], [1, 2, 0], [0, 1, 2])
    )
    assert difference(other, right, DEFAULT_TOLERANCES) is None
    assert difference(wrong, right, DEFAULT_TOLERANCES) is not None
    whole = torch.tensor(7)  # a median of integers, without a dimension
    assert elements_named(whole, torch.tensor([7, 8]), -1) is whole


def test_numbers_differ_where_at_most_one_is_nan() -> None:
    assert all_differ(torch.tensor([1.0, torch.nan, torch.inf]))
    assert not all_differ(torch.tensor([torch.nan, torch.nan]))
    assert not all_differ(torch.tensor([1, 1]))
    assert not all_differ(torch.tensor([[2.0, 3.0], [0.0, -0.0]]))
    assert all_differ(torch.tensor([torch.nan])) and all_differ(torch.empty(0))


#: What becomes of an index, and what such a device gets where an operand is expanded, and of NaN.
NAMING: dict[str, tuple[Callable[[torch.Tensor, int], torch.Tensor], str]] = {
    "the last of equal elements": (lambda index, size: size - 1 - index, "pass"),
    "the next element": (lambda index, size: (size - index) % size, "fail"),
    "the first element": (lambda index, size: index * 0, "fail"),
}


@pytest.mark.parametrize("naming", NAMING)
@pytest.mark.parametrize(
    "op",
    [
        "kthvalue",
        *(
            pytest.param(op, marks=pytest.mark.slow)
            for op in ("sort", "argsort", "topk", "median", "nanmedian")
        ),
    ],
)
def test_a_device_that_takes_another_of_equal_elements_is_right(op: str, naming: str) -> None:
    """It goes through them from the end."""
    becomes, outcome = NAMING[naming]

    def wrong(call: KernelCall) -> Any:
        operand, *args = call.args
        place = 1 if op in ("topk", "kthvalue") else 0
        dim = args[place] if len(args) > place else call.kwargs.get("dim", -1)
        dim = -1 if isinstance(dim, bool) else dim
        one = not operand.dim() or call.kwargs.get("stable")
        if one or (op.endswith("median") and len(args) + len(call.kwargs) == 0):
            return NOT_MET
        result = call.function(operand.flip(dim), *args, **call.kwargs)
        size = operand.shape[dim]
        if isinstance(result, torch.Tensor):
            return becomes(result, size)
        return type(result)((result[0], becomes(result[1], size)))

    samples = samples_of(catalogue()[op], "float32", 4)
    recorder = run_faulty(op, "float32", samples, OP_CHECKS, wrong)
    found = {
        clause: str(recorder.cells[clause].to_outcome().outcome)
        for clause in ("layout.values", "layout.expanded_read")
    }
    assert found == dict.fromkeys(found, outcome)


@pytest.mark.parametrize(("moved", "outcome"), [(0, "pass"), (1, "fail")])
def test_a_mode_whose_index_names_another_element_fails(moved: int, outcome: str) -> None:
    def wrong(call: KernelCall) -> Any:
        values, index = call.honest()
        return values, index + moved

    samples = samples_of(catalogue()["mode"], "float32", 4)
    recorder = run_faulty("mode", "float32", samples, OP_CHECKS, wrong)
    record = recorder.get("layout.values")
    assert record is not None and str(record.to_outcome().outcome) == outcome


# -- what roundings of the operands change


def _allowed(values: list[torch.Tensor]) -> list[torch.Tensor]:
    return allowance(lambda x: x.mean(), lambda t, device: ((t[0],), {}), values)


def test_terms_that_cancel_allow_a_rounding_of_their_size() -> None:
    big = torch.tensor([70_001.5, -70_001.5, 0.5])
    (slack,) = _allowed([big])
    assert 1e-4 < float(slack) < 1.0
    want = big.mean()
    assert within(want + 1e-4, want, [slack])
    assert not within(want + 1.0, want, [slack])
    assert not within(torch.tensor(torch.nan), want, [slack])


def test_terms_that_do_not_cancel_allow_next_to_nothing() -> None:
    (slack,) = _allowed([torch.tensor([1.0, 2.0, 4.0])])
    assert float(slack) < 1e-5


def test_a_number_that_an_extent_is_computed_of_stays_as_it_is() -> None:
    """One rounding less than a third of 51 rows are 16 of them and not 17."""

    def shrunk(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x[: int(len(x) * scale)] * scale

    scale = 17 / 51 + 2**-30
    (slack,) = allowance(shrunk, lambda t, device: ((t[0], scale), {}), [torch.ones(51)])
    assert slack.shape == (17,) and 0 < float(slack.max()) < 1e-5


def test_integers_allow_what_the_order_in_memory_makes_of_their_sum() -> None:
    values = [torch.arange(2 * 320).remainder(251).reshape(2, 320).to(torch.uint8)]

    def far(x: torch.Tensor) -> torch.Tensor:
        """The CPU adds the squares in another order where the rows are not contiguous."""
        return (x.float() + 0.1).square().sum(-1) * 1e-3

    (slack,) = allowance(far, lambda t, device: ((t[0],), {}), values)
    want = far(values[0])
    assert float(slack.max()) < 1e-4 * float(want.max())
    assert not within(want * 1.001, want, [slack])
    other = far(turned(values[0]))
    assert not torch.equal(other, want) and within(other, want, [slack])


def test_integers_allow_no_wrong_sum_of_another_order() -> None:
    """The CPU may be wrong there."""
    values = [torch.arange(12).reshape(3, 4)]

    def strided_is_wrong(x: torch.Tensor) -> torch.Tensor:
        return x.float().sum(-1) * (1.0 if x.is_contiguous() else 2.0)

    (slack,) = allowance(strided_is_wrong, lambda t, device: ((t[0],), {}), values)
    want = strided_is_wrong(values[0])
    assert not within(want * 1.01, want, [slack])


def test_no_answer_allows_nothing() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    assert allowance(refuses, lambda t, device: ((t[0],), {}), [torch.ones(2)]) == []
    assert not within(torch.ones(2), torch.zeros(2), [])


def _sums(values: list[torch.Tensor]) -> torch.Tensor:
    (slack,) = allowance(lambda x: x.sum(-1), lambda t, device: ((t[0],), {}), values)
    return slack


@pytest.mark.parametrize(
    ("dtype", "rounding"), [("float32", 2.0**-24), ("float64", 2.0**-53), ("complex128", 2.0**-53)]
)
def test_a_rounding_is_that_of_the_operands_dtype(dtype: str, rounding: float) -> None:
    """|sum' - sum| <= n u sum |x| for a backward error of n roundings (Higham, 3.1 and 4.2)."""
    values = torch.linspace(-1.9, 2.3, 60, dtype=torch.float64).to(getattr(torch, dtype))
    terms = float(values.abs().sum())
    (slack,) = _sums([values.reshape(1, -1)])
    assert rounding * terms / 8 < float(slack) < 48 * rounding * terms
    want = values.sum().reshape(1)
    assert within(want + rounding * terms / 16, want, [slack[None]])
    assert not within(want + 64 * rounding * terms, want, [slack[None]])


def test_two_terms_that_cancel_allow_a_rounding_wherever_they_are() -> None:
    """A draw that changes both in the same direction shows nothing of their size."""
    rows = torch.zeros(64, 64)
    for place in range(64):
        rows[place, place], rows[place, (place + 7) % 64] = 1 + 2.0**-12, -1.0
    slack = _sums([rows])
    assert float(slack.min()) > 2.0**-25 and float(slack.max()) < 64 * 2.0**-24


def test_an_imprecise_large_element_excuses_no_wrong_small_one() -> None:
    """What the CPU's error in one row allows in another is what a backward error relative to the largest operand would
    change there."""
    rows = torch.rand(2, 300) + 3
    rows[0] *= 70_001.5

    (slack,) = allowance(lambda x: x.var(-1), lambda t, device: ((t[0],), {}), [rows])
    want = rows.double().var(-1).float()
    assert within(rows.var(-1), want, [slack])
    assert within(want * 1.000001, want, [slack])
    assert not within(want * torch.tensor([1.0, 3.0]), want, [slack])


def test_an_unstable_algorithm_of_the_cpu_excuses_the_same_in_other_elements() -> None:
    """The distance of close points is the root of a difference of large squares."""

    def distances(x: torch.Tensor) -> torch.Tensor:
        return (x.square().sum(-1) - 2 * (x * x[:1]).sum(-1) + x[0].square().sum()).abs().sqrt()

    points = torch.rand(9, 64, generator=torch.Generator().manual_seed(1)) * 1e-2 + 30
    points[-1] += 15
    (slack,) = allowance(distances, lambda t, device: ((t[0],), {}), [points])
    want = distances(points.double()).float()
    own = (distances(points) - want).abs().max()
    assert own > 0.01 and within(want + own, want, [slack])


def test_a_small_element_may_be_as_wrong_as_a_stable_algorithm_makes_it() -> None:
    """Eigenvalues of a symmetric matrix have errors of roundings of the largest one (Higham, 2nd edition, 1.6)."""
    turn, _ = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(2)))
    sizes = torch.tensor([1e-4, 1e-3, 0.1, 1.0, 3.0, 10.0, 100.0, 1000.0])
    matrix = turn @ sizes.diag() @ turn.mT
    matrix = (matrix + matrix.mT) / 2
    (slack,) = allowance(torch.linalg.eigvalsh, lambda t, device: ((t[0],), {}), [matrix])
    want = torch.linalg.eigvalsh(matrix.double()).float()
    assert within(torch.linalg.eigvalsh(matrix), want, [slack])
    assert within(want + 2.0**-24 * 1000, want, [slack])
    assert not within(want + 1000 * 2.0**-12, want, [slack])


# -- attention, of which the CPU takes more than is specified


@pytest.mark.parametrize("version", ["2.12.0", "2.13.0"])
def test_there_is_a_value_for_each_key_and_a_head_where_the_cpu_needs_one(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    samples = samples_of(catalogue()["nn.functional.scaled_dot_product_attention"], "float32", 4)
    taken = [each.tensors for each in samples if each.axis not in ("", "refused")]
    assert len(taken) > 20
    assert all(each[1].shape[-2] == each[2].shape[-2] for each in taken)
    headless = [each for each in taken if each[0].dim() == 4 and not each[0].shape[1]]
    assert bool(headless) == (version >= "2.13")


FREE = sorted(
    op
    for op in catalogue()
    if "values.free" in (own := exceptions().families_of(op)) and "values.uninitialized" not in own
)
DROPOUTS = [op for op in FREE if "dropout" in op]


@pytest.mark.parametrize("op", FREE)
def test_a_call_without_random_numbers_has_one_result_for_every_seed(op: str) -> None:
    entry = catalogue()[op]
    dtype = next(each for each in ("float32", "int64") if each in entry.dtypes)
    for sample in draw(entry, dtype):
        if not draws_random_numbers(entry, sample.call):
            assert not depends_on_seed(entry, sample.call, sample.process)


@pytest.mark.parametrize("op", DROPOUTS)
def test_dropout_draws_random_numbers_in_some_calls_alone(op: str) -> None:
    entry = catalogue()[op]
    drawn = {draws_random_numbers(entry, sample.call) for sample in draw(entry, "float32")}
    assert drawn == {False, True}


def scales_what_it_keeps(call: KernelCall) -> Any:
    return call.honest() * 1.25


@pytest.mark.parametrize("op", DROPOUTS)
def test_a_dropout_that_scales_in_evaluation_is_noticed(op: str) -> None:
    samples = samples_of(catalogue()[op], "float32", 16)
    checks = [each for each in OP_CHECKS if each.clause == "layout.values"]
    for effect, outcome in ((KernelCall.honest, "pass"), (scales_what_it_keeps, "fail")):
        cells = run_faulty(op, "float32", samples, checks, effect).cells
        assert {each.outcome().value for each in cells.values()} == {outcome}
