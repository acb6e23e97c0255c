"""What autocast does with an op, asked of a device: its results in and out of a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.checks.autocast.calls import ARGUMENTS, Operands, overload
from conformance.checks.autocast.lists import POLICY
from opinfo.device import Device

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


def lower_dtypes(device: Device) -> list[torch.dtype]:
    """The lower precisions that the device declares."""
    declared = device.descriptor.dtypes
    return [getattr(torch, name) for name in ("bfloat16", "float16") if name in declared]


def asked(
    device: Device,
    op: str,
    given: Sequence[torch.dtype],
    region: torch.dtype | None,
    *,
    computed: torch.dtype | None = None,
    **named: Any,
) -> Answer:
    """One call of an op whose operands have these dtypes in turn, in a region of autocast with this dtype; in none where
    it is None. The operands may be cast to the dtype that is ``computed`` in, before."""
    arguments = ARGUMENTS[op](Operands(device, given, computed))
    kind = device.torch_device.type
    try:
        with torch.no_grad(), torch.autocast(kind, region, enabled=region is not None):
            found = overload(op)(*arguments, **named)
        results = tensors_in(found)
        device.synchronise()
    except Exception as error:  # it is judged, or says that there is nothing to compare with
        return Answer(error=error)
    return Answer(results)


def observed(device: Device, op: str, region: torch.dtype) -> str | None:
    """The policy of an op on a device, as its results show it; None if no call of it returns."""
    high, low = asked(device, op, [FLOAT32], region), asked(device, op, [region], region)
    if high.error is not None and low.error is not None:
        plain = asked(device, op, [FLOAT32], None)
        return "refused" if plain.error is None else None
    short = str(region)[6:]
    if high.error is None and set(high.dtypes) == {short}:
        return "lower"
    if low.error is None and "float32" in low.dtypes and short not in low.dtypes:
        return "float32"
    mixed = [asked(device, op, pair, region) for pair in ([FLOAT32, region], [region, FLOAT32])]
    alone = [asked(device, op, pair, None) for pair in ([FLOAT32, region], [region, FLOAT32])]
    promotes = all(each.error is None and set(each.dtypes) == {"float32"} for each in mixed)
    if promotes and [each.told for each in alone] != [each.told for each in mixed]:
        return "promote"
    return "unlisted"


def differing(device: Device, lowers: Sequence[torch.dtype]) -> dict[str, list[str]]:
    """The ops whose policy on a device is another than that of torch's common lists, by what was observed: with each
    of these lower precisions the same. An op of the promote list that promotes anyway cannot be told from one in no list."""
    found: dict[str, list[str]] = {}
    alike = {("float32_by_default", "float32"), ("promote", "unlisted")}
    for op, policy in POLICY.items():
        seen = {observed(device, op, lower) for lower in lowers}
        one = seen.pop() if len(seen) == 1 else None
        if (
            one is None
            or one == policy
            or ((policy, one) in alike and _promotes(device, op, lowers))
        ):
            continue
        found.setdefault(one, []).append(op)
    return found


def _promotes(device: Device, op: str, lowers: Sequence[torch.dtype]) -> bool:
    """Whether float32 beside a lower precision gives float32, or the op has one operand."""
    for lower in lowers:
        for given in ([FLOAT32, lower], [lower, FLOAT32]):
            answer = asked(device, op, given, lower)
            if answer.error is not None or set(answer.dtypes) - {"float32"}:
                return POLICY[op] != "promote"
    return True
