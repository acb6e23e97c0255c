"""Cases about random numbers in tensors of about 2^24 or 2^31 elements."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.size.limits import MORE, WHOLE, at_each_size, most, variant_of
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: Each fills a tensor with numbers whose mean is 50.5 and whose standard deviation is below 50. None of them is ever 0, which
#: the tensor holds before.
_RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "random_": lambda x: x.random_(1, 101),
    "bernoulli_": lambda x: x.bernoulli_(0.5).mul_(99).add_(1),
    "uniform_": lambda x: x.uniform_(0.5, 100.5),
    "normal_": lambda x: x.normal_(50.5, 29.0),
    "nn.functional.dropout": lambda x: functional.dropout(x.fill_(49.5), 0.5).add_(1),
}
_OF_BYTES = ("random_", "bernoulli_")


def _memory_of_random(op: str, limit: int) -> int:
    return most(limit) * (2 if op in _OF_BYTES else 12) + 2**26


@cases("layout.large", over={op: (op,) for op in _RANDOM}, variants=variant_of(2**24, "elements"), memory=_memory_of_random, **MORE)  # fmt: skip
@cases("layout.large", over={op: (op,) for op in _OF_BYTES}, variants=variant_of(2**31, "elements"), memory=_memory_of_random, **WHOLE)  # fmt: skip
def random_fill(context: CaseContext, op: str, limit: int) -> None:
    """A tensor of slightly fewer than, exactly, and more than 2^24 or 2^31 elements is filled with random numbers. In
    parts of 4,096 elements (at both ends, in the middle and below the limit), the mean is within 6 standard errors of
    the distribution's mean, and no two parts are equal."""
    dtype, width = torch.uint8 if op in _OF_BYTES else torch.float32, 4096

    def check(count: int) -> None:
        x = torch.zeros(count, dtype=dtype, device=context.device)
        x = _RANDOM[op](x)
        starts = sorted({0, count // 2, max(0, min(count, limit) - width), count - width})
        parts = [context.from_device(x[at : at + width]).double() for at in starts]
        for start, part in zip(starts, parts):
            text = "a part of a large tensor was not filled with random numbers"
            unwritten = int((part == 0).sum())
            at = f"{width:,} of {count:,} elements, from {start:,}"
            context.same(unwritten, 0, text, at=f"zeros in {at}")
            off = abs(float(part.mean()) - 50.5)
            text = (
                "the mean of random numbers in a part of a large tensor is not that of the "
                "distribution"
            )
            context.check(
                off < 6 * 50 / width**0.5, text, expected=50.5, found=float(part.mean()), at=at
            )
            again = sum(bool((part == other).all()) for other in parts)
            text = "two parts of a large tensor were filled with the same random numbers"
            context.check(again == 1, text, at=at)

    at_each_size(context, check, limit, "elements", 5 * width, (limit - 1, limit, most(limit)))
