"""Finds out how a device's autocast treats an op, by calling the op inside and outside of an autocast region."""

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
    """The result of a call, or the exception that the call raised."""

    results: tuple[torch.Tensor, ...] = ()
    error: Exception | None = None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The names of the dtypes of the floating-point results."""
        return tuple(str(each.dtype)[6:] for each in self.results if each.is_floating_point())

    @property
    def description(self) -> str:
        return type(self.error).__name__ if self.error is not None else ", ".join(self.dtypes)


def tensors_in(result: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(result, torch.Tensor):
        return (result,)
    each = result if isinstance(result, (tuple, list)) else ()
    return tuple(found for part in each for found in tensors_in(part))


def lower_dtypes(device: Device) -> list[torch.dtype]:
    """Returns the lower-precision dtypes (bfloat16, float16) that the device declares."""
    declared = device.descriptor.dtypes
    return [getattr(torch, name) for name in ("bfloat16", "float16") if name in declared]


def call_under_autocast(
    device: Device,
    op: str,
    given: Sequence[torch.dtype],
    region: torch.dtype | None,
    *,
    computed: torch.dtype | None = None,
    **named: Any,
) -> Answer:
    """Calls an op under autocast with the dtype ``region``, or without autocast if ``region`` is None, and returns its
    result or its exception. The first operand gets the first dtype in ``given``, the second operand the second one, and
    so on, from the beginning again when the list ends. If ``computed`` is set, the operands are cast to that dtype
    before the call."""
    arguments = ARGUMENTS[op](Operands(device, given, computed))
    kind = device.torch_device.type
    try:
        with torch.no_grad(), torch.autocast(kind, region, enabled=region is not None):
            found = overload(op)(*arguments, **named)
        results = tensors_in(found)
        device.synchronise()
    except Exception as error:  # the caller judges it, or skips the comparison
        return Answer(error=error)
    return Answer(results)


def observed(device: Device, op: str, region: torch.dtype) -> str | None:
    """Returns the policy of an op on a device, derived from its result dtypes: the name of the autocast list whose ops
    behave in this way. None if every call of the op raises. ``region`` is the dtype of the autocast region."""
    high, low = (
        call_under_autocast(device, op, [FLOAT32], region),
        call_under_autocast(device, op, [region], region),
    )
    if high.error is not None and low.error is not None:
        plain = call_under_autocast(device, op, [FLOAT32], None)
        return "refused" if plain.error is None else None
    short = str(region)[6:]
    if high.error is None and set(high.dtypes) == {short}:
        return "lower"
    if low.error is None and "float32" in low.dtypes and short not in low.dtypes:
        return "float32"
    mixed = [
        call_under_autocast(device, op, pair, region)
        for pair in ([FLOAT32, region], [region, FLOAT32])
    ]
    alone = [
        call_under_autocast(device, op, pair, None)
        for pair in ([FLOAT32, region], [region, FLOAT32])
    ]
    promotes = all(each.error is None and set(each.dtypes) == {"float32"} for each in mixed)
    if promotes and [each.description for each in alone] != [each.description for each in mixed]:
        return "promote"
    return "unlisted"


def differing(device: Device, lowers: Sequence[torch.dtype]) -> dict[str, list[str]]:
    """Returns the ops whose policy on the device differs from torch's common lists, grouped by the observed policy.
    An op is left out if its policy is not the same for all dtypes in ``lowers``. An op of the promote list that also
    promotes without autocast looks like an unlisted op, so it is left out too."""
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
    """Returns True for an op that is not in the promote list. For an op of the promote list, returns True if it gives
    float32 whenever one operand is float32 and the other has a lower precision, and False if a call raises or gives
    another dtype."""
    for lower in lowers:
        for given in ([FLOAT32, lower], [lower, FLOAT32]):
            answer = call_under_autocast(device, op, given, lower)
            if answer.error is not None or set(answer.dtypes) - {"float32"}:
                return POLICY[op] != "promote"
    return True
