"""Checks of the clauses nn.modules, nn.rnn and nn.attention with options that are combined: results and gradients must
equal the CPU's for each two options of a module that are given together.

The combinations are a covering array, see ``covering.py``. The layouts of inputs and cotangents and the mode of the
module are options, too.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.layouts import DENSE
from conformance.suites.nn.activation_option_tables import ACTIVATIONS
from conformance.suites.nn.attention import OF_ONE_HEAD, PERMUTED, attend
from conformance.suites.nn.covering import Combination, covering_array
from conformance.suites.nn.forward_backward import WAYS
from conformance.suites.nn.loss_option_tables import LOSSES
from conformance.suites.nn.modules import run_once
from conformance.suites.nn.option_table import Levels, OptionTable
from conformance.suites.nn.option_tables import MODULES
from conformance.suites.nn.sequence_option_tables import ATTENTION, RECURRENT
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: The modes of a module: in training, in eval mode, and in eval mode without gradients, where modules take fast paths.
MODES = ("training", "eval", "inference")
#: The modules of which plan quick has combinations.
QUICK = (
    "Conv2d",
    "ConvTranspose2d",
    "MaxPool2d",
    "AvgPool2d",
    "BatchNorm2d",
    "InstanceNorm2d",
    "GroupNorm",
    "LayerNorm",
    "Embedding",
    "EmbeddingBag",
)
#: The modules of which plan quick has each two options together, because a run of them takes little time.
FAST = {**LOSSES, **ACTIVATIONS}
_TABLES = {**MODULES, **FAST}

#: Larger plans alone have it: torch's own fast path is wrong there.
FLOAT_MASKS = "TransformerEncoderLayer_float_masks_on_fast_path"


def combined(table: OptionTable, together: int) -> list[Combination]:
    """Returns the combinations of options with which a module is run. Its mode and the number of an entry of ``WAYS`` are
    options as well. Each value occurs (``together=1``), or each two values (``together=2``)."""
    levels = {"run": MODES, "way": tuple(range(len(WAYS))), **table.levels}
    return covering_array(levels, table.refused, together)


def _named(modules: dict[str, OptionTable], together: int) -> dict[str, tuple[str, int]]:
    of = {1: "options", 2: "pairs_of_options"}[together]
    return {f"{name}.{of}": (name, together) for name in modules}


def with_options(context: CaseContext, table: OptionTable, together: int) -> None:
    """Runs a module with each combination of its options."""
    for chosen in combined(table, together):
        at = ", ".join(f"{name}={value}" for name, value in chosen.items() if name != "way")
        options = {name: value for name, value in chosen.items() if name not in ("run", "way")}
        way, mode = WAYS[chosen["way"]], chosen["run"]
        draw = torch.Generator().manual_seed(sum(map(ord, context.seed + at)))
        sample = table.sample(options, draw)
        build = getattr(torch.nn, table.module)
        gradients = mode != "inference"
        run_once(
            context, build, sample, way, mode == "training", f"{at}, {way}", gradients=gradients
        )


@cases("nn.modules", over=_named({name: MODULES[name] for name in QUICK}, 1))
@cases("nn.modules", over=_named(FAST, 2))
@cases("nn.modules", over=_named(MODULES, 2), more=True)
def modules(context: CaseContext, name: str, together: int) -> None:
    """Run a module with its options in combinations, so that each value of an option (or each two values) occurs, in
    training and eval mode, with and without gradients, and in several layouts: results, gradients and running statistics
    must equal the CPU's."""
    with_options(context, _TABLES[name], together)


@cases("nn.rnn", over=_named(RECURRENT, 1))
@cases("nn.rnn", over=_named(RECURRENT, 2), more=True)
def recurrent(context: CaseContext, name: str, together: int) -> None:
    """Run a recurrent layer with its options in combinations, so that each value of an option (or each two values)
    occurs, on padded and packed sequences, with and without initial states, in training and eval mode: results and
    gradients must equal the CPU's. Dropout is 1 in training, so that its result is determined."""
    with_options(context, RECURRENT[name], together)


@cases("nn.attention", over=_named({n: t for n, t in ATTENTION.items() if n != FLOAT_MASKS}, 1))
@cases("nn.attention", over=_named(ATTENTION, 2), more=True)
def attention(context: CaseContext, name: str, together: int) -> None:
    """Run a module with attention with its options and masks in combinations, so that each value of an option (or each
    two values) occurs, in training and eval mode, with and without gradients (which selects the fast path): results
    and gradients must equal the CPU's without the fast path."""
    with_options(context, ATTENTION[name], together)


#: The options of scaled_dot_product_attention.
PRODUCTS: Levels = {
    "mask": ("none", "bool", "float", "bool by row", "float by head", "causal"),
    "lengths": ((6, 9), (1, 9), (33, 33), (65, 130)),
    "head": ((16, 16), (64, 64), (80, 80), (64, 32)),
    "heads": ((3, 3), (4, 2), (1, 1)),
    "scale": (None, 0.3),
    "layouts": ("dense", "permuted", "one head", "offset"),
    "cotangent": (DENSE, "scalar", PERMUTED),
    "needs": ("qkvm", "q", "kv"),
}


def _no_product(options: Combination) -> bool:
    query, key = options.get("heads", (1, 1))
    return query != key and options.get("layouts") == "one head"


@cases("nn.attention", over={"dot_product.options": (1,)})
@cases("nn.attention", over={"dot_product.pairs_of_options": (2,)}, more=True)
def dot_product(context: CaseContext, together: int) -> None:
    """Run scaled_dot_product_attention with its options in combinations, so that each value of an option (or each two
    values) occurs, in each backend that accepts the call: results and gradients must equal the CPU's."""
    for chosen in covering_array(PRODUCTS, _no_product, together):
        _one_product(context, chosen)


def _one_product(context: CaseContext, chosen: Combination) -> None:
    at = ", ".join(f"{name}={value}" for name, value in chosen.items())
    (rows, keys), (head, channels) = chosen["lengths"], chosen["head"]
    heads, of_keys = chosen["heads"]
    layouts = {
        "dense": (DENSE, DENSE, DENSE),
        "permuted": (PERMUTED, PERMUTED, PERMUTED),
        "one head": (DENSE, OF_ONE_HEAD, OF_ONE_HEAD),
        "offset": ("contiguous+offset", "contiguous+step_outer+offset", "contiguous+step_inner"),
    }[chosen["layouts"]]
    options: dict[str, Any] = {"is_causal": True} if chosen["mask"] == "causal" else {}
    options |= {"scale": chosen["scale"]} if chosen["scale"] is not None else {}
    options |= {"enable_gqa": True} if heads != of_keys else {}
    attend(
        context,
        (2, heads, rows, head),
        (2, of_keys, keys, head),
        channels,
        mask=_mask_of(context, chosen["mask"], (2, heads, rows, keys)),
        layouts=layouts,
        cotangent=chosen["cotangent"],
        needs=chosen["needs"],
        at=at,
        **options,
    )


def _mask_of(context: CaseContext, kind: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Returns a mask of a kind for products of the given shape; None if the kind has none. Each row has a key that it
    may attend to."""
    if kind in ("none", "causal"):
        return None
    if "by head" not in kind:
        shape = (1, 1, *shape[2:]) if "by row" in kind else shape[2:]
    draw = torch.Generator().manual_seed(sum(map(ord, context.seed + kind)))
    seen = torch.rand(shape, generator=draw) > 0.4
    seen[..., 0] = True
    if "bool" in kind:
        return seen
    return torch.randn(shape, generator=draw).masked_fill(~seen, -torch.inf)
