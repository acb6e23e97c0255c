"""Overloads of aten with calls of their own: what their calls are, and that a wrong kernel is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.suites.layout import SUITE
from devices.cell import Outcome
from opinfo.compare import tensors_of
from opinfo.database import DATABASE
from opinfo.overloads import overload_subjects
from opinfo.samples import choose, draw
from tests.faulty import run_faulty
from tests.planting.calls import KernelCall

JUDGES = [check for check in SUITE.op_checks if check.clause == "layout.values"]
SUBJECTS = overload_subjects()


def dtype_of(name: str) -> str:
    (dtype,) = SUBJECTS[name].dtypes
    return dtype


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_cpu_accepts_the_calls(name: str) -> None:
    subject = SUBJECTS[name]
    samples = draw(subject, dtype_of(name))
    assert samples
    for sample in samples:
        args, kwargs = sample.call.bind([each.clone() for each in sample.tensors])
        assert tensors_of(subject.function(*args, **kwargs))


def test_the_same_calls_are_drawn_each_time() -> None:
    subject = SUBJECTS["aten.searchsorted.Scalar"]
    first, second = draw(subject, "float32"), draw(subject, "float32")
    pairs = [(a, b) for x, y in zip(first, second) for a, b in zip(x.tensors, y.tensors)]
    assert pairs
    assert all(torch.equal(a, b) for a, b in pairs)


def test_an_overload_with_targets_writes_to_them_alone() -> None:
    subject = SUBJECTS["aten.median.dim_values"]
    (sample, *_) = draw(subject, "float32")
    assert subject.written_tensors(sample.call) == {1, 2}
    assert "mutates.arguments" in subject.own_families


def test_what_torch_alone_calls_is_called_with_contiguous_tensors() -> None:
    assert SUBJECTS["aten._weight_norm_interface"].layouts == ("contiguous", "contiguous+offset")
    assert SUBJECTS["aten.native_dropout"].layouts is None


def test_the_database_has_them_after_its_own_ops() -> None:
    names = list(DATABASE.subjects())
    assert names[-len(SUBJECTS) :] == list(SUBJECTS)


def off_by_one(call: KernelCall) -> Any:
    return call.honest() + 1


def inverted(call: KernelCall) -> Any:
    return ~call.honest()


def keeps_all(call: KernelCall) -> Any:
    x = call.args[0]
    return x.clone(), torch.ones_like(x, dtype=torch.bool)


def wrong_target(call: KernelCall) -> Any:
    result = call.honest()
    call.kwargs["out"].mul_(1.5)
    return result


def not_written(call: KernelCall) -> Any:
    return call.args[0]


def second_off(call: KernelCall) -> Any:
    first, *rest = call.honest()
    return (first * 1.01, *rest)


def odd_heads_off(call: KernelCall) -> Any:
    first, *rest = call.honest()
    return (first * 1.01, *rest) if call.args[4] % 2 else (first, *rest)


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("aten.bucketize.Scalar", off_by_one),
        ("aten.isin.Tensor_Scalar", inverted),
        ("aten.native_dropout", keeps_all),
        ("aten.clamp.out", wrong_target),
        ("aten.hardswish_", not_written),
        ("aten._weight_norm_interface", second_off),
        ("aten._native_multi_head_attention", second_off),
        ("aten._native_multi_head_attention", odd_heads_off),
        ("aten.__lshift__.Scalar", off_by_one),
    ],
)
def test_a_wrong_kernel_is_noticed(name: str, effect: Callable[[KernelCall], Any]) -> None:
    layouts = SUBJECTS[name].layouts
    drawn = choose(draw(SUBJECTS[name], dtype_of(name)), 6)
    samples = [replace(each, layouts=layouts) for each in drawn]
    about = (name, dtype_of(name), samples, JUDGES)
    (clean,) = run_faulty(*about, KernelCall.honest).cells.values()
    assert clean.to_outcome().outcome is Outcome.PASS
    (cell,) = run_faulty(*about, effect).cells.values()
    assert cell.to_outcome().outcome is Outcome.FAIL
