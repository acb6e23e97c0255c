"""Samples: the same whenever and wherever they are drawn, and how a few are chosen."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from opinfo.catalog import catalogue
from opinfo.compare import Arguments, tensors_of
from opinfo.samples import Sample, choose, draw, size_class

CHECKOUT = Path(__file__).resolve().parents[2]
#: Ops whose samples come from torch's generator, random and numpy, of few and of many samples.
OPS = ("add", "std.unbiased", "nn.functional.max_pool2d", "linalg.svd", "index_put", "signbit")
#: Upstream goes through a set of texts for these.
OF_A_SET = ("meshgrid.variadic_tensors", "meshgrid.list_of_tensors")


def described(sample: Sample) -> str:
    """Everything about a sample, values included."""
    parts = [repr(sample.index)]
    for tensor in tensors_of((sample.call.args, sample.call.kwargs)):
        dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
        raw = bytes(dense.contiguous().view(-1).view(torch.uint8).tolist())
        parts.append(f"{tensor.dtype} {tuple(tensor.shape)} {tuple(dense.stride())} {raw.hex()}")
    plain = [a for a in sample.call.args if not tensors_of(a)]
    named = sorted((k, repr(v)) for k, v in sample.call.kwargs.items() if not tensors_of(v))
    return "\n".join([*parts, repr(plain), repr(sorted(sample.call.kwargs)), repr(named)])


def digest(ops: Iterable[str]) -> dict[str, str]:
    """A hash of each op's samples, drawn in this order."""
    found = {}
    for name in ops:
        text = "\n".join(map(described, draw(catalogue()[name], "float32")))
        found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def test_draw_gives_the_same_samples_twice() -> None:
    assert digest(OPS) == digest(OPS)


def test_draw_gives_the_same_samples_whatever_the_generators_hold() -> None:
    before = digest(OPS)
    torch.default_generator.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    torch.rand(7), random.random(), np.random.rand()
    assert digest(reversed(OPS)) == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "4"])  # of texts: a set of two has either order
def test_draw_gives_the_same_samples_in_another_process_and_order(seed: str) -> None:
    code = (
        "import json, torch; torch.set_num_threads(1)\n"
        "from tests.opinfo.test_samples import OF_A_SET, OPS, digest\n"
        "print(json.dumps(digest(reversed(OPS + OF_A_SET)), sort_keys=True))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == digest(OPS + OF_A_SET)


def test_draw_gives_contiguous_tensors_of_their_own_without_gradients() -> None:
    for name in OPS:
        for sample in draw(catalogue()[name], "complex64" if name == "add" else "float32"):
            strided = [t for t in sample.tensors if t.layout == torch.strided]
            assert all(t.is_contiguous() and not t.requires_grad for t in strided)
            assert not any(t.is_conj() or t.is_neg() for t in strided)
            storages = [t.untyped_storage()._cdata for t in strided]
            assert len(set(storages)) == len(storages), name


def test_draw_stops_at_its_limit() -> None:
    op = catalogue()["nn.functional.max_pool2d"]
    assert len(draw(op, "float32")) == 200
    assert [s.index for s in draw(op, "float32", limit=3)] == [0, 1, 2]


def sample(index: int, *shapes: tuple[int, ...], **kwargs: object) -> Sample:
    return Sample(
        index, Arguments(tuple(torch.zeros(s) for s in shapes), dict(kwargs)), lambda r: r
    )


MIXED = [
    sample(0, (2,)),
    sample(1, (2,)),
    sample(2, ()),
    sample(3, (0, 3)),
    sample(4, (2, 2, 2), (2,)),
    sample(5, (3, 5)),
    sample(6, (1, 1)),
    sample(7, (2,), dim=0),
]


@pytest.mark.parametrize("count", range(1, 10))
def test_choose_takes_no_more_than_asked_for(count: int) -> None:
    assert len(choose(MIXED, count)) == min(count, len(MIXED))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_choose_includes_the_largest_rank(count: int) -> None:
    assert 4 in [s.index for s in choose(MIXED, count)]


def test_choose_prefers_a_large_rank_that_holds_elements() -> None:
    empty, full = sample(0, (2, 0, 2)), sample(1, (2, 3, 2))
    assert [s.index for s in choose([empty, full, sample(2, (1,))], 1)] == [1]


def test_choose_takes_what_is_new_before_what_repeats() -> None:
    chosen = {s.index for s in choose(MIXED, 7)}
    assert chosen == {0, 2, 3, 4, 5, 6, 7}  # 1 repeats 0


def test_choose_keeps_upstream_s_order_and_gives_the_same_each_time() -> None:
    first = choose(MIXED, 5)
    assert [s.index for s in first] == sorted(s.index for s in first)
    assert [s.index for s in choose(MIXED, 5)] == [s.index for s in first]


def test_choose_does_not_depend_on_the_order_it_is_given() -> None:
    def chosen(samples: list[Sample]) -> list[int]:
        return [s.index for s in choose(samples, 4)]

    assert chosen(MIXED[::-1]) == chosen(MIXED)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((), "0-d"),
        ((0,), "size 0"),
        ((2, 0), "size 0"),
        ((1, 1), "size 1"),
        ((2, 3), "odd"),
        ((2, 1), "odd"),
        ((2, 4), "small"),
    ],
)
def test_size_classes(shape: tuple[int, ...], name: str) -> None:
    assert size_class(shape) == name


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Sample]]:
    """The float32 samples of every op."""
    return {op.id: draw(op, "float32") for op in catalogue().values() if "float32" in op.dtypes}


def test_every_op_keeps_its_largest_rank(drawn: dict[str, list[Sample]]) -> None:
    lost = [
        name
        for name, samples in drawn.items()
        if samples and max(s.rank for s in choose(samples, 4)) != max(s.rank for s in samples)
    ]
    assert lost == []


def test_quick_has_three_samples_of_every_op_that_offers_them(
    drawn: dict[str, list[Sample]],
) -> None:
    few = [name for name, s in drawn.items() if len(choose(s, 4)) < min(3, len(s))]
    assert few == []
