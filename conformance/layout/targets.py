"""``out=`` targets: which results take one, how it is given, and what a failure with one says."""

from __future__ import annotations

from typing import Any

import torch

from conformance.cells import Failure
from conformance.layout.context import ItemContext, Laid
from opinfo.layouts import CONTIGUOUS, uniform
from opinfo.samples import Sample


def outputs_of(result: Any) -> list[torch.Tensor] | None:
    """The tensors that ``out=`` takes for this result; None where it takes none."""
    found = [result] if isinstance(result, torch.Tensor) else result
    if not isinstance(found, (tuple, list)):
        return None
    if not found or not all(
        isinstance(t, torch.Tensor) and t.layout == torch.strided for t in found
    ):
        return None
    return [t.resolve_conj().resolve_neg() for t in found]


def prefill(dtype: torch.dtype) -> Any:
    """What a target holds before: a value that no result is made of by chance."""
    if dtype == torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return torch.iinfo(dtype).max


def takes_no_out(exc: BaseException) -> bool:
    """Whether the argument parser says that this form of the call has no ``out``: ``nonzero(as_tuple=True)``,
    or a packet of ``torch.ops`` whose overload gives its targets other names."""
    text = str(exc)
    if isinstance(exc, TypeError):
        return "'out'" in text
    return isinstance(exc, RuntimeError) and "failed to match any schema" in text


def target_argument(result: Any, targets: list[torch.Tensor]) -> Any:
    """One tensor, or as many as the op returns, in its own container's kind."""
    if isinstance(result, torch.Tensor):
        return targets[0]
    return list(targets) if isinstance(result, list) else tuple(targets)


def contiguous_inputs(ctx: ItemContext, sample: Sample) -> Laid:
    case = uniform(CONTIGUOUS)
    return ctx.lay(sample, case, ctx.geometries(sample, case))


def form_of(result: Any) -> str:
    if isinstance(result, torch.Tensor):
        return "tensor"
    return "list" if isinstance(result, list) else "tuple"


def raised(exc: BaseException) -> str:
    return f"raised {type(exc).__name__}: {(str(exc).splitlines() or [''])[0][:300]}"


def failure(
    name: str,
    laid: Laid,
    text: str,
    write: Any,
    *,
    error: float | None = None,
    raises: str | None = None,
) -> Failure:
    return Failure(name, text, error=error, raises=raises, size=laid.sample.numel, repro=write)
