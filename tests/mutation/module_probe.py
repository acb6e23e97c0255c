"""Finds out whether a mutant of a module can be observed: runs programs that the suite does not run, with and without it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from conformance.suites.nn.forward_backward import replaced, tensors_in
from opinfo.compare import raw_bytes
from opinfo.module_catalog import module_entries

Program = Callable[[], list[torch.Tensor]]
THERE = "simulated"

#: How the inputs of a program lie.
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in a row": lambda x: x.clone(),
    "channels_last": lambda x: (
        x.clone(memory_format=torch.channels_last)
        if x.dim() == 4
        else x.mT.clone().mT
        if x.dim() > 1
        else x.clone()
    ),
    "stepped": lambda x: torch.stack([x, x], -1)[..., 0],
}
#: What backward is given.
COTANGENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one number": lambda y: torch.ones((), device=y.device).mul(0.75).to(y.dtype).expand(y.shape),
    "in a row": lambda y: (
        torch.linspace(-1, 2, max(y.numel(), 1))[: y.numel()].to(y.device, y.dtype).view(y.shape)
    ),
    "transposed": lambda y: (
        torch.linspace(-2, 1, max(y.numel(), 1))[: y.numel()]
        .to(y.device, y.dtype)
        .view(tuple(reversed(y.shape)))
        .permute(*reversed(range(y.dim())))
    ),
}


def programs() -> Iterator[tuple[str, Program]]:
    for name, entry in module_entries().items():
        for training in (True, False):
            torch.manual_seed(41)
            samples = entry.samples(training=training)
            for number in range(0, len(samples), max(len(samples) // 8, 1)):
                for form, cotangent in zip(FORMS, COTANGENTS):
                    for wanted in ("all", "parameters"):
                        told = f"{name} {number} {training} {form} {wanted}"
                        given = (entry, samples[number], training, form, cotangent, wanted)
                        yield told, partial(of_module, *given)
    for kind in ("RNN", "LSTM", "GRU"):
        for layers in (1, 2):
            for both in (False, True):
                for packed in (False, True):
                    told = f"{kind} {layers} {both} {packed}"
                    yield told, partial(of_layers, kind, layers, both, packed)
    for number, options in enumerate(ATTENTION):
        yield f"attention {number}", partial(of_attention, options)


def of_module(
    entry: Any, sample: Any, training: bool, form: str, cotangent: str, wanted: str
) -> list[torch.Tensor]:
    torch.manual_seed(43)
    module = entry.build(*copy.deepcopy(sample.args), **copy.deepcopy(sample.kwargs)).float()
    given = replaced((sample.inputs, sample.named), lambda each: each.detach())
    if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
        module(*given[0], **given[1])
    with torch.no_grad():
        for each in (*module.parameters(), *module.buffers()):
            if each.is_floating_point():
                each.add_(torch.rand(each.shape))
    module = module.train(training).to(THERE)
    if form == "channels_last":
        move: Any = module.to
        ranks = {each.dim() for each in module.parameters()}
        module = move(memory_format=torch.channels_last_3d if 5 in ranks else torch.channels_last)
    inputs: list[torch.Tensor] = []

    def put(each: torch.Tensor) -> torch.Tensor:
        floats = each.is_floating_point()
        there = FORMS[form](each.detach().to(THERE)) if floats else each.to(THERE)
        inputs.append(there.requires_grad_(floats and each.requires_grad and wanted == "all"))
        return there

    args, named = replaced((sample.inputs, dict(sample.named)), put)
    torch.manual_seed(47)
    out = list(tensors_in(module(*args, **named)))
    leaves = [each for each in (*inputs, *module.parameters()) if each.requires_grad]
    return [*out, *gradients(out, leaves, cotangent), *inputs, *module.state_dict().values()]


def gradients(
    out: list[torch.Tensor], leaves: list[torch.Tensor], cotangent: str
) -> list[torch.Tensor]:
    starts = [each for each in out if each.requires_grad]
    if not starts or not leaves:
        return []
    given = [COTANGENTS[cotangent](each.detach()) for each in starts]
    found = torch.autograd.grad(starts, leaves, given, allow_unused=True)
    kept = [torch.zeros(0) if each is None else each for each in found]
    return [*kept, *given]


def of_layers(kind: str, layers: int, both: bool, packed: bool) -> list[torch.Tensor]:
    torch.manual_seed(53)
    options: dict[str, Any] = {"num_layers": layers, "bidirectional": both}
    if kind == "LSTM" and both:
        options["proj_size"] = 2
    layer = getattr(torch.nn, kind)(3, 4, **options).to(THERE)
    x = torch.randn(5, 2, 3).to(THERE).requires_grad_()
    count = layers * (2 if both else 1)
    states = [torch.randn(count, 2, options.get("proj_size", 4))]
    states += [torch.randn(count, 2, 4)] if kind == "LSTM" else []
    there = [each.to(THERE).requires_grad_() for each in states]
    given: Any = x
    if packed:
        lengths = torch.tensor([3, 5])
        given = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    out, rest = layer(given, tuple(there) if kind == "LSTM" else there[0])
    results = [out.data if packed else out, *tensors_in(rest)]
    leaves = [x, *there, *layer.parameters()]
    return [*results, *gradients(results, leaves, "in a row")]


#: Options of attention: heads of queries and keys, lengths, channels, a mask's shape, whether it is causal.
ATTENTION: tuple[dict[str, Any], ...] = (
    {"shapes": ((2, 2, 4, 6), (2, 2, 4, 6), (2, 2, 4, 6))},
    {"shapes": ((2, 2, 4, 64), (2, 2, 9, 64), (2, 2, 9, 16))},
    {"shapes": ((2, 2, 4, 6), (2, 2, 9, 6), (2, 2, 9, 6)), "mask": (4, 9)},
    {"shapes": ((2, 2, 4, 6), (2, 2, 9, 6), (2, 2, 9, 6)), "mask": (2, 1, 4, 9)},
    {"shapes": ((2, 2, 4, 6), (2, 2, 9, 6), (2, 2, 9, 6)), "mask": (1, 2, 4, 9), "floats": True},
    {"shapes": ((2, 2, 4, 6), (2, 2, 9, 6), (2, 2, 9, 6)), "is_causal": True},
    {"shapes": ((2, 2, 9, 6), (2, 2, 4, 6), (2, 2, 4, 6)), "is_causal": True},
    {"shapes": ((2, 4, 5, 6), (2, 2, 5, 6), (2, 2, 5, 6)), "enable_gqa": True},
    {"shapes": ((2, 2, 130, 64), (2, 2, 3, 64), (2, 2, 3, 64)), "permuted": True},
    {"shapes": ((2, 2, 4, 6), (2, 2, 4, 6), (2, 2, 4, 6)), "scale": 0.7, "permuted": True},
)


def of_attention(options: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(59)
    named = dict(options)
    shapes, permuted = named.pop("shapes"), named.pop("permuted", False)
    mask, floats = named.pop("mask", None), named.pop("floats", False)
    operands = []
    for shape in shapes:
        made = torch.randn(shape).to(THERE)
        made = made.transpose(1, 2).clone().transpose(1, 2) if permuted else made
        operands.append(made.requires_grad_())
    if mask is not None:
        drawn = torch.randn(mask)
        there = (drawn if floats else drawn > -0.5).to(THERE)
        named["attn_mask"] = there.requires_grad_() if floats else there
        operands += [there] if floats else []
    out = scaled_dot_product_attention(*operands[:3], **named)
    return [out, *gradients([out], operands, "in a row")]


def seen(program: Program) -> list[bytes] | str:
    """The result of a program as bytes, or the exception that it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = [each.detach().cpu() for each in program()]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return [
        bytes(str(tuple(each.shape)), "ascii") + raw_bytes(each).numpy().tobytes() for each in found
    ]


@cache
def known() -> dict[str, tuple[Program, list[bytes]]]:
    """The programs that give the same result twice, with that result."""
    found = {}
    for told, program in programs():
        first = seen(program)
        if isinstance(first, list) and seen(program) == first:
            found[told] = program, first
    return found


def different(planted: Callable[[], AbstractContextManager[Any]]) -> str:
    """The first program whose result differs with the mutant; empty if none differs."""
    for told, (program, want) in known().items():
        with planted():
            got = seen(program)
        if got != want and seen(program) == want:
            return told
    return ""
