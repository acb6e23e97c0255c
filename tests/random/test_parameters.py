"""Draws for each element: right ones pass, and those made with another element's parameters do not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from conformance.suites.random import per_element
from conformance.suites.random.per_element import OF_EACH, into, of_each
from tests.random.test_distribution import There

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


@pytest.mark.parametrize("name", OF_EACH)
def test_right_draws_pass(name: str) -> None:
    of_each(There(), name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, about in OF_EACH.items() if about.out])
def test_right_draws_into_a_target_pass(name: str) -> None:
    into(There(), name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "way"), [pair for pair in product(OF_EACH, READS) if pair not in SAME]
)
def test_the_last_parameter_read_wrongly_is_seen(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, read = OF_EACH[name].draw, READS[way]

    def wrong(*given: torch.Tensor, **named: Any) -> torch.Tensor:
        return draw(*given[:-1], read(given[-1]), **named)

    monkeypatch.setitem(OF_EACH, name, OF_EACH[name]._replace(draw=wrong))
    with pytest.raises((AssertionError, RuntimeError)):  # or a parameter is outside its range
        of_each(There(), name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [n for n in OF_EACH if len(OF_EACH[n].parameters(0)) > 1])
@pytest.mark.parametrize("way", ["as if it were contiguous", "of the row before"])
def test_the_first_parameter_read_wrongly_is_seen(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, read = OF_EACH[name].draw, READS[way]
    wrong = OF_EACH[name]._replace(draw=lambda a, b, **named: draw(read(a), b, **named))
    monkeypatch.setitem(OF_EACH, name, wrong)
    with pytest.raises(AssertionError):
        of_each(There(), name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OF_EACH)
def test_the_draw_before_is_no_draw(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, kept = OF_EACH[name].draw, []

    def stale(*given: torch.Tensor, **named: Any) -> torch.Tensor:
        kept.append(draw(*given))
        return kept[-2] if len(kept) > 1 else kept[-1]

    monkeypatch.setitem(OF_EACH, name, OF_EACH[name]._replace(draw=stale))
    with pytest.raises(AssertionError):
        of_each(There(), name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "where"),
    [
        (name, where)
        for name, where in product(OF_EACH, ("single", "three dimensions", "after one element"))
        if not (OF_EACH[name].by_row and where == "three dimensions")
    ],
)
def test_a_parameter_read_wrongly_in_one_form_is_seen(
    name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, kept = OF_EACH[name].draw, []

    def wrong(*given: torch.Tensor, **named: Any) -> torch.Tensor:
        last = given[-1]
        if where == "single" and last.dim() == (1 if OF_EACH[name].by_row else 0):
            kept.append(last)
            last = kept[-2] if len(kept) > 1 else last
        elif where == "three dimensions" and last.dim() == 3:
            last = last.roll(1, 1)
        elif where == "after one element" and last.dim() == 2 and last.storage_offset() == 1:
            last = last.flatten().roll(1).view(last.shape)
        return draw(*given[:-1], last, **named)

    monkeypatch.setitem(OF_EACH, name, OF_EACH[name]._replace(draw=wrong))
    # A row that is left without its only weight is refused.
    refused = [RuntimeError] if OF_EACH[name].by_row and where == "after one element" else []
    with pytest.raises((AssertionError, *refused)):
        of_each(There(), name)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("other", ["contiguous", "strided"])
@pytest.mark.parametrize(
    "name", [n for n, about in OF_EACH.items() if len(about.parameters(0)) == 2]
)
def test_of_two_parameters_one_that_is_read_transposed_is_seen(
    name: str, other: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the other one lies in another way."""
    draw, met = OF_EACH[name].draw, []

    def wrong(*given: torch.Tensor) -> torch.Tensor:
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
        return draw(*read)

    monkeypatch.setitem(OF_EACH, name, OF_EACH[name]._replace(draw=wrong))
    with pytest.raises(AssertionError):
        of_each(There(), name)  # type: ignore[arg-type]
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
        *((name, fault) for name, about in OF_EACH.items() if about.out for fault in _FAULTS),
        *((name, "now and then where it grows") for name in per_element._GROWN),
    ],
)
def test_a_target_that_is_not_written_to_as_it_lies_is_seen(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, kept, grown = OF_EACH[name].draw, [], []

    def wrong(*given: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
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
            apart = not (out.is_contiguous() or given[0].is_contiguous())
            out.copy_(kept[-3] if apart else found)
        elif fault.startswith("now and then"):
            out.copy_(found)
            if grows and len(grown) % 2:
                out[-1, -1] = 1e6
        return out

    monkeypatch.setitem(OF_EACH, name, OF_EACH[name]._replace(draw=wrong))
    with pytest.raises(AssertionError):
        into(There(), name)  # type: ignore[arg-type]


def test_neighbours_differ_in_their_parameters() -> None:
    for turn in (0, 1):
        for values in (per_element._mixed(1000, turn), per_element._coins(turn)):
            for dim in (0, 1):
                moved = (values != values.roll(1, dim)).double().mean()
                assert moved > 0.3
