"""Which results of a call are wrong, and which are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.locate.step_judge import judge_steps
from conformance.locate.steps import Numbering, Step, bytes_on_device, read_bytes
from conformance.locate.traits import Bounds, traits_of
from conformance.plan.selection import find_descriptor

BOUNDS = Bounds(find_descriptor("cpu", None))
aten = torch.ops.aten

_LIBRARY = torch.library.Library("locate_test", "DEF")
_LIBRARY.define("with_count(Tensor x) -> (Tensor, int)")
_LIBRARY.impl("with_count", lambda x: (x.clone(), x.numel()), "CPU")
_LIBRARY.define("refuse_again(Tensor x) -> Tensor")
_CALLS = list[int]()


def _refuse_again(x: torch.Tensor) -> torch.Tensor:
    """Raises unless it is called for the first time."""
    _CALLS.append(1)
    if len(_CALLS) > 1:
        raise RuntimeError("called again")
    return x.clone()


_LIBRARY.impl("refuse_again", _refuse_again, "CPU")


class Recorder:
    """Makes calls, and lets a fault spoil what they return or write."""

    def __init__(self) -> None:
        self.numbering, self.steps = Numbering(), list[Step]()
        self.before: dict[int, torch.Tensor] = {}

    def call(
        self, overload: Any, *args: Any, spoil: Callable[[Any], Any] | None = None, **kwargs: Any
    ) -> Any:
        given, named = self.numbering.describe(args), self.numbering.describe(kwargs)
        for number, storage in enumerate(self.numbering.storages):
            if not any(number in each.changed for each in self.steps):
                self.before.setdefault(number, read_bytes(storage))
        raised = ""
        try:
            result = overload(*args, **kwargs)
            result = result if spoil is None else spoil(result)
        except Exception as error:
            result, raised = None, str(error)
        traits, bounds = traits_of(overload, args, kwargs), BOUNDS.of(overload)
        described = self.numbering.describe(result)
        step = Step(str(overload), given, named, traits, bounds, 0, described, raised)
        self.steps.append(step)
        return result

    def wrong(self) -> list[str]:
        after = {n: read_bytes(each) for n, each in enumerate(self.numbering.storages)}
        verdicts = judge_steps(self.steps, self.before, after)
        assert not any(each.unjudged for each in verdicts), verdicts
        return ["" if each.wrong is None else each.wrong.kind for each in verdicts]


def last_off(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def spoil(result: torch.Tensor) -> torch.Tensor:
        result.view(-1)[-1] *= factor
        return result

    return spoil


X, Y = torch.linspace(-2, 3, 24).view(4, 6), torch.linspace(1, 5, 24).view(6, 4)


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        (aten.mm.default, (X, Y)),
        (aten.mm.default, (X, X.t())),
        (aten.exp.default, (X.t()[1:],)),
        (aten.sum.dim_IntList, (X, [0])),
        (aten.add_.Tensor, (X.clone(), X)),
        (aten.native_layer_norm.default, (X, [6], None, None, 1e-5)),
        (aten.argmax.default, (X,)),
        (aten.sort.default, (X,)),
        (aten.transpose.int, (X, 0, 1)),
        (aten._to_copy.default, (X,)),
        (aten._foreach_mul_.Scalar, ([X.clone(), Y.clone()], 3.0)),
        (aten._local_scalar_dense.default, (X[0, 0],)),
        (aten.topk.default, (torch.ones(7), 2)),
    ],
)
def test_a_right_call_is_right(overload: Any, args: Any) -> None:
    recorder = Recorder()
    recorder.call(overload, *args)
    assert recorder.wrong() == [""]


@pytest.mark.parametrize("scale", [1.0, 1e-9])
@pytest.mark.parametrize(
    ("overload", "args", "factor"),
    [
        (aten.mm.default, (X, Y), 1.01),
        (aten.mul.Tensor, (X, X), 1 + 4e-6),
        (aten.exp.default, (X,), 1.001),
    ],
)
def test_an_element_beyond_its_bound_is_wrong_however_small(
    overload: Any, args: Any, factor: float, scale: float
) -> None:
    recorder = Recorder()
    recorder.call(overload, *(each * scale for each in args), spoil=last_off(factor))
    assert recorder.wrong() == ["values"]


def test_a_sum_that_cancels_may_have_the_rounding_errors_of_its_terms() -> None:
    terms = torch.tensor([1e8, 1.0, -1e8, 1.0])
    recorder = Recorder()
    recorder.call(aten.sum.default, terms, spoil=lambda _: torch.tensor(1.0))
    assert recorder.wrong() == [""]


def test_a_copy_in_the_place_of_a_view_is_wrong() -> None:
    recorder = Recorder()
    recorder.call(aten.transpose.int, X, 0, 1, spoil=torch.clone)
    assert recorder.wrong() == ["alias"]


def test_the_strides_of_a_view_are_compared() -> None:
    recorder = Recorder()
    recorder.call(aten.slice.Tensor, X, 0, 1, 3, spoil=lambda _: X[:2])
    assert recorder.wrong() == ["strides"]


def test_the_input_in_the_place_of_a_result_is_wrong() -> None:
    x = torch.ones(3)
    recorder = Recorder()
    recorder.call(aten.mul.Tensor, x, 1.0, spoil=lambda _: x)
    assert recorder.wrong() == ["alias"]


@pytest.mark.parametrize("written", [True, False])
def test_a_write_outside_of_the_result_is_wrong(written: bool) -> None:
    base = torch.zeros(8)

    def spoil(result: Any) -> Any:
        base[6] = 5.0
        return result

    recorder = Recorder()
    overload = aten.add_.Tensor if written else aten.add.Tensor
    recorder.call(overload, base[:4], 1.0, spoil=spoil)
    assert recorder.wrong() == ["memory"]


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_running_statistics_are_written_although_the_schema_does_not_say_so(factor: float) -> None:
    mean, var = torch.zeros(6), torch.ones(6)

    def spoil(result: Any) -> Any:
        mean[-1] *= factor
        return result

    recorder = Recorder()
    given = X, None, None, mean, var, True, 0.1, 1e-5
    recorder.call(aten.native_batch_norm.default, *given, spoil=spoil)
    assert recorder.wrong() == ["" if factor == 1.0 else "values"]


def test_an_exception_that_the_cpu_does_not_raise_is_wrong() -> None:
    def refuse(_: Any) -> Any:
        raise RuntimeError("no kernel")

    recorder = Recorder()
    recorder.call(aten.cos.default, X, spoil=refuse)
    assert recorder.wrong() == ["raised"]


@pytest.mark.parametrize(
    ("overload", "args"),
    [
        (aten._linalg_svd.default, ()),  # the result is not unique
        (aten.rand_like.default, ()),
        (aten.empty_like.default, ()),
        (torch.ops.locate_test.refuse_again.default, ()),  # the CPU raises
    ],
)
def test_a_write_to_an_input_is_wrong_although_the_result_is_not_judged(
    overload: Any, args: Any
) -> None:
    base = X.clone()

    def spoil(result: Any) -> Any:
        base[-1, -1] = 7.0
        return result

    recorder = Recorder()
    recorder.call(overload, base, *args, spoil=spoil)
    assert recorder.wrong() == ["memory"]


@pytest.mark.parametrize("overload", [aten.rand_like.default, aten.empty_like.default])
@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda result: result.double(), "dtype"),
        (lambda result: result[:2].clone(), "shape"),
        (lambda _: X, "alias"),
    ],
)
def test_a_result_of_any_values_has_one_form(overload: Any, spoil: Any, kind: str) -> None:
    recorder = Recorder()
    recorder.call(overload, X, spoil=spoil)
    assert recorder.wrong() == [kind]


def test_the_number_of_views_is_compared() -> None:
    recorder = Recorder()
    recorder.call(aten.split.Tensor, X, 2, spoil=lambda parts: parts[:1])
    assert recorder.wrong() == ["count"]


@pytest.mark.parametrize("window", [1, 2])
def test_a_reshaped_tensor_that_shares_memory_is_compared(window: int) -> None:
    """``_unsafe_view`` is no view by its schema, and shares the memory of its input."""
    recorder = Recorder()
    for _ in range(window):
        recorder.call(aten._unsafe_view.default, X[:2], [12], spoil=lambda _: X.view(-1)[12:])
    assert recorder.wrong() == ["values"] * window


@pytest.mark.parametrize("spoiled", [0.75 * (1 + 1e-7), 1, True])
def test_a_number_that_is_read_from_a_tensor_is_exact(spoiled: Any) -> None:
    recorder = Recorder()
    x = torch.tensor(0.75 if spoiled != 1 else 1.0, dtype=torch.float64)
    recorder.call(aten._local_scalar_dense.default, x, spoil=lambda _: spoiled)
    assert recorder.wrong() == ["values"]


@pytest.mark.parametrize(("number", "kind"), [(24, ""), (23, "values")])
def test_the_numbers_beside_the_tensors_of_a_result_are_compared(number: int, kind: str) -> None:
    recorder = Recorder()
    overload = torch.ops.locate_test.with_count.default
    recorder.call(overload, X, spoil=lambda result: (result[0], number))
    assert recorder.wrong() == [kind]


def test_a_tensor_may_be_given_twice_in_a_list_that_is_written() -> None:
    x = torch.ones(3)
    recorder = Recorder()
    recorder.call(aten._foreach_add_.Scalar, [x, x], 1.0)
    recorder.call(aten.mul_.Tensor, x, x)
    assert recorder.wrong() == ["", ""]


def test_random_numbers_and_empty_memory_are_not_compared() -> None:
    recorder = Recorder()
    recorder.call(aten.uniform_.default, X.clone(), spoil=torch.zero_)
    recorder.call(aten.empty_like.default, X, spoil=torch.zero_)
    recorder.call(aten.native_dropout.default, X, 0.5, True)
    assert recorder.wrong() == [""] * 3


def test_a_call_that_drops_nothing_draws_no_random_numbers() -> None:
    assert "random" in traits_of(aten.native_dropout.default, (X, 0.5, True), {})
    assert "random" not in traits_of(aten.native_dropout.default, (X, 0.0, True), {})


def test_equal_elements_may_be_sorted_in_any_order() -> None:
    ties = torch.tensor([2.0, 1.0, 1.0])

    def swap(result: Any) -> Any:
        return result[0], result[1][[1, 0, 2]]

    def spoil(result: Any) -> Any:
        return result[0], result[1][[2, 0, 1]]

    recorder = Recorder()
    recorder.call(aten.sort.default, ties, spoil=swap)
    recorder.call(aten.sort.default, ties, spoil=spoil)
    assert recorder.wrong() == ["", "values"]


def test_a_call_of_a_window_gets_what_the_call_before_has_written() -> None:
    recorder = Recorder()
    total = recorder.call(aten.mm.default, X, Y)
    recorder.call(aten.add_.Tensor, total, 1.0)
    recorder.call(aten.mul.Tensor, total, 2.0, spoil=last_off(1.1))
    assert recorder.wrong() == ["", "", "values"]


def test_a_call_that_reads_too_early_is_wrong_in_its_window() -> None:
    """The product is complete when the memory is read, but was not when it was added."""
    recorder = Recorder()
    product = recorder.call(aten.mm.default, X, Y)
    recorder.call(aten.add.Tensor, product, 1.0, spoil=lambda _: torch.ones(4, 4))
    assert recorder.wrong() == ["", "values"]


def test_bytes_are_read_without_strides() -> None:
    view = torch.arange(6.0).view(2, 3).t()[1:]
    numbering = Numbering()
    operand = numbering.operand(view)
    assert torch.equal(operand.view(read_bytes(numbering.storages[0])), view)
    bytes_on_device(numbering.storages[0]).zero_()
    assert not view.any()
