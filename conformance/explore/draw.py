"""Random candidates: samples of the database drawn anew, resized, in layouts beyond the covering set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import torch

from conformance.minimise.simpler import with_tensors
from conformance.minimise.subject import Candidate
from opinfo.layouts import CONTIGUOUS, EXPAND, MEMORY, STEP, AnyLayout, FreeLayout, Layout
from opinfo.samples import Sample

#: Sizes that resizing gives; 16 and 17 are a vector register of float32 and one more.
_SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 16, 17)
_STEPS = (1, 1, 1, 2, 3)
_OFFSETS = (0, 0, 1, 2, 3, 4, 7, 8, 16, 17, 31, 33)
#: Candidates with more elements than this teach nothing that smaller ones do not, and take longer.
_MOST_ELEMENTS = 20_000


def random_candidate(random: Random, pool: Sequence[Sample], *, may_resize: bool) -> Candidate:
    """A candidate from a pool of samples; the same for the same state of ``random``."""
    sample = random.choice(pool)
    candidate = Candidate(sample)
    if may_resize and random.random() < 0.5:
        candidate = _resized(random, candidate)
    if random.random() < 0.3:
        candidate = _scaled(random, candidate)
    first = random_layout(random)
    rest = first if random.random() < 0.3 else random_layout(random)
    target = random_layout(random)
    if isinstance(target, FreeLayout):
        target = replace(target, expand=None)
    else:
        target = replace(target, expand="none")
    return replace(candidate, first=first, rest=rest, target=target)


def random_layout(random: Random) -> AnyLayout:
    """A product of all factors: a named layout, or any order, steps, expanded dimension and offset."""
    kind = random.random()
    if kind < 0.1:
        return CONTIGUOUS
    if kind < 0.35:
        return Layout(
            random.choice(MEMORY), random.choice(STEP), random.choice(EXPAND), random.random() < 0.5
        )
    order = list(range(6))
    random.shuffle(order)
    return FreeLayout(
        tuple(order) if random.random() < 0.8 else (),
        tuple(random.choice(_STEPS) for _ in range(random.randrange(4))),
        random.randrange(5) if random.random() < 0.25 else None,
        random.choice(_OFFSETS),
    )


def _resized(random: Random, candidate: Candidate) -> Candidate:
    """Equal sizes are taken for one and changed together; values repeat where a tensor grows.

    Calls with integer tensors stay as they are: those are indices, offsets and lengths, which would no
    longer fit, and the CPU, which is the reference, does not check all of them.
    """
    tensors = candidate.sample.tensors
    if any(not t.dtype.is_floating_point and not t.dtype.is_complex for t in tensors):
        return candidate
    sizes = sorted({n for t in tensors if t.layout == torch.strided for n in t.shape if n > 1})
    chosen = {n: random.choice(_SIZES) if random.random() < 0.6 else n for n in sizes}
    resized = []
    for tensor in tensors:
        if tensor.layout == torch.strided:
            for dim, size in enumerate(tensor.shape):
                if size > 1 and chosen[size] != size:
                    tensor = tensor.index_select(dim, torch.arange(chosen[size]) % size)
        resized.append(tensor)
    if sum(t.numel() for t in resized) > _MOST_ELEMENTS:
        return candidate
    return with_tensors(candidate, resized)


def _scaled(random: Random, candidate: Candidate) -> Candidate:
    """Floating-point values made smaller by a power of two, exactly: other values, the same domain."""
    factor = random.choice((0.5, 0.25, 0.125))
    return with_tensors(
        candidate,
        [
            t * factor if t.layout == torch.strided and t.dtype.is_floating_point else t
            for t in candidate.sample.tensors
        ],
    )
