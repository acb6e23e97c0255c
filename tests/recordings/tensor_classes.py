"""Programs that make calls with tensors of classes that answer calls themselves, and with tensors without elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map_only

from opinfo.torch_private import FakeTensorMode


class Wrapper(torch.Tensor):
    """A tensor that answers calls by calls of the tensor inside, like DTensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = tree_map_only(Wrapper, lambda each: each.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapper, func(*given[0], **given[1]))


class Named(torch.Tensor):
    """A subclass that leaves all calls to torch."""


def fake() -> None:
    with FakeTensorMode():
        torch.ones(3).cos()


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


#: Programs that call ``cos``, with what is said of this call. The calls of ``cos`` that are seen follow.
PROGRAMS: Final[Mapping[str, tuple[Callable[[], Any], str, int]]] = {
    "wrapper": (lambda: Wrapper(torch.ones(3)).cos(), "a tensor of class Wrapper", 1),
    "subclass": (lambda: torch.ones(3).as_subclass(Named).cos(), "", 1),
    "nested": (lambda: nested().cos(), "a nested tensor", 0),
    "jagged": (
        lambda: torch.nested.as_nested_tensor([torch.ones(2)], layout=torch.jagged).cos(),
        "a tensor of class NestedTensor",
        1,
    ),
    "fake": (fake, "fake tensor", 0),
    "meta": (lambda: torch.ones(3, device="meta").cos(), "meta tensor", 0),
}
