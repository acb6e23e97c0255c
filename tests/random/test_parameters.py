"""Draws for each element: right ones pass, and those made with another element's parameters do not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from conformance.suites.random import parameters
from conformance.suites.random.per_element import into, of_each
from conformance.suites.random.samplers import SAMPLERS, WITH_PARAMETERS, WITH_TARGETS, Sampler
from tests.random.planting import Draw, assert_seen, context

Read = Callable[[torch.Tensor], torch.Tensor]


def as_contiguous(given: torch.Tensor) -> torch.Tensor:
    """What lies in memory from the first element on, again and again if that is not enough."""
    start = given.storage_offset()
    held = torch.empty(0, dtype=given.dtype).set_(given.untyped_storage())[start:]  # type: ignore[call-overload]
    return held.repeat(given.numel() // held.numel() + 1)[: given.numel()].view(given.shape)


#: Wrong ways to read a parameter.
READS: dict[str, Read] = {
    "as if it were contiguous": as_contiguous,
    "of the element before": lambda t: t.flatten().roll(1).view(t.shape),
    "of the row before": lambda t: t.roll(1, 0),
    "read column by column": lambda t: t.mT.reshape(t.shape),
    "of the first row": lambda t: t[:1].expand(t.shape),
    "of the first column": lambda t: t[:, :1].expand(t.shape),
    "in 4 bits": lambda t: (t / t.abs().max() * 8).round() / 8 * t.abs().max(),
    "the last elements of zero": lambda t: torch.cat([t[:-1], t[-1:] * 0]),
    "backwards": lambda t: t.flip(1),
    "all the same": lambda t: torch.full_like(t, float(t.flatten()[0])),
}
#: What shows nothing: zeros and ones need no more bits, nor does the place of the only weight.
SAME = {(name, "in 4 bits") for name in ("bernoulli", "bernoulli_", "binomial", "multinomial")}


TWO = [name for name in WITH_PARAMETERS if len(SAMPLERS[name].each.tensors(0)) == 2]


def assert_noticed(
    monkeypatch: pytest.MonkeyPatch, case: Callable[..., None], name: str, wrong: Draw, **named: Any
) -> None:
    """``wrong`` is called with the right function, the sampler, and the parameters."""
    assert_seen(monkeypatch, Sampler, "draw_each", wrong, case, name, **named)


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_right_draws_pass(name: str) -> None:
    of_each(context(), name)


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_right_draws_into_a_target_pass(name: str) -> None:
    into(context(), name)


@pytest.mark.parametrize(
    ("name", "way"), [pair for pair in product(WITH_PARAMETERS, READS) if pair not in SAME]
)
def test_the_last_parameter_read_wrongly_is_seen(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(draw: Draw, *given: Any, **named: Any) -> torch.Tensor:
        return draw(*given[:-1], READS[way](given[-1]), **named)

    # The read parameter may be outside its range.
    assert_noticed(monkeypatch, of_each, name, wrong, refused=(RuntimeError,))


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("way", ["as if it were contiguous", "of the row before"])
def test_the_first_parameter_read_wrongly_is_seen(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(draw: Draw, sampler: Sampler, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return draw(sampler, READS[way](a), b)

    assert_noticed(monkeypatch, of_each, name, wrong)


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_the_draw_before_is_no_draw(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []

    def stale(draw: Draw, *given: Any) -> torch.Tensor:
        kept.append(draw(*given))
        return kept[-2] if len(kept) > 1 else kept[-1]

    assert_noticed(monkeypatch, of_each, name, stale)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        (name, where)
        for name, where in product(
            WITH_PARAMETERS, ("single", "three dimensions", "after one element")
        )
        if not (SAMPLERS[name].by_row and where == "three dimensions")
    ],
)
def test_a_parameter_read_wrongly_in_one_form_is_seen(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[torch.Tensor] = []

    def wrong(draw: Draw, *given: Any, **named: Any) -> torch.Tensor:
        last = given[-1]
        if where == "single" and last.dim() == (1 if SAMPLERS[name].by_row else 0):
            kept.append(last)
            last = kept[-2] if len(kept) > 1 else last
        elif where == "three dimensions" and last.dim() == 3:
            last = last.roll(1, 1)
        elif where == "after one element" and last.dim() == 2 and last.storage_offset():
            last = last.flatten().roll(1).view(last.shape)
        return draw(*given[:-1], last, **named)

    # A row that is left without its only weight is refused.
    refused = (RuntimeError,) if SAMPLERS[name].by_row and where == "after one element" else ()
    assert_noticed(monkeypatch, of_each, name, wrong, refused=refused)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("other", ["contiguous", "strided"])
@pytest.mark.parametrize("name", TWO)
def test_of_two_parameters_one_that_is_read_transposed_is_seen(
    name: str, other: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the other one lies in another way."""
    met = []

    def wrong(draw: Draw, sampler: Sampler, *given: torch.Tensor) -> torch.Tensor:
        read, beside = list(given), given[1 - place]
        t = given[place]
        strides = [each.stride() for each in given]
        if (
            t.shape == beside.shape
            and strides[0] != strides[1]
            and not t.is_contiguous()
            and beside.is_contiguous() == (other == "contiguous")
        ):
            met.append(strides)
            read[place] = t.mT.contiguous().view(t.shape)
        return draw(sampler, *read)

    assert_noticed(monkeypatch, of_each, name, wrong)
    assert met


_FAULTS = (
    "nothing",
    "the draw before",
    "contiguous",
    "last row",
    "after one element",
    "both strided",
)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, fault) for name in WITH_TARGETS for fault in _FAULTS),
        *((name, "now and then where it grows") for name in WITH_TARGETS if SAMPLERS[name].grows),
    ],
)
def test_a_target_that_is_not_written_to_as_it_lies_is_seen(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, grown = [], []

    def wrong(draw: Draw, *given: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        found = draw(*given)
        kept.append(found)
        if out is None:
            return found
        if grows := not out.numel():
            out.resize_(found.shape).copy_(found)
            grown.append(out)
        if fault == "the draw before":
            out.copy_(kept[-3] if len(kept) > 2 else found)
        elif fault == "contiguous":
            flat = out.as_strided((out.numel(),), (1,), out.storage_offset())
            flat.copy_(found.flatten())
        elif fault == "last row":
            out[:-1] = found[:-1]
        elif fault == "after one element":
            out.copy_(found.flatten().roll(out.storage_offset()).view(out.shape))
        elif fault == "both strided":
            apart = not (out.is_contiguous() or given[1].is_contiguous())
            out.copy_(kept[-3] if apart else found)
        elif fault.startswith("now and then"):
            out.copy_(found)
            if grows and len(grown) % 2:
                out[-1, -1] = 1e6
        return out

    assert_noticed(monkeypatch, into, name, wrong)


def test_neighbours_differ_in_their_parameters() -> None:
    for turn in (0, 1):
        for values in (parameters.mixed(1000, turn), parameters.coins(turn)):
            for dim in (0, 1):
                moved = (values != values.roll(1, dim)).double().mean()
                assert moved > 0.3
