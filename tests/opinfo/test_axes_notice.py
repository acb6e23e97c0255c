"""For each axis, a fault that is seen with its samples and was not seen with upstream's alone, on several ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.suites.layout import SUITE
from devices.cell import Outcome
from opinfo.axes import samples_of
from opinfo.axes.axis_context import Basis
from opinfo.catalog import catalogue
from opinfo.compare import replace_tensors, tensors_of
from opinfo.samples import Sample, expand_rule, expandable
from tests.faulty import run_faulty
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.sampling import first_of_each

_CHECKS = [check for check in SUITE.op_checks if check.clause == "layout.values"]


def spoiled(result: Any) -> Any:
    """Another result: its last element differs."""

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.numel():
            return tensor
        found = tensor.clone(memory_format=torch.contiguous_format)
        last = found.view(-1)[-1:]
        flips = last.dtype == torch.bool
        last.copy_(last.logical_not() if flips else last.nan_to_num(0, 0, 0) + 7)
        return found

    return replace_tensors(result, other)


def where(condition: Callable[[list[torch.Tensor], tuple[Any, ...]], bool]) -> Effect:
    """A fault in the calls of which this is true."""

    def effect(call: KernelCall) -> Any:
        result = call.honest()
        wrong = condition(tensors_of((call.args, call.kwargs)), call.args)
        return spoiled(result) if wrong else result

    return effect


def long(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(n > 1000 for t in tensors for n in t.shape)


def square(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].dim() > 1 and tensors[0].shape[-1] == tensors[0].shape[-2] == 6


def last_is_1(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].dim() > 1 and tensors[0].shape[-1] == 1 < tensors[0].shape[-2]


def none_positive(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].numel() > 3 and bool((tensors[0] < 0).all())


def ascending(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    flat = tensors[0].reshape(-1)
    return len(flat) > 3 and bool((flat[1:] > flat[:-1]).all())


def half_in_the_second(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    second = [t for t in tensors if t.dtype.is_floating_point][1:2]
    return any(bool((t == 0.5).any()) for t in second)


def of_rank_6(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(t.dim() == 6 for t in tensors)


def large(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(t.numel() > 2**16 for t in tensors)


def nan_in_the_second(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return len(tensors) > 1 and bool(tensors[1].isnan().any())


def aligned_to_8_bytes_only(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return bool(tensors) and tensors[0].storage_offset() * tensors[0].element_size() % 16 == 8


def large_integers(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    numbers = [t for t in tensors if t.dtype == torch.int64 and t.numel()]
    return any(int(t.abs().max()) > 2**53 for t in numbers)


def repeated_index(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    numbers = [t for t in tensors if t.dtype == torch.int64 and t.numel() > 1]
    return any(t.unique().numel() == 1 for t in numbers)


def negative_index(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    numbers = [t for t in tensors if t.dtype == torch.int64 and t.numel() > 1]
    return any(bool((t < -1).any()) for t in numbers)


def second_alone_strided(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return (
        len(tensors) > 2
        and tensors[0].is_contiguous()
        and tensors[2].is_contiguous()
        and not tensors[1].is_contiguous()
    )


def scalar_first(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return len(tensors) == 1 and tensors[0].dim() > 3 and not isinstance(args[1], torch.Tensor)


def past_16_bits(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(n > 2**15 for t in tensors for n in t.shape)


def nan_in_the_first(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return bool(tensors) and bool(tensors[0].isnan().any())


def far_apart(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return bool(tensors) and bool((tensors[0].abs() > 99).any())


def int32_index(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(t.dtype == torch.int32 for t in tensors)


def scalar_last(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return len(tensors) > 2 and tensors[-1].dim() == 0 and tensors[0].dim() > 0


def negated_last(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return len(tensors) > 1 and tensors[-1].is_neg()


def conjugated_last(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return len(tensors) > 1 and tensors[-1].is_conj()


def index_expanded(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    index = tensors[1] if len(tensors) > 1 else None
    return index is not None and 0 in index.stride() and index.dtype == torch.int64


def square_and_second_alone_transposed(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return len(tensors) > 1 and square(tensors, args) and second_alone_turned(tensors)


def second_alone_turned(tensors: list[torch.Tensor]) -> bool:
    first, second = tensors[:2]
    return first.is_contiguous() and not second.is_contiguous() and second.mT.is_contiguous()


def of_whole_tiles(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].dim() > 1 and not any(n % 64 for n in tensors[0].shape[-2:] if n)


def one_left_over(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].numel() > 64 and tensors[0].numel() % 64 == 1


def both_strided_differently(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    same = len(tensors) > 1 and tensors[0].shape == tensors[1].shape
    return same and not (
        tensors[0].is_contiguous()
        or tensors[1].is_contiguous()
        or tensors[0].stride() == tensors[1].stride()
    )


def nan_beside_a_number(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return len(tensors) == 1 and len(args) > 1 and bool(tensors[0].isnan().any())


def past_a_tile(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].dim() > 1 and tensors[0].shape[-2] > 64


def in_a_long_batch(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].dim() > 2 and tensors[0].shape[0] > 1024


def infinite_past_16_bits(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].numel() > 2**16 and bool(tensors[0].isinf().any())


def beyond_half_precision(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return bool((tensors[0].abs() > 65504).any() & tensors[0].isfinite().all())


def nan_at_both_ends(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    flat = tensors[0].reshape(-1)
    return len(flat) > 2 and bool(flat[0].isnan()) and bool(flat[-1].isnan())


def one_row(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].dim() > 1 and tensors[0].shape[-2] == 1 < tensors[0].shape[-1]


def of_two_values(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].numel() > 9 and tensors[0].unique().tolist() == [0.5, 1.25]


def _strides_of_ones(tensors: list[torch.Tensor]) -> set[int]:
    return {
        stride for t in tensors if t.numel() > 1 for n, stride in zip(t.shape, t.stride()) if n == 1
    }


def one_of_stride_0(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return 0 in _strides_of_ones(tensors)


def one_of_a_stride_past_31_bits(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(stride >= 2**31 for stride in _strides_of_ones(tensors))


def a_complex_0(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(t.is_complex() and bool((t == 0).any()) for t in tensors)


def a_complex_1(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(t.is_complex() and bool((t == 1).any()) for t in tensors)


def a_purely_imaginary_number(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return any(t.is_complex() and bool(((t.real == 0) & (t.imag != 0)).any()) for t in tensors)


def many_rows_of_several(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    first = tensors[0]
    return first.dim() > 1 and first.shape[0] > 2**16 and first[0].numel() > 1


def many_rows_of_one(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    first = tensors[0]
    return first.dim() == 2 and first.shape[0] > 2**15 and first.shape[1] == 1


def ten_thousand_terms(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return max(tensors[0].shape, default=0) >= 10_000


def half_a_million(tensors: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    return tensors[0].numel() > 300_000


#: The fault, the dtype, ops.
FAULTS: list[tuple[Any, str, tuple[str, ...]]] = [
    (of_rank_6, "float32", ("tan", "nn.functional.silu", "atan2", "cumsum")),
    (large, "float32", ("erfc", "hypot", "nn.functional.softplus")),
    (long, "float32", ("amax", "logsumexp", "cumprod", "log_softmax", "mm", "index_select")),
    (nan_in_the_second, "float32", ("fmin", "fmod", "atan2", "logaddexp")),
    (aligned_to_8_bytes_only, "float32", ("neg", "mul", "logit")),
    (large_integers, "int64", ("ne", "flip", "argsort", "minimum", "cummax")),
    (repeated_index, "float32", ("index_add", "index_reduce.amax", "take_along_dim")),
    (negative_index, "float32", ("take", "index_put")),
    (second_alone_strided, "float32", ("addcmul", "lerp")),
    (scalar_first, "float32", ("fmod", "true_divide", "eq")),
    (past_16_bits, "float32", ("nn.functional.conv1d", "argmin", "bmm", "sort")),
    (
        nan_in_the_first,
        "float32",
        ("nn.functional.layer_norm", "mm", "cumsum", "nn.functional.max_pool1d"),
    ),
    (far_apart, "float32", ("log_softmax", "logsumexp")),
    (int32_index, "float32", ("index_select", "nn.functional.embedding")),
    (scalar_last, "float32", ("index_put", "addcmul")),
    (negated_last, "float32", ("mm", "where")),
    (conjugated_last, "complex64", ("mm", "mul")),
]
FAULTS += [
    (square, "float32", ("mm", "amax", "add")),
    (last_is_1, "float32", ("cumsum", "mm", "mul")),
    (none_positive, "float32", ("nn.functional.max_pool2d", "amax", "index_add")),
    (ascending, "float32", ("median", "nn.functional.l1_loss", "sub")),
    (half_in_the_second, "float32", ("nn.functional.prelu", "linalg.solve", "index_add")),
]
FAULTS += [
    (square_and_second_alone_transposed, "float32", ("mm", "hypot", "nn.functional.mse_loss")),
    (of_whole_tiles, "float32", ("mm", "amax", "exp", "nn.functional.conv2d")),
    (nan_beside_a_number, "float32", ("mul", "remainder", "copysign")),
    (one_left_over, "float32", ("asin", "linalg.inv")),
    (both_strided_differently, "float32", ("add", "where", "nn.functional.mse_loss")),
    (past_a_tile, "float32", ("linalg.cholesky", "linalg.solve", "lu_solve")),
    (in_a_long_batch, "float32", ("linalg.det", "linalg.solve_triangular", "linalg.svdvals")),
    (of_two_values, "float32", ("var", "cumsum", "nn.functional.layer_norm")),
    (infinite_past_16_bits, "float32", ("nn.functional.leaky_relu", "exp", "maximum")),
    (beyond_half_precision, "float32", ("cat", "nn.functional.l1_loss", "triu")),
    (nan_at_both_ends, "float32", ("prod", "cumprod", "nn.functional.max_pool2d")),
    (one_row, "float32", ("cat", "mm", "nn.functional.mse_loss")),
]
FAULTS += [
    (one_of_stride_0, "float32", ("mm", "nn.functional.layer_norm", "add", "nn.functional.conv2d")),
    (one_of_a_stride_past_31_bits, "float32", ("mm", "softmax", "add", "nn.functional.linear")),
]
FAULTS += [
    (a_complex_0, "complex64", ("mul", "sqrt", "mm", "cumsum")),
    (a_purely_imaginary_number, "complex64", ("abs", "exp", "prod", "matmul")),
    (a_complex_1, "complex64", ("log", "div.no_rounding_mode", "sum")),
]
FAULTS += [
    (many_rows_of_several, "float32", ("nn.functional.layer_norm", "bmm")),
    (many_rows_of_one, "float32", ("argmin",)),
    (ten_thousand_terms, "complex64", ("sum", "mean")),
    (ten_thousand_terms, "bfloat16", ("matmul",)),
    (half_a_million, "float32", ("cumsum", "sort", "softmax")),
]
CASES = [(fault, dtype, op) for fault, dtype, ops in FAULTS for op in ops]


def _quick_name(case: tuple[Any, str, str]) -> str | None:
    """The name of a fault; None if its samples have so many elements that they are slow."""
    large = (many_rows_of_several, many_rows_of_one, ten_thousand_terms, half_a_million)
    return None if case[0] in large else case[0].__name__


def test_an_expanded_index_is_given_to_ops_that_add() -> None:
    """What a repeated index names is added, and so documented."""
    samples, checks = (
        samples_of(catalogue()["scatter_add"], "float32", 16),
        [check for check in SUITE.op_checks if check.clause == "layout.expanded_read"],
    )
    found = run_faulty("scatter_add", "float32", samples, checks, where(index_expanded))
    assert next(iter(found.cells.values())).outcome() is Outcome.FAIL


def outcome(op: str, dtype: str, samples: list[Sample], fault: Any) -> Outcome:
    return outcome_with(op, samples, where(fault), dtype)


def outcome_with(op: str, samples: list[Sample], effect: Effect, dtype: str = "float32") -> Outcome:
    found = run_faulty(op, dtype, samples, _CHECKS, effect)
    return next(iter(found.cells.values())).outcome()


@pytest.mark.parametrize(
    ("fault", "dtype", "op"),
    first_of_each(CASES, _quick_name, lambda case: f"{case[0].__name__}-{case[2]}"),
)
def test_a_fault_of_an_axis_is_noticed(fault: Any, dtype: str, op: str) -> None:
    entry = catalogue()[op]
    assert outcome(op, dtype, samples_of(entry, dtype, 16), fault) is Outcome.FAIL


# -- options that meet


def smooths_with_weights(call: KernelCall) -> bool:
    return bool(call.kwargs.get("label_smoothing")) and call.kwargs.get("weight") is not None


def takes_two_numbers(call: KernelCall) -> bool:
    return len(call.inputs) == 1 and sum(isinstance(each, float) for each in call.args) == 2


def takes_the_first_of_many_dimensions(call: KernelCall) -> bool:
    return call.first.dim() > 4 and call.kwargs.get("dim") == 0


def accumulates_a_number(call: KernelCall) -> bool:
    return call.inputs[-1].dim() == 0 and bool(call.kwargs.get("accumulate"))


def replaces_nan_and_infinity(call: KernelCall) -> bool:
    return call.kwargs.get("nan") is not None and call.kwargs.get("posinf") is not None


def normalises_without_weights(call: KernelCall) -> bool:
    return len(call.inputs) == 1 and call.kwargs.get("eps", 1e-5) > 0.1


def solves_transposed_with_ones(call: KernelCall) -> bool:
    return bool(call.kwargs.get("transpose")) and bool(call.kwargs.get("unitriangular"))


MET: list[tuple[Callable[[KernelCall], bool], str]] = [
    (takes_two_numbers, "clamp"),
    (smooths_with_weights, "nn.functional.cross_entropy"),
    (takes_the_first_of_many_dimensions, "topk"),
    (takes_the_first_of_many_dimensions, "fft.hfft"),
    (accumulates_a_number, "index_put"),
    (replaces_nan_and_infinity, "nan_to_num"),
    (normalises_without_weights, "nn.functional.layer_norm"),
    (solves_transposed_with_ones, "triangular_solve"),
]


@pytest.mark.parametrize(
    ("condition", "op"),
    first_of_each(MET, lambda _: "", lambda case: f"{case[0].__name__}-{case[1]}"),
)
def test_a_fault_of_two_options_that_meet_is_noticed(
    condition: Callable[[KernelCall], bool], op: str
) -> None:
    def effect(call: KernelCall) -> Any:
        return spoiled(call.honest()) if condition(call) else NOT_MET

    samples = samples_of(catalogue()[op], "float32", 16)
    assert outcome_with(op, samples, KernelCall.honest) is Outcome.PASS
    assert outcome_with(op, samples, effect) is Outcome.FAIL


def counts_up_to_the_largest_but_not_it(call: KernelCall) -> Any:
    most = call.kwargs.get("max")
    if not most:
        return NOT_MET
    within = torch.where(call.first == most, most + 1.0, call.first)
    return call.function(within, *call.args[1:], **call.kwargs)


def test_an_element_that_is_equal_to_a_bound_is_in_the_last_bin() -> None:
    samples = samples_of(catalogue()["histc"], "float32", 16)
    assert outcome_with("histc", samples, KernelCall.honest) is Outcome.PASS
    assert outcome_with("histc", samples, counts_up_to_the_largest_but_not_it) is Outcome.FAIL


def keeps_running_statistics(call: KernelCall) -> Any:
    before = [t.clone() for t in call.inputs]
    result = call.honest()
    for tensor, value in zip(call.inputs, before):
        tensor.copy_(value)
    return result


@pytest.mark.parametrize("op", ["nn.functional.batch_norm", "native_batch_norm"])
def test_running_statistics_that_are_not_updated_are_noticed(op: str) -> None:
    samples = samples_of(catalogue()[op], "float32", 16)
    assert outcome_with(op, samples, KernelCall.honest) is Outcome.PASS
    assert outcome_with(op, samples, keeps_running_statistics) is Outcome.FAIL


def returns_its_operand_where_nothing_changes(call: KernelCall) -> Any:
    result, first = call.honest(), call.inputs[0]
    same = isinstance(result, torch.Tensor) and result.shape == first.shape
    return first if same and torch.equal(result, first) else result


@pytest.mark.parametrize("op", ["roll", "nn.functional.pad.constant", "tril"])
def test_a_call_that_has_nothing_to_do_gives_a_result_of_its_own(op: str) -> None:
    samples = samples_of(catalogue()[op], "float32", 16)
    checks = [check for check in SUITE.op_checks if check.clause == "layout.output_fresh"]
    effect = returns_its_operand_where_nothing_changes
    found = run_faulty(op, "float32", samples, checks, effect)
    assert next(iter(found.cells.values())).outcome() is Outcome.FAIL


def narrowed(call: KernelCall) -> Any:
    """What is moved is held in a narrower type on its way."""
    result = call.honest()
    return result.bfloat16().float() if result.numel() > 2**16 else result


@pytest.mark.parametrize("op", ["flip", "roll"])
def test_what_is_moved_has_fractions(op: str) -> None:
    samples = [s for s in samples_of(catalogue()[op], "float32", 16) if s.axis != "special values"]
    assert outcome_with(op, samples, KernelCall.honest) is Outcome.PASS
    assert outcome_with(op, samples, narrowed) is Outcome.FAIL


def takes_any_name(call: KernelCall) -> Any:
    """A name that nothing has is taken for the first one."""
    if call.kwargs.get("reduction") != "unknown":
        return NOT_MET
    return call.function(*call.args, **{**call.kwargs, "reduction": "mean"})


@pytest.mark.parametrize("op", ["nn.functional.mse_loss", "nn.functional.soft_margin_loss"])
def test_a_name_that_nothing_has_is_refused(op: str) -> None:
    samples = samples_of(catalogue()[op], "float32", 16)
    assert outcome_with(op, samples, KernelCall.honest) is Outcome.PASS
    assert outcome_with(op, samples, takes_any_name) is Outcome.FAIL


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("var", [True, False, True, False]),
        ("sum", [True, False, True, False]),
        # Upstream has one sample of it that returns each loss.
        ("nn.functional.soft_margin_loss", [True, False, False, False]),
    ],
)
def test_changes_start_from_calls_whose_result_has_several_elements(
    op: str, expected: list[bool]
) -> None:
    """And from others in turn."""
    op_, drawn = catalogue()[op], samples_of(catalogue()[op], "float32", 16)
    basis = Basis(op_, "float32", [s for s in drawn if not s.axis], frozenset())
    several = [any(t.numel() > 1 for t in basis.answer(s.call) or ()) for s in basis.bases]
    assert several == expected


def test_what_is_written_may_be_expanded_and_an_index_may_not() -> None:
    values, index = torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.int64)
    rule = expand_rule(frozenset({"expand.values"}))
    assert expandable(rule, values) == values.dim() and not expandable(rule, index)


def test_drawn_samples_are_laid_out_differently() -> None:
    drawn = [s for s in samples_of(catalogue()["addcmul"], "float32", 16) if s.axis == "drawn"]
    assert len({s.layouts for s in drawn}) > 3
    assert len({tuple(t.shape) for s in drawn for t in s.tensors}) > 5
