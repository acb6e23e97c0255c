"""The options of modules whose values are combined: arguments of the constructor, and what the call is given.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.suites.nn.covering import Combination
from conformance.suites.nn.option_table import (
    BATCH,
    NO_YES,
    Levels,
    OptionTable,
    accepts_all,
    floats,
    without,
)
from opinfo.module_catalog import ModuleSample

# -- convolutions and pools


def _image(options: Combination, draw: torch.Generator, channels: int, size: int) -> torch.Tensor:
    """Returns an input with sides of ``size``, one less, and so on; in a batch of 2 if the options ask for a batch."""
    sides = [size - n for n in range(options["rank"])]
    return floats(draw, *[2][: options["batch"]], channels, *sides)


def _convolution(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "rank", "batch", "kernel")
    kernel = _sides(options, options["kernel"])
    return ModuleSample((4, 8, kernel), more, (_image(options, draw, 4, 8),), {})


def _sides(options: Combination, size: Any) -> Any:
    """Returns the first values of a tuple, one for each dimension of the input; a number stays a number."""
    return size[: options["rank"]] if isinstance(size, tuple) else size


def _no_convolution(options: Combination) -> bool:
    return options.get("padding") == "same" and options.get("stride", 1) != 1


def _transposed(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "rank", "batch", "kernel")
    kernel = _sides(options, options["kernel"])
    return ModuleSample((4, 8, kernel), more, (_image(options, draw, 4, 5),), {})


def _not_transposed(options: Combination) -> bool:
    largest = max(options.get("stride", 2), options.get("dilation", 2))
    return bool(options.get("output_padding", 0) >= largest)


def _pool(options: Combination, draw: torch.Generator) -> ModuleSample:
    kernel = _sides(options, options["kernel"])
    more = without(options, "rank", "batch", "kernel")
    # Distinct elements, far from each other: rounding does not decide which one is the largest.
    image = _image(options, draw, 3, 8).detach()
    ordered = torch.randperm(image.numel(), generator=draw).view(image.shape) / 16
    return ModuleSample((kernel,), more, (ordered.requires_grad_(),), {})


def _no_pool(options: Combination) -> bool:
    kernel = options.get("kernel", 3)
    smallest = min(kernel) if isinstance(kernel, tuple) else kernel
    return bool(options.get("padding", 0) * 2 > smallest)


def _upsample(options: Combination, draw: torch.Generator) -> ModuleSample:
    rank = RANK_OF_MODE[options["mode"]]
    more: dict[str, Any] = {"mode": options["mode"], "align_corners": options["align_corners"]}
    if isinstance(options["to"], float):
        more |= {"scale_factor": options["to"], "recompute_scale_factor": options["recompute"]}
    else:
        more |= {"size": options["to"]}
    shape = [2, 3, 5, 4, 6][: 2 + rank]
    return ModuleSample((), more, (floats(draw, *shape),), {})


RANK_OF_MODE = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3, "nearest": 2}


def _no_upsample(options: Combination) -> bool:
    if options.get("mode") == "nearest" and options.get("align_corners") is not None:
        return True
    return options.get("recompute") is not None and isinstance(options.get("to"), int)


def _unfold(options: Combination, draw: torch.Generator) -> ModuleSample:
    return ModuleSample((), dict(options), (floats(draw, 2, 3, 8, 7),), {})


# -- norms


def _norm(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "rank", "width")
    shape = [3, 4, 5, 6, 2][: options["rank"] + 2]
    x = floats(draw, *shape)
    if options.get("width") == "one row":  # a single row, of several elements for each channel
        x = floats(draw, 1, *shape[1:])
    return ModuleSample((4,), more, (x,), {})


def _layer_norm(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "shape", "batch")
    shape = options["shape"]
    return ModuleSample((shape,), more, (floats(draw, *options["batch"], *shape),), {})


def _group_norm(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "groups", "shape")
    return ModuleSample((options["groups"], 12), more, (floats(draw, *options["shape"]),), {})


# -- embeddings and others


def _indices(options: Combination, draw: torch.Generator) -> torch.Tensor:
    indices = torch.randint(0, 9, (14,), generator=draw)
    indices[3] = indices[7] = indices[8] = 2
    indices[5] = indices[10] = 0
    return indices.to(options["dtype"])


def _embedding(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "dtype", "shape")
    return ModuleSample((10, 5), more, (_indices(options, draw).view(options["shape"]),), {})


def _bag(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "dtype", "bags", "weights")
    last = options["include_last_offset"]
    ends = [0, 3, 3, 14] if last else [0, 3, 3, 9]  # one bag is empty
    indices = _indices(options, draw)
    weights = torch.rand(14, generator=draw) + 0.5
    if options["bags"] == "rows":
        indices, weights = indices.view(2, 7), weights.view(2, 7)
        given: tuple[Any, ...] = (indices,)
    else:
        given = (indices, torch.tensor(ends, dtype=options["dtype"]))
    named = {"per_sample_weights": weights.requires_grad_()} if options["weights"] else {}
    return ModuleSample((10, 5), more, given, named)


def _no_bag(options: Combination) -> bool:
    mode = options.get("mode", "sum")
    if options.get("weights") and mode != "sum":
        return True
    if options.get("scale_grad_by_freq") and (mode == "max" or options.get("weights")):
        return True
    return bool(options.get("include_last_offset") and options.get("bags") == "rows")


def _linear(options: Combination, draw: torch.Generator) -> ModuleSample:
    shape = (*options["batch"], options["width"])
    return ModuleSample(
        (options["width"], options["columns"]),
        {"bias": options["bias"]},
        (floats(draw, *shape),),
        {},
    )


_KERNELS = ((3, 2, 1), 1, 3)


def _convolutions(rank: int) -> Levels:
    levels = {
        "kernel": _KERNELS,
        "stride": (1, 2),
        "padding": (0, 1, 2, "same"),
        "dilation": (1, 2),
        "groups": (1, 2, 4),
        "bias": (True, False),
        "padding_mode": ("zeros", "reflect", "replicate", "circular"),
    }
    return {"rank": (rank,), **levels, **BATCH}


def _transposed_convolutions(rank: int) -> Levels:
    levels = {
        "kernel": _KERNELS,
        "stride": (1, 2),
        "padding": (0, 1),
        "output_padding": (0, 1),
        "dilation": (1, 2),
        "groups": (1, 2, 4),
        "bias": (True, False),
    }
    return {"rank": (rank,), **levels, **BATCH}


def _norms(rank: int, **more: tuple[Any, ...]) -> Levels:
    levels = {
        "affine": (True, False),
        "track_running_stats": (True, False),
        "momentum": (0.1, None, 1.0),
        "eps": (1e-5, 0.1),
    }
    return {"rank": (rank,), **levels, **more}


def _max_pools(rank: int) -> Levels:
    levels = {
        "kernel": (3, (2, 3, 2)),
        "stride": (None, 1, 2),
        "padding": (0, 1),
        "dilation": (1, 2),
        "ceil_mode": NO_YES,
        "return_indices": NO_YES,
    }
    return {"rank": (rank,), **levels, **BATCH}


def _average_pools(rank: int) -> Levels:
    levels: Levels = {
        "kernel": (3, (2, 3, 2)) if rank > 1 else (3, 2),
        "stride": (None, 1, 2),
        "padding": (0, 1),
        "ceil_mode": NO_YES,
        "count_include_pad": (True, False),
    }
    return {"rank": (rank,), **levels, **BATCH} | (
        {"divisor_override": (None, 2, 7)} if rank > 1 else {}
    )


MODULES: dict[str, OptionTable] = {
    **{
        f"Conv{rank}d": OptionTable(
            f"Conv{rank}d", _convolutions(rank), _convolution, _no_convolution
        )
        for rank in (1, 2, 3)
    },
    **{
        f"ConvTranspose{rank}d": OptionTable(
            f"ConvTranspose{rank}d", _transposed_convolutions(rank), _transposed, _not_transposed
        )
        for rank in (1, 2, 3)
    },
    **{
        f"MaxPool{rank}d": OptionTable(f"MaxPool{rank}d", _max_pools(rank), _pool, _no_pool)
        for rank in (1, 2, 3)
    },
    **{
        f"AvgPool{rank}d": OptionTable(f"AvgPool{rank}d", _average_pools(rank), _pool, _no_pool)
        for rank in (1, 2, 3)
    },
    **{
        f"{kind}{rank}d": OptionTable(f"{kind}{rank}d", _norms(rank, **more), _norm, accepts_all)
        for kind, more in (("BatchNorm", {"width": ("rows", "one row")}), ("InstanceNorm", {}))
        for rank in (1, 2, 3)
    },
    "GroupNorm": OptionTable(
        "GroupNorm",
        {
            "groups": (3, 1, 12),
            "eps": (1e-5, 0.1),
            "affine": (True, False),
            "shape": ((2, 12, 5), (2, 12, 4, 3), (1, 12, 2, 3, 2)),
        },
        _group_norm,
        accepts_all,
    ),
    "LayerNorm": OptionTable(
        "LayerNorm",
        {
            "shape": ((7,), (3, 5), (64,)),
            "eps": (1e-5, 0.1),
            "elementwise_affine": (True, False),
            "bias": (True, False),
            "batch": ((4,), (2, 3), ()),
        },
        _layer_norm,
        accepts_all,
    ),
    "RMSNorm": OptionTable(
        "RMSNorm",
        {
            "shape": ((7,), (3, 5), (64,)),
            "eps": (None, 0.1),
            "elementwise_affine": (True, False),
            "batch": ((4,), (2, 3), ()),
        },
        _layer_norm,
        accepts_all,
    ),
    "Upsample": OptionTable(
        "Upsample",
        {
            "mode": ("linear", "bilinear", "bicubic", "trilinear", "nearest"),
            "align_corners": (None, True, False),
            "to": (7, 1.5, 0.7),
            "recompute": (None, True, False),
        },
        _upsample,
        _no_upsample,
    ),
    "Unfold": OptionTable(
        "Unfold",
        {"kernel_size": (3, (2, 3)), "dilation": (1, 2), "padding": (0, 1), "stride": (1, 2)},
        _unfold,
        accepts_all,
    ),
    "Embedding": OptionTable(
        "Embedding",
        {
            "padding_idx": (None, 2, -3, 0),
            "scale_grad_by_freq": NO_YES,
            "dtype": (torch.int64, torch.int32),
            "shape": ((14,), (2, 7), (7, 1, 2)),
        },
        _embedding,
        accepts_all,
    ),
    "EmbeddingBag": OptionTable(
        "EmbeddingBag",
        {
            "mode": ("sum", "mean", "max"),
            "padding_idx": (None, 2, -3, 0),
            "include_last_offset": NO_YES,
            "scale_grad_by_freq": NO_YES,
            "weights": NO_YES,
            "dtype": (torch.int64, torch.int32),
            "bags": ("offsets", "rows"),
        },
        _bag,
        _no_bag,
    ),
    "Linear": OptionTable(
        "Linear",
        {
            "width": (5, 64, 1),
            "columns": (3, 1, 32),
            "bias": (True, False),
            "batch": ((4,), (), (2, 3), (1,)),
        },
        _linear,
        accepts_all,
    ),
}
