"""A candidate written down as plain data is the same candidate."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from conformance.search.explore.encoding import NotRebuilt, decode, encode
from conformance.search.minimise.candidates import Candidate
from opinfo.catalog import catalogue
from opinfo.compare import Arguments, bit_equal, replace_tensors
from opinfo.encoding import NotEncodable
from opinfo.layouts import FreeLayout, Layout
from opinfo.samples import Sample, draw

FREE = FreeLayout((2, 0, 1), (1, 3), 1, 5)


def sample(*args: Any, **kwargs: Any) -> Sample:
    return Sample(7, Arguments(args, kwargs), lambda result: result)


def back(candidate: Candidate) -> Candidate:
    return decode(*json.loads(json.dumps(encode(candidate))))


def plain(call: Arguments) -> str:
    """The call's arguments without its tensors."""
    return repr(replace_tensors((call.args, call.kwargs), lambda t: f"{t.dtype}{tuple(t.shape)}"))


def same(one: Candidate, two: Candidate) -> bool:
    ours, theirs = one.sample.tensors, two.sample.tensors
    return (
        plain(one.sample.call) == plain(two.sample.call)
        and len(ours) == len(theirs)
        and all(bit_equal(a, b) for a, b in zip(ours, theirs, strict=True))
        and (one.first, one.rest, one.target) == (two.first, two.rest, two.target)
        and one.sample.index == two.sample.index
    )


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "complex64"])
def test_samples_of_the_database_read_back(dtype: str) -> None:
    ops = [op for op in list(catalogue().values())[::23] if dtype in op.dtypes]
    lost, made = [], 0
    for op in ops:
        for drawn in draw(op, dtype, limit=6):
            candidate = Candidate(drawn, FREE, Layout("transposed", offset=True), FREE)
            try:
                again = back(candidate)
            except NotEncodable:
                continue
            made += 1
            if not same(candidate, again):
                lost.append((op.id, plain(drawn.call)))
    assert lost == [] and made > 30


@pytest.mark.parametrize(
    "value",
    [
        *(0, -3, True, None, "mean", 1.5, float("inf"), 2 - 1j, Ellipsis, torch.float16),
        *(torch.channels_last, torch.strided, slice(1, None, 2), [1, [2.5]], (1, (True,))),
        *(torch.Size([2, 3]), torch.device("cpu"), torch.tensor([float("nan"), -0.0])),
        *(torch.zeros(0, 3), torch.arange(100.0), torch.tensor([1 + 2j]), torch.tensor(5)),
    ],
    ids=repr,
)
def test_every_kind_of_argument_reads_back(value: Any) -> None:
    candidate = Candidate(sample(torch.zeros(2), value, key=value))
    assert same(candidate, back(candidate))


def test_not_a_number_reads_back() -> None:
    (value,) = back(Candidate(sample(float("nan")))).sample.call.args
    assert value != value


@pytest.mark.parametrize(
    "value",
    [torch.nn.ReLU(), len, torch.zeros(2).to_sparse()],
    ids=["module", "function", "sparse"],
)
def test_what_cannot_be_written_down_says_so(value: Any) -> None:
    with pytest.raises(NotEncodable, match="cannot be written as data"):
        encode(Candidate(sample(value)))


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("args", [{"tensor": 9}]),
        ("args", [{"nothing": 1}]),
        ("args", [{"dtype": "nonesuch"}]),
        ("args", [{"dtype": "add"}]),
        ("tensors", [{"dtype": "float32", "shape": [3], "values": ["1.0"]}]),
        ("tensors", [{"dtype": "float32", "shape": [3], "data": "!"}]),
        ("tensors", [{"dtype": "float32", "shape": [3], "data": "AAAA"}]),
        ("kwargs", []),
        ("sample", "x"),
    ],
)
def test_data_that_give_no_call_are_refused(part: str, changed: Any) -> None:
    call, layouts = encode(Candidate(sample(torch.arange(3.0))))
    with pytest.raises(NotRebuilt):
        decode({**call, part: changed}, layouts)


@pytest.mark.parametrize("layout", ["free:bogus", "nonesuch", "free:steps=0", "free:offset=1.2"])
def test_an_unknown_layout_is_refused(layout: str) -> None:
    call, layouts = encode(Candidate(sample(torch.arange(3.0))))
    with pytest.raises(NotRebuilt):
        decode(call, {**layouts, "first": layout})
