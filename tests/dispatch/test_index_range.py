"""dispatch.index_range: which ops take an index, and wrong implementations of a few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.suites.dispatch import index_range
from conformance.suites.dispatch.index_range import alone, cpu_refuses, refuses_index
from conformance.suites.dispatch.refusals import once
from opinfo.catalog import Op, catalogue
from opinfo.compare import Arguments, Wrong
from opinfo.exceptions import exceptions, names
from opinfo.guarded import identity
from opinfo.samples import Sample, choose, draw

_REPRESENTATIVE = ("float32", "int64", "bool", "complex64")


def asked(op: Op) -> bool:
    """Whether the CPU refuses an integer that is too great, in an operand beside others of another dtype."""
    dtype = next((name for name in _REPRESENTATIVE if name in op.dtypes), None)
    if dtype is None:
        return False
    held = [s for s in draw(op, dtype, limit=60) if s.tensors and s.numel < 50_000]
    for sample in choose(held, 8) if held else ():
        if any(t.layout != torch.strided for t in sample.tensors):
            continue
        for place, tensor in enumerate(sample.tensors):
            integers = tensor.dtype in (torch.int64, torch.int32) and tensor.numel()
            if integers and cpu_refuses(
                *(op.function, sample.tensors, sample.call.bind, place, -1, sample.numel + 7)
            ):
                return True
    return False


def test_the_families_hold_the_ops_whose_indices_the_cpu_checks() -> None:
    known = exceptions()
    listed = {"index_range.operands", "index_range.not"}
    unlisted = [
        name
        for name, op in sorted(catalogue().items())
        if not known.families_of(name) & listed and asked(op)
    ]
    assert unlisted == []
    (not_indices,) = (each for each in known.families if each.name == "index_range.not")
    assert [
        name
        for name, op in sorted(catalogue().items())
        if any(names(pattern, name) for pattern in not_indices.ops) and not asked(op)
    ] == []


def test_every_op_of_the_families_is_given_calls() -> None:
    known = exceptions()
    without = []
    for name, op in sorted(catalogue().items()):
        if not known.families_of(name) & {"index_range.operands", "index_range.numbers"}:
            continue
        dtype = next(each for each in _REPRESENTATIVE if each in op.dtypes)
        if not list(calls(op, dtype)):
            without.append(name)
    # torch's own error: it is given indices of the pooling, and raises nothing
    assert without in ([], ["nn.functional.max_unpool3d.grad"])


def calls(op: Op, dtype: str) -> Iterator[dict[str, Any]]:
    found: Any = SimpleNamespace(
        subject=op,
        common=choose(draw(op, dtype, limit=60), 6),
        traits=SimpleNamespace(families=exceptions().families_of(op.id)),
    )
    return index_range._out_of_range(found)


# Wrong implementations: each takes (self, dim, index), as index_select, and writes or reads

Given = tuple[torch.Tensor, int, torch.Tensor]


def clamps(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, index.clamp(0, x.size(dim) - 1))


def wraps(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, index.remainder(x.size(dim)))


def gives_zeros(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return clamps(x, dim, index) * 0


def looks_at_the_first(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    x.index_select(dim, index[:1])
    return clamps(x, dim, index)


def looks_at_the_last(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    x.index_select(dim, index[-1:])
    return clamps(x, dim, index)


def misses_the_greatest(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, index.clamp(min=0))


def misses_the_smallest(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, index.clamp(max=x.size(dim) - 1))


def takes_one_past_the_end(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, torch.where(index == x.size(dim), 0, index))


def wraps_negative(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, torch.where((index < 0) & (index >= -x.size(dim)), 0, index))


def takes_32_bits(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, index.to(torch.int32))


def takes_far_for_unused(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    return x.index_select(dim, torch.where(index.abs() > 2**30, 0, index))


def writes_behind_and_raises(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    end = x.storage_offset() + x.numel()
    x.as_strided((1,), (1,), end).fill_(9)
    raise IndexError("index out of range")


def writes_before_and_raises(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(9)
    raise IndexError("index out of range")


WRONG = [
    clamps,
    wraps,
    gives_zeros,
    looks_at_the_first,
    looks_at_the_last,
    misses_the_greatest,
    misses_the_smallest,
    takes_one_past_the_end,
    wraps_negative,
    takes_32_bits,
    takes_far_for_unused,
    writes_behind_and_raises,
    writes_before_and_raises,
]


class Device:
    """The op as the CPU has it for what is no device's, and as a wrong device has it otherwise."""

    def __init__(self, wrong: Callable[..., torch.Tensor]) -> None:
        self.wrong, self.there = wrong, False

    def __call__(self, x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        return (self.wrong if self.there else torch.index_select)(x, dim, index)

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        self.there = True
        return tensor.clone()


def told(wrong: Callable[..., torch.Tensor]) -> list[Wrong]:
    found = []
    call = Arguments((torch.arange(15.0).reshape(5, 3), 0, torch.tensor([1, 4, 0, 2])), {})
    ctx: Any = SimpleNamespace(subject=SimpleNamespace(reference=torch.index_select, inplace=None))
    for each in index_range._of_operand(ctx, Sample(0, call, None), 1):
        device = Device(wrong)
        given = {name: each[name] for name in ("place", "at", "value")}
        said = refuses_index(device, device.move, identity, call.tensors, call.bind, **given)
        found += [said] if said is not None else []
    return found


@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: each.__name__)
def test_a_wrong_index_select_is_noticed(wrong: Callable[..., torch.Tensor]) -> None:
    assert told(wrong) != []


def test_a_right_index_select_passes() -> None:
    assert told(torch.index_select) == []


# A process of its own


@pytest.mark.parametrize(
    ("script", "right"),
    [
        ("import sys; sys.exit(0)", True),
        ("import sys; sys.exit(1)", False),
        ("import os; os.abort()", True),  # an assertion that ends the process
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", False),
    ],
)
def test_the_end_of_a_process_is_judged(script: str, right: bool) -> None:
    assert (alone(script, 60.0) is None) is right


def test_the_ops_are_planned_once_each() -> None:
    traits: Any = SimpleNamespace(
        op="gather",
        subject=catalogue()["gather"],
        dtype="int64",
        families=exceptions().families_of("gather"),
    )
    assert not once(traits) and not index_range.takes_index(traits)


def test_an_index_into_an_operand_without_elements_is_refused() -> None:
    def accepting(given: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return given.new_zeros(index.shape) if accepts and not given.numel() else given[index]

    accepts = False
    tensors = [torch.arange(3.0), torch.tensor([2, 0])]
    about: Any = (
        accepting,
        identity,
        identity,
        tensors,
        lambda given: (tuple(given), {}),
        0,
        "emptied",
        0,
    )
    assert refuses_index(*about) is None
    whole = [each.clone() for each in tensors]

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal accepts
        accepts = True
        return tensor

    found = refuses_index(accepting, moved, identity, *about[3:])
    assert isinstance(found, Wrong) and found.subject == "operand 0, which has no elements"
    assert all(map(torch.equal, tensors, whole))
