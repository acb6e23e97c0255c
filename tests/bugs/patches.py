"""Bugs that no single op has: functions of torch that misbehave in this process for a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch as replaced

import torch
import torch.utils.checkpoint

_multinomial, _randperm, _randn = torch.multinomial, torch.randperm, torch.randn
_item, _items = torch.Tensor.item, 0
_exponential = torch.Tensor.exponential_
_detach_variable = torch.utils.checkpoint.detach_variable


def _two_halves(count: int, **named: Any) -> torch.Tensor:
    """Two ascending halves."""
    drawn = _randperm(count, **named)
    return torch.cat([half.sort().values for half in drawn.chunk(2)]) if count > 1 else drawn


def _smallest_number(*args: Any, **named: Any) -> torch.Tensor:
    return _multinomial(*args, **named).fill_(-(2**63))


def _first_category(*args: Any, **named: Any) -> torch.Tensor:
    return _multinomial(*args, **named).zero_()


def _past_the_end(weights: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    """Now and then a category that does not exist."""
    drawn = _multinomial(weights, *args, **named)
    drawn.view(-1)[::1000] = weights.shape[-1] + 1
    return drawn


def _without_weights(
    weights: torch.Tensor, count: int, replacement: bool = False, **named: Any
) -> torch.Tensor:
    """The weights are ignored where nothing is replaced."""
    given = weights if replacement else torch.ones_like(weights)
    return _multinomial(given, count, replacement, **named)


def _same_again(*args: Any, **named: Any) -> torch.Tensor:
    named["generator"] = torch.Generator(named.get("device", "cpu")).manual_seed(1)
    return _randn(*args, **named)


def _sometimes_zero(tensor: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    _exponential(tensor, *args, **named)
    tensor.view(-1)[::5000] = 0
    return tensor


def _item_after_many_calls(tensor: torch.Tensor) -> Any:
    """Right for the first thousand views."""
    global _items
    _items += tensor.storage_offset() > 0
    return _item(tensor) if _items < 1000 else 0


def _without_channels_last(inputs: tuple[Any, ...]) -> Any:
    """The inputs of a reentrant checkpoint, unless one is channels_last."""
    for each in inputs:
        last = torch.channels_last
        if (
            isinstance(each, torch.Tensor)
            and each.dim() == 4
            and each.is_contiguous(memory_format=last)
        ):
            raise RuntimeError(
                "set_sizes_and_strides is not allowed on a Tensor created from .data"
            )
    return _detach_variable(inputs)


#: By name: what is replaced, and by what.
PATCHES: Final[dict[str, tuple[Any, str, Callable[..., torch.Tensor]]]] = {
    "randperm_in_two_halves": (torch, "randperm", _two_halves),
    "multinomial_smallest_number": (torch, "multinomial", _smallest_number),
    "multinomial_always_first": (torch, "multinomial", _first_category),
    "multinomial_past_the_end": (torch, "multinomial", _past_the_end),
    "multinomial_without_weights": (torch, "multinomial", _without_weights),
    "randn_repeats": (torch, "randn", _same_again),
    "exponential_sometimes_zero": (torch.Tensor, "exponential_", _sometimes_zero),
    "checkpoint_refuses_channels_last": (
        torch.utils.checkpoint,
        "detach_variable",
        _without_channels_last,
    ),
    "item_of_a_view_after_many_calls": (torch.Tensor, "item", _item_after_many_calls),
}


@contextmanager
def patched(name: str) -> Iterator[None]:
    """With that function of torch replaced for a block."""
    where, attribute, function = PATCHES[name]
    with replaced.object(where, attribute, function):
        yield
