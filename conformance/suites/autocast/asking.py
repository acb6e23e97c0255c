"""What autocast does with an op, asked of a device: its results in and out of a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.checks.cases.context import Context
from conformance.suites.autocast.calls import ARGUMENTS, Operands, overload

FLOAT32 = torch.float32


@dataclass
class Answer:
    """The results of a call, or the exception that it raised."""

    results: tuple[torch.Tensor, ...] = ()
    error: Exception | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Of the results that are of a floating dtype."""
        return tuple(str(each.dtype)[6:] for each in self.results if each.is_floating_point())

    @property
    def told(self) -> str:
        return type(self.error).__name__ if self.error is not None else ", ".join(self.dtypes)


def tensors_in(result: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(result, torch.Tensor):
        return (result,)
    each = result if isinstance(result, (tuple, list)) else ()
    return tuple(found for part in each for found in tensors_in(part))


def lower_dtypes(context: Context) -> list[torch.dtype]:
    """The lower precisions that the device declares."""
    declared = context.descriptor.dtypes
    return [getattr(torch, name) for name in ("bfloat16", "float16") if name in declared]


def asked(
    context: Context,
    op: str,
    given: Sequence[torch.dtype],
    region: torch.dtype | None,
    *,
    computed: torch.dtype | None = None,
    **named: Any,
) -> Answer:
    """One call of an op whose operands have these dtypes in turn, in a region of autocast with this dtype; in none where
    it is None. The operands may be cast to the dtype that is ``computed`` in, before."""
    arguments = ARGUMENTS[op](Operands(context, given, computed))
    dtype = region or lower_dtypes(context)[0]
    try:
        with torch.no_grad(), torch.autocast(context.kind, dtype, enabled=region is not None):
            found = overload(op)(*arguments, **named)
        results = tensors_in(found)
        context.settle()
    except Exception as error:  # it is judged, or says that there is nothing to compare with
        return Answer(error=error)
    return Answer(results)


def observed(context: Context, op: str, region: torch.dtype) -> str | None:
    """The policy of an op on a device, as its results show it; None if no call of it returns."""
    high, low = asked(context, op, [FLOAT32], region), asked(context, op, [region], region)
    if high.error is not None and low.error is not None:
        plain = asked(context, op, [FLOAT32], None)
        return "refused" if plain.error is None else None
    short = str(region)[6:]
    if high.error is None and set(high.dtypes) == {short}:
        return "lower"
    if low.error is None and "float32" in low.dtypes and short not in low.dtypes:
        return "float32"
    mixed = [asked(context, op, pair, region) for pair in ([FLOAT32, region], [region, FLOAT32])]
    plain = [asked(context, op, pair, None) for pair in ([FLOAT32, region], [region, FLOAT32])]
    promotes = all(each.error is None and set(each.dtypes) == {"float32"} for each in mixed)
    if promotes and [each.told for each in plain] != [each.told for each in mixed]:
        return "promote"
    return "unlisted"
