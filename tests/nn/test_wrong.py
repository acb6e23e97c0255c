"""Wrong implementations, in float32 alone, as the CPU is its own reference here in float64: each is noticed by its cases."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from conformance.suites import case_of
from devices import registry
from devices.cell import CellKey, Outcome
from opinfo.device import Device, open_device

Function = Callable[..., Any]


def in_float32(wrong: Callable[..., Any]) -> Callable[[Function], Function]:
    """``wrong(function, *args)`` where the first tensor is float32."""

    def around(function: Function) -> Function:
        def call(*args: Any, **named: Any) -> Any:
            narrow = any(isinstance(a, torch.Tensor) and a.dtype == torch.float32 for a in args)
            return wrong(function, *args, **named) if narrow else function(*args, **named)

        return call

    return around


def _batch_norm(change: Callable[[list[Any]], None]) -> Callable[..., Any]:
    # input, weight, bias, mean, variance, training, momentum, eps, cudnn
    def wrong(function: Function, *args: Any) -> Any:
        given = list(args)
        change(given)
        return function(*given)

    return wrong


def _put(place: int, value: Callable[[Any], Any]) -> Callable[[list[Any]], None]:
    def change(given: list[Any]) -> None:
        given[place] = value(given[place])

    return change


def _moved_in_eval(function: Function, *args: Any) -> Any:
    if not args[5] and args[3] is not None:
        args[3].add_(0.01)
    return function(*args)


def _only_channels_last(function: Function, x: torch.Tensor, *rest: Any) -> Any:
    out = function(x, *rest)
    last = (
        x.dim() == 4
        and not x.is_contiguous()
        and x.is_contiguous(memory_format=torch.channels_last)
    )
    return out * 1.01 if last else out


def _detached(place: int) -> Callable[..., Any]:
    def wrong(function: Function, *args: Any) -> Any:
        given = list(args)
        given[place] = None if given[place] is None else given[place].detach()
        return function(*given)

    return wrong


def _first_state_twice(function: Function, x: Any, state: Any, weights: Any, *rest: Any) -> Any:
    dense = isinstance(weights, (list, tuple))
    if dense and isinstance(state, (list, tuple)):
        state = [each[:1].expand_as(each).contiguous() for each in state]
    return function(x, state, weights, *rest)


def _overwrites(function: Function, x: torch.Tensor, *rest: Any, **named: Any) -> Any:
    out = function(x, *rest, **named)
    with torch.no_grad():
        x.select(-1, 0).add_(1)
    return out


Changed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _attention(
    mask: Callable[[Any], Any] = lambda m: m,
    result: Changed = lambda r, m: r,
    gradient: Changed = lambda g, m: g,
) -> Callable[..., Any]:
    """Attention with another mask, and of which the result and the gradient of the query are changed, by the mask."""

    def wrong(
        function: Function, query: Any, key: Any, value: Any, given: Any, **named: Any
    ) -> Any:
        query.register_hook(lambda g: gradient(g, given))
        return result(function(query, key, value, mask(given), **named), given)

    return wrong


def _blind_rows(value: float) -> Changed:
    return lambda tensor, mask: tensor.masked_fill((mask < -1).all(-1, keepdim=True), value)


def _rows_to(end: int, value: float) -> Changed:
    return lambda tensor, mask: tensor.index_fill(-2, torch.arange(end), value)


def _seen(key: int) -> Callable[[Any], Any]:
    return lambda mask: mask.index_fill(-1, torch.tensor([key]), 0.0)


def _unseen(key: int) -> Callable[[Any], Any]:
    return lambda mask: mask.index_fill(-1, torch.tensor([key]), -65504.0)


#: What is replaced, by what, and the case that must notice it.
WRONG: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "momentum turned around": (
        *(torch, "batch_norm", _batch_norm(_put(6, lambda m: 1 - m))),
        "nn.modules::BatchNorm2d.momentum",
    ),
    "eps left out": (*(torch, "batch_norm", _batch_norm(_put(7, lambda e: 0.0))), "nn.modules::BatchNorm2d.momentum"),
    "weight ignored": (torch, "batch_norm", _batch_norm(_put(1, lambda w: None)), "nn.modules::BatchNorm1d"),
    "bias ignored": (torch, "batch_norm", _batch_norm(_put(2, lambda b: None)), "nn.modules::BatchNorm3d"),
    "statistics of the batch in eval": (
        *(torch, "batch_norm", _batch_norm(_put(5, lambda t: True))),
        "nn.modules::BatchNorm2d",
    ),
    "mean moves in eval": (torch, "batch_norm", _moved_in_eval, "nn.modules::BatchNorm2d"),
    "only channels_last": (torch, "batch_norm", _only_channels_last, "nn.modules::BatchNorm2d"),
    "bias of a convolution lost": (
        *(torch.nn.functional, "conv2d", _batch_norm(_put(2, lambda b: None))),
        "nn.modules::Conv2d",
    ),
    "weight of a convolution has no gradient": (torch.nn.functional, "conv2d", _detached(1), "nn.modules::Conv2d"),
    "groups of layer norm": (
        *(torch, "group_norm", _batch_norm(_put(1, lambda groups: 1))),
        "nn.modules::GroupNorm",
    ),
    "first state for all layers": (torch._VF, "lstm", _first_state_twice, "nn.rnn::lstm.two_layers.sequences"),
    "input overwritten": (torch.nn.functional, "gelu", _overwrites, "nn.modules::GELU"),
    "gelu by tanh": (
        torch.nn.functional, "gelu",
        lambda function, x, **named: function(x, approximate={"none": "tanh", "tanh": "none"}[named["approximate"]]),
        "nn.modules::GELU",
    ),
    "padding index ignored": (
        *(torch, "embedding", lambda function, w, i, p, *rest: function(w, i, -1, *rest)),
        "nn.modules::Embedding.indices",
    ),
    **{
        f"attention to the left of padding: {name}": (
            torch.nn.functional, "scaled_dot_product_attention", wrong, "nn.attention::left_padding",
        )
        for name, wrong in {
            "no number in a row that sees nothing": _attention(result=_blind_rows(torch.nan)),
            "no number in its gradient": _attention(gradient=_blind_rows(torch.nan)),
            "the mask ignored": _attention(mask=lambda m: None),
            "a padded key seen": _attention(mask=_seen(0)),
            "a key not seen": _attention(mask=_unseen(5)),
            "a weak mask": _attention(mask=lambda m: m.clamp(min=-2.0)),
            "that of the first batch": _attention(mask=lambda m: m[:1]),
            "a row too many without numbers": _attention(result=_rows_to(4, torch.nan)),
            "a row too many of zeros": _attention(result=_rows_to(4, 0.0)),
        }.items()
    },
    "dropout in eval": (
        *(torch.nn.functional, "dropout", lambda function, x, p, training, inplace: function(x, p, True, inplace)),
        "nn.modules::Dropout",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def cpu() -> Device:
    return open_device(registry.get("cpu"))


def outcome(cell: str, device: Device) -> Outcome:
    clause, _, name = cell.partition("::")
    record = CellRecord(CellKey(clause, name, ""))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_case(case_of(clause, name), record, device, DeviceLocator(device="cpu"))
    return record.outcome()


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_implementation_is_noticed(name: str, cpu: Device) -> None:
    where, attribute, wrong, cell = WRONG[name]
    assert outcome(cell, cpu) is Outcome.PASS
    with patch.object(where, attribute, in_float32(wrong)(getattr(where, attribute))):
        assert outcome(cell, cpu) is Outcome.FAIL
