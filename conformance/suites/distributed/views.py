"""Creates the operands of collectives: tensors in a given layout, with known bytes around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
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

#: A view with a step and an offset, also of one dimension.
STEPPED_AT_OFFSET: Final = "contiguous+step_inner+offset"

#: The shape of every operand. No two extents are equal, so that elements in another order are seen; the first is
#: divisible by the numbers of ranks.
SHAPE: Final = (4, 3, 2, 5)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor on the device in one of the views, with known bytes around the tensor."""

    guarded: GuardedTensor
    conjugate: bool

    @property
    def tensor(self) -> torch.Tensor:
        view = self.guarded.view
        return view.conj() if self.conjugate else view

    def read(self) -> torch.Tensor:
        """Returns a CPU copy of the tensor's current values."""
        values = self.guarded.read()
        return values.conj().resolve_conj() if self.conjugate else values


def require_layout(context: CaseContext, layout: str) -> None:
    """Raises NotDeclared if tensors on the device cannot have the layout. Replacing the view by a contiguous tensor
    would test nothing."""
    if not context.opened.takes(layout):
        raise NotDeclared(f"by declaration: tensors on the device cannot have the layout {layout}")


def put(ranks: Ranks, values: torch.Tensor, view: str) -> Operand:
    """Returns a tensor on the device of the rank that stores ``values`` in a view, with known bytes around it.
    ``view`` is the name of a view or the id of a layout. A conjugate view has the conjugate values in memory."""
    conjugate = view == "conjugate"
    given = values.conj().resolve_conj() if conjugate else values
    layout = LAYOUTS.get(view, view)
    require_layout(ranks.context, layout)
    around = None if values.is_floating_point() or values.is_complex() else 77.0
    made = ranks.context.guarded(given, layout, ranks.device_index, around=around)
    return Operand(made, conjugate)


def shown(values: torch.Tensor, view: str) -> torch.Tensor:
    """Returns the values that are read from a view in which ``values`` were stored: those values, or for an expanded
    view its first slice, repeated."""
    return values[:1].expand_as(values) if view == "expanded" else values


#: How integers become the values of a dtype. Sums over four ranks are exact, and a narrower dtype does not have the values.
VALUES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "float32": lambda whole: whole.float(),
    "float64": lambda whole: whole.double() * (1 + 2.0**-30),
    "int64": lambda whole: whole * (2**44 + 1),
    "bfloat16": lambda whole: _small(whole).bfloat16(),
    "float16": lambda whole: (_small(whole) * 1.125).half(),
    "complex64": lambda whole: torch.complex(whole.float(), whole + 0.5),
}


def _small(whole: torch.Tensor) -> torch.Tensor:
    """Returns the integers ``whole`` reduced to the range from -61 to 61, with the same signs. Adjacent elements,
    rows, parts and ranks still have different values."""
    return (whole.abs() % 61 + 1) * whole.sign()


def dtype_of_view(view: str) -> str:
    """Returns the name of the dtype that tensors in a view have: a complex dtype for a conjugate view, otherwise
    float32."""
    return "complex64" if view == "conjugate" else "float32"


def numbers(
    rank: int, *, part: int = 0, dtype: str = "float32", rows: int = 1, times: int = 1
) -> torch.Tensor:
    """Returns the values of one operand of a rank. They differ for each rank, part and position, and a third of them
    are negative. The first dimension is ``rows`` times as long as usual, and the values are multiplied by ``times``."""
    return VALUES[dtype](_integers(rank, part, rows)) * times


@cache
def _integers(rank: int, part: int, rows: int) -> torch.Tensor:
    shape = (SHAPE[0] * rows, *SHAPE[1:])
    places = torch.arange(torch.Size(shape).numel()).reshape(shape)
    whole = places + 1009 * rank + 10007 * part + 1
    return torch.where((places + rank + part) % 3 == 1, -whole, whole)


def blank(dtype: str = "float32", rows: int = 1) -> torch.Tensor:
    """Returns a tensor filled with -1, the values that the output of a collective has before the call. Its first
    dimension is ``rows`` times as long as usual."""
    return torch.full((SHAPE[0] * rows, *SHAPE[1:]), -1, dtype=getattr(torch, dtype))


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
