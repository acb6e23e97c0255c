"""The options of losses whose values are combined: arguments of the constructor, and what the call is given.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.suites.nn.covering import Combination
from conformance.suites.nn.option_table import (
    NO_YES,
    Levels,
    OptionTable,
    accepts_all,
    floats,
    without,
)
from opinfo.module_catalog import ModuleSample

REDUCTIONS = ("mean", "sum", "none")


def _classes(
    options: Combination, draw: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Returns scores for five classes, the classes, of which some are ignored if the options name a class to ignore, and
    weights of the classes."""
    shape = {"one": (), "rows": (9,), "images": (3, 4, 2)}[options["shape"]]
    scores = floats(draw, *shape[:1], 5, *shape[1:])
    classes = torch.randint(0, 5, shape, generator=draw)
    ignored = options["ignore_index"]
    if shape and ignored < 0:
        classes.view(-1)[::3] = ignored
    elif shape:
        classes.view(-1)[1] = ignored
        classes.view(-1)[2] = (ignored + 1) % 5  # one element counts, so that a mean has a divisor
    elif int(classes) == ignored:
        classes = (classes + 1) % 5
    weight = torch.rand(5, generator=draw) + 0.5 if options["weight"] else None
    return scores, classes, weight


def _cross_entropy(options: Combination, draw: torch.Generator) -> ModuleSample:
    scores, classes, weight = _classes(options, draw)
    more = without(options, "shape", "target") | {"weight": weight}
    if options["target"] == "probabilities":
        dim = 1 if scores.dim() > 1 else 0
        classes = torch.randn(scores.shape, generator=draw).softmax(dim)
    return ModuleSample((), more, (scores, classes), {})


def _no_cross_entropy(options: Combination) -> bool:
    ignores = options.get("ignore_index", -100) >= 0
    return ignores and options.get("target") == "probabilities"


def _nll(options: Combination, draw: torch.Generator) -> ModuleSample:
    scores, classes, weight = _classes(options, draw)
    more = without(options, "shape") | {"weight": weight}
    dim = 1 if scores.dim() > 1 else 0
    logs = scores.detach().log_softmax(dim).requires_grad_()
    return ModuleSample((), more, (logs, classes), {})


def _binary(options: Combination, draw: torch.Generator) -> ModuleSample:
    shape = options["shape"]
    more: dict[str, Any] = {"reduction": options["reduction"]}
    for name in ("weight", "pos_weight"):
        given = {"none": None, "of each": torch.rand(shape, generator=draw) + 0.5}
        given["of the last dimension"] = torch.rand(shape[-1:], generator=draw) + 0.5
        more[name] = given[options[name]]
    target = torch.rand(shape, generator=draw)
    return ModuleSample((), more, (floats(draw, *shape), target), {})


def _ctc(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = {name: options[name] for name in ("blank", "reduction", "zero_infinity")}
    dtype = torch.int32 if "int32" in options["targets"] else torch.int64
    lengths = [3, 5, 2]
    labels = torch.randint(1, 6, (3, 5), generator=draw)
    labels += labels == options["blank"]
    if options["targets"].startswith("joined"):
        labels = torch.cat([row[:length] for row, length in zip(labels, lengths, strict=True)])
    times: Any = [12, 11, 9]
    if options["lengths"] == "tensors":
        times, lengths = torch.tensor(times, dtype=dtype), torch.tensor(lengths, dtype=dtype)  # type: ignore[assignment]
    scores = torch.randn(12, 3, 7, generator=draw).log_softmax(-1).requires_grad_()
    return ModuleSample((), more, (scores, labels.to(dtype), times, lengths), {})


def _pairs(options: Combination, draw: torch.Generator) -> ModuleSample:
    """Arguments of a loss that compares two tensors of the same shape."""
    more = without(options, "shape")
    shape = options["shape"]
    return ModuleSample((), more, (floats(draw, *shape), torch.randn(shape, generator=draw)), {})


def _kl(options: Combination, draw: torch.Generator) -> ModuleSample:
    shape = options["shape"]
    target = torch.randn(shape, generator=draw).log_softmax(-1)
    target = target if options["log_target"] else target.exp()
    scores = torch.randn(shape, generator=draw).log_softmax(-1).requires_grad_()
    return ModuleSample((), without(options, "shape"), (scores, target), {})


def _no_kl(options: Combination) -> bool:
    return options.get("reduction") == "batchmean" and not options.get("shape", (1,))


def _poisson(options: Combination, draw: torch.Generator) -> ModuleSample:
    x = torch.rand(options["shape"], generator=draw) + 0.5
    target = torch.randint(0, 5, options["shape"], generator=draw).float()
    return ModuleSample((), without(options, "shape"), (x.requires_grad_(), target), {})


def _gaussian(options: Combination, draw: torch.Generator) -> ModuleSample:
    more = without(options, "variance")
    variance = torch.rand(
        {"each": (4, 6), "row": (4,), "one": (4, 1)}[options["variance"]], generator=draw
    )
    given = (
        floats(draw, 4, 6),
        torch.randn(4, 6, generator=draw),
        (variance + 0.3).requires_grad_(),
    )
    return ModuleSample((), more, given, {})


def _triplet(options: Combination, draw: torch.Generator) -> ModuleSample:
    given = tuple(floats(draw, 5, 6) for _ in range(3))
    return ModuleSample((), dict(options), given, {})


def _multi_margin(options: Combination, draw: torch.Generator) -> ModuleSample:
    weight = torch.rand(5, generator=draw) + 0.5 if options["weight"] else None
    classes = torch.randint(0, 5, (7,), generator=draw)
    return ModuleSample((), dict(options) | {"weight": weight}, (floats(draw, 7, 5), classes), {})


def _signs(options: Combination, draw: torch.Generator) -> ModuleSample:
    """Arguments of a loss whose targets are 1 and -1."""
    shape = options["shape"]
    signs = torch.randint(0, 2, shape, generator=draw) * 2.0 - 1
    return ModuleSample((), without(options, "shape"), (floats(draw, *shape), signs), {})


def _shares(options: Combination, draw: torch.Generator) -> ModuleSample:
    """Arguments of BCELoss: numbers between 0 and 1, of which some are 0 or 1 in the target."""
    shape = options["shape"]
    x = (torch.rand(shape, generator=draw) * 0.9 + 0.05).requires_grad_()
    target = (torch.rand(shape, generator=draw) * 1.4 - 0.2).clamp(0, 1)
    given = {"none": None, "of each": torch.rand(shape, generator=draw) + 0.5}
    given["of the last dimension"] = torch.rand(shape[-1:], generator=draw) + 0.5
    more = {"reduction": options["reduction"], "weight": given[options["weight"]]}
    return ModuleSample((), more, (x, target), {})


def _labels(options: Combination, draw: torch.Generator) -> ModuleSample:
    """Arguments of MultiLabelSoftMarginLoss, whose targets are 0 and 1."""
    target = torch.randint(0, 2, (7, 5), generator=draw).float()
    weight = torch.rand(5, generator=draw) + 0.5 if options["weight"] else None
    return ModuleSample((), dict(options) | {"weight": weight}, (floats(draw, 7, 5), target), {})


def _losses(**more: tuple[Any, ...]) -> Levels:
    return {"shape": ((2, 3, 5, 4), (3, 5, 2), (7,)), "reduction": REDUCTIONS, **more}


_CLASSES: Levels = {
    "shape": ("rows", "images", "one"),
    "weight": NO_YES,
    "ignore_index": (-100, 1, -1, 0),
    "reduction": REDUCTIONS,
}

#: The options of each loss, by the name of its module.
LOSSES: dict[str, OptionTable] = {
    "CrossEntropyLoss": OptionTable(
        "CrossEntropyLoss",
        {**_CLASSES, "label_smoothing": (0.0, 0.2), "target": ("classes", "probabilities")},
        _cross_entropy,
        _no_cross_entropy,
    ),
    "NLLLoss": OptionTable("NLLLoss", _CLASSES, _nll, accepts_all),
    "BCEWithLogitsLoss": OptionTable(
        "BCEWithLogitsLoss",
        _losses(
            weight=("none", "of each", "of the last dimension"),
            pos_weight=("none", "of each", "of the last dimension"),
        ),
        _binary,
        accepts_all,
    ),
    "CTCLoss": OptionTable(
        "CTCLoss",
        {
            "blank": (0, 3, 6),
            "reduction": REDUCTIONS,
            "zero_infinity": NO_YES,
            "targets": ("padded int64", "joined int64", "padded int32", "joined int32"),
            "lengths": ("lists", "tensors"),
        },
        _ctc,
        accepts_all,
    ),
    "SmoothL1Loss": OptionTable("SmoothL1Loss", _losses(beta=(1.0, 0.3, 0.0)), _pairs, accepts_all),
    "HuberLoss": OptionTable("HuberLoss", _losses(delta=(1.0, 0.4)), _pairs, accepts_all),
    "KLDivLoss": OptionTable(
        "KLDivLoss",
        {**_losses(log_target=NO_YES), "reduction": (*REDUCTIONS, "batchmean")},
        _kl,
        accepts_all,
    ),
    "PoissonNLLLoss": OptionTable(
        "PoissonNLLLoss",
        _losses(log_input=(True, False), full=NO_YES, eps=(1e-8, 0.5)),
        _poisson,
        accepts_all,
    ),
    "GaussianNLLLoss": OptionTable(
        "GaussianNLLLoss",
        {
            "variance": ("each", "row", "one"),
            "full": NO_YES,
            "eps": (1e-6, 0.5),
            "reduction": REDUCTIONS,
        },
        _gaussian,
        accepts_all,
    ),
    "TripletMarginLoss": OptionTable(
        "TripletMarginLoss",
        {
            "margin": (1.0, 4.0),
            "p": (2.0, 3.0),
            "eps": (1e-6, 0.1),
            "swap": NO_YES,
            "reduction": REDUCTIONS,
        },
        _triplet,
        accepts_all,
    ),
    "MultiMarginLoss": OptionTable(
        "MultiMarginLoss",
        {"p": (1, 2), "margin": (1.0, 0.3), "weight": NO_YES, "reduction": REDUCTIONS},
        _multi_margin,
        accepts_all,
    ),
    "L1Loss": OptionTable("L1Loss", _losses(), _pairs, accepts_all),
    "MSELoss": OptionTable("MSELoss", _losses(), _pairs, accepts_all),
    "SoftMarginLoss": OptionTable("SoftMarginLoss", _losses(), _signs, accepts_all),
    "HingeEmbeddingLoss": OptionTable(
        "HingeEmbeddingLoss", _losses(margin=(1.0, 0.3)), _signs, accepts_all
    ),
    "BCELoss": OptionTable(
        "BCELoss",
        _losses(weight=("none", "of each", "of the last dimension")),
        _shares,
        accepts_all,
    ),
    "MultiLabelSoftMarginLoss": OptionTable(
        "MultiLabelSoftMarginLoss",
        {"weight": NO_YES, "reduction": REDUCTIONS},
        _labels,
        accepts_all,
    ),
}
