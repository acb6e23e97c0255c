"""Draws a program's random numbers on the CPU, so that runs on two different devices get the same numbers."""

from __future__ import annotations

from typing import Any

import torch

from conformance.locate.steps import substitute, without_generators, written_arguments
from opinfo.compare import tensors_of


def drawn_on_cpu(func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
    """Makes a call that draws random numbers on the CPU instead of the device, with the CPU's generator. Returns its
    result, copied to the device. Input tensors on the device that the call writes to are overwritten there."""
    targets = tensors_of(written_arguments(func, args, kwargs))

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return copies.setdefault(id(tensor), tensor.detach().cpu().clone())

    copies: dict[int, torch.Tensor] = {}
    given = substitute((args, kwargs), torch.Tensor, moved)
    given = substitute(given, torch.device, lambda _: torch.device("cpu"))
    args, kwargs = without_generators(given)
    result = func(*args, **kwargs)
    for each in targets:
        each.copy_(copies[id(each)])
    written = {id(copies[id(each)]): each for each in targets}
    return substitute(result, torch.Tensor, lambda t: written.get(id(t), t.to(device)))
