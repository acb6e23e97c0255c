"""optim.foreach: every op is called, a new one is noticed, and ten wrong loops are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotShown
from conformance.suites.optim import foreach
from conformance.suites.optim.tensor_lists import packed
from devices import registry
from opinfo.device import Device, open_device
from opinfo.torch_private import schema_of


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(registry.get("cpu"))


@pytest.fixture
def context(device: Device) -> CaseContext:
    return CaseContext(device, "a test")


def test_every_op_of_the_build_has_a_counterpart_of_one_tensor() -> None:
    assert len(foreach.ops()) >= 45
    for op in foreach.ops():
        foreach.single(op)
        assert foreach.overloads_of(op)


def test_an_op_without_a_counterpart_asks_how_it_is_called() -> None:
    with pytest.raises(
        NotShown, match="_foreach_frobnicate is a new op without a known single-tensor op"
    ):
        foreach.single("frobnicate")


def test_an_argument_of_a_kind_that_is_not_known_is_an_error() -> None:
    overload = torch.ops.aten._foreach_add.Scalar
    made = foreach.Arguments(overload, {"whole": False, "alpha": False, "ord": None})

    class New:
        name, type = "shape", "List[int]"

        def has_default_value(self) -> bool:
            return False

    made.arguments = [*made.arguments, New()]
    with pytest.raises(
        NotShown, match=r"the new argument shape of type List\[int\] has no known value"
    ):
        made.call_arguments({"self": [torch.ones(1)]}, torch.tensor(1.5))


def test_overloads_write_to_their_first_list_if_their_name_says_so() -> None:
    for op in foreach.ops():
        for overload in foreach.overloads_of(op):
            named = foreach.name_of(overload).partition(".")[0].endswith("_")
            assert foreach.is_in_place(overload) == named


def test_lists_have_empty_tensors_at_their_end_and_beyond_a_launch() -> None:
    long, ends_empty = foreach.LISTS["long"], foreach.LISTS["long_ends_empty"]
    assert len(long) > 320 and 0 in ends_empty[-1][1]
    assert sum(0 in shape for _, shape in long) > 40
    assert any(0 in shape for _, shape in long[100:112])


def test_views_of_one_buffer_do_not_meet(context: CaseContext) -> None:
    made = packed(context, foreach.MIXED, 1, away=False)
    assert made.buffer is not None
    for number, each in enumerate(made.here):
        before = [other.clone() for other in made.here]
        each.fill_(9)
        for other_number, (other, old) in enumerate(zip(made.here, before, strict=True)):
            assert other_number == number or torch.equal(other, old)


Loop = Callable[..., Any]


def skip(which: Callable[[int, torch.Tensor, int], bool]) -> Callable[[Loop, tuple[Any, ...]], Any]:
    """Call the op, and put back what tensors held of which this is true."""

    def wrong(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
        before = [each.clone() for each in given[0]]
        honest(*given, **named)
        for number, (tensor, old) in enumerate(zip(given[0], before, strict=True)):
            if which(number, tensor, len(before)):
                tensor.copy_(old)

    return wrong


def tail(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    before = [each.clone() for each in given[0]]
    honest(*given, **named)
    for tensor, old in zip(given[0], before, strict=True):
        if tensor.is_contiguous():
            tensor.view(-1)[65_536:] = old.view(-1)[65_536:]


def dense(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    rows = [
        each.as_strided(each.shape, torch.empty(each.shape, device="meta").stride())
        for each in given[0]
    ]
    return honest(rows, *given[1:], **named)


def shifted(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    return honest(given[0], [*given[1][1:], given[1][-1]], **named)


def without_alpha(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    return honest(*given)


def first_dtype(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    results = honest(*given, **named)
    return [each.to(results[0].dtype) for each in results]


def one_storage(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    results = honest(*given, **named)
    return [*results[:-1], results[0]] if results[0].shape == results[-1].shape else results


def into_the_input(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    results = honest(*given, **named)
    given[0][0].copy_(results[0])
    return results


def no_nan(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    return [each.nan_to_num(0.0, float("inf"), float("-inf")) for each in honest(*given, **named)]


def past_the_end(honest: Loop, given: tuple[Any, ...], **named: Any) -> Any:
    honest(*given, **named)
    for each in given[0]:
        end = (
            each.storage_offset() + sum((n - 1) * s for n, s in zip(each.shape, each.stride())) + 1
        )
        if each.numel() and end < each.untyped_storage().nbytes() // each.itemsize:
            each.as_strided((1,), (1,), end).fill_(0)


#: What is wrong, in which overload.
WRONG: dict[str, tuple[str, Any]] = {
    "skips the last": ("add_.Scalar", skip(lambda n, t, of: n == of - 1)),
    "skips the last with elements": (
        "mul_.Scalar",
        skip(lambda n, t, of: n == of - 1 and t.numel() > 0),
    ),
    "skips all from the 110th": ("mul_.List", skip(lambda n, t, of: n >= 110)),
    "skips what has no dimensions": ("sqrt_.default", skip(lambda n, t, of: t.dim() == 0)),
    "loses what is past a chunk": ("addcmul_.Scalar", tail),
    "takes tensors as dense": ("exp_.default", dense),
    "takes the next scalar": ("add_.ScalarList", shifted),
    "takes the next tensor": ("sub_.List", shifted),
    "ignores alpha": ("sub.List", without_alpha),
    "takes the first dtype": ("add.Scalar", first_dtype),
    "gives one result twice": ("neg.default", one_storage),
    "writes to its input": ("abs.default", into_the_input),
    "loses NaN": ("maximum.List", no_nan),
    "writes past the end": ("reciprocal_.default", past_the_end),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_loop_is_noticed(
    what: str, context: CaseContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, wrong = WRONG[what]
    op = name.partition(".")[0].rstrip("_")
    there = foreach.overloads_of

    class Wrong:
        """An overload whose kernel is wrong."""

        def __init__(self, overload: Any) -> None:
            self.overload, self._schema = overload, schema_of(overload)

        def __call__(self, *given: Any, **named: Any) -> Any:
            return wrong(self.overload, given, **named)

        def __str__(self) -> str:
            return str(self.overload)

    def overloads_of(op: str) -> list[Any]:
        found = there(op)
        return [Wrong(each) if foreach.name_of(each) == name else each for each in found]

    def judged() -> None:
        for check in (foreach.lists_of_views, foreach.lists_of_dtypes):
            check(context, op)
        monkeypatch.setattr(foreach, "ops", lambda: [op])
        foreach.special_values(context)
        foreach.tensors_that_come_twice(context)

    judged()  # without it all is well
    monkeypatch.setattr(foreach, "overloads_of", overloads_of)
    with pytest.raises((CheckFailed, RuntimeError)):  # shapes that do not fit are a failure, too
        judged()
