"""Layouts that copies must keep the values of: one shape, many strides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch

SHAPE: Final = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Form:
    """Strides and offset of a tensor of ``SHAPE``, in elements."""

    strides: tuple[int, int, int]
    offset: int = 0

    @property
    def elements(self) -> int:
        """Of the storage that it needs."""
        last = sum((n - 1) * step for n, step in zip(SHAPE, self.strides, strict=True))
        return self.offset + last + 1

    @property
    def dense(self) -> bool:
        """Whether its elements fill their part of the storage, each once."""
        return self.elements - self.offset == 24 and not self.expanded

    @property
    def expanded(self) -> bool:
        """Whether elements share memory: no destination."""
        return 0 in self.strides


FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "contiguous": Form((12, 4, 1)),
        "offset": Form((12, 4, 1), 5),
        "transposed": Form((12, 1, 3)),
        "reversed": Form((1, 2, 6)),
        "reversed_offset": Form((1, 2, 6), 7),
        "stepped": Form((24, 8, 2)),
        "padded_rows": Form((18, 6, 1), 2),
        "stepped_transposed": Form((2, 4, 12), 3),
        "expanded": Form((0, 4, 1)),
        "expanded_inside": Form((4, 0, 1), 1),
    }
)


def laid_out(values: torch.Tensor, form: Form, device: torch.device | str) -> torch.Tensor:
    """These values of ``SHAPE`` on a device, in a layout. An expanded one repeats what it can hold.

    Where elements share memory the values are those of the first index.
    """
    base = torch.full((form.elements,), 99).to(values.dtype)
    view = base.as_strided(SHAPE, form.strides, form.offset)
    for place, step in enumerate(form.strides):
        if step == 0:
            values, view = values.narrow(place, 0, 1), view.narrow(place, 0, 1)
    view.copy_(values)
    return base.to(device).as_strided(SHAPE, form.strides, form.offset)


def numbered(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Other values everywhere, on the CPU; each is one of int8 too."""
    return torch.arange(1, 25).reshape(SHAPE).to(dtype)
