"""Wrong implementations, in float32 alone, as the CPU is its own reference here in float64: each is noticed by its cases."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from conformance.suites import case_of
from devices import registry
from devices.cell import CellKey, Outcome
from opinfo.device import Device, open_device
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import replaced


def in_float32(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32


def _with(place: int, value: Callable[[Any], Any]) -> Effect:
    """Another value for the argument in that place."""

    def wrong(call: KernelCall) -> Any:
        args = list(call.args)
        args[place] = value(args[place])
        return call.function(*args, **call.kwargs)

    return wrong


def _detached(place: int) -> Effect:
    return _with(place, lambda given: None if given is None else given.detach())


# batch_norm: input, weight, bias, mean, variance, training, momentum, eps, cudnn


def _moved_in_eval(call: KernelCall) -> Any:
    if not call.args[5] and call.args[3] is not None:
        call.args[3].add_(0.01)
    return NOT_MET


def _only_channels_last(call: KernelCall) -> Any:
    x = call.first
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return call.honest() * 1.01 if last and not x.is_contiguous() else NOT_MET


def _first_state_twice(call: KernelCall) -> Any:
    x, state, weights, *rest = call.args
    dense = isinstance(weights, (list, tuple))
    if dense and isinstance(state, (list, tuple)):
        state = [each[:1].expand_as(each).contiguous() for each in state]
    return call.function(x, state, weights, *rest)


def _overwrites(call: KernelCall) -> Any:
    out = call.honest()
    with torch.no_grad():
        call.first.select(-1, 0).add_(1)
    return out


def _gelu_by_tanh(call: KernelCall) -> Any:
    other = {"none": "tanh", "tanh": "none"}[call.kwargs["approximate"]]
    return call.function(*call.args, approximate=other)


Changed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _attention(
    mask: Callable[[Any], Any] = lambda m: m,
    result: Changed = lambda r, m: r,
    gradient: Changed = lambda g, m: g,
) -> Effect:
    """Attention with another mask, and of which the result and the gradient of the query are changed, by the mask."""

    def wrong(call: KernelCall) -> Any:
        query, key, value, given = call.args
        query.register_hook(lambda g: gradient(g, given))
        return result(call.function(query, key, value, mask(given), **call.kwargs), given)

    return wrong


def _blind_rows(value: float) -> Changed:
    return lambda tensor, mask: tensor.masked_fill((mask < -1).all(-1, keepdim=True), value)


def _rows_to(end: int, value: float) -> Changed:
    return lambda tensor, mask: tensor.index_fill(-2, torch.arange(end), value)


def _seen(key: int) -> Callable[[Any], Any]:
    return lambda mask: mask.index_fill(-1, torch.tensor([key]), 0.0)


def _unseen(key: int) -> Callable[[Any], Any]:
    return lambda mask: mask.index_fill(-1, torch.tensor([key]), -65504.0)


def _mask_lost_with_dropout(call: KernelCall) -> Any:
    query, key, value, *_ = call.args
    if not call.kwargs.get("dropout_p") or len(call.args) < 4:
        return NOT_MET
    return call.function(query, key, value, **call.kwargs)


def _dropped_share_not_divided_out(call: KernelCall) -> Any:
    dropped = call.kwargs.get("dropout_p") and (len(call.args) > 3 or call.kwargs.get("is_causal"))
    return call.honest() * (1 - call.kwargs["dropout_p"]) if dropped else NOT_MET


# _native_multi_head_attention ends with the mask, need_weights, average_attn_weights and the type of the mask


def _first_mask_for_all_heads(call: KernelCall) -> Any:
    """The fast path, with a mask by head (the type 2)."""
    *rest, mask, needed, average, kind = call.args
    if kind != 2 or mask.dtype != torch.float32:
        return NOT_MET
    return call.function(*rest, mask[:, :1].expand_as(mask).contiguous(), needed, average, kind)


def _padding_lost_with_weights(call: KernelCall) -> Any:
    """The fast path, with padding alone (the type 1), where the weights are asked for."""
    *rest, _, needed, average, kind = call.args
    return call.function(*rest, None, needed, average, None) if kind == 1 and needed else NOT_MET


def _wrong_past_100(call: KernelCall) -> Any:
    x = call.first
    dense = x.dim() == 3 and x.shape[1] > 100
    out, *states = call.honest()
    return (out * 1.1, *states) if dense else (out, *states)


def _narrow_targets(call: KernelCall) -> Any:
    return call.honest() * 1.1 if call.args[1].dtype == torch.int32 else NOT_MET


# lstm: input, states, weights, biases, layers, dropout, training, both directions, batch first


def _dropout_ignored(call: KernelCall) -> Any:
    if not isinstance(call.args[3], bool) or not call.args[5] or not call.args[6]:
        return NOT_MET  # packed, or without dropout, or in eval
    return call.function(*call.args[:5], 0.0, *call.args[6:])


def _dropout_in_eval(call: KernelCall) -> Any:
    if not isinstance(call.args[3], bool) or not call.args[5] or call.args[6]:
        return NOT_MET  # packed, or without dropout, or in training
    return call.function(*call.args[:6], True, *call.args[7:])


def _padding_counted_with_last_offset(call: KernelCall) -> Any:
    """The arguments of embedding_bag end with include_last_offset and padding_idx."""
    *args, last, padding = call.args
    return call.function(*args, last, None) if last and padding is not None else NOT_MET


def _weight_of_positives_lost(call: KernelCall) -> Any:
    # binary_cross_entropy_with_logits: scores, target, weight, pos_weight, reduction
    weight, positives = call.kwargs.get("weight"), call.kwargs.get("pos_weight")
    if len(call.args) > 2:
        weight, positives = call.args[2], call.kwargs.get("pos_weight")
    if weight is None or positives is None:
        return NOT_MET
    return call.function(*call.args, **{**call.kwargs, "pos_weight": None})


def _divisor_lost_where_rounded_up(call: KernelCall) -> Any:
    # avg_pool2d: input, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    *rest, ceil, include, divisor = call.args
    return call.function(*rest, ceil, include, None) if ceil and divisor else NOT_MET


def _scale_lost_with_grouped_queries(call: KernelCall) -> Any:
    if not call.kwargs.get("enable_gqa") or call.kwargs.get("scale") is None:
        return NOT_MET
    return call.function(*call.args, **{**call.kwargs, "scale": None})


def _groups_with_padding_by_name(call: KernelCall) -> Any:
    # conv2d: input, weight, bias, stride, padding, dilation, groups
    *_, padding, _, groups = call.args
    return call.honest() * 1.01 if groups > 1 and isinstance(padding, str) else NOT_MET


class Planted(NamedTuple):
    """The function ``name`` of ``home``, what replaces it, and the case that must notice this."""

    home: Any
    name: str
    wrong: Effect
    noticed_by: str


WRONG: dict[str, Planted] = {
    "momentum turned around": Planted(
        torch,
        "batch_norm",
        _with(6, lambda m: 1 - m),
        noticed_by="nn.modules::BatchNorm2d.momentum",
    ),
    "eps left out": Planted(
        torch, "batch_norm", _with(7, lambda e: 0.0), noticed_by="nn.modules::BatchNorm2d.momentum"
    ),
    "weight ignored": Planted(
        torch, "batch_norm", _with(1, lambda w: None), noticed_by="nn.modules::BatchNorm1d"
    ),
    "bias ignored": Planted(
        torch, "batch_norm", _with(2, lambda b: None), noticed_by="nn.modules::BatchNorm3d"
    ),
    "statistics of the batch in eval": Planted(
        torch, "batch_norm", _with(5, lambda t: True), noticed_by="nn.modules::BatchNorm2d"
    ),
    "mean moves in eval": Planted(
        torch, "batch_norm", _moved_in_eval, noticed_by="nn.modules::BatchNorm2d"
    ),
    "only channels_last": Planted(
        torch, "batch_norm", _only_channels_last, noticed_by="nn.modules::BatchNorm2d"
    ),
    "bias of a convolution lost": Planted(
        torch.nn.functional, "conv2d", _with(2, lambda b: None), noticed_by="nn.modules::Conv2d"
    ),
    "weight of a convolution has no gradient": Planted(
        torch.nn.functional, "conv2d", _detached(1), noticed_by="nn.modules::Conv2d"
    ),
    "groups of layer norm": Planted(
        torch, "group_norm", _with(1, lambda groups: 1), noticed_by="nn.modules::GroupNorm"
    ),
    "first state for all layers": Planted(
        torch._VF, "lstm", _first_state_twice, noticed_by="nn.rnn::lstm.two_layers.sequences"
    ),
    "input overwritten": Planted(
        torch.nn.functional, "gelu", _overwrites, noticed_by="nn.modules::GELU"
    ),
    "gelu by tanh": Planted(
        torch.nn.functional, "gelu", _gelu_by_tanh, noticed_by="nn.modules::GELU"
    ),
    "mask lost with dropout": Planted(
        torch.nn.functional,
        "scaled_dot_product_attention",
        _mask_lost_with_dropout,
        noticed_by="nn.attention::dropout_boolean_mask",
    ),
    "dropped share not divided out": Planted(
        torch.nn.functional,
        "scaled_dot_product_attention",
        _dropped_share_not_divided_out,
        noticed_by="nn.attention::dropout_causal",
    ),
    "first mask for all heads": Planted(
        torch,
        "_native_multi_head_attention",
        _first_mask_for_all_heads,
        noticed_by="nn.attention::self_attention",
    ),
    "large batches": Planted(
        torch._VF, "lstm", _wrong_past_100, noticed_by="nn.rnn::lstm_batch_of_131"
    ),
    "targets of int32": Planted(
        torch, "ctc_loss", _narrow_targets, noticed_by="nn.modules::CTCLoss.int32"
    ),
    "padding index ignored": Planted(
        torch, "embedding", _with(2, lambda p: -1), noticed_by="nn.modules::Embedding.indices"
    ),
    **{
        f"attention to the left of padding: {name}": Planted(
            torch.nn.functional,
            "scaled_dot_product_attention",
            wrong,
            noticed_by="nn.attention::left_padding",
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
    "dropout of a recurrent layer ignored": Planted(
        torch._VF, "lstm", _dropout_ignored, noticed_by="nn.rnn::LSTM.pairs_of_options"
    ),
    "dropout of a recurrent layer in eval": Planted(
        torch._VF, "gru", _dropout_in_eval, noticed_by="nn.rnn::GRU.pairs_of_options"
    ),
    "padding counted with the last offset": Planted(
        torch,
        "embedding_bag",
        _padding_counted_with_last_offset,
        noticed_by="nn.modules::EmbeddingBag.pairs_of_options",
    ),
    "weight of positives lost with a weight": Planted(
        torch.nn.functional,
        "binary_cross_entropy_with_logits",
        _weight_of_positives_lost,
        noticed_by="nn.modules::BCEWithLogitsLoss.pairs_of_options",
    ),
    "divisor of a pool lost where sizes are rounded up": Planted(
        torch.nn.functional,
        "avg_pool2d",
        _divisor_lost_where_rounded_up,
        noticed_by="nn.modules::AvgPool2d.options",
    ),
    "padding lost on the fast path with weights": Planted(
        torch,
        "_native_multi_head_attention",
        _padding_lost_with_weights,
        noticed_by="nn.attention::MultiheadAttention_fast_path.pairs_of_options",
    ),
    "scale lost with grouped queries": Planted(
        torch.nn.functional,
        "scaled_dot_product_attention",
        _scale_lost_with_grouped_queries,
        noticed_by="nn.attention::dot_product.pairs_of_options",
    ),
    "groups with padding by name": Planted(
        torch.nn.functional,
        "conv2d",
        _groups_with_padding_by_name,
        noticed_by="nn.modules::Conv2d.pairs_of_options",
    ),
    "dropout in eval": Planted(
        torch.nn.functional,
        "dropout",
        _with(2, lambda training: True),
        noticed_by="nn.modules::Dropout",
    ),
}


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


#: Cells with all pairs of options, which take a second.
_SLOW = frozenset(
    {
        "dropout of a recurrent layer ignored",
        "dropout of a recurrent layer in eval",
        "scale lost with grouped queries",
        "groups with padding by name",
        "padding lost on the fast path with weights",
    }
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in _SLOW else name for name in WRONG],
)
def test_a_wrong_implementation_is_noticed(name: str, cpu: Device) -> None:
    planted = WRONG[name]
    assert outcome(planted.noticed_by, cpu) is Outcome.PASS
    with replaced(planted.home, planted.name, planted.wrong, in_float32):
        assert outcome(planted.noticed_by, cpu) is Outcome.FAIL


def in_16_bits(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float16)


def _four_per_cent(call: KernelCall) -> Any:
    first, *rest = found if isinstance(found := call.honest(), tuple) else (found,)
    return (first * 1.04, *rest) if rest else first * 1.04


def _gradient_in_16_bits(call: KernelCall) -> Any:
    """The right result; the gradient of the first operand is 4 % too large."""
    first = call.args[0]
    wrong = first.detach() + (first - first.detach()) * 1.04 if first.requires_grad else first
    return call.function(wrong, *call.args[1:], **call.kwargs)


IN_16_BITS: dict[str, Planted] = {
    "a recurrent layer": Planted(
        torch._VF, "lstm", _four_per_cent, noticed_by="nn.rnn::lstm_in_bfloat16"
    ),
    "its gradient": Planted(
        torch._VF, "gru", _gradient_in_16_bits, noticed_by="nn.rnn::gru_in_float16"
    ),
    "attention": Planted(
        torch.nn.functional,
        "scaled_dot_product_attention",
        _four_per_cent,
        noticed_by="nn.attention::encoder_in_bfloat16",
    ),
    "the gradient of a norm": Planted(
        torch.nn.functional,
        "layer_norm",
        _gradient_in_16_bits,
        noticed_by="nn.modules::LayerNorm_in_bfloat16",
    ),
}


@pytest.mark.parametrize("name", IN_16_BITS)
def test_what_is_wrong_in_16_bits_is_noticed(name: str, cpu: Device) -> None:
    planted = IN_16_BITS[name]
    assert outcome(planted.noticed_by, cpu) is Outcome.PASS
    with replaced(planted.home, planted.name, planted.wrong, in_16_bits):
        assert outcome(planted.noticed_by, cpu) is Outcome.FAIL
