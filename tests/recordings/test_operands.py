"""The elements that a replay draws."""

from __future__ import annotations

import msgspec
import pytest
import torch

from conformance.recordings.operands import arguments_of, draw_tensor, repeat_elements
from conformance.recordings.recorder import describe_tensor, values_of
from conformance.recordings.wire import RecordedCall, RecordedTensor, RecordingError, Values


def drawn(dtype: str, shape: tuple[int, ...], values: Values) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return draw_tensor(RecordedTensor(dtype, shape, None, values=values), generator)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float32", Values(-3.0, 5.5)),
        ("float64", Values(0.0, 2.0, nan=True, infinite=True)),
        ("bfloat16", Values(-1.0, -0.5)),
        ("int64", Values(2, 40)),
        ("uint8", Values(0, 255)),
        ("bool", Values(0.0, 1.0)),
        ("int64", Values(-(2**63), 2**63 - 1)),
        ("int64", Values(2**63 - 1, 2**63 - 1)),
        ("int64", Values(2**63 - 30, 2**63 - 1, repeats=False)),
        ("int64", Values(-(2**63), 2**63 - 1, repeats=False)),
        ("uint64", Values(3, 2**64 - 1)),
        ("uint64", Values(2**63 - 20, 2**63 + 9, repeats=False)),
        ("int32", Values(-(2**31), 2**31 - 1, repeats=False)),
        ("float64", Values(-1.7e308, 1.7e308)),
    ],
)
def test_drawn_elements_have_the_recorded_range(dtype: str, values: Values) -> None:
    found = values_of(drawn(dtype, (30,), values))
    assert (found.low, found.high, found.nan) == (values.low, values.high, values.nan)
    assert found.repeats <= values.repeats


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**53 + 1, 2**64 - 1])
def test_an_integer_is_written_and_read_as_it_is(number: int) -> None:
    written = msgspec.json.encode(Values(number, number))
    assert msgspec.json.decode(written, type=Values) == Values(number, number)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "int64", "uint64"])
def test_a_range_that_the_dtype_does_not_have_is_cut(dtype: str) -> None:
    for values in (Values(-1e30, 1e30), Values(-float("inf"), 300.0), Values(5.0, -5.0)):
        assert drawn(dtype, (3,), values).dtype is getattr(torch, dtype)


def test_integers_that_did_not_repeat_do_not_repeat() -> None:
    found = drawn("int64", (6,), Values(0, 6, repeats=False))
    assert len(set(found.tolist())) == 6 and values_of(found) == Values(0, 6, repeats=False)
    assert sorted(drawn("int64", (4,), Values(3, 6, repeats=False)).tolist()) == [3, 4, 5, 6]


def test_a_range_of_small_numbers_is_enlarged_with_its_signs() -> None:
    found = values_of(drawn("float32", (20,), Values(-1e-9, 4e-9)))
    assert found.high is not None and 0.5 <= found.high < 1
    assert found.low is not None and -0.25 <= found.low < -0.1
    assert values_of(drawn("float32", (20,), Values(0.0, 0.0))) == Values(0.0, 0.0)


def test_recorded_elements_are_taken_as_they_are() -> None:
    x = torch.randn(3, 5).T[1:]
    recorded = describe_tensor(x, elements=True)
    assert torch.equal(draw_tensor(recorded, torch.Generator()), x)


def test_a_seed_gives_the_same_arguments() -> None:
    tensor = RecordedTensor("float32", (3, 2), (1, 3), values=Values(-1, 1))
    call = RecordedCall(
        "aten.add.Tensor", [{"tensor": 0}, 2], {"alpha": {"float": "0.5"}}, (tensor,)
    )
    one, same, other = (arguments_of(call, seed) for seed in (1, 1, 2))
    assert torch.equal(one.tensors[0], same.tensors[0])
    assert not torch.equal(one.tensors[0], other.tensors[0])
    assert one.args[1] == 2 and one.kwargs == {"alpha": 0.5}


def test_elements_along_a_dimension_of_stride_0_are_equal() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    found = repeat_elements(x, (12, 0, 0))
    assert torch.equal(found, x[:, :1, :1].expand(2, 3, 4))
    assert repeat_elements(x, (12, 4, 1)) is x


def test_a_damaged_call_is_named() -> None:
    call = RecordedCall("aten.add.Tensor", [{"tensor": 5}], {}, ())
    with pytest.raises(RecordingError, match=r"add\.Tensor~"):
        arguments_of(call, 0)
    unknown = RecordedTensor("float33", (1,), (1,))
    with pytest.raises(RecordingError, match="float33"):
        arguments_of(RecordedCall("aten.cos.default", [{"tensor": 0}], {}, (unknown,)), 0)
