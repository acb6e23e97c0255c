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


def _refuses_long_weights(weights: torch.Tensor, *args: Any, **named: Any) -> torch.Tensor:
    """An exception stands for the end of the process."""
    if weights.shape[-1] > 2**14:
        raise RuntimeError("too many threads for a threadgroup")
    return _multinomial(weights, *args, **named)


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


# The CPU is its own reference here, in float64: what follows misbehaves in float32 alone.

_lstm, _group_norm = torch._VF.lstm, torch.group_norm
_attention: Any = torch.nn.functional.scaled_dot_product_attention


def _lstm_but_not_of_two_layers(x: torch.Tensor, state: Any, weights: Any, *rest: Any) -> Any:
    """Dense sequences, batch first, in two layers."""
    dense = not isinstance(weights, torch.Tensor) and isinstance(state, (list, tuple))
    if dense and len(rest) == 6 and rest[1] == 2 and rest[5] and x.dtype == torch.float32:
        raise RuntimeError("unknown error of the library")
    return _lstm(x, state, weights, *rest)


def _group_norm_of_a_leaf(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """The gradient is NaN where the input is not a leaf: in a stack."""
    if x.dtype == torch.float32 and x.requires_grad and not x.is_leaf:
        x.register_hook(lambda grad: grad * torch.nan)
    return _group_norm(x, *rest)


def _spoilt_attention(
    holds: Callable[[torch.Tensor, Any], bool], *, gradient: bool
) -> Callable[..., torch.Tensor]:
    """Attention whose result, or whose gradient, is wrong where that holds of the query and the mask."""

    def attention(query: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        mask = named.get("attn_mask", rest[2] if len(rest) > 2 else None)
        result: torch.Tensor = _attention(query, *rest, **named)
        if query.dtype != torch.float32 or not holds(query, mask):
            return result
        if not gradient:
            return result * 1.1
        if query.requires_grad and torch.is_grad_enabled():
            query.register_hook(lambda grad: grad * torch.nan)
        return result

    return attention


def _masks_rows(query: torch.Tensor, mask: Any) -> bool:
    if mask is None or mask.dim() != 4:
        return False
    hidden = ~mask if mask.dtype == torch.bool else mask <= -60000
    return bool(hidden.all(-1).any())


#: By name: what is replaced, and by what.
PATCHES: Final[dict[str, tuple[Any, str, Callable[..., torch.Tensor]]]] = {
    "randperm_in_two_halves": (torch, "randperm", _two_halves),
    "multinomial_smallest_number": (torch, "multinomial", _smallest_number),
    "multinomial_always_first": (torch, "multinomial", _first_category),
    "multinomial_past_the_end": (torch, "multinomial", _past_the_end),
    "multinomial_refuses_long_weights": (torch, "multinomial", _refuses_long_weights),
    "multinomial_without_weights": (torch, "multinomial", _without_weights),
    "randn_repeats": (torch, "randn", _same_again),
    "exponential_sometimes_zero": (torch.Tensor, "exponential_", _sometimes_zero),
    "checkpoint_refuses_channels_last": (
        torch.utils.checkpoint,
        "detach_variable",
        _without_channels_last,
    ),
    "lstm_of_two_layers_raises": (torch._VF, "lstm", _lstm_but_not_of_two_layers),
    "group_norm_in_a_stack_gives_nan": (torch, "group_norm", _group_norm_of_a_leaf),
    "attention_of_masked_rows_is_wrong": (
        *(torch.nn.functional, "scaled_dot_product_attention"),
        _spoilt_attention(_masks_rows, gradient=False),
    ),
    "gradient_of_attention_is_nan": (
        *(torch.nn.functional, "scaled_dot_product_attention"),
        _spoilt_attention(lambda query, mask: query.shape[-2] > 32, gradient=True),
    ),
    "gradient_of_large_attention_is_nan": (
        *(torch.nn.functional, "scaled_dot_product_attention"),
        _spoilt_attention(lambda query, mask: bool((query.abs() >= 1000).any()), gradient=True),
    ),
    "item_of_a_view_after_many_calls": (torch.Tensor, "item", _item_after_many_calls),
}


@contextmanager
def patched(name: str) -> Iterator[None]:
    """With that function of torch replaced for a block."""
    where, attribute, function = PATCHES[name]
    with replaced.object(where, attribute, function):
        yield
