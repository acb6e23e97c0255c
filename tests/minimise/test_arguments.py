"""Simpler arguments of a call."""

from __future__ import annotations

from typing import Any

import torch

from conformance.search.minimise.simplify import DROP, slots, with_choices

T = torch.zeros(2)


def forms(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> list[Any]:
    """The calls that the slot number ``place`` gives, the simplest first."""
    found = slots(args, kwargs)
    stay = [len(slot.options) for slot in found]
    calls = []
    for choice in range(stay[place] + 1):
        vector = [*stay[:place], choice, *stay[place + 1 :]]
        calls.append(with_choices(args, kwargs, found, vector))
    return calls


def test_a_keyword_is_left_out_or_simplified() -> None:
    found = forms((T,), {"dim": 2}, 0)
    assert found == [((T,), {}), ((T,), {"dim": 0}), ((T,), {"dim": 1}), ((T,), {"dim": 2})]


def test_the_last_positional_is_left_out_and_the_first_never() -> None:
    assert slots((T,), {}) == []
    assert forms((T, 1), {}, 0)[0] == ((T,), {})


def test_numbers_inside_a_list_are_simplified_one_by_one() -> None:
    args = (T, (3, 1), True)
    paths = [slot.path for slot in slots(args, {})]
    assert paths == [("args", 2), ("args", 1, 0), ("args", 1, 1)]
    assert [call[0][1] for call in forms(args, {}, 1)] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_list_of_tensors_is_shortened() -> None:
    found = forms(([T, T, T],), {}, 0)
    assert [len(args[0]) for args, _ in found] == [1, 2, 3]


def test_two_choices_at_once_and_a_dropped_end() -> None:
    args, kwargs = (T, 2, 5), {"keepdim": True}
    found = slots(args, kwargs)
    vector = [0 if slot.options[0] is DROP else 1 for slot in found]
    assert with_choices(args, kwargs, found, vector) == ((T, 1), {})


def test_what_is_already_simplest_has_no_slot() -> None:
    assert slots((T, None, "mean", 0, 0.0, False, T), {}) == [
        slot for slot in slots((T, None, "mean", 0, 0.0, False, T), {}) if slot.options == (DROP,)
    ]
