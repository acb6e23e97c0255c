"""Gradients of ops: wrong derivatives are noticed, roundings are not, and what is judged is what backward gave."""

from __future__ import annotations

import re
from copy import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance import contract
from conformance.checks.ops.calls import Invocation, laid_out
from conformance.checks.ops.context import run_checks
from conformance.suites import planned_op_checks
from conformance.suites.autograd.cpu_gradients import gradients, sensitivity
from conformance.suites.autograd.decompositions import has_determinate_part
from conformance.suites.autograd.first_order import PLAIN, lays_of
from conformance.suites.autograd.gradient_judge import judge_gradients, other_gradient
from conformance.suites.autograd.gradients import (
    Cotangent,
    Gradients,
    differentiated,
    held_by,
    place_cotangent,
    weights,
)
from conformance.suites.autograd.higher_order import misplaced
from conformance.suites.autograd.samples import chosen, is_long, known_of
from devices.cell import Outcome
from opinfo.catalog import Op, catalogue
from opinfo.compare import DEFAULT_TOLERANCES
from opinfo.exceptions import exceptions
from opinfo.guarded import identity
from opinfo.layouts import CONTIGUOUS, Geometry, Layout
from opinfo.samples import NO_UNIQUE_GRADIENT
from tests.autograd import off, trust
from tests.mutation import gradients as mutants
from tests.mutation.items import Subject, subject
from tests.planting.derivatives import Backward
from tests.sampling import first_of_each

CPU = torch.device("cpu")


@pytest.mark.slow
def test_the_gradients_of_a_long_batch_and_of_a_long_result_are_asked_for() -> None:
    """But not where a window of the pooling holds padding alone: there torch writes past the end of the gradient."""
    linear, conv, pooled = (
        [
            tuple(each.tensors[0].shape) + tuple(each.tensors[-1].shape)
            for each in chosen(ctx)
            if is_long(each)
        ]
        for ctx in (
            subject(f"nn.functional.{op}", "float32").context(["autograd.first"])
            for op in ("linear", "conv1d", "max_pool3d")
        )
    )
    assert (1, 65_551) in linear
    assert (65_551, 1, 1, 1) in conv
    assert 65_551 not in [shape[0] for shape in pooled]


def test_the_gradients_of_a_handwritten_call_are_asked_for() -> None:
    context = Subject("einsum", "float32", run=False).context(["autograd.first"])
    assert "bij,ijk->bik" in [each.call.args[1] for each in chosen(context)]


def test_gradients_are_asked_for_with_more_indices_than_a_block_takes() -> None:
    context = Subject("index_select", "float32", run=False).context(["autograd.first"])
    assert max(each.tensors[-1].numel() for each in chosen(context)) > 256


@pytest.mark.parametrize("op", ["sub", "nn.functional.linear"])
def test_gradients_of_tensors_without_elements_are_asked_for(op: str) -> None:
    """Where all are without, and where an empty batch is beside weights."""
    context = Subject(op, "float32", run=False).context(["autograd.first"])
    counts = [[each.numel() for each in sample.tensors] for sample in chosen(context)]
    assert any(not any(each) for each in counts)
    assert any(any(each) and not all(each) for each in counts)


#: Ops whose gradients take a second or two to judge; some of the others take tens of seconds.
_CHEAP = frozenset({"sigmoid", "cumsum", "exp", "mul", "add", "tanh"})


@pytest.mark.parametrize(
    ("op", "when", "what", "place", "clause"),
    first_of_each(
        [
            ("sigmoid", "a cotangent is not contiguous", "the cotangent read in a row", 0, "first"),
            (
                "nn.functional.layer_norm",
                "one input alone requires a gradient",
                "doubled",
                1,
                "first",
            ),
            ("nn.functional.batch_norm", "an input is not contiguous", "negated", 0, "first"),
            ("masked_select", "an input is not contiguous", "rolled by one", 0, "first"),
            ("matmul", "a cotangent is expanded", "the last element lost", 1, "first"),
            ("cumsum", "more than 256 elements", "the tail lost", 0, "first"),
            (
                "nn.functional.linear",
                "a tensor of more than 32,767 elements",
                "doubled",
                1,
                "first",
            ),
            ("nn.functional.conv1d", "a tensor of more than 32,767 elements", "zeros", 1, "first"),
            ("unbind", "not every output has a cotangent", "doubled", 0, "first"),
            ("exp", "always", "through bfloat16", 0, "second"),
            ("nn.functional.conv2d", "input and cotangent are not contiguous", "zeros", 1, "first"),
            ("mul", "always", "an input is written to", 0, "first"),
            ("cat", "always", "the cotangent is written to", None, "first"),
            ("add", "a cotangent above 100", "none", 0, "first"),
            ("tanh", "always", "the gradient of the call before", 0, "first"),
            (
                "nn.functional.grid_sample",
                "a cotangent is expanded",
                "NaN in the middle",
                1,
                "first",
            ),
            ("median", "an input is expanded", "doubled", 0, "first"),
            ("nanmean", "input and cotangent are not contiguous", "negated", None, "first"),
            ("nn.functional.cosine_embedding_loss", "always", "zeros", None, "first"),
            # As far off as the database lets them be, for TensorFloat-32.
            ("__rmatmul__", "a cotangent is not contiguous", "through bfloat16", 0, "first"),
            (
                "nn.functional.conv3d",
                "a cotangent is not contiguous",
                "through bfloat16",
                1,
                "first",
            ),
            ("linalg.solve", "an input is not contiguous", "off by a thousandth", 0, "first"),
        ],
        lambda mutant: mutant[2] if mutant[0] in _CHEAP else None,
    ),
)
def test_a_wrong_derivative_is_noticed(
    op: str, when: str, what: str, place: int | None, clause: str
) -> None:
    item = subject(op, mutants.DTYPE)
    mutant = mutants.Mutant(catalogue()[op], when, what, place)
    with mutants.planted(mutant):
        noticed = item.noticed()
    assert mutant.reached
    assert f"autograd.{clause}" in noticed


def test_values_that_the_cpu_does_not_differentiate_are_not_asked_for() -> None:
    """Equal rows make a singular matrix; rounding decides in which precision the call ends."""
    ctx = subject("linalg.tensorsolve", "complex64").context(["autograd.first"])
    returned = 0
    for sample in chosen(ctx):
        known = known_of(ctx, sample)
        for lies in lays_of(ctx, sample, ["contiguous+expand_first"]).values():
            if known.returns(lies.geometries):
                assert any(each is not None for each in known.cotangents(PLAIN, lies.geometries))
                returned += 1
    assert returned < len(chosen(ctx))


@pytest.mark.parametrize(
    "op", ["nn.functional.scaled_dot_product_attention", "softmax", "index_copy", "cdist"]
)
def test_gradients_of_zeros_would_be_noticed(op: str) -> None:
    """``python -m tests.autograd.trust`` looks at every op."""
    assert trust.noticed(op) and trust.told(op) == []


@pytest.mark.parametrize(
    "op",
    [
        "__rmatmul__",
        "ceil",
        *(
            pytest.param(op, marks=pytest.mark.slow)
            for op in ("nn.functional.conv3d", "linalg.solve")
        ),
    ],
)
def test_gradients_that_are_off_by_a_ten_thousandth_would_be_noticed(op: str) -> None:
    """``python -m tests.autograd.off`` looks at every op."""
    assert off.told(op) == []
    assert (off.passing(op) != []) is (op == "ceil")


class _NoneAgain(torch.autograd.Function):
    """The gradient as it is, of which each further gradient is zero."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        return torch.zeros_like(cotangent)


class _WrongAgain(mutants.Mutant):
    """A derivative that is right, and whose own derivatives are zeros."""

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        self.reached += 1
        found: torch.Tensor = _NoneAgain.apply(gradient)
        return found


@pytest.mark.parametrize("op", ["nn.functional.mse_loss", "dist", "logaddexp2", "exp"])
def test_a_derivative_without_derivatives_is_noticed_by_second_gradients(op: str) -> None:
    item = subject(op, mutants.DTYPE)
    mutant = _WrongAgain(catalogue()[op], "always", "zeros when differentiated again", None)
    with mutants.planted(mutant):
        noticed = item.noticed()
    assert mutant.reached
    # Compiled code and forward mode have the derivative of the derivative, too.
    others = {"compile.eager_equals_compiled", "autograd.forward_ad"}
    assert {*noticed} - others == {"autograd.second"}


class _NoKernel(mutants.Mutant):
    """A derivative that raises."""

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel")


def test_second_gradients_that_cannot_be_asked_for_are_blocked_by_the_first_ones() -> None:
    context = subject("exp", mutants.DTYPE).context(["autograd.first", "autograd.second"])
    with mutants.planted(_NoKernel(catalogue()["exp"], "always", "raises", None)):
        run_checks(context, planned_op_checks(contract.load()))
    first, second = (record.to_outcome() for record in context.recorder.cells.values())
    assert (first.outcome, second.outcome) == (Outcome.FAIL, Outcome.BLOCKED)
    assert second.blocked_by == "autograd.first"


def test_what_accumulates_is_blocked_by_gradients_where_results_have_none() -> None:
    """As on a device whose conversion of dtypes loses the graph."""
    context = subject("exp", mutants.DTYPE).context(["autograd.first", "layout.grad"])

    def detached(given: torch.Tensor) -> torch.Tensor:
        found = torch.exp(given)
        return found if given.device.type == "cpu" else found.detach()

    context.subject = Op(copy(context.subject.info))
    context.subject.info.op = detached
    run_checks(context, planned_op_checks(contract.load()))
    told = {
        record.to_outcome().cell.clause: record.to_outcome()
        for record in context.recorder.cells.values()
    }
    assert told["autograd.first"].outcome is Outcome.FAIL
    assert told["layout.grad"].outcome is Outcome.BLOCKED
    assert told["layout.grad"].blocked_by == "autograd.first"


@pytest.mark.parametrize("op", ["nn.functional.mse_loss", "dist", "logaddexp2", "exp"])
@pytest.mark.parametrize("form", ["second gradient", "forward-mode product"])
def test_zeros_for_what_is_derived_from_gradients_would_be_noticed(op: str, form: str) -> None:
    """Functions of x - y, above all: of numbers that are given for both alike, everything cancels."""
    parts = trust.noticed(op, form)
    assert parts and all(each.first > trust.LEAST for each in parts.values())


def test_an_input_whose_gradient_is_always_zero_is_told_unless_it_is_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert trust.told("floor") == []
    monkeypatch.delitem(trust.ZERO, ("floor", 0))
    assert trust.told("floor") == ["floor: gradient 0: zeros would be noticed in 0% of it"]


def test_the_derivatives_of_the_device_itself_are_not_blamed() -> None:
    for op in ("sigmoid", "nn.functional.conv2d", "masked_select"):
        clean = subject(op, mutants.DTYPE).clean
        judged = {clause: bad for clause, bad in clean.items() if "grad" in clause}
        assert judged and not any(judged.values())


def test_the_docs_list_each_op_with_a_gradient_that_is_not_judged() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    table = text.partition("**Not judged.**")[2].partition("\n\nWhere several")[0]
    listed = {name for row in table.splitlines()[4:] for name in re.findall(r"`(\S+)`", row)}
    sparse = {"sparse.sampled_addmm", "sparse.mm.reduce"}
    with_gradient = [
        each.id for each in catalogue().values() if mutants.DTYPE in each.gradient_dtypes
    ]
    families = {op: exceptions().families_of(op) for op in with_gradient}
    not_unique = {op for op, its in families.items() if its & NO_UNIQUE_GRADIENT}
    parts = {op for op in not_unique if has_determinate_part(families[op])}
    assert listed == not_unique - parts | sparse
    assert f"{len(with_gradient) - len(listed)} of the {len(with_gradient)} operators" in text


# -- the reference


def test_weights_are_the_same_numbers_and_no_two_are_alike() -> None:
    drawn = weights((50, 40), torch.float32)
    assert torch.equal(drawn, weights((50, 40), torch.float32))
    assert len(drawn.unique()) == drawn.numel() and float(drawn.abs().max()) <= 2
    assert not torch.equal(drawn, weights((50, 40), torch.float32, turn=1))
    assert weights((3,), torch.complex64).imag.unique().numel() == 3


def _call(function: Any, *values: torch.Tensor, layout: str = "contiguous") -> Invocation:
    geometries = [Layout.parse(layout).geometry(each.shape) for each in values]
    there = laid_out(values, geometries, identity)

    def arguments(tensors: list[torch.Tensor], device: torch.device) -> Any:
        return tuple(tensors), {}

    return Invocation(function, arguments, values, there, CPU, identity, identity, lambda _: None)


def _plain(*shape: int) -> Cotangent:
    return Cotangent(torch.float32, CONTIGUOUS.geometry(shape))


def _reference(call: Invocation, cotangents: tuple[Cotangent, ...], **more: Any) -> Any:
    about = (call.function, call.arguments, call.values, range(len(call.values)), cotangents)
    given = {
        "wants": gradients(*about),
        "least": sensitivity(gradients, *about, 2.0**-23, draws=0),
        "slack": sensitivity(gradients, *about, 2.0**-23),
        "kinds": [each.dtype for each in call.values],
        "subjects": [f"gradient {n}" for n in range(len(call.values))],
        "gradient_tolerances": DEFAULT_TOLERANCES,
        "mutable": frozenset(),
        "alike": None,
        "shared": {},
    }
    return SimpleNamespace(**{**given, **more})


def test_a_gradient_with_a_rounding_of_its_terms_passes_and_a_lost_term_does_not() -> None:
    x = torch.linspace(-300, 300, 4096)
    call = _call(lambda t: (t * 1000).sum() - (t * 1000).sum() + t.sin().sum(), x)
    cotangents = (_plain(),)
    reference = _reference(call, cotangents)
    assert list(judge_gradients(differentiated(call, [0], cotangents), reference)) == [None]
    want = reference.wants[0]
    wrong = want.float().clone()
    wrong[7] = 0
    found = other_gradient(wrong, want, torch.float32, (), DEFAULT_TOLERANCES)
    assert found is not None and found.first == (7,)


def test_terms_that_cancel_may_be_added_in_another_order_and_a_lost_term_is_noticed() -> None:
    """The terms do not depend on the values, so that only a change of the cotangent shows how large they are; and in the
    CPU's order their roundings cancel, too."""
    count = 4096
    sizes = (
        (torch.arange(count // 2.0, dtype=torch.float64) * 0.7548776662466927) % 1 + 0.5
    ) * 1000
    halves = sizes.float().double().view(-1, 32)
    terms = torch.stack([halves, -halves], 1).reshape(-1)
    x = torch.tensor([1.5])
    call = _call(lambda t: t.expand(count) * terms.to(t.dtype), x)
    cotangent = Cotangent(torch.float32, CONTIGUOUS.geometry(()), (count,))
    reference = _reference(call, (cotangent,))
    given = terms.float() * held_by(cotangent)
    got = given[torch.arange(count) * 1597 % count].sum()[None]  # in another order
    assert abs(float(got - reference.wants[0])) > 1e-3
    judge = partial(
        other_gradient,
        kind=torch.float32,
        slacks=[lambda: reference.slack[0]],
        tolerances=DEFAULT_TOLERANCES,
    )
    assert judge(got, reference.wants[0]) is None
    assert judge(got - given[1], reference.wants[0]) is not None


def test_what_roundings_explain_is_bounded_by_the_size_of_what_is_added() -> None:
    """A kernel of the CPU that is plainly wrong in float32 does not excuse others."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: torch.Tensor) -> torch.Tensor:
            return t * 2

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
            return cotangent * (2 if cotangent.dtype == torch.float64 else 3)

    call = _call(Wrong.apply, torch.ones(8))
    cotangents = (_plain(8),)
    found = list(
        judge_gradients(differentiated(call, [0], cotangents), _reference(call, cotangents))
    )
    assert [each is not None and each.kind for each in found] == ["values"]


def test_terms_may_be_added_in_another_order_and_none_may_be_lost() -> None:
    """What is expanded has a sum for a gradient, to which the CPU, which adds by pairs, is nearer than others."""
    shape = (17, 17, 17)
    call = _call(lambda t: t.expand(shape), torch.ones(1, 1, 1))
    reference = _reference(call, (_plain(*shape),))
    terms = weights(shape, torch.float32).flatten()
    order = torch.randperm(len(terms), generator=torch.Generator().manual_seed(0))
    lanes = torch.zeros(17)  # each adds every 17th term in turn
    for each in terms[order].view(-1, 17):
        lanes += each
    added = lanes.sum()

    def judged(got: torch.Tensor) -> list[bool]:
        found = judge_gradients(Gradients(read=[got.view(1, 1, 1)]), reference)
        return [each is not None for each in found]

    assert judged(added) == [False]
    lost = int(terms.abs().argsort()[len(terms) // 100])  # of 100 terms, 99 are larger
    assert judged(added - terms[lost]) == [True]


def test_none_is_as_good_as_zeros_and_worse_than_any_other_gradient() -> None:
    zeros, ones = torch.zeros(3), torch.ones(3)

    def off(got: torch.Tensor | None, want: torch.Tensor | None) -> bool:
        found = other_gradient(got, want, torch.float32, (), DEFAULT_TOLERANCES)
        return found is not None

    assert not off(None, zeros) and not off(zeros, None) and not off(None, None)
    assert off(None, ones) and off(ones, None)


def test_a_refusal_of_the_formula_is_not_the_devices_and_one_of_its_own_is() -> None:
    evidence = Gradients(raised=RuntimeError("no"))
    given: dict[str, Any] = {"wants": [torch.ones(3)]}
    own = SimpleNamespace(**given, alike=Gradients(read=[torch.ones(3)]))
    assert [each.kind for each in judge_gradients(evidence, own) if each] == ["raised"]
    everybodys = SimpleNamespace(**given, alike=Gradients(raised=RuntimeError("no")))
    assert list(judge_gradients(evidence, everybodys)) == [None]


# -- layout.grad


def test_any_of_equal_elements_may_have_the_gradient_and_all_of_it() -> None:
    """Rows that are expanded are equal: the reference takes the first one, and others may take another."""
    x = torch.tensor([[1.0, 5.0], [3.0, 2.0]])[:, :1].T.expand(3, 2).contiguous()

    def of(row: int, factor: float) -> Any:
        call = _call(lambda t: t[row] * factor, x)
        reference = _reference(_call(lambda t: t[0], x), (_plain(2),), shared={0: 0})
        return list(judge_gradients(differentiated(call, [0], (_plain(2),)), reference))

    assert of(0, 1.0) == of(2, 1.0) == [None]
    assert of(2, 2.0)[0].kind == "values"


@pytest.mark.parametrize(
    ("stride", "found", "right"),
    [
        ((1, 2), (1, 2), True),  # dense: the leaf's own
        ((1, 2), (3, 1), False),
        ((6, 2), (3, 1), True),  # not dense: row-major
        ((6, 2), (6, 2), False),
        ((0, 1), (3, 1), True),  # expanded
    ],
)
def test_the_strides_of_a_first_gradient(
    stride: tuple[int, int], found: tuple[int, int], right: bool
) -> None:
    assert (misplaced((2, 3), stride, found) is None) is right


def test_dimensions_of_size_1_have_no_strides_to_be_kept() -> None:
    assert misplaced((4, 1, 3), (3, 99, 1), (3, 1, 1)) is None


def test_cotangents_lie_as_they_are_asked_for() -> None:
    call = _call(lambda t: t * 3, torch.ones(2, 3), layout="transposed")
    shape = (2, 3)
    at = Geometry((), (), 0, 1)
    given = (Cotangent(torch.float32, at, shape),)
    held = place_cotangent(call, given[0])
    assert held is not None and held.view.dim() == 0  # one number, expanded
    answer = differentiated(call, [0], given)
    assert answer.read[0] is not None and len(answer.read[0].unique()) == 1
