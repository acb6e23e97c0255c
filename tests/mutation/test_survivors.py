"""Mutants that were reached and not noticed once: the clause that notices each now."""

from __future__ import annotations

from itertools import chain
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.mutation import kernels
from tests.mutation.effects import GENERAL, OWN, conditioned
from tests.mutation.kernels import Mutant
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.sampling import first_of_each


def raises() -> Effect:
    made: tuple[str, Effect] = GENERAL["raises"](None, Random(0))  # type: ignore[arg-type,assignment]
    return made[1]


def of_the_call_before() -> Effect:
    facts: Any = SimpleNamespace(view=False, outputs=1)
    made = GENERAL["result of the call before"](facts, Random(0))
    assert made is not None
    return made[1]


def in_place(call: KernelCall) -> bool:
    return call.form == "in-place"


def last_column_from_its_neighbour(call: KernelCall) -> object:
    result: torch.Tensor = call.honest()
    if not call.operands[0].tensor.numel() % 8:
        return NOT_MET
    result[..., -1] = result[..., -2]
    return result


def is_empty(call: KernelCall) -> bool:
    return not call.operands[0].tensor.numel()


def made_contiguous(call: KernelCall) -> object:
    first = call.operands[0]
    if first.tensor.is_contiguous():
        return NOT_MET
    return call.honest_with(first, first.tensor.contiguous())


def transposes_its_input(call: KernelCall) -> object:
    first = call.operands[0].tensor
    if call.form != "functional" or first.dim() < 2:
        return NOT_MET
    result = call.honest()
    first.transpose_(0, 1)
    return result


def of(kind: str) -> Effect:
    """The effect that an own kind makes of a functional op."""
    facts: Any = SimpleNamespace(view=False, outputs=1, forms={"functional"})
    made = next(each for each in chain(*OWN.values()) if each.__name__ == kind)(facts, Random(0))
    assert made is not None
    return made[1]


def zeros_lose_their_sign(call: KernelCall) -> object:
    result: torch.Tensor = call.honest()
    result[result == 0] = 0.0
    return result


def rows_of_the_first_rolled(call: KernelCall) -> object:
    result: tuple[torch.Tensor, ...] = call.honest()
    result[0].copy_(result[0].roll(1, -2))
    return result


def transposed_where_strided_alone(call: KernelCall) -> object:
    first, second = call.operands[:2]
    t = first.tensor
    if t.dim() < 2 or t.is_contiguous() or not second.tensor.is_contiguous():
        return NOT_MET
    return call.honest_with(first, t.mT.contiguous().view(t.shape))


def conjugation_lost(call: KernelCall) -> object:
    first = call.operands[0]
    return call.honest_with(first, first.tensor.conj()) if first.tensor.is_conj() else NOT_MET


def strided_like_nothing_else(call: KernelCall) -> bool:
    """The target and what is read have strides of their own."""
    tensors = [each.tensor for each in call.operands]
    strided = [t.stride() for t in tensors if not t.is_contiguous()]
    return call.form == "out" and len(set(strided)) > 1


def swallows(call: KernelCall) -> object:
    try:
        return call.honest()
    except Exception:
        call.error = None
        return call.operands[0].tensor.clone()


def last_of_equals(call: KernelCall) -> object:
    found = call.honest()
    turned = call.honest_with(call.operands[0], call.operands[0].tensor.flip(call.values["dim"]))
    if not isinstance(found, (tuple, list)):
        return found
    return found[0], call.operands[0].tensor.shape[call.values["dim"]] - 1 - turned[1]


def nan_lost(call: KernelCall) -> object:
    first = call.operands[0]
    if not bool(first.tensor.isnan().any()):
        return NOT_MET
    return call.honest_with(first, first.tensor.nan_to_num(0.0))


def large(call: KernelCall) -> bool:
    return any(each.tensor.numel() > 2**16 for each in call.operands)


def old_where_out_is_an_input(call: KernelCall) -> object:
    target, first = call.values.get("out"), call.operands[0].tensor
    if target is None or target.data_ptr() != first.data_ptr():
        return NOT_MET
    return target


def kept_where_strided() -> Effect:
    """The first result of each shape comes again, of operands that are not contiguous."""
    known: dict[torch.Size, torch.Tensor] = {}

    def effect(call: KernelCall) -> object:
        first = call.operands[0].tensor
        if first.is_contiguous():
            return NOT_MET
        return known.setdefault(first.shape, call.honest().clone()).clone()

    return effect


def starts_at_zero(call: KernelCall) -> object:
    return call.honest(storage_offset=0)


def same_in_squares() -> Effect:
    """Of each square the same numbers are drawn, again and again."""
    known: dict[torch.Size, torch.Tensor] = {}

    def effect(call: KernelCall) -> object:
        result: torch.Tensor = call.honest()
        if result.dim() != 2 or result.shape[0] != result.shape[1]:
            return NOT_MET
        return result.copy_(known.setdefault(result.shape, result.clone()))

    return effect


def second_block_is_the_first(call: KernelCall) -> object:
    result: torch.Tensor = call.honest()
    if result.dim() != 1 or len(result) <= 1024:
        return NOT_MET
    result[512:1024] = result[:512].clone()
    return result


def long_and_strided(call: KernelCall) -> bool:
    """The first operand is long and strided, unlike the others."""
    first, *others = (each.tensor for each in call.operands)
    return first.numel() > 1000 and not first.is_contiguous() and others[0].is_contiguous()


def of_many_rows(call: KernelCall) -> bool:
    first = call.operands[0].tensor
    return first.dim() > 1 and first.numel() // max(first.shape[-1], 1) > 300


def corner_left_over(call: KernelCall) -> bool:
    """There is a last tile that is full neither along the rows nor along the columns."""
    shape = call.operands[0].tensor.shape
    return len(shape) > 1 and min(shape[-2:]) > 128 and all(n % 128 for n in shape[-2:])


def one_left_over(call: KernelCall) -> bool:
    """A loop of sixteen leaves one element of the first operand over."""
    count = call.operands[0].tensor.numel()
    return count > 16 and count % 16 == 1


def one_row(call: KernelCall) -> bool:
    shape = call.operands[0].tensor.shape
    return len(shape) > 1 and shape[-2] == 1


def deep(call: KernelCall) -> bool:
    return call.operands[0].tensor.dim() > 4


def infinite(call: KernelCall) -> bool:
    return bool(call.operands[0].tensor.isinf().any())


def last_is_not_compared(call: KernelCall) -> object:
    first, second = (each.tensor for each in call.operands)
    if first.shape != second.shape or first.numel() < 17:
        return NOT_MET
    return call.honest(self=first.reshape(-1)[:-1], other=second.reshape(-1)[:-1])


def never_equal_if_large(call: KernelCall) -> object:
    return False if large(call) else NOT_MET


def nan_equals_nan(call: KernelCall) -> object:
    first, second = (each.tensor for each in call.operands)
    if not (first.is_floating_point() and bool(first.isnan().any())):
        return NOT_MET
    return call.honest(self=first.nan_to_num(7.0), other=second.nan_to_num(7.0))


def index_is_empty(call: KernelCall) -> bool:
    first, *others = (each.tensor for each in call.operands)
    return bool(first.numel()) and any(not t.numel() for t in others if t.dtype == torch.int64)


def square(call: KernelCall) -> bool:
    shape = call.operands[0].tensor.shape
    return len(shape) == 2 and shape[0] == shape[1]


def expanded_read_as_dense(call: KernelCall) -> object:
    first = call.operands[0]
    if 0 not in first.tensor.stride() or not first.tensor.numel():
        return NOT_MET
    held = torch.empty(0, device=first.tensor.device).set_(first.tensor.untyped_storage())
    count = first.tensor.numel()
    dense = held.repeat(count // len(held) + 1)[:count].view(first.tensor.shape)
    return call.honest_with(first, dense)


def first_of_the_second(call: KernelCall) -> object:
    second = call.operands[1]
    return call.honest_with(second, second.tensor[:1].expand_as(second.tensor))


def drawn_before() -> Effect:
    """Into a target of each shape goes what was drawn for the last one."""
    known: dict[torch.Size, torch.Tensor] = {}

    def effect(call: KernelCall) -> object:
        result: torch.Tensor = call.honest()
        before = known.setdefault(result.shape, result.clone())
        known[result.shape] = result.clone()
        return result.copy_(before)

    return effect


def of_few_digits(call: KernelCall) -> object:
    result: torch.Tensor = call.honest()
    return result.copy_(result.half())


def ignoring(name: str, default: object) -> Effect:
    """An argument has its default, whatever is given."""

    def effect(call: KernelCall) -> object:
        given = call.values.get(name, default)
        return call.honest(**{name: default}) if given != default else NOT_MET

    return effect


def from_the_right(call: KernelCall) -> bool:
    return call.values.get("left") is False


def three_left_over(call: KernelCall) -> bool:
    """A loop of four leaves three elements of the first operand over."""
    count = call.operands[0].tensor.numel()
    return count > 4 and count % 4 == 3


def zero_weights(call: KernelCall) -> bool:
    weights = [each.tensor for each in call.operands[1:2]]
    return any(bool(((t == 0) & ~t.signbit()).any()) for t in weights)


def weighted_twice_and_strided(call: KernelCall) -> bool:
    """There are four operands, of which one that is optional is strided."""
    tensors = [each.tensor for each in call.operands]
    return len(tensors) == 4 and not all(t.is_contiguous() for t in tensors[2:])


def integers_beside_floats_read_as_dense(call: KernelCall) -> object:
    """The second operand has the first one's shape and strides of its own, and is read in the order of its addresses."""
    first, second = call.operands[:2]
    t = second.tensor
    mixed = first.tensor.is_floating_point() and t.dtype == torch.int64
    start, count = t.storage_offset(), t.numel()
    held = t.untyped_storage().nbytes() // t.itemsize
    if not mixed or t.shape != first.tensor.shape or t.is_contiguous() or held < start + count:
        return NOT_MET
    dense = torch.as_strided(t, (count,), (1,), start).clone()
    return call.honest_with(second, dense.view(t.shape))


def shifts_to_the_left_go_right(call: KernelCall) -> object:
    """A shift by more elements than the dimension has goes the other way."""
    shifts, dims = call.values["shifts"], call.values["dims"]
    sizes = [call.first.shape[dim] for dim in dims]
    if len(shifts) != 1 or len(sizes) != 1 or shifts[0] >= -sizes[0]:
        return NOT_MET
    return call.honest(shifts=[-shifts[0]])


def one_value_is_added_once(call: KernelCall) -> object:
    """A value of one element is added once to each element, however often an index names the element."""
    target, values = call.values["self"], call.values["values"]
    if not call.values["accumulate"] or values.numel() != 1:
        return NOT_MET
    indices = tuple(slice(None) if each is None else each for each in call.values["indices"])
    return call.honest(values=target[indices] + values, accumulate=False)


def long_rows_are_not_stable(call: KernelCall) -> object:
    """Of equal elements of a row that is longer than a block, the last one comes first."""
    x, dim = call.first, call.values["dim"]
    if not call.values["stable"] or not x.dim() or x.shape[dim] <= 2048:
        return NOT_MET
    values, places = call.honest()
    turned = torch.sort(x.flip(dim), dim=dim, descending=call.values["descending"], stable=True)
    places.copy_(x.shape[dim] - 1 - turned.indices)
    return values, places


def windows_are_counted_past_the_padding(call: KernelCall) -> object:
    values = call.values
    if not (values["ceil_mode"] and values["count_include_pad"]) or values["divisor_override"]:
        return NOT_MET
    sides = [*values["kernel_size"]]
    return call.honest(divisor_override=sides[0] * sides[-1])


def row_0_is_no_padding(call: KernelCall) -> object:
    return call.honest(padding_idx=-1) if call.values["padding_idx"] == 0 else NOT_MET


def divides_by_a_distance_of_0(call: KernelCall) -> object:
    distances = call.values["cdist"]
    if call.values["p"] != 2 or not bool((distances == 0).any()):
        return NOT_MET
    return call.honest().masked_fill((distances == 0).any(-1, keepdim=True), torch.nan)


def square_targets_in_the_order_of_memory(call: KernelCall) -> object:
    """A transposed square target gets its elements in the order in which a contiguous operand has them."""
    (target,), read = call.targets, call.read[-1].tensor
    square = target.dim() == 2 and target.shape[0] == target.shape[1] > 1
    turned = not target.is_contiguous() and target.mT.is_contiguous()
    if not square or not turned or not read.is_contiguous() or read.shape != target.shape:
        return NOT_MET
    written = next(each for each in call.operands if each.written)
    call.honest(**{written.name: target.mT})
    return target


SURVIVED: list[tuple[str, tuple[str, ...], Effect, str]] = [
    # An op whose values are unspecified may still not raise.
    ("new_empty", ("new_empty",), conditioned(is_empty, raises()), "layout.values"),
    # as_strided of a view addresses its storage, whatever the view's own strides are.
    (
        "as_strided_copy",
        ("as_strided_copy",),
        made_contiguous,
        "layout.as_strided",
    ),
    # A float and an integer are compared that are equal, where each is read at its own place.
    ("eq", ("eq.Tensor",), integers_beside_floats_read_as_dense, "layout.values"),
    # An input keeps its strides, and not only its bytes.
    ("matmul", ("mm",), transposes_its_input, "layout.inputs_intact"),
    # A result stays as it is when there are others.
    ("exp", ("exp",), of("memory_kept"), "precision.trust"),
    ("neg", ("neg",), zeros_lose_their_sign, "layout.values"),
    ("mm", ("mm",), conjugation_lost, "layout.values"),
    ("tan", ("tan.out",), conditioned(strided_like_nothing_else, raises()), "layout.out_kept"),
    ("diag_embed", ("diag_embed",), conditioned(is_empty, raises()), "layout.values"),
    ("cumsum", ("cumsum",), swallows, "layout.values"),
    ("max.reduction_with_dim", ("max.dim",), last_of_equals, "layout.values"),
    ("roll", ("roll",), nan_lost, "layout.values"),
    ("fft.rfft", ("_fft_r2c",), conditioned(large, raises()), "layout.values"),
    # A target that is the operand: each element is read before it is written.
    ("trunc", ("trunc.out",), old_where_out_is_an_input, "layout.variants"),
    ("diag_embed", ("diag_embed",), kept_where_strided(), "precision.trust"),
    ("as_strided", ("as_strided_",), starts_at_zero, "layout.as_strided"),
    ("squeeze", ("squeeze_.dim",), swallows, "layout.variants"),
    # What is drawn at random is tried by the cases of random.
    ("randint_like", ("randint_like.low_dtype",), same_in_squares(), "random.distribution"),
    ("nn.functional.dropout", ("native_dropout",), expanded_read_as_dense, "random.distribution"),
    ("normal", ("normal.Tensor_Tensor",), first_of_the_second, "random.distribution"),
    ("normal", ("normal.Tensor_Tensor",), transposed_where_strided_alone, "random.distribution"),
    ("bernoulli", ("bernoulli.out",), drawn_before(), "random.distribution"),
    ("randint", ("randint.low",), drawn_before(), "random.reproducible"),
    ("cauchy", ("cauchy_",), of_few_digits, "random.distribution"),
    # What has no operands is large, too.
    ("arange", ("arange.start_out",), second_block_is_the_first, "layout.values"),
    # One operand of several is strided, and long.
    ("addmv", ("addmv",), conditioned(long_and_strided, raises()), "layout.values"),
    ("repeat", ("repeat",), conditioned(of_many_rows, raises()), "layout.values"),
    ("view_as_complex", ("view_as_complex",), conditioned(square, raises()), "layout.values"),
    ("mm", ("mm",), conditioned(corner_left_over, raises()), "layout.values"),
    ("addmm", ("addmm",), conditioned(corner_left_over, raises()), "layout.values"),
    ("cumsum", ("cumsum",), conditioned(corner_left_over, raises()), "layout.values"),
    ("scatter", ("scatter.src",), conditioned(index_is_empty, raises()), "layout.values"),
    ("index_select", ("index_select",), conditioned(index_is_empty, raises()), "layout.values"),
    # Matrices that grow are given smaller numbers where they do not keep their digits otherwise.
    ("matrix_exp", ("linalg_matrix_exp",), conditioned(of_many_rows, raises()), "layout.values"),
    # What is compared as a whole: operands that are alike, and that differ in one element.
    ("equal", ("equal",), last_is_not_compared, "layout.values"),
    ("equal", ("equal",), never_equal_if_large, "layout.values"),
    ("equal", ("equal",), nan_equals_nan, "layout.values"),
    ("allclose", ("allclose",), nan_equals_nan, "layout.values"),
    ("item", ("_local_scalar_dense",), conditioned(infinite, raises()), "layout.values"),
    ("exp", ("exp",), conditioned(corner_left_over, raises()), "layout.values"),
    ("cumprod", ("cumprod",), conditioned(one_left_over, raises()), "layout.values"),
    ("index_reduce.mean", ("index_reduce",), conditioned(one_left_over, raises()), "layout.values"),
    ("narrow_copy", ("narrow_copy",), conditioned(deep, raises()), "layout.values"),
    ("linalg.lu_factor", ("linalg_lu_factor_ex",), conditioned(one_row, raises()), "layout.values"),
    # The permutation of a factorisation is an output, too.
    ("linalg.lu", ("linalg_lu",), rows_of_the_first_rolled, "layout.values"),
    ("linalg.inv", ("linalg_inv_ex",), conditioned(one_row, raises()), "layout.values"),
    ("linalg.diagonal", ("diagonal",), conditioned(corner_left_over, raises()), "layout.values"),
    ("nansum", ("nansum",), conditioned(square, raises()), "layout.values"),
    # Ops whose arguments must fit each other have calls of other sizes that are written for them.
    *(
        (op, (kernel,), conditioned(condition, raises()), "layout.values")
        for op, kernel, condition in (
            ("_segment_reduce.lengths", "segment_reduce", of_many_rows),
            ("native_batch_norm", "native_batch_norm", deep),
            ("grid_sampler_2d", "grid_sampler_2d", one_left_over),
            ("nn.functional.ctc_loss", "_ctc_loss", of_many_rows),
            ("nn.functional.max_unpool2d", "max_unpool2d", corner_left_over),
            ("linalg.lu", "linalg_lu", corner_left_over),
            ("linalg.lstsq", "linalg_lstsq", of_many_rows),
            ("linalg.eig", "linalg_eig", corner_left_over),
            ("cdist", "_cdist_forward", corner_left_over),
            ("unique", "_unique2", deep),
        )
    ),
    ("as_strided", ("as_strided_",), conditioned(corner_left_over, raises()), "layout.as_strided"),
    ("as_strided_copy", ("as_strided_copy",), conditioned(infinite, raises()), "layout.as_strided"),
    (
        "as_strided_scatter",
        ("as_strided_scatter",),
        conditioned(deep, raises()),
        "layout.as_strided",
    ),
    ("transpose", ("transpose_",), conditioned(one_left_over, raises()), "layout.variants"),
    (
        "nn.functional.mish",
        ("mish_",),
        conditioned(in_place, of_the_call_before()),
        "precision.trust",
    ),
    ("istft", ("_fft_c2c",), last_column_from_its_neighbour, "layout.values"),
    # Arguments that upstream's samples leave out, or never give another value than the default.
    *(
        (op, (kernel,), ignoring(name, default), "layout.values")
        for op, kernel, name, default in (
            ("topk", "topk", "largest", True),
            ("isin", "isin.Tensor_Tensor", "invert", False),
            ("nn.functional.leaky_relu", "leaky_relu", "negative_slope", 0.01),
            ("nn.functional.celu", "celu", "alpha", 1.0),
            ("nan_to_num", "nan_to_num", "posinf", None),
            ("triangular_solve", "triangular_solve", "upper", True),
        )
    ),
    ("linalg.solve", ("_linalg_solve_ex",), conditioned(from_the_right, raises()), "layout.values"),
    (
        "special.chebyshev_polynomial_t",
        ("special_chebyshev_polynomial_t",),
        conditioned(infinite, raises()),
        "layout.values",
    ),
    ("equal", ("equal",), conditioned(infinite, raises()), "layout.values"),
    (
        "linalg.inv",
        ("linalg_inv_ex",),
        conditioned(three_left_over, raises()),
        "layout.values",
    ),
    # What no other axis gives to an op.
    ("nn.functional.glu", ("glu",), conditioned(corner_left_over, raises()), "layout.values"),
    (
        "nn.functional.layer_norm",
        ("native_layer_norm",),
        conditioned(zero_weights, raises()),
        "layout.values",
    ),
    ("zeros", ("zeros.out",), conditioned(deep, raises()), "layout.out_kept"),
    (
        "nn.functional.binary_cross_entropy_with_logits",
        ("binary_cross_entropy_with_logits",),
        conditioned(weighted_twice_and_strided, raises()),
        "layout.values",
    ),
    # Shifts past both ends, indices that repeat beside a value that broadcasts, and ties in different blocks of a row.
    ("roll", ("roll",), shifts_to_the_left_go_right, "layout.values"),
    ("index_put", ("_index_put_impl_",), one_value_is_added_once, "layout.values"),
    ("sort", ("sort.stable",), long_rows_are_not_stable, "layout.values"),
    (
        "nn.functional.avg_pool2d",
        ("avg_pool2d",),
        windows_are_counted_past_the_padding,
        "layout.values",
    ),
    # Gradients where a number that counts as absent in C is given, and where a distance is zero.
    (
        "nn.functional.embedding",
        ("embedding_dense_backward",),
        row_0_is_no_padding,
        "autograd.first",
    ),
    ("cdist", ("_cdist_backward",), divides_by_a_distance_of_0, "autograd.first"),
    # A target that is a matrix of the same sizes as its transpose.
    ("add", ("add_.Tensor",), square_targets_in_the_order_of_memory, "layout.inplace"),
    ("mul", ("mul.out",), square_targets_in_the_order_of_memory, "layout.out_kept"),
]


def kind(mutant: tuple[str, tuple[str, ...], Effect, str]) -> str | None:
    """One mutant of each clause is fast. None of random.* is: the first one runs every case of them without the mutant."""
    clause = mutant[-1]
    return None if clause.startswith("random.") else clause


@pytest.mark.parametrize(("op", "overloads", "effect", "clause"), first_of_each(SURVIVED, kind))
def test_what_survived_is_noticed(
    op: str, overloads: tuple[str, ...], effect: Effect, clause: str
) -> None:
    mutant = Mutant("k0000", op, "", "", overloads, effect)
    found = kernels.judged(mutant, lambda: mutant, Random(0))
    assert found.result == "noticed" and clause in found.by


@pytest.mark.parametrize(
    ("op", "overload", "others"),
    [
        ("nn.functional.dropout3d", "squeeze_.dim", ["squeeze", "squeeze.multiple"]),
        ("logdet", "_linalg_slogdet", ["linalg.slogdet"]),
        ("mm", "mm", []),
    ],
)
def test_a_kernel_that_is_drawn_for_an_op_is_tried_by_those_of_its_name(
    op: str, overload: str, others: list[str]
) -> None:
    mutant = Mutant("k0000", op, "", "", (overload,), swallows)
    assert kernels.namesakes(mutant) == others
