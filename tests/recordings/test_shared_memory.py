"""Recorded calls whose tensors share memory in the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from conformance.checks.ops.calls import Invocation
from conformance.recordings.fidelity import fidelity_of
from conformance.recordings.recorder import CallRecorder
from conformance.recordings.source import RecordedSource
from conformance.suites.layout.shared_memory import (
    SharedCall,
    called_sharing,
    judge_shared_bounds,
    judge_shared_inputs,
    judge_shared_values,
)
from opinfo.guarded import identity
from opinfo.reference import ValueAnswer
from opinfo.samples import Sample


def recorded(program: Callable[[], Any], op: str) -> tuple[RecordedSource, Any, Sample]:
    recorder = CallRecorder()
    with recorder.recording_program():
        program()
    source = RecordedSource(recorder.recording(), "0" * 16)
    (subject,) = (each for name, each in source.subjects().items() if name.startswith(op))
    (sample,) = source.samples(subject, "float32")
    return source, subject, sample


def made(sample: Sample, function: Callable[..., Any], written: tuple[int, ...] = ()) -> SharedCall:
    assert sample.geometries is not None and sample.storages is not None
    call = Invocation(
        function,
        sample.call.on,
        sample.tensors,
        sample.tensors,
        torch.device("cpu"),
        identity,
        identity,
        lambda result: None,
    )
    return called_sharing(call, sample.geometries, sample.storages, written)


class Expected:
    """The parts of a reference that the judges read."""

    tolerances: ClassVar[dict[str, tuple[float, float]]] = {"float32": (1e-5, 1e-6)}
    named = process = masking = None
    roundings, free, conditioned, unordered = 0.0, False, False, False

    def __init__(self, sample: Sample, function: Callable[..., Any], written: tuple[int, ...] = ()):
        values = [each.clone() for each in sample.tensors]
        args, kwargs = sample.call.bind(values)
        self.value = ValueAnswer(function(*args, **kwargs), after=values)
        self.exact, self.mutable = self.value, frozenset(written)


BUFFER = torch.randn(4, 9)


def halves() -> torch.Tensor:
    return BUFFER[:, :4] * BUFFER[:, 4:8]


def test_a_call_is_made_with_tensors_that_share_memory() -> None:
    _, subject, sample = recorded(halves, "mul")
    assert sample.storages == (0, 0)
    addresses: list[int] = []

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        addresses.extend((x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()))
        return x * y

    found = made(sample, product)
    assert len(set(addresses)) == 1
    assert [*judge_shared_values(found, Expected(sample, subject.function))] == [None]  # type: ignore[arg-type]
    assert (found.inside, found.outside) == ((-1,), (-1,))


def test_an_operand_that_is_given_twice_has_one_value() -> None:
    _, _, sample = recorded(lambda: BUFFER * BUFFER, "mul")
    assert torch.equal(*sample.tensors)


def wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * x


def overwrites(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = x * y
    y[1, 2] = 7
    return result


def writes_between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = x * y
    torch.empty(0).set_(x.untyped_storage(), 0, (9,))[8] = 7  # no operand has the ninth column
    return result


@pytest.mark.parametrize(
    ("function", "judge"),
    [
        (wrong, judge_shared_values),
        (overwrites, judge_shared_inputs),
        (writes_between, judge_shared_bounds),
    ],
)
def test_a_wrong_kernel_fails(function: Any, judge: Any) -> None:
    _, subject, sample = recorded(halves, "mul")
    found = made(sample, function)
    expected = Expected(sample, subject.function)
    for each in (judge_shared_values, judge_shared_inputs, judge_shared_bounds):
        verdicts = [*each(found, expected)]  # type: ignore[arg-type]
        assert any(verdicts) == (each is judge), each.__name__


def test_what_an_in_place_call_leaves_is_judged() -> None:
    x = torch.randn(5)
    _, subject, sample = recorded(lambda: x.clone().mul_(x), "mul_")
    shared = replace(sample, storages=(0, 0))  # x.mul_(x)
    same = replace(shared, call=type(shared.call)((sample.tensors[0],) * 2, {}))
    expected = Expected(same, lambda a, b: a.copy_(a * b), (0,))
    assert not any(judge_shared_values(made(same, subject.function, (0,)), expected))  # type: ignore[arg-type]
    kept = made(same, lambda a, b: a * b, (0,))
    assert any(judge_shared_values(kept, expected))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "op", "why"),
    [
        (lambda x: x.mul_(x), "mul_", ""),
        (lambda x: torch._foreach_mul_([x, x], 2.0), "_foreach_mul_", "writes to elements"),
        (lambda x: torch.addmm(x, x, x), "addmm", ""),
        (lambda x: torch.view_as_real(x + 0j).add_(1), "add_", ""),
        (lambda x: x[0].add_(x[1]), "add_", ""),
    ],
)
def test_calls_whose_result_is_not_defined_are_made_apart(
    program: Callable[[torch.Tensor], Any], op: str, why: str
) -> None:
    source, subject, sample = recorded(lambda: program(torch.randn(4, 4)), op)
    assert why in source.apart.get(subject.id, "") and bool(why) == (subject.id in source.apart)
    assert fidelity_of(source).reasons == ({source.apart[subject.id]: 1} if why else {})
    assert sample.storages is None or not why
