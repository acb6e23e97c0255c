"""A device that dies some three hundred times in a plan: in every `out=` whose target has another shape than the first
operand, on every conjugate and negative view, and in every division of integers."""

import os
import signal
from typing import Any

import strange
import torch


def before(op: Any, args: Any, kwargs: Any) -> None:
    name = op.name().partition(".")[0].removeprefix("aten::").rstrip("_")
    first, out = next(iter(args), None), kwargs.get("out")
    given = isinstance(first, torch.Tensor)
    wrong_shape = given and isinstance(out, torch.Tensor) and out.shape != first.shape
    divides = name in ("div", "floor_divide", "fmod", "remainder") and given
    by_zero = divides and not first.dtype.is_floating_point and not first.dtype.is_complex
    if wrong_shape or name in ("_conj", "_neg_view") or by_zero:
        os.kill(os.getpid(), signal.SIGSEGV)


strange.register("fragile", before=before)
