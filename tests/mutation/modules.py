"""Mutants of modules: of the kernels that modules reach, of whole recurrent layers, and of attention.

The cases of ``nn`` should notice them. The name of a mutant describes it completely: ``op|kind|detail|condition``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from random import Random
from typing import Any, NamedTuple

import torch

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase, not_here
from conformance.suites import planned_cases
from tests.mutation.items import device, is_refused
from tests.mutation.kernels import Result
from tests.mutation.module_probe import different
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import overload_of, planted
from tests.planting.seen import Names
from tests.planting.tensors import dense_strides, is_expanded


class Spec(NamedTuple):
    op: str
    kind: str
    detail: str
    condition: str

    @property
    def name(self) -> str:
        return "|".join(self)


# -- when: conditions of a call of a kernel, by its first operand


def _first(call: KernelCall) -> torch.Tensor:
    return call.read[0].tensor if call.read else torch.zeros(())


CONDITIONS: dict[str, Callable[[KernelCall], bool]] = {
    "any call": lambda call: True,
    "channels_last": lambda call: (
        _first(call).dim() == 4
        and not _first(call).is_contiguous()
        and _first(call).is_contiguous(memory_format=torch.channels_last)
    ),
    "expanded": lambda call: is_expanded(_first(call)),
    "not contiguous": lambda call: not _first(call).is_contiguous(),
    "contiguous": lambda call: _first(call).is_contiguous(),
    "with an offset": lambda call: _first(call).storage_offset() > 0,
    "second operand not contiguous": lambda call: (
        len(call.read) > 1 and not call.read[1].tensor.is_contiguous()
    ),
    "more than 64 elements": lambda call: _first(call).numel() > 64,
    "an odd last size": lambda call: _first(call).dim() > 0 and _first(call).shape[-1] % 2 == 1,
    "one operand less": lambda call: any(
        call.values[a.name] is None
        for a in call.schema.arguments
        if "Optional[Tensor]" in str(a.type)
    ),
    "in training": lambda call: bool(call.values.get("training", call.values.get("train", False))),
}


# -- what: of kernels


def _results(result: Any) -> list[torch.Tensor]:
    found = result if isinstance(result, (tuple, list)) else [result]
    return [each for each in found if isinstance(each, torch.Tensor) and each.is_floating_point()]


def _spoilt(change: Callable[[torch.Tensor], None]) -> Callable[[KernelCall, int], Any]:
    def does(call: KernelCall, place: int) -> Any:
        result = call.honest()
        floats = [each for each in _results(result) if each.numel() > 0 and not is_expanded(each)]
        if not floats:
            return NOT_MET
        change(floats[place % len(floats)])
        return result

    return does


def _last_rows_lost(x: torch.Tensor) -> None:
    if x.dim() == 0 or x.shape[0] == 1:
        x.mul_(0)
    else:
        x[x.shape[0] // 2 :].zero_()


def _scaled_by(factor: float) -> Callable[[torch.Tensor], None]:
    def change(x: torch.Tensor) -> None:
        x.mul_(factor)

    return change


def _zeroed(x: torch.Tensor) -> None:
    x.zero_()


def _shortened(x: torch.Tensor) -> None:
    x.copy_(x.bfloat16().to(x.dtype))


def _rolled(x: torch.Tensor) -> None:
    x.copy_(x.clone().roll(1, -1) if x.dim() else x * 2)


def _last_one(x: torch.Tensor) -> None:
    x[tuple(size - 1 for size in x.shape)] += 1


RESULTS: dict[str, Callable[[KernelCall, int], Any]] = {
    "scaled by 1.01": _spoilt(_scaled_by(1.01)),
    "doubled": _spoilt(_scaled_by(2)),
    "second half lost": _spoilt(_last_rows_lost),
    "rolled": _spoilt(_rolled),
    "last element": _spoilt(_last_one),
    "zeros": _spoilt(_zeroed),
    "in bfloat16": _spoilt(_shortened),
}


def _read_as_dense(call: KernelCall, place: int) -> Any:
    read = [each for each in call.read if each.tensor.is_floating_point()]
    if not read:
        return NOT_MET
    operand = read[place % len(read)]
    x = operand.tensor
    if x.is_contiguous() or x.numel() == 0:
        return NOT_MET
    room = x.untyped_storage().nbytes() // x.itemsize
    if is_expanded(x) or x.storage_offset() + x.numel() > room:
        wrong = x.clone(memory_format=torch.contiguous_format)
        wrong.view(-1)[1:].zero_()
    else:
        wrong = x.as_strided(x.shape, dense_strides(x.shape), x.storage_offset())
    return call.honest_with(operand, wrong)


def _overwritten(call: KernelCall, place: int) -> Any:
    read = [each.tensor for each in call.read if each.tensor.is_floating_point()]
    result = call.honest()
    if not read or is_expanded(read[place % len(read)]):
        return NOT_MET
    read[place % len(read)].add_(1)
    return result


def _argument(call: KernelCall, name: str) -> Any:
    """Another value for an argument that is not a tensor, or None for an optional tensor."""
    value = call.values[name]
    if isinstance(value, torch.Tensor) or value is None:
        return NOT_MET if value is None else call.honest(**{name: None})
    if isinstance(value, bool):
        return call.honest(**{name: not value})
    if isinstance(value, int):
        return call.honest(**{name: value + 1 if value != -100 and value >= 0 else -2})
    if isinstance(value, float):
        return call.honest(**{name: value * 1.5 + 0.01})
    if isinstance(value, list) and value and all(isinstance(each, bool) for each in value):
        result = call.honest()
        if not all(value):  # what is asked for alone is zeros
            for each in _results(result):
                each.zero_()
            return result
        return NOT_MET
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
        other = [value[0] + 1, *value[1:]]
        return call.honest(**{name: other}) if value[0] != value[-1] or len(value) == 1 else NOT_MET
    return NOT_MET


def arguments_of(op: str) -> list[str]:
    arguments = overload_of(op)._schema.arguments
    plain = [a.name for a in arguments if not str(a.type).startswith(("Tensor", "List[Tensor"))]
    silent = (
        "dtype",
        "layout",
        "device",
        "pin_memory",
        "memory_format",
        "generator",
        "non_blocking",
    )
    return [each for each in plain if each not in silent]


def effect_of(spec: Spec) -> Callable[[KernelCall], Any]:
    holds = CONDITIONS[spec.condition]

    def does(call: KernelCall) -> Any:
        if not holds(call):
            return NOT_MET
        if spec.kind == "argument":
            return _argument(call, spec.detail)
        if spec.kind == "read as dense":
            return _read_as_dense(call, int(spec.detail))
        if spec.kind == "overwritten":
            return _overwritten(call, int(spec.detail))
        return RESULTS[spec.kind](call, int(spec.detail))

    return does


# -- what: of ops that are made of others, which are replaced above autograd

ABOVE = "AutogradPrivateUse1"
Run = Callable[..., Any]
Wrong = Callable[[dict[str, Any], Run], Any]


def _changed(**functions: Callable[[dict[str, Any]], Any]) -> Wrong:
    """Changed arguments, computed from all arguments of the call."""

    def does(given: dict[str, Any], run: Run) -> Any:
        new = {name: function(given) for name, function in functions.items()}
        if all(new[name] is given[name] for name in new):
            return NOT_MET
        return run(**new)

    return does


def _way(given: dict[str, Any]) -> int:
    return 2 if given["bidirectional"] else 1


def _states(given: dict[str, Any]) -> list[torch.Tensor]:
    hx = given["hx"]
    return list(hx) if isinstance(hx, (list, tuple)) else [hx]


def _as_given(given: dict[str, Any], states: Sequence[torch.Tensor]) -> Any:
    return list(states) if isinstance(given["hx"], (list, tuple)) else states[0]


def _with_states(
    change: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor], *, more_layers: bool = False
) -> Wrong:
    def does(given: dict[str, Any], run: Run) -> Any:
        if more_layers and given["num_layers"] == 1:
            return NOT_MET
        return run(hx=_as_given(given, [change(each, given) for each in _states(given)]))

    return does


def _with_weights(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Wrong:
    def does(given: dict[str, Any], run: Run) -> Any:
        weights = list(given["params"])
        changed = change(weights)
        if all(a is b for a, b in zip(changed, weights)):
            return NOT_MET
        return run(params=changed)

    return does


def _outputs(change: Callable[[list[torch.Tensor], dict[str, Any]], Any]) -> Wrong:
    def does(given: dict[str, Any], run: Run) -> Any:
        return change(list(run()), given)

    return does


def _gates(weight: torch.Tensor) -> torch.Tensor:
    parts = weight.chunk(4 if weight.shape[0] % 4 == 0 else 3)
    return torch.cat([parts[1], parts[0], *parts[2:]])


def _no_last_step(parts: list[torch.Tensor], given: dict[str, Any]) -> Any:
    first = parts[0]
    return (torch.cat([first[:-1], first[-1:] * 0]), *parts[1:])


def _last_layer_twice(parts: list[torch.Tensor], given: dict[str, Any]) -> Any:
    if parts[1].shape[0] == 1:
        return NOT_MET
    return (parts[0], torch.cat([parts[1][-1:], parts[1][1:]]), *parts[2:])


def _directions_exchanged(parts: list[torch.Tensor], given: dict[str, Any]) -> Any:
    if not given["bidirectional"]:
        return NOT_MET
    half = parts[0].shape[-1] // 2
    return (torch.cat([parts[0][..., half:], parts[0][..., :half]], -1), *parts[1:])


RECURRENT: dict[str, Wrong] = {
    "state of the first layer": _with_states(
        lambda x, given: x[: _way(given)].repeat(given["num_layers"], 1, 1), more_layers=True
    ),
    "state of the last layer is zero": _with_states(
        lambda x, given: torch.cat([x[: -_way(given)], x[-_way(given) :] * 0])
    ),
    "states without gradient": _with_states(lambda x, given: x.detach()),
    "states of the first sequence": _with_states(
        lambda x, given: x[:, :1].expand_as(x).contiguous()
    ),
    "states are zero": _with_states(lambda x, given: x * 0),
    "gates exchanged": _with_weights(lambda w: [_gates(each) for each in w]),
    "biases of the input lost": _with_weights(
        lambda w: [each * 0 if each.dim() == 1 and n % 4 == 2 else each for n, each in enumerate(w)]
    ),
    "last weights without gradient": _with_weights(lambda w: [*w[:-1], w[-1].detach()]),
    "first weight without gradient": _with_weights(lambda w: [w[0].detach(), *w[1:]]),
    "weights of the last bias are halved": _with_weights(lambda w: [*w[:-1], w[-1] * 0.5]),
    "last step lost": _outputs(_no_last_step),
    "states of layers exchanged": _outputs(_last_layer_twice),
    "directions exchanged": _outputs(_directions_exchanged),
    "output without gradient": _outputs(lambda parts, given: (parts[0].detach(), *parts[1:])),
    "last state without gradient": _outputs(lambda parts, given: (*parts[:-1], parts[-1].detach())),
    "gradient of the last state doubled": _outputs(
        lambda parts, given: (*parts[:-1], parts[-1] * 2 - parts[-1].detach())
    ),
}
LAYERS = (
    "lstm.input",
    "lstm.data",
    "gru.input",
    "gru.data",
    "rnn_tanh.input",
    "rnn_relu.input",
    "rnn_tanh.data",
)


def _if(holds: Callable[[dict[str, Any]], bool], wrong: Wrong) -> Wrong:
    return lambda given, run: wrong(given, run) if holds(given) else NOT_MET


def _has_mask(given: dict[str, Any]) -> bool:
    return given["attn_mask"] is not None


def _lengths(given: dict[str, Any]) -> tuple[int, int]:
    return given["query"].shape[-2], given["key"].shape[-2]


def _from_the_end(given: dict[str, Any], run: Run) -> Any:
    queries, keys = _lengths(given)
    if not given["is_causal"] or queries >= keys:
        return NOT_MET
    seen = torch.ones(queries, keys, dtype=torch.bool, device=given["query"].device)
    return run(attn_mask=seen.tril(keys - queries), is_causal=False)


def _one_more(given: dict[str, Any], run: Run) -> Any:
    if not given["is_causal"]:
        return NOT_MET
    seen = torch.ones(*_lengths(given), dtype=torch.bool, device=given["query"].device)
    return run(attn_mask=seen.tril(1), is_causal=False)


def _scaled(given: dict[str, Any], run: Run) -> Any:
    """Use the scale of head_dim 64, whatever the head_dim is."""
    if given["scale"] is not None:
        return run(scale=None)
    return run(scale=0.125) if given["query"].shape[-1] != 64 else NOT_MET


def _heads_in_turns(given: dict[str, Any], run: Run) -> Any:
    """Grouped queries use the heads of the keys in turns instead of in order."""
    heads, kept = given["query"].shape[1], given["key"].shape[1]
    if not given["enable_gqa"] or heads == kept or kept == 1:
        return NOT_MET
    again = {name: given[name].repeat(1, heads // kept, 1, 1) for name in ("key", "value")}
    return run(**again, enable_gqa=False)


def _tile_lost(given: dict[str, Any], run: Run) -> Any:
    keys = _lengths(given)[1]
    if keys <= 128 or keys % 128 == 0 or given["is_causal"] or _has_mask(given):
        return NOT_MET
    whole = keys // 128 * 128
    return run(key=given["key"][..., :whole, :], value=given["value"][..., :whole, :])


def _nan_for_hidden(given: dict[str, Any], run: Run) -> Any:
    mask = given["attn_mask"]
    if mask is None or mask.dtype != torch.bool:
        return NOT_MET
    return run().masked_fill(~mask.any(-1, keepdim=True), float("nan"))


def _mean_for_hidden(given: dict[str, Any], run: Run) -> Any:
    mask = given["attn_mask"]
    if mask is None or mask.dtype != torch.bool:
        return NOT_MET
    out = run()
    return (
        out
        + (~mask.any(-1, keepdim=True)) * given["value"].mean(-2, keepdim=True)[:, : out.shape[1]]
    )


ATTENTION: dict[str, Wrong] = {
    "mask ignored": _if(_has_mask, _changed(attn_mask=lambda given: None)),
    "boolean mask turned around": _if(
        lambda given: _has_mask(given) and given["attn_mask"].dtype == torch.bool,
        lambda given, run: run(attn_mask=~given["attn_mask"]),
    ),
    "mask of the first batch": _if(
        lambda given: _has_mask(given) and given["attn_mask"].dim() == 4,
        lambda given, run: run(attn_mask=given["attn_mask"][:1]),
    ),
    "mask of the first head": _if(
        lambda given: _has_mask(given) and given["attn_mask"].dim() >= 3,
        lambda given, run: run(attn_mask=given["attn_mask"][..., :1, :, :]),
    ),
    "mask of the first query": _if(
        _has_mask, lambda given, run: run(attn_mask=given["attn_mask"][..., :1, :])
    ),
    "mask without gradient": _if(
        lambda given: _has_mask(given) and given["attn_mask"].requires_grad,
        lambda given, run: run(attn_mask=given["attn_mask"].detach()),
    ),
    "gradient of the mask doubled": _if(
        lambda given: _has_mask(given) and given["attn_mask"].requires_grad,
        lambda given, run: run(attn_mask=given["attn_mask"] * 2 - given["attn_mask"].detach()),
    ),
    "causal from the end": _from_the_end,
    "causal sees one more": _one_more,
    "not causal": _if(
        lambda given: bool(given["is_causal"]), lambda given, run: run(is_causal=False)
    ),
    "scale of another head": _scaled,
    "heads in turns": _heads_in_turns,
    "last tile of keys lost": _tile_lost,
    "NaN for rows without keys": _nan_for_hidden,
    "mean for rows without keys": _mean_for_hidden,
    "permuted query misread": _if(
        lambda given: not given["query"].is_contiguous() and given["query"].shape[-1] >= 64,
        lambda given, run: run(query=given["query"].flip(-2)),
    ),
    "permuted key misread": _if(
        lambda given: not given["key"].is_contiguous(),
        lambda given, run: run(key=given["key"].flip(-1)),
    ),
    "expanded value misread": _if(
        lambda given: is_expanded(given["value"]),
        lambda given, run: run(
            value=given["value"] * torch.arange(2, device=given["value"].device)[0]
        ),
    ),
    "gradient of the key lost": lambda given, run: run(key=given["key"].detach()),
    "gradient of the value scaled": lambda given, run: run(
        value=given["value"] * 1.1 - given["value"].detach() * 0.1
    ),
    "gradient of the query for long keys": _if(
        lambda given: _lengths(given)[1] > 64,
        lambda given, run: run(query=given["query"] * 1.1 - given["query"].detach() * 0.1),
    ),
    "narrow values": _if(
        lambda given: given["value"].shape[-1] != given["query"].shape[-1],
        lambda given, run: run() * 1.01,
    ),
    "rows after the 64th": _if(
        lambda given: _lengths(given)[0] > 64,
        lambda given, run: torch.cat([run()[..., :64, :], run()[..., 64:, :] * 0], -2),
    ),
    "few keys": _if(lambda given: _lengths(given)[1] < 4, lambda given, run: run() * 1.01),
}


def above(wrong: Wrong) -> Effect:
    """The effect on an op that is composed of other ops: it is planted above autograd."""
    return lambda call: wrong(call.values, call.honest)


# -- breeding


@cache
def cases() -> dict[BehaviourCase, frozenset[str]]:
    """The cases of ``nn`` in plan quick that are not refused, with the overloads that each reaches."""
    found, on = {}, device()
    for case in planned_cases(contract.load(), more=False):
        if case.clause.startswith("nn.") and not not_here(case, on.descriptor.capabilities, 2):
            with Names() as seen:
                refused = is_refused(case)
            if not refused:
                found[case] = frozenset(seen.names)
    return found


_KERNELS = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
_adaptive_avg_pool3d_backward _ctc_loss _ctc_loss_backward _embedding_bag _embedding_bag_backward
_embedding_bag_forward_only _log_softmax _log_softmax_backward_data _pack_padded_sequence
_prelu_kernel _prelu_kernel_backward _safe_softmax _softmax _softmax_backward_data
_thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell
_thnn_fused_lstm_cell_backward_impl adaptive_max_pool2d adaptive_max_pool2d_backward
adaptive_max_pool3d adaptive_max_pool3d_backward addmm avg_pool2d avg_pool2d_backward avg_pool3d
avg_pool3d_backward baddbmm binary_cross_entropy_backward bmm constant_pad_nd convolution
convolution_backward elu elu_backward embedding embedding_dense_backward
fractional_max_pool2d_backward fractional_max_pool3d_backward gelu gelu_backward glu glu_backward
hardshrink hardshrink_backward hardswish hardswish_backward hardtanh hardtanh_backward huber_loss
huber_loss_backward leaky_relu leaky_relu_backward linalg_vector_norm log_sigmoid_backward
log_sigmoid_forward max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
max_pool3d_with_indices_backward mish mish_backward mse_loss mse_loss_backward multi_margin_loss
multi_margin_loss_backward multilabel_margin_loss_backward multilabel_margin_loss_forward
native_batch_norm native_batch_norm_backward native_group_norm native_group_norm_backward
native_layer_norm native_layer_norm_backward nll_loss2d_backward nll_loss2d_forward
nll_loss_backward nll_loss_forward reflection_pad1d reflection_pad1d_backward reflection_pad2d
reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward relu replication_pad1d
replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
replication_pad3d_backward select_backward sigmoid sigmoid_backward silu silu_backward
slice_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward
softplus softplus_backward softshrink softshrink_backward tanh tanh_backward threshold
threshold_backward upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
upsample_nearest2d_backward upsample_nearest2d upsample_bicubic2d im2col col2im
"""
#: Kernels that modules reach, but for those that every op needs.
KERNELS = tuple(_KERNELS.split())


def bred(seed: int) -> Iterator[Spec]:
    rng, found = Random(seed), set()
    while True:
        share = rng.random()
        if share < 0.2:
            spec = Spec(rng.choice(LAYERS), "recurrent", rng.choice([*RECURRENT]), "any call")
        elif share < 0.4:
            name = "scaled_dot_product_attention"
            spec = Spec(name, "attention", rng.choice([*ATTENTION]), "any call")
        else:
            spec = _of_kernel(rng)
        if spec not in found:
            found.add(spec)
            yield spec


def _of_kernel(rng: Random) -> Spec:
    op = rng.choice(KERNELS)
    condition = rng.choice([*CONDITIONS]) if rng.random() < 0.6 else "any call"
    draw = rng.random()
    if draw < 0.35 and (names_of := arguments_of(op)):
        return Spec(op, "argument", rng.choice(names_of), condition)
    kind = rng.choice([*RESULTS, "read as dense", "overwritten"])
    return Spec(op, kind, str(rng.randrange(3)), condition)


def names(seed: int, count: int) -> list[str]:
    """The names of mutants 0 to count - 1. No name occurs twice."""
    return [spec.name for spec, _ in zip(bred(seed), range(count))]


# -- trying


def plant(spec: Spec) -> AbstractContextManager[Any]:
    if spec.kind == "recurrent":
        return planted([spec.op], above(RECURRENT[spec.detail]), ABOVE)
    if spec.kind == "attention":
        return planted([spec.op], above(ATTENTION[spec.detail]), ABOVE)
    return planted([spec.op], effect_of(spec))


def cases_for(spec: Spec) -> list[BehaviourCase]:
    if spec.kind == "recurrent":
        return [
            case
            for case in cases()
            if case.clause == "nn.rnn" or case.name in ("RNN", "LSTM", "GRU")
        ]
    if spec.kind == "attention":
        modules = ("TransformerEncoderLayer", "MultiheadAttention")
        return [case for case in cases() if case.clause == "nn.attention" or case.name in modules]
    return [case for case, reached in cases().items() if spec.op in reached]


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    spec = Spec(*name.split("|"))
    told = f"{spec.kind}: {spec.detail}"
    found = Result(f"n{number:04d}", "nn", spec.op, spec.condition, told, "")
    tell(found)
    failures: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases_for(spec):
            found.trying = case.clause
            tell(found)
            with plant(spec) as run:
                refused = is_refused(case)
            found.reached += run.reached
            failures += run.failures[:1]
            if refused and run.reached and found.credit([case.clause]):
                found.note = case.name
                return found
        if found.not_gating:
            return found
        found.note = different(lambda: plant(spec))
    if found.note:
        found.result = "survived" if found.reached else "not_reached"
    elif failures and not found.reached:
        found.result, found.note = "broken", failures[0]
    else:
        found.result = "equivalent"
    return found
