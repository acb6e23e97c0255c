"""Bugs that no single op has: functions of torch that misbehave in this process for a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from unittest import mock

import torch
import torch.utils.checkpoint

from conformance.suites.compile import comparing
from tests.bugs.wrong_compilers import BACKENDS, SAME_GRAPH, STALE
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import replaced


def _two_halves(call: KernelCall) -> Any:
    """Two ascending halves."""
    if call.first <= 1:
        return NOT_MET
    return torch.cat([half.sort().values for half in call.honest().chunk(2)])


def _smallest_number(call: KernelCall) -> Any:
    return call.honest().fill_(-(2**63))


def _first_category(call: KernelCall) -> Any:
    return call.honest().zero_()


def _past_the_end(call: KernelCall) -> Any:
    """Now and then a category that does not exist."""
    drawn = call.honest()
    drawn.view(-1)[::1000] = call.first.shape[-1] + 1
    return drawn


def _refuses_long_weights(call: KernelCall) -> Any:
    """An exception stands for the end of the process."""
    if call.first.shape[-1] > 2**14:
        raise RuntimeError("too many threads for a threadgroup")
    return NOT_MET


def _without_weights(call: KernelCall) -> Any:
    """The weights are ignored where nothing is replaced."""
    weights, count, *replacement = call.args
    if call.kwargs.get("replacement", any(replacement)):
        return NOT_MET
    return call.function(torch.ones_like(weights), count, *replacement, **call.kwargs)


def _same_again(call: KernelCall) -> Any:
    generator = torch.Generator(call.kwargs.get("device", "cpu")).manual_seed(1)
    return call.function(*call.args, **{**call.kwargs, "generator": generator})


def _sometimes_zero(call: KernelCall) -> Any:
    call.honest().view(-1)[::5000] = 0
    return call.first


def _zero_after_many_calls() -> Effect:
    """Right for the first thousand views."""
    views = 0

    def effect(call: KernelCall) -> Any:
        nonlocal views
        views += call.first.storage_offset() > 0
        return NOT_MET if views < 1000 else 0

    return effect


def _without_channels_last(call: KernelCall) -> Any:
    """The inputs of a reentrant checkpoint, unless one is channels_last."""
    last = torch.channels_last
    if any(t.dim() == 4 and t.is_contiguous(memory_format=last) for t in call.inputs):
        raise RuntimeError("set_sizes_and_strides is not allowed on a Tensor created from .data")
    return NOT_MET


# The CPU is its own reference here, in float64: what follows misbehaves in float32 alone.


def _lstm_but_not_of_two_layers(call: KernelCall) -> Any:
    """Dense sequences, batch first, in two layers."""
    x, state, weights, *rest = call.args
    dense = not isinstance(weights, torch.Tensor) and isinstance(state, (list, tuple))
    if dense and len(rest) == 6 and rest[1] == 2 and rest[5] and x.dtype == torch.float32:
        raise RuntimeError("unknown error of the library")
    return NOT_MET


def _is_lstm(call: KernelCall) -> bool:
    """Whether an LSTM of torch is called with sequences that are not packed, in float32."""
    x, state = call.args[:2]
    return isinstance(state, (list, tuple)) and x.dtype == torch.float32


def _lstm_without_dropout_in_the_backward(call: KernelCall) -> Any:
    """The gradients of an LSTM are those of one without dropout between its layers."""
    if not _is_lstm(call) or not call.args[5] or call.args[4] < 2 or not call.args[6]:
        return NOT_MET
    results = call.honest()
    others = call.function(*call.args[:5], 0.0, *call.args[6:])
    return tuple(
        one.detach() + (other - other.detach()) for one, other in zip(results, others, strict=True)
    )


class _NeedsEveryCotangent(torch.autograd.Function):
    """Refuses a backward in which one of the outputs has no gradient."""

    @staticmethod
    def forward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(each.clone() for each in given)

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if given[0] is None:
            raise RuntimeError("the gradient of the output is not defined")
        return given


def _lstm_needs_the_output(call: KernelCall) -> Any:
    """The backward of an LSTM raises if only its states have gradients."""
    if not _is_lstm(call):
        return NOT_MET
    return _NeedsEveryCotangent.apply(*call.honest())  # type: ignore[no-untyped-call]


def _lstm_directions_swapped(call: KernelCall) -> Any:
    """An LSTM of both directions takes the weights of one direction for those of the other one."""
    if not _is_lstm(call) or not call.args[7]:
        return NOT_MET
    x, state, weights, bias, *rest = call.args
    each = 4 if bias else 2
    parts = [weights[n : n + each] for n in range(0, len(weights), each)]
    swapped = [w for n in range(len(parts)) for w in parts[n ^ 1]]
    return call.function(x, state, swapped, bias, *rest)


class _RefusesToGoBack(torch.autograd.Function):
    """Refuses every backward."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("failed to infer result types")


def _lstm_batch_first_has_no_backward(call: KernelCall) -> Any:
    if not _is_lstm(call) or not call.args[8]:
        return NOT_MET
    output, *states = call.honest()
    return (_RefusesToGoBack.apply(output), *states)  # type: ignore[no-untyped-call]


def _zero_in_the_second_half(call: KernelCall) -> Any:
    """The second half of a permutation of 100,000 numbers and more is zero."""
    drawn = call.honest()
    if drawn.numel() >= 100_000:
        drawn[drawn.numel() // 2 :] = 0
    return drawn


def _refuses_an_odd_number_of_short_weights(call: KernelCall) -> Any:
    """One number drawn with replacement from an odd number of float16 weights reads misaligned memory."""
    weights, count, *replacement = call.args
    replaced_ = call.kwargs.get("replacement", any(replacement))
    if weights.dtype == torch.float16 and weights.shape[-1] % 2 and count == 1 and replaced_:
        raise RuntimeError("misaligned address")
    return NOT_MET


def _beta_is_1(call: KernelCall) -> Any:
    """addmm with a sparse matrix takes each beta but 0 for 1."""
    if call.args[1].layout == torch.strided or not call.kwargs.get("beta", 1):
        return NOT_MET
    return call.function(*call.args, **{**call.kwargs, "beta": 1})


def _group_norm_of_a_leaf(call: KernelCall) -> Any:
    """The gradient is NaN where the input is not a leaf: in a stack."""
    x = call.first
    if x.dtype == torch.float32 and x.requires_grad and not x.is_leaf:
        x.register_hook(lambda grad: grad * torch.nan)
    return NOT_MET


def _batch_norm_after_another() -> Effect:
    """NaN in columns whose elements are equal, from the second call on."""
    calls = count(1)

    def effect(call: KernelCall) -> Any:
        x = call.first
        if x.dtype != torch.float32 or x.dim() < 2 or not x.numel():
            return NOT_MET
        columns = x.detach().movedim(1, 0).flatten(1)
        constant = (columns == columns[:, :1]).all(1)
        if next(calls) == 1 or not constant.any():
            return NOT_MET
        return call.honest().masked_fill(constant.view(1, -1, *[1] * (x.dim() - 2)), torch.nan)

    return effect


def _spoilt_attention(holds: Callable[[torch.Tensor, Any], bool], *, gradient: bool) -> Effect:
    """Attention whose result, or whose gradient, is wrong where that holds of the query and the mask."""

    def attention(call: KernelCall) -> Any:
        query, mask = call.first, call.kwargs.get("attn_mask", dict(enumerate(call.args)).get(3))
        if query.dtype != torch.float32 or not holds(query, mask):
            return NOT_MET
        if not gradient:
            return call.honest() * 1.1
        if query.requires_grad and torch.is_grad_enabled():
            query.register_hook(lambda grad: grad * torch.nan)
        return NOT_MET

    return attention


def _masks_rows(query: torch.Tensor, mask: Any) -> bool:
    if mask is None or mask.dim() != 4:
        return False
    hidden = ~mask if mask.dtype == torch.bool else mask <= -60000
    return bool(hidden.all(-1).any())


def _data_reach_the_views(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """New data are written to the old memory, which the views of the tensor read."""
    if tensor.shape == data.shape:
        tensor.set_(tensor.detach().copy_(data))
    else:
        torch._C.TensorBase.data.__set__(tensor, data)  # type: ignore[attr-defined]


#: By name: the property of tensors, and what sets it instead.
PROPERTIES: Final[dict[str, tuple[str, Callable[[torch.Tensor, Any], None]]]] = {
    "new_data_reach_the_views": ("data", _data_reach_the_views),
}

#: By name: the function of torch, and its fault.
PATCHES: Final[dict[str, tuple[Any, str, Effect]]] = {
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
    "lstm_without_dropout_in_the_backward": (
        torch._VF,
        "lstm",
        _lstm_without_dropout_in_the_backward,
    ),
    "lstm_needs_a_gradient_of_the_output": (torch._VF, "lstm", _lstm_needs_the_output),
    "lstm_of_both_directions_swaps_them": (torch._VF, "lstm", _lstm_directions_swapped),
    "lstm_batch_first_has_no_backward": (torch._VF, "lstm", _lstm_batch_first_has_no_backward),
    "long_randperm_ends_in_zeros": (torch, "randperm", _zero_in_the_second_half),
    "multinomial_refuses_odd_short_weights": (
        torch,
        "multinomial",
        _refuses_an_odd_number_of_short_weights,
    ),
    "sparse_addmm_takes_beta_for_1": (torch, "addmm", _beta_is_1),
    "group_norm_in_a_stack_gives_nan": (torch, "group_norm", _group_norm_of_a_leaf),
    "batch_norm_of_equal_rows_gives_nan": (torch, "batch_norm", _batch_norm_after_another()),
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
    "item_of_a_view_after_many_calls": (torch.Tensor, "item", _zero_after_many_calls()),
    **{name: (comparing, "backend_of", effect) for name, effect in BACKENDS.items()},
    SAME_GRAPH: (torch, "compile", STALE),
}


@contextmanager
def patched(name: str) -> Iterator[None]:
    """With a fault in front of that function of torch, or with another property of tensors, for a block."""
    if name in PROPERTIES:
        attribute, write = PROPERTIES[name]
        read = getattr(torch.Tensor, attribute).__get__
        with mock.patch.object(torch.Tensor, attribute, property(read, write)):
            yield
        return
    with replaced(*PATCHES[name]):
        yield
