"""Simpler arguments of a call."""

from __future__ import annotations

from typing import Any

import torch

from conformance.search.minimise.simplify import DROP, Slot, slots, with_choices
from opinfo.compare import Arguments

T = torch.zeros(2)


def simpler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Slot]:
    return slots(Arguments(args, kwargs))


def chosen(args: tuple[Any, ...], kwargs: dict[str, Any], vector: tuple[int, ...]) -> Any:
    call = Arguments(args, kwargs)
    made = with_choices(call, slots(call), vector)
    return made.args, made.kwargs


def forms(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> list[Any]:
    """The calls that the slot number ``place`` gives, the simplest first."""
    stay = tuple(len(slot.options) for slot in simpler(args, kwargs))
    return [
        chosen(args, kwargs, (*stay[:place], choice, *stay[place + 1 :]))
        for choice in range(stay[place] + 1)
    ]


def test_a_keyword_is_left_out_or_simplified() -> None:
    found = forms((T,), {"dim": 2}, 0)
    assert found == [((T,), {}), ((T,), {"dim": 0}), ((T,), {"dim": 1}), ((T,), {"dim": 2})]


def test_the_last_positional_is_left_out_and_the_first_never() -> None:
    assert simpler((T,), {}) == []
    assert forms((T, 1), {}, 0)[0] == ((T,), {})


def test_numbers_inside_a_list_are_simplified_one_by_one() -> None:
    args = (T, (3, 1), True)
    paths = [slot.path for slot in simpler(args, {})]
    assert paths == [("args", 2), ("args", 1, 0), ("args", 1, 1)]
    assert [call[0][1] for call in forms(args, {}, 1)] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_list_of_tensors_is_shortened() -> None:
    found = forms(([T, T, T],), {}, 0)
    assert [len(args[0]) for args, _ in found] == [1, 2, 3]


def test_two_choices_at_once_and_a_dropped_end() -> None:
    args, kwargs = (T, 2, 5), {"keepdim": True}
    vector = tuple(0 if slot.options[0] is DROP else 1 for slot in simpler(args, kwargs))
    assert chosen(args, kwargs, vector) == ((T, 1), {})


def test_what_is_already_simplest_has_no_slot() -> None:
    assert simpler((T, None, "mean", 0, 0.0, False, T), {}) == [
        slot for slot in simpler((T, None, "mean", 0, 0.0, False, T), {}) if slot.options == (DROP,)
    ]
