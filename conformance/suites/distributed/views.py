"""Views as operands of collectives: tensors in a layout, with known bytes around them."""

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
    """A tensor on the device in a view, and what it was given."""

    guarded: GuardedTensor
    conjugate: bool

    @property
    def tensor(self) -> torch.Tensor:
        view = self.guarded.view
        return view.conj() if self.conjugate else view

    def read(self) -> torch.Tensor:
        """Returns the present values on the CPU."""
        values = self.guarded.read()
        return values.conj().resolve_conj() if self.conjugate else values


def put(ranks: Ranks, values: torch.Tensor, view: str) -> Operand:
    """Lays out the values on the device of the rank. A conjugate view has the conjugate values in memory."""
    conjugate = view == "conjugate"
    given = values.conj().resolve_conj() if conjugate else values
    layout = LAYOUTS[view] if ranks.context.opened.takes(LAYOUTS[view]) else DENSE
    around = None if values.is_floating_point() or values.is_complex() else 77.0
    made = ranks.context.guarded(given, layout, ranks.device_index, around=around)
    return Operand(made, conjugate)


def shown(values: torch.Tensor, view: str) -> torch.Tensor:
    """Returns the values that a view of these values shows: an expanded one repeats the first ones."""
    return values[:1].expand_as(values) if view == "expanded" else values


def numbers(rank: int, *, part: int = 0, view: str = DENSE, rows: int = 1) -> torch.Tensor:
    """Returns the values of one operand of a rank, which are different for each rank, part and place. With ``rows``, the
    first dimension is as many times longer. They are integers, so that sums are exact, and complex for a conjugate view.
    """
    shape = (SHAPE[0] * rows, *SHAPE[1:])
    count = torch.Size(shape).numel()
    values = torch.arange(float(count)).reshape(shape) + 1000.0 * rank + 10000.0 * part + 1
    return torch.complex(values, values + 0.5) if view == "conjugate" else values


def blank(view: str = DENSE, rows: int = 1) -> torch.Tensor:
    """Returns the values that a target holds before the call."""
    return torch.full_like(numbers(0, view=view, rows=rows), -1.0)


def check_result(ranks: Ranks, operand: Operand, want: torch.Tensor | None, at: str) -> None:
    """Checks the values of a target, unless ``want`` is None, and that the bytes around the target did not change."""
    context = ranks.context
    if want is not None:
        context.equal(operand.read(), want, "a collective gave wrong values", at)
    kept = operand.guarded.outside_intact()
    text = "a collective wrote outside of its target"
    context.check(
        kept, text, found="" if kept else operand.guarded.damage(), kind=Kind.BYTES, at=at
    )


def check_input(ranks: Ranks, operand: Operand, at: str) -> None:
    """Checks that no byte of an input, or around it, changed."""
    kept = operand.guarded.intact()
    text = "a collective changed its input or the bytes around it"
    found = "" if kept else operand.guarded.damage()
    ranks.context.check(kept, text, found=found, kind=Kind.BYTES, at=at)
