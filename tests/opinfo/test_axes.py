"""Samples by axis: what applies to which op, within which budget, the same each time."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch

from opinfo.axes import AXES, FEW, FURTHER, by_axis, further_samples, samples_of, table
from opinfo.axes.axis_context import UPSTREAM, Basis, exactly
from opinfo.axes.coverage_gaps import SHAPES
from opinfo.axes.defaults import Argument, arguments_of
from opinfo.axes.handwritten import recipes
from opinfo.catalog import catalogue
from opinfo.compare import Arguments
from opinfo.database import DATABASE
from opinfo.exceptions import exceptions
from opinfo.layouts import covering_set
from opinfo.memory import fresh_memory, mallopt
from opinfo.plan import plan_specs
from opinfo.samples import Sample, draw
from tests.opinfo.test_samples import described

AXIS = {axis.name: axis for axis in AXES}


def made(op: str, dtype: str = "float32") -> list[Sample]:
    found = catalogue()[op]
    return list(by_axis(found, dtype, draw(found, dtype)))


def shapes(op: str, axis: str, dtype: str = "float32") -> list[list[tuple[int, ...]]]:
    return [[tuple(t.shape) for t in s.tensors] for s in made(op, dtype) if s.axis == axis]


def values(op: str, axis: str, place: int, dtype: str = "float32") -> torch.Tensor:
    found = [s.tensors[place].reshape(-1) for s in made(op, dtype) if s.axis == axis]
    return torch.cat(found)


def taken(sample: Sample) -> bool:
    """Whether a sample has tensors, and only such as axes change."""
    return bool(sample.tensors) and all(t.layout == torch.strided for t in sample.tensors)


@pytest.mark.parametrize("op", ["flip", "cat"])
def test_of_what_is_only_moved_one_element_in_fifty_is_zero(op: str) -> None:
    found = values(op, "long", 0)
    assert 0.015 < float((found == 0).double().mean()) < 0.025 and bool((found < 0).any())


@pytest.mark.parametrize("op", ["sparse.sampled_addmm", "sparse.mm.reduce"])
def test_operands_that_are_not_strided_have_no_facts_that_options_could_meet(op: str) -> None:
    assert all(taken(sample) for sample in made(op) if sample.axis == "options")


def test_no_middle_size_is_asked_for_where_the_result_grows_with_its_square() -> None:
    """Pairs of 65,539 elements would fill the memory."""
    assert [s for s in made("combinations") if s.axis == "middle"] == []


# -- the table


def test_axes_have_a_number_a_sentence_and_layouts_of_the_covering_set() -> None:
    every = (*AXES, *FURTHER)
    assert len({axis.number for axis in every}) == len({axis.name for axis in every}) == len(every)
    known = {case.id for case in covering_set().cases}
    for axis in every:
        assert axis.finds.endswith(".")
        assert axis.bugs
        assert set(axis.layouts) <= known
        assert max(axis.whole, axis.writes) <= axis.budget < 1000
    assert set(FEW) <= known


@pytest.fixture(scope="module")
def tabled(cache: Path) -> dict[tuple[str, str], list[Sample]]:
    return table.axis_samples(cache)


@pytest.fixture(
    scope="module", params=["some ops", pytest.param("all ops", marks=pytest.mark.slow)]
)
def everything(request: pytest.FixtureRequest) -> dict[str, list[Sample]]:
    """The samples of the axes in float32, by op: of every twelfth op, and of all."""
    if request.param == "some ops":
        ops = [op for op in catalogue().values() if "float32" in op.dtypes]
        return {op.id: [s for s in samples_of(op, "float32", 1) if s.axis] for op in ops[::12]}
    tabled = request.getfixturevalue("tabled")
    return {op: samples for (op, dtype), samples in tabled.items() if dtype == "float32"}


def test_every_op_that_takes_tensors_has_an_axis_or_a_reason(
    everything: dict[str, list[Sample]],
) -> None:
    subjects = DATABASE.subjects()  # the ops of the catalogue, and single overloads
    without = {name for name, samples in everything.items() if not samples}
    unexplained = [
        name
        for name in without
        if "axes.keep_shapes" not in exceptions().families_of(name) | subjects[name].own_families
        and subjects[name].schemas
        and any(map(taken, draw(subjects[name], "float32", limit=20)))
    ]
    assert unexplained == []


def test_each_call_that_is_written_is_taken_and_is_steady(
    everything: dict[str, list[Sample]],
) -> None:
    """Of the ops of that family, and of no others."""
    of_family = {
        op: len([*recipes(op)])
        for op in everything
        if "axes.written" in exceptions().families_of(op)
    }
    made = {op: sum(s.axis == "written" for s in samples) for op, samples in everything.items()}
    assert {op: count for op, count in made.items() if count} == of_family
    assert {op for op in everything if [*recipes(op)]} == set(of_family)


def test_budgets_are_kept(everything: dict[str, list[Sample]]) -> None:
    for name, samples in everything.items():
        assert len({s.index for s in samples}) == len(samples), name
        for axis, count in Counter(s.axis for s in samples).items():
            assert count <= AXIS[axis].budget, name
        for each in samples:
            assert each.index // 1000 == AXIS[each.axis].number, name


def test_every_elementwise_op_has_a_sample_that_can_be_permuted(
    everything: dict[str, list[Sample]],
) -> None:
    def tells(sample: Sample) -> bool:
        return any(len({n for n in t.shape if n > 1}) > 2 for t in sample.tensors)

    ops = [op for op in catalogue().values() if op.ufunc in ("unary", "binary") and op.schemas]
    flat = {
        op.id
        for op in ops
        if op.id in everything
        and not any(tells(s) and s.layouts is None for s in everything[op.id])
    }
    assert {
        name for name in flat if "axes.keep_shapes" not in exceptions().families_of(name)
    } == set()


@pytest.mark.parametrize("name", ["add", "softmax", "index_add", "nn.functional.conv2d"])
def test_the_same_samples_are_drawn_again(name: str) -> None:
    first, second = ("\n".join(map(described, made(name))) for _ in range(2))
    assert first == second


def test_samples_of_undeclared_dtypes_are_left_out() -> None:
    kinds = {
        t.dtype
        for s in samples_of(catalogue()["add"], "float32", 16, {"float32"})
        for t in s.tensors
    }
    assert kinds == {torch.float32}


def test_a_sample_of_the_axes_takes_every_layout_or_three_of_upstream_s_do() -> None:
    of_sum = samples_of(catalogue()["sum"], "float32", 16)
    assert [s.axis for s in of_sum if s.layouts is None] == ["rank"]
    of_scatter = samples_of(catalogue()["scatter"], "float32", 16)  # its indices are unique
    assert [s.axis for s in of_scatter if s.layouts is None] == [""] * 3
    others = [set(s.layouts or ()) for s in of_sum if not s.axis]
    assert all("contiguous" in each and len(each) == 3 for each in others)
    expanded = {"contiguous+expand_first", "free:expand=1"}
    assert all(len(each & expanded) == 1 for each in others)
    deep = [s for s in of_sum if not s.axis and s.rank > 2]
    assert any("free:expand=1" in (s.layouts or ()) for s in deep)
    assert not any("free:expand=1" in (s.layouts or ()) for s in of_sum if 0 < s.rank < 3)
    assert set().union(*others) == set(FEW)


# -- what the axes reach


@pytest.mark.parametrize("name", ["sum", "softmax", "sort", "fft.rfft", "index_add"])
def test_one_call_has_more_than_65_536_elements(name: str) -> None:
    sizes = [torch.Size(each).numel() for call in shapes(name, "long") for each in call]
    assert max(sizes) > 2**16


@pytest.mark.parametrize("name", ["mul", "diag_embed", "bmm", "linalg.inv", "gather"])
def test_operands_have_no_elements(name: str) -> None:
    found = shapes(name, "empty")
    assert len(found) > 1 and all(any(0 in each for each in call) for call in found)


def test_dimensions_that_belong_together_are_emptied_together() -> None:
    """Some kernels do not check it: attention would have keys for no query's batch."""
    for query, key, value, *_ in shapes("nn.functional.scaled_dot_product_attention", "empty"):
        assert query[:2] == key[:2] == value[:2]


def test_empty_matrices_are_square_where_only_the_cpu_takes_others() -> None:
    found = shapes("cholesky", "empty")
    assert found and all(shape[-1] == shape[-2] for [shape] in found)


@pytest.mark.parametrize("name", ["add", "cumsum", "mm"])
def test_a_call_is_refused_by_the_cpu_and_by_meta_tensors(name: str) -> None:
    samples = [each for each in made(name) if each.axis == "refused"]
    assert samples
    for sample, device in product(samples, ("cpu", "meta")):
        args, kwargs = sample.call.on([t.to(device) for t in sample.tensors], torch.device(device))
        with pytest.raises((RuntimeError, IndexError)):
            catalogue()[name].function(*args, **kwargs)


def test_reductions_are_given_nan_infinities_and_subnormal_numbers() -> None:
    found = values("logsumexp", "special values", 0)
    assert found.isnan().any() and found.isinf().any()
    assert ((found != 0) & (found.abs() < torch.finfo(torch.float32).tiny)).any()


def test_equal_elements_are_ordered_where_their_order_is_documented() -> None:
    for sample in (each for each in made("sort") if each.axis == "ties"):
        assert sample.call.kwargs["stable"] and len(sample.tensors[0].unique()) == 3
    assert not any(each.axis == "ties" for each in made("topk"))


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("topk", "largest"),
        ("isin", "invert"),
        ("nan_to_num", "posinf"),
        ("nn.functional.leaky_relu", "negative_slope"),
        ("triangular_solve", "unitriangular"),
    ],
)
def test_arguments_that_upstream_leaves_out_are_given_another_value(
    name: str, argument: str
) -> None:
    default = arguments_of(catalogue()[name])[argument]
    given = [sample for sample in made(name) if default.given_to(sample.call, argument)]
    axes = {sample.axis for sample in given}
    assert "defaults" in axes <= {"defaults", "options", "points"}


def test_what_says_something_of_operands_is_left_alone() -> None:
    # Whether values are unique, or matrices hermitian, is for whoever makes them to say.
    assert "assume_unique" not in arguments_of(catalogue()["isin"])
    assert "hermitian" not in arguments_of(catalogue()["linalg.matrix_rank"])
    assert arguments_of(catalogue()["topk"]).keys() == {"dim", "largest"}


def test_an_index_without_dimensions_is_not_given_as_a_dimension() -> None:
    # max(x, index, keepdim=True) is another overload, which reads the index on the host.
    assert arguments_of(catalogue()["max.binary"])["keepdim"].tensors == 1
    assert not any(sample.axis == "defaults" for sample in made("max.binary", "int64"))


def test_an_argument_is_given_by_name_or_at_its_place() -> None:
    x = torch.ones(3)
    largest = Argument(place=3, default=True, others=(False,))
    assert not largest.given_to(Arguments((x, 2), {}), "largest")
    assert not largest.given_to(Arguments((x, 2, 0, True), {}), "largest")
    assert largest.given_to(Arguments((x, 2, 0, False), {}), "largest")
    assert largest.given_to(Arguments((x, 2), {"largest": False}), "largest")
    assert largest.changed(Arguments((x, 2), {}), "largest", False).kwargs == {"largest": False}
    placed = largest.changed(Arguments((x, 2, 0, True, True), {}), "largest", False)
    assert placed.args[1:] == (2, 0, False, True) and not placed.kwargs


def test_calls_with_the_most_tensors_are_changed_too() -> None:
    name = "nn.functional.binary_cross_entropy_with_logits"
    assert max(len(sample.tensors) for sample in draw(catalogue()[name], "float32")) == 4
    of_four = {sample.axis for sample in made(name) if len(sample.tensors) == 4}
    assert {"extent", "special values"} <= of_four


def test_polynomials_are_given_infinities_and_no_nan() -> None:
    found = values("special.legendre_polynomial_p", "special values", 0)
    assert found.isinf().any() and not found.isnan().any()
    assert values("special.legendre_polynomial_p", "special values", 1).isfinite().all()


def test_whole_tensors_that_are_compared_hold_infinities() -> None:
    assert values("equal", "special values", 0).isinf().any()


@pytest.mark.parametrize("name", ["nn.functional.glu", "bmm", "slice"])
def test_a_corner_of_tiles_that_no_other_axis_leaves_over_is_filled_in(name: str) -> None:
    corner = next(gap for gap in SHAPES if gap.name == "an incomplete tile in the corner")
    by = [s.axis for s in made(name) if corner.holds(tuple(s.tensors[0].shape))]
    assert by == ["gaps"]


def test_values_that_an_operand_never_held_are_filled_in() -> None:
    of_two = [s for s in made("nn.functional.layer_norm") if len(s.tensors) > 1]
    held = {s.axis for s in of_two if bool(((s.tensors[1] == 0) & ~s.tensors[1].signbit()).any())}
    assert held == {"gaps"}  # -0 is among the special values


def test_what_is_settled_is_so_with_zeros_in_place_of_subnormal_numbers() -> None:
    op, tiny = catalogue()["isin"], torch.finfo(torch.float32).tiny
    basis = Basis(op, "float32", draw(op, "float32"), exceptions().families_of("isin"))
    zero = torch.zeros(1)
    assert not basis.settled(Arguments((torch.tensor([tiny / 4, 1.0]), zero), {}))
    assert basis.settled(Arguments((torch.tensor([tiny, 1.0]), zero), {}))


def test_axes_look_at_as_many_of_upstream_s_samples_as_plans_take() -> None:
    assert {plan.samples for plan in plan_specs().values()} == {UPSTREAM}


def test_where_there_is_no_gap_nothing_is_made() -> None:
    assert not any(sample.axis == "gaps" for sample in made("mul"))


@pytest.mark.parametrize(
    ("name", "fits", "does_not"),
    [
        ("a multiple of 64 elements", (128, 3), (64,)),
        ("one element more than a multiple of 16", (3, 11), (32,)),
        ("three elements more than a multiple of 4", (7,), (3,)),
        ("one column", (2, 5, 1), (1, 1)),
        ("one row", (2, 1, 5), (5,)),
        ("an incomplete tile in the corner", (131, 137), (256, 137)),
        ("more than 300 rows", (301, 2), (2, 301)),
        ("more than 65,536 elements", (257, 257), (256, 256)),
    ],
)
def test_what_a_gap_is(name: str, fits: tuple[int, ...], does_not: tuple[int, ...]) -> None:
    (gap,) = (each for each in SHAPES if each.name == name)
    assert gap.holds(fits) and not gap.holds(does_not)


def test_operands_are_broadcast_both_ways() -> None:
    found = shapes("mul", "rank")
    assert [(3, 5, 2, 9), (2, 9)] in found
    assert [(2, 1), (3, 5, 2, 9)] in found


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("sum", 1025),
        ("cumsum", 1025),
        ("softmax", 1025),
        ("sort", 1025),
        ("mm", 1025),
        ("nn.functional.layer_norm", 1025),
        ("nn.functional.max_pool2d", 257),
        ("nn.functional.conv2d", 257),
        pytest.param("nn.functional.scaled_dot_product_attention", 257, marks=pytest.mark.slow),
        ("index_select", 1025),
    ],
)
def test_one_dimension_is_long(name: str, least: int) -> None:
    assert max(n for call in shapes(name, "extent") for shape in call for n in shape) >= least


def test_a_result_of_gigabytes_is_not_computed_to_be_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = catalogue()["diagflat"]
    basis = Basis(op, "float32", draw(op, "float32"), exceptions().families_of("diagflat"))
    small, large = Arguments((torch.ones(17, 17),), {}), Arguments((torch.ones(131, 137),), {})
    answer = basis.answer(small)
    assert answer is not None and answer[0].shape == (289, 289)
    monkeypatch.setattr(
        Basis, "_reference_answer", lambda basis, call: pytest.fail("the CPU computes it")
    )
    assert basis.answer(large) is None


def test_both_operands_of_a_comparison_hold_special_values() -> None:
    for place in (0, 1):
        found = values("maximum", "special values", place)
        assert found.isnan().any()
        assert found.isinf().any()
        assert (found == 0.0).any()


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_special_values_of_float64_are_those_on_which_the_cpu_s_loops_agree(name: str) -> None:
    """A vector of subnormal divisors gives NaN, and one element alone is right: which of them a device takes is open."""
    calls = [s.call for s in made(name, "float64") if s.axis == "special values"]
    assert calls
    for call in calls:
        args, kwargs = call.bind([exactly(each) for each in call.tensors])
        apart = catalogue()[name].function(*args, **kwargs)
        args, kwargs = call.bind(call.tensors)
        found = catalogue()[name].function(*args, **kwargs)
        assert torch.equal(apart.isnan(), found.isnan())


def test_integers_reach_past_what_float64_holds() -> None:
    for name in ("eq", "sort", "max.reduction_with_dim"):
        assert values(name, "large integers", 0, "int64").abs().max() > 2**53


def test_an_index_repeats_and_is_negative_where_that_is_taken() -> None:
    repeated = [s.tensors[1] for s in made("index_add") if s.axis == "indices"]
    assert any(each.unique().numel() < each.numel() for each in repeated)
    assert (values("take", "indices", 1) < 0).any()


def test_indices_that_may_not_repeat_do_not() -> None:
    for sample in (each for each in made("index_copy") if each.axis != "refused"):
        assert sample.tensors[1].unique().numel() == sample.tensors[1].numel()


@pytest.mark.slow
def test_the_table_of_the_docs_is_that_of_the_axes(
    tabled: dict[tuple[str, str], list[Sample]],
) -> None:
    """But for a few samples: where a rounding decides whether the CPU's answer is settled, machines differ."""
    text = (Path(__file__).parents[2] / "docs" / "depth.md").read_text(encoding="utf-8")
    documented = text.partition("<!-- table -->\n")[2].splitlines()
    for before, now in zip(documented, table.rows(tabled), strict=True):
        assert re.sub(r"[\d,]+", "0", before) == re.sub(r"[\d,]+", "0", now)
        counts = (re.findall(r"[\d,]+", row.replace(",", "")) for row in (before, now))
        pairs = [(int(a), int(b)) for a, b in zip(*counts, strict=True)]
        assert all(abs(a - b) <= max(3, a // 20) for a, b in pairs), (before, now)


def test_dtypes_that_are_only_stored_keep_upstream_s_samples() -> None:
    """There is no arithmetic in float8 to change values with."""
    found = samples_of(catalogue()["torch._scaled_mm"], "float8_e4m3fn", 16)
    assert found and not any(sample.axis for sample in found)


@pytest.mark.parametrize("dtype", ["uint16", "uint64"])
def test_samples_are_made_of_integers_with_few_kernels(dtype: str) -> None:
    """There are none of comparison or multiplication. Of all ops: those of float32 and int64 are made for the table."""
    ops = [op.id for op in catalogue().values() if dtype in op.dtypes]
    assert len(ops) > 30
    without = [op for op in ops if not any(sample.axis for sample in made(op, dtype))]
    assert len(without) < len(ops) / 4, without


def test_embedding_bag_of_float64_is_not_left_without_offsets() -> None:
    """That ends the process."""
    calls = [s.call for s in made("nn.functional.embedding_bag", "float64") if s.axis == "empty"]
    assert calls and not any(
        each.kwargs.get("offsets") is not None and not each.kwargs["offsets"].numel()
        for each in calls
    )


@pytest.mark.skipif(mallopt() is None, reason="fresh memory can be filled over glibc only")
def test_a_call_whose_answer_is_what_memory_held_is_not_taken() -> None:
    """The mean over an empty batch is never written (ATen/native/LossMultiMargin.cpp)."""
    op = catalogue()["nn.functional.multi_margin_loss"]
    basis = Basis(op, "float32", draw(op, "float32"), exceptions().families_of(op.id))
    call = Arguments((torch.empty(0, 5), torch.empty(0, dtype=torch.int64)), {})
    assert basis.answer(call) is not None
    left = torch.zeros(())
    del (
        left
    )  # by luck, memory that was not filled holds the zeros of a tensor that has just been freed
    assert basis.accepted(call) is None


def test_fresh_memory_refuses_the_byte_that_glibc_cannot_fill_in() -> None:
    with pytest.raises(ValueError, match="from 0 to 254"), fresh_memory(torch.device("cpu"), 0xFF):
        pass


# -- axes that plans leave out


def further(op: str, axis: str) -> list[Sample]:
    found = catalogue()[op]
    return [s for s in further_samples(found, "float32", draw(found, "float32")) if s.axis == axis]


@pytest.mark.parametrize("op", ["mm", "dot", "mv", "nn.functional.linear"])
def test_of_a_product_nan_and_infinities_are_opposite_zeros(op: str) -> None:
    special: set[tuple[int, str]] = set()
    for sample in further(op, "opposite zeros"):
        places = [p for p, t in enumerate(sample.tensors) if not t.isfinite().all()]
        (place,) = places
        others = [t for p, t in enumerate(sample.tensors) if p != place and t.numel() > 1]
        assert others and all(bool((t.reshape(-1)[: t.numel() // 2] == 0).all()) for t in others)
        special.add((place, "nan" if sample.tensors[place].isnan().any() else "inf"))
    assert {(p, kind) for p in (0, 1) for kind in ("nan", "inf")} <= special


def test_nan_is_in_the_operand_that_beta_of_zero_ignores() -> None:
    found = [s for s in further("addmm", "opposite zeros") if s.call.kwargs.get("beta") == 0]
    assert found and all(bool(s.tensors[0].isnan().all()) for s in found)


def test_bounds_are_exchanged_equal_and_beyond_the_sizes() -> None:
    low_high = [s.tensors[1:] for s in further("clamp", "extreme options") if len(s.tensors) == 3]
    assert any(bool((low > high).any()) for low, high in low_high)
    assert any(bool((low == high).all()) for low, high in low_high)
    (shape,) = {tuple(s.tensors[0].shape) for s in further("topk", "extreme options")}
    taken = {s.call.args[1] for s in further("topk", "extreme options")}
    assert {0, max(shape)} <= taken
    calls = [s.call for s in further("linalg.vector_norm", "extreme options")]
    orders = {call.kwargs.get("ord", *call.args[1:2] or [None]) for call in calls}
    assert {0, 3, -3} <= orders


def test_an_operand_has_no_dimensions_beside_each_flag() -> None:
    found = {
        (s.call.kwargs.get("accumulate", s.call.args[3] if len(s.call.args) > 3 else False))
        for s in further("index_put", "single elements")
        if not s.tensors[-1].dim()
    }
    assert found == {True, False}


def test_plans_have_none_of_them() -> None:
    names = {axis.name for axis in FURTHER}
    assert not names & {s.axis for s in samples_of(catalogue()["mm"], "float32", 3)}
