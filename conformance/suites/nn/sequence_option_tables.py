"""The options of recurrent layers and of attention whose values are combined.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from conformance.suites.nn.covering import Combination
from conformance.suites.nn.option_table import (
    BATCH,
    NO_YES,
    Levels,
    OptionTable,
    floats,
    without,
)
from opinfo.module_catalog import ModuleSample

# -- recurrent layers


def _recurrent(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "form", "states")
    form, first = options["form"], options["batch_first"]
    x = torch.randn(6, 3, 5, generator=draw)
    x = x.transpose(0, 1).contiguous() if first else x
    given: Any = x.requires_grad_()
    if form == "one sequence":
        given = x.detach().select(0 if first else 1, 0).contiguous().requires_grad_()
    lengths = {"sorted": [6, 4, 1], "unsorted": [2, 6, 3]}.get(form)
    if lengths is not None:
        packed = pack_padded_sequence(
            x.detach(), torch.tensor(lengths), first, enforce_sorted=form == "sorted"
        )
        given = PackedSequence(packed.data.requires_grad_(), *packed[1:])
    if not options["states"]:
        return ModuleSample((5, 7), more, (given,), {})
    layers = options["num_layers"] * (2 if options["bidirectional"] else 1)
    batch = () if form == "one sequence" else (3,)
    widths = [options["proj_size"] or 7, 7] if "proj_size" in options else [7]
    states = tuple(floats(draw, layers, *batch, width) for width in widths)
    return ModuleSample((5, 7), more, (given, states if len(states) > 1 else states[0]), {})


def _not_recurrent(options: Combination) -> bool:
    share = options.get("dropout", 0.0)
    if share and options.get("num_layers", 2) == 1:
        return True  # torch warns that this dropout does nothing
    # A share of 1 drops everything, and is determined; another one is determined where it must be ignored.
    return bool(0 < share < 1) and options.get("run", "eval") == "training"


_RECURRENT: Levels = {
    "num_layers": (1, 2, 3),
    "bidirectional": NO_YES,
    "batch_first": NO_YES,
    "bias": (True, False),
    "dropout": (0.0, 1.0, 0.5),
    "form": ("padded", "unsorted", "sorted", "one sequence"),
    "states": NO_YES,
}


# -- attention


def _masks(
    options: Combination,
    draw: torch.Generator,
    batch: tuple[int, ...],
    heads: int,
    rows: int,
    keys: int,
) -> dict[str, Any]:
    """Returns the masks of a call of MultiheadAttention. Each row has a key that it may attend to."""
    hidden = torch.rand(*batch, heads, rows, keys, generator=draw) > 0.6
    hidden[..., 0] = False
    kind, padding = options["mask"], options["padding"]
    found: dict[str, Any] = {}
    if kind == "causal":
        found = {"attn_mask": torch.ones(rows, keys, dtype=torch.bool).triu(1), "is_causal": True}
    elif kind != "none":
        mask = hidden.flatten(0, -3) if "by head" in kind else hidden.flatten(0, -3)[0]
        found = {"attn_mask": _as_numbers(mask, draw) if "float" in kind else mask}
    if padding != "none":
        padded = torch.zeros(*batch, keys, dtype=torch.bool)
        padded[..., -2:] = torch.rand(*batch, 2, generator=draw) > 0.3
        padded.view(-1)[-1] = True
        found["key_padding_mask"] = _as_numbers(padded, draw) if padding == "float" else padded
    return found


def _as_numbers(hidden: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(hidden.shape, generator=draw).masked_fill(hidden, -torch.inf)


#: The number of heads, and the width of the queries.
_WIDTHS = {1: 5, 2: 8, 3: 9, 4: 128}


def _multihead(options: Combination, draw: torch.Generator) -> ModuleSample:
    heads, operands = options["heads"], options["operands"]
    width, first = _WIDTHS[heads], options["batch_first"]
    names = ("bias", "add_bias_kv", "add_zero_attn", "batch_first", "dropout")
    more = {name: options[name] for name in names}
    others = {"kdim": 6, "vdim": 10} if operands == "other widths" else {}
    batch = (3,) if options["batch"] else ()
    rows, keys = (6, 6) if operands == "one tensor" else (5, 7)

    def given(times: int, wide: int) -> torch.Tensor:
        shape = (*batch, times, wide) if first or not batch else (times, *batch, wide)
        return floats(draw, *shape)

    query = given(rows, width)
    key = query if operands == "one tensor" else given(keys, others.get("kdim", width))
    value = query if operands == "one tensor" else given(keys, others.get("vdim", width))
    masks = _masks(options, draw, batch, heads, rows, keys)
    weights = {"none": (False, True), "averaged": (True, True), "by head": (True, False)}
    needed, average = weights[options["weights"]]
    named = {**masks, "need_weights": needed, "average_attn_weights": average}
    return ModuleSample((width, heads), {**more, **others}, (query, key, value), named)


def _refused_masks(options: Combination) -> bool:
    """Masks of two kinds together are deprecated, and where a call has is_causal=True and more keys than the mask, torch
    may use either."""
    mask, padding = options.get("mask", ""), options.get("padding", "none")
    if (padding == "float" and mask.startswith("bool")) or (padding == "bool" and "float" in mask):
        return True
    causal = mask == "causal"
    more = options.get("add_bias_kv") or options.get("add_zero_attn") or padding == "float"
    return bool(causal and more)


def _not_multihead(options: Combination) -> bool:
    dropped = options.get("dropout", 0.0) > 0 and options.get("run", "eval") == "training"
    return dropped or _refused_masks(options)


_MASKS = ("none", "bool", "float", "bool by head", "float by head", "causal")
_PADDINGS = ("none", "bool", "float")


def _encoder(options: Combination, draw: torch.Generator) -> ModuleSample:
    heads = options["heads"]
    width = _WIDTHS[heads]
    more = without(options, "heads", "mask", "padding", "batch")
    batch = (3,) if options["batch"] else ()
    shape = (*batch, 6, width) if options["batch_first"] else (6, *batch, width)
    masks = _masks(options, draw, batch, heads, 6, 6)
    names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
    named = {names.get(name, name): value for name, value in masks.items()}
    return ModuleSample((width, heads, 12), more, (floats(draw, *shape),), named)


def _decoder(options: Combination, draw: torch.Generator) -> ModuleSample:
    heads = options["heads"]
    width = _WIDTHS[heads]
    more = without(options, "heads", "mask", "padding", "memory_mask", "memory_padding", "batch")
    batch = (3,) if options["batch"] else ()

    def given(times: int) -> torch.Tensor:
        return floats(
            draw, *((*batch, times, width) if options["batch_first"] else (times, *batch, width))
        )

    named: dict[str, Any] = {}
    for of, kind, keys in (("tgt", "", 5), ("memory", "memory_", 7)):
        about = {"mask": options[f"{kind}mask"], "padding": options[f"{kind}padding"]}
        masks = _masks(about, draw, batch, heads, 5, keys)
        names = {"attn_mask": f"{of}_mask", "key_padding_mask": f"{of}_key_padding_mask"}
        named |= {names.get(name, f"{of}_{name}"): value for name, value in masks.items()}
    return ModuleSample((width, heads, 12), more, (given(5), given(7)), named)


def _not_decoder(options: Combination) -> bool:
    memory = {name[7:]: value for name, value in options.items() if name.startswith("memory_")}
    return _not_multihead(options) or _refused_masks(memory)


RECURRENT: dict[str, OptionTable] = {
    "LSTM": OptionTable("LSTM", {**_RECURRENT, "proj_size": (0, 4)}, _recurrent, _not_recurrent),
    "GRU": OptionTable("GRU", _RECURRENT, _recurrent, _not_recurrent),
    "RNN": OptionTable(
        "RNN", {**_RECURRENT, "nonlinearity": ("tanh", "relu")}, _recurrent, _not_recurrent
    ),
}


def _on_fast_path(masks: tuple[str, ...], paddings: tuple[str, ...]) -> Levels:
    """Combinations of all options seldom meet every condition of the fast path, so these levels meet them all."""
    return {
        "run": ("inference",),
        "mask": masks,
        "padding": paddings,
        "heads": (2, 4),
        "bias": (True,),
        "batch_first": (True,),
        "dropout": (0.0, 0.4),
        "batch": (True,),
    }


_ENCODER_ON_FAST_PATH: Levels = {
    "activation": ("relu", "gelu"),
    "norm_first": NO_YES,
    "layer_norm_eps": (1e-5, 0.1),
}

ATTENTION: dict[str, OptionTable] = {
    "MultiheadAttention_fast_path": OptionTable(
        "MultiheadAttention",
        {
            **_on_fast_path(("none", "bool", "bool by head", "causal"), ("none", "bool")),
            "operands": ("one tensor",),
            "weights": ("none", "averaged", "by head"),
            "add_bias_kv": (False,),
            "add_zero_attn": (False,),
        },
        _multihead,
        _not_multihead,
    ),
    "TransformerEncoderLayer_fast_path": OptionTable(
        "TransformerEncoderLayer",
        {
            **_on_fast_path(("none", "bool", "bool by head", "causal"), ("none", "bool")),
            **_ENCODER_ON_FAST_PATH,
        },
        _encoder,
        _not_multihead,
    ),
    "TransformerEncoderLayer_float_masks_on_fast_path": OptionTable(
        "TransformerEncoderLayer",
        {
            **_on_fast_path(("float", "none", "float by head"), ("float", "none")),
            **_ENCODER_ON_FAST_PATH,
        },
        _encoder,
        _not_multihead,
    ),
    "MultiheadAttention": OptionTable(
        "MultiheadAttention",
        {
            "mask": _MASKS,
            "padding": _PADDINGS,
            "operands": ("one tensor", "three tensors", "other widths"),
            "weights": ("none", "averaged", "by head"),
            "heads": (2, 3, 1, 4),
            "bias": (True, False),
            "add_bias_kv": NO_YES,
            "add_zero_attn": NO_YES,
            "batch_first": (True, False),
            "dropout": (0.0, 0.4),
            **BATCH,
        },
        _multihead,
        _not_multihead,
    ),
    "TransformerEncoderLayer": OptionTable(
        "TransformerEncoderLayer",
        {
            "mask": _MASKS,
            "padding": _PADDINGS,
            "heads": (2, 3, 1, 4),
            "activation": ("relu", "gelu"),
            "norm_first": NO_YES,
            "bias": (True, False),
            "layer_norm_eps": (1e-5, 0.1),
            "batch_first": (True, False),
            "dropout": (0.0, 0.4),
            **BATCH,
        },
        _encoder,
        _not_multihead,
    ),
    "TransformerDecoderLayer": OptionTable(
        "TransformerDecoderLayer",
        {
            "mask": _MASKS,
            "padding": _PADDINGS,
            "memory_mask": _MASKS[:-1],
            "memory_padding": _PADDINGS,
            "heads": (2, 3, 1),
            "activation": ("relu", "gelu"),
            "norm_first": NO_YES,
            "bias": (True, False),
            "batch_first": (True, False),
            "dropout": (0.0, 0.4),
            **BATCH,
        },
        _decoder,
        _not_decoder,
    ),
}
