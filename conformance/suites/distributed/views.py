"""Creates the operands of collectives: tensors in a given layout, with known bytes around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from conformance.checks.cases.layouts import DENSE, GuardedTensor
from conformance.suites.distributed.groups import Ranks
from devices.failure import Kind

#: The views by name, with the ids of their layouts (opinfo/layouts.py).
LAYOUTS: Final = {
    "contiguous": DENSE,
    "offset": "contiguous+offset",
    "stepped": "contiguous+step_inner",
    "padded": "free:pads=2,offset=3",
    "transposed": "transposed",
    "channels_last": "channels_last",
    "expanded": "contiguous+expand_first",
    "conjugate": DENSE,
}

#: The shape of every operand. No two extents are equal, so that elements in another order are seen; the first is
#: divisible by the numbers of ranks.
SHAPE: Final = (4, 3, 2, 5)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor on the device in one of the views, with known bytes around it."""

    guarded: GuardedTensor
    conjugate: bool

    @property
    def tensor(self) -> torch.Tensor:
        view = self.guarded.view
        return view.conj() if self.conjugate else view

    def read(self) -> torch.Tensor:
        """Returns a CPU copy of the current values."""
        values = self.guarded.read()
        return values.conj().resolve_conj() if self.conjugate else values


def put(ranks: Ranks, values: torch.Tensor, view: str) -> Operand:
    """Copies the values to the device of the rank, in the given view. For a conjugate view, the memory has the
    conjugates of the values."""
    conjugate = view == "conjugate"
    given = values.conj().resolve_conj() if conjugate else values
    layout = LAYOUTS[view] if ranks.context.opened.takes(LAYOUTS[view]) else DENSE
    around = None if values.is_floating_point() or values.is_complex() else 77.0
    made = ranks.context.guarded(given, layout, ranks.device_index, around=around)
    return Operand(made, conjugate)


def shown(values: torch.Tensor, view: str) -> torch.Tensor:
    """Returns the values that the tensor has in a view of ``values``: an expanded view repeats the first slice."""
    return values[:1].expand_as(values) if view == "expanded" else values


def numbers(rank: int, *, part: int = 0, view: str = DENSE, rows: int = 1) -> torch.Tensor:
    """Returns the values of one operand of a rank, which differ for each rank, part and element. The first dimension is
    ``rows`` times as long. The values are integers, so that sums are exact; they are complex for a conjugate view."""
    shape = (SHAPE[0] * rows, *SHAPE[1:])
    count = torch.Size(shape).numel()
    values = torch.arange(float(count)).reshape(shape) + 1000.0 * rank + 10000.0 * part + 1
    return torch.complex(values, values + 0.5) if view == "conjugate" else values


def blank(view: str = DENSE, rows: int = 1) -> torch.Tensor:
    """Returns the values that an output has before the call."""
    return torch.full_like(numbers(0, view=view, rows=rows), -1.0)


def check_result(ranks: Ranks, operand: Operand, want: torch.Tensor | None, at: str) -> None:
    """Checks that the bytes around an output did not change and, unless ``want`` is None, that the output has the
    values ``want``."""
    context = ranks.context
    if want is not None:
        context.equal(operand.read(), want, "a collective gave wrong values", at)
    kept = operand.guarded.outside_intact()
    text = "a collective wrote to memory outside of its output"
    context.check(
        kept, text, found="" if kept else operand.guarded.damage(), kind=Kind.BYTES, at=at
    )


def check_input(ranks: Ranks, operand: Operand, at: str) -> None:
    """Checks that neither the bytes of an input nor the bytes around it changed."""
    kept = operand.guarded.intact()
    text = "a collective changed its input, or the bytes around its input"
    found = "" if kept else operand.guarded.damage()
    ranks.context.check(kept, text, found=found, kind=Kind.BYTES, at=at)
