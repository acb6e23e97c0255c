"""Seeding: the three generators that samples draw from, without what torch.manual_seed costs."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opinfo.catalog import catalogue
from opinfo.device import seed_directly
from opinfo.samples import direct_seeding, seed_everything


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


def test_the_same_seed_gives_the_same_draws_of_all_three() -> None:
    seed_everything(3)
    first = drawn()
    seed_everything(3)
    assert drawn() == first


def test_another_seed_gives_other_draws_of_all_three() -> None:
    seed_everything(3)
    first = drawn()
    seed_everything(4)
    assert not set(drawn()) & set(first)


def test_direct_seeding_draws_what_manual_seed_does() -> None:
    torch.manual_seed(7)
    wanted = torch.rand(4)
    with direct_seeding():
        generator = torch.manual_seed(7)
        assert torch.equal(torch.rand(4), wanted)
    assert generator is torch.default_generator


def test_a_function_that_seeds_asks_nothing_of_the_device_s_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropout = catalogue()["nn.functional.dropout"].function

    def lacks() -> bool:
        raise AttributeError("'Module' object has no attribute 'is_available'")

    monkeypatch.setattr(torch.accelerator, "is_available", lacks)
    with pytest.raises(AttributeError):
        dropout(torch.ones(8))
    before = torch.get_rng_state()
    with direct_seeding():
        assert torch.equal(dropout(torch.ones(8)), dropout(torch.ones(8)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("has", "called"),
    [
        (("manual_seed", "manual_seed_all"), ["manual_seed_all"]),
        (("manual_seed",), ["manual_seed"]),  # as torch.mps
        ((), []),
    ],
)
def test_the_device_is_seeded_once_by_what_its_module_has(
    monkeypatch: pytest.MonkeyPatch, has: tuple[str, ...], called: list[str]
) -> None:
    seeded: list[tuple[str, int]] = []
    functions = {
        name: partial(lambda name, seed: seeded.append((name, seed)), name) for name in has
    }
    monkeypatch.setattr(torch, "vendor", SimpleNamespace(**functions), raising=False)
    wanted = torch.manual_seed(7) and torch.rand(4)
    seed_directly("vendor", 7)
    assert torch.equal(torch.rand(4), wanted)
    assert seeded == [(name, 7) for name in called]


def test_direct_seeding_ends_with_its_block_even_when_that_raises() -> None:
    before = torch.manual_seed
    with pytest.raises(KeyError), direct_seeding():
        assert torch.manual_seed is not before
        raise KeyError
    assert torch.manual_seed is before
