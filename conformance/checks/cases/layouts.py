"""A tensor that a case lays out in memory: in a named layout, with known bytes before it, after it and in its gaps.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

import torch

from opinfo.guarded import ByValues, Damage, Guarded, Move, strided_view
from opinfo.layouts import Geometry, parse_layout

#: The layout of a tensor without gaps, in row-major order.
DENSE = "contiguous"


class GuardedTensor:
    """A tensor in a layout such as ``transposed+step_inner+offset``, and the known bytes of its storage.

    ``view`` is the tensor on the device. ``values`` is a CPU tensor with the values that it was given; if the layout
    expands a dimension, the first values along the dimension are repeated. The bytes around floating-point elements are
    NaN, so that the result of a kernel that reads them is NaN.
    """

    def __init__(
        self,
        values: torch.Tensor,
        layout: str,
        move: Move,
        back: Move,
        *,
        slices: bool,
        around: float | None = None,
    ) -> None:
        """Lays out the CPU tensor ``values``. ``move`` copies a tensor to the device, and ``back`` to the CPU. If
        ``slices`` is True, the view is made by slicing, for devices without strides; if it is False, by ``as_strided``.
        ``around`` is the value of the elements outside of the view, if they must not be NaN.

        Raises ValueError if ``layout`` is not the id of a layout (see opinfo/layouts.py).
        """
        geometry = parse_layout(layout).geometry(values.shape)
        whole = values.detach().contiguous()
        self.guarded = (ByValues if slices else Guarded)(whole, geometry, move, around=around)
        self.values = whole
        if geometry.expanded is not None:
            self.values = whole.narrow(geometry.expanded, 0, 1).expand(whole.shape)
        self._back, self._slices = back, slices

    @property
    def view(self) -> torch.Tensor:
        return self.guarded.view

    @property
    def geometry(self) -> Geometry:
        return self.guarded.geometry

    @property
    def storage(self) -> torch.Tensor:
        """The storage that the tensor is a view of, on the same device and with the same dtype, in one dimension."""
        return self.guarded.base.view(self.values.dtype).view(-1)

    def stored(self) -> torch.Tensor:
        """Returns a copy of ``storage`` on the CPU. On devices without strides, every NaN in the copy has the same
        bits, because the bits on the device are not known."""
        found = self.guarded.bytes_now(self._back).view(self.values.dtype)
        if self._slices and (found.is_floating_point() or found.is_complex()):
            found[found.isnan()] = torch.nan
        return found

    def read(self) -> torch.Tensor:
        """Returns the present values of the tensor on the CPU. The whole storage is copied, because the copy of a view
        may be wrong."""
        held = self.guarded.bytes_now(self._back)
        return strided_view(held, self.values.dtype, self.geometry)

    def intact(self) -> bool:
        """Returns True if no byte of the storage has changed."""
        return self.guarded.intact(self._back)

    def damage(self) -> Damage:
        return self.guarded.damage(self._back)

    def outside_intact(self) -> bool:
        """Returns True if no byte outside the elements of the tensor has changed."""
        return self.guarded.outside_intact(self._back)
