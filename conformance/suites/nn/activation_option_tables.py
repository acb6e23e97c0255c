"""The options of activations whose values are combined, with the shape of the input.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.suites.nn.covering import Combination
from conformance.suites.nn.option_table import OptionTable, accepts_all, floats, without
from opinfo.module_catalog import ModuleSample

#: Images, which may be in channels_last, rows that vectors of 4 or 8 elements do not divide, and a single row.
SHAPES = ((2, 4, 5, 6), (7, 34), (70,))


def _activation(options: Combination, draw: torch.Generator) -> ModuleSample:
    """Arguments of a module that is given one tensor. Its elements lie on both sides of the bounds of the module."""
    x = (floats(draw, *options["shape"]).detach() * 3).requires_grad_()
    return ModuleSample((), without(options, "shape"), (x,), {})


def _with_slopes(options: Combination, draw: torch.Generator) -> ModuleSample:
    shape = options["shape"]
    channels = shape[1] if len(shape) > 1 and options["slopes"] == "of channels" else 1
    return ModuleSample((channels,), {}, (floats(draw, *shape),), {})


def _table(name: str, **options: tuple[Any, ...]) -> OptionTable:
    return OptionTable(name, {"shape": SHAPES, **options}, _activation, accepts_all)


_DIMS = (-1, 0)
_TABLES = (
    _table("CELU", alpha=(1.0, 0.4)),
    _table("ELU", alpha=(1.0, 0.4)),
    _table("GELU", approximate=("none", "tanh")),
    _table("GLU", dim=(-1,)),
    _table("Hardshrink", lambd=(0.5, 2.0)),
    _table("Hardsigmoid"),
    _table("Hardswish"),
    _table("Hardtanh", min_val=(-1.0, 0.0), max_val=(1.0, 4.0)),
    _table("LeakyReLU", negative_slope=(0.01, 0.3)),
    _table("LogSigmoid"),
    _table("LogSoftmax", dim=_DIMS),
    _table("Mish"),
    _table("ReLU"),
    _table("ReLU6"),
    _table("SELU"),
    _table("SiLU"),
    _table("Sigmoid"),
    _table("Softmax", dim=_DIMS),
    _table("Softmin", dim=_DIMS),
    _table("Softplus", beta=(1.0, 0.5), threshold=(20.0, 1.0)),
    _table("Softshrink", lambd=(0.5, 2.0)),
    _table("Softsign"),
    _table("Tanh"),
    _table("Tanhshrink"),
    _table("Threshold", threshold=(0.1, -1.0), value=(0.0, 20.0)),
)

#: The options of each activation, by the name of its module.
ACTIVATIONS: dict[str, OptionTable] = {
    **{each.module: each for each in _TABLES},
    "PReLU": OptionTable(
        "PReLU",
        {"shape": SHAPES, "slopes": ("one", "of channels")},
        _with_slopes,
        accepts_all,
    ),
}
