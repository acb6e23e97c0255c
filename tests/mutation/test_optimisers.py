"""Mutants of training: bred from a seed, distinct, planted in front of the device's ops, and told apart from what is none."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
import torch

from tests.mutation import families, optimisers
from tests.mutation.items import device
from tests.mutation.optimiser_probe import different
from tests.mutation.optimisers import Spec
from tests.planting.places import planted


@pytest.fixture(autouse=True, scope="module")
def opened() -> None:
    device()


def test_the_family_has_a_module() -> None:
    assert families.module_of("optim") is optimisers


def test_a_seed_breeds_distinct_mutants_and_the_same_again() -> None:
    one, two, other = (list(islice(optimisers.bred(seed), 200)) for seed in (4, 4, 5))
    assert one == two != other and len({*one}) == 200
    kinds = {(spec.kind, spec.detail) for spec in one}
    assert len(kinds) > 80 and len({spec.op for spec in one}) > 80


def test_a_name_says_all_that_there_is_to_a_mutant() -> None:
    for spec in islice(optimisers.bred(6), 50):
        assert Spec(*spec.name.split("|")) == spec
        optimisers.effect(spec)


def test_a_skipped_tensor_keeps_what_it_held_on_the_device_alone() -> None:
    spec = Spec("_foreach_add_.Scalar", "elements", "the last; all elements; unchanged", "any call")
    there = [torch.zeros(2, device="simulated") for _ in range(2)]
    here = [torch.zeros(2) for _ in range(2)]
    with planted([spec.op], optimisers.effect(spec)) as run:
        for each in (there, here):
            torch._foreach_add_(each, 1.0)
    assert [t.cpu().tolist() for t in there] == [[1, 1], [0, 0]] and run.reached == 1
    assert [t.tolist() for t in here] == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("spec", "is_one"),
    [
        (Spec("_foreach_neg", "elements", "the first; all elements; zero", "any call"), True),
        # No call of the probe has so many tensors that this one has elements past a chunk.
        (Spec("_foreach_neg", "elements", "all from the 110th; elements past 65,536; zero", "any call"), False),
        (Spec("_fused_adam_", "counted", "never ends", "any call"), True),
        (Spec("_fused_sgd_", "counted", "never ends", "any call"), False),
    ],
)  # fmt: skip
def test_the_probe_tells_a_mutant_from_what_is_none(spec: Spec, is_one: bool) -> None:
    found = different(spec.op, lambda: optimisers.effect(spec), Random(1))
    assert bool(found) == is_one
