"""Nested arguments: flatten the tensors out of a call and put others back in.

``torch.utils._pytree`` does the same at several times the cost, and treats named tuples and slices
in ways that matter here (a slice may hold tensors, a result may be a structseq).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def tensors_of(value: Any, into: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """All tensors inside lists, tuples, dicts, in order."""
    found: list[torch.Tensor] = [] if into is None else into
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_of(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            tensors_of(item, found)
    return found


def replace_tensors(value: Any, swap: Callable[[torch.Tensor], Any]) -> Any:
    """A copy of the structure with each tensor exchanged, in the order of :func:`tensors_of`."""
    if isinstance(value, torch.Tensor):
        return swap(value)
    if isinstance(value, tuple):
        items = [replace_tensors(item, swap) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [replace_tensors(item, swap) for item in value]
    if isinstance(value, dict):
        return {key: replace_tensors(item, swap) for key, item in value.items()}
    return value


class Call:
    """Positional and keyword arguments of one call, with the tensors taken out.

    ``bind(tensors)`` gives the arguments with these tensors in their places.
    """

    __slots__ = ("_arg_holds", "_kwargs_hold", "args", "kwargs", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors_of(kwargs, tensors_of(args))
        # What holds no tensor is passed as it is: lists of thousands of numbers are common arguments.
        self._arg_holds = [bool(tensors_of(a)) for a in args]
        self._kwargs_hold = bool(tensors_of(kwargs))

    def bind(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with ``tensors`` in place of the call's own, in order."""
        feed = iter(tensors)

        def swap(_: torch.Tensor) -> torch.Tensor:
            return next(feed)

        args = tuple(
            (next(feed) if isinstance(a, torch.Tensor) else replace_tensors(a, swap))
            if holds
            else a
            for a, holds in zip(self.args, self._arg_holds, strict=True)
        )
        return args, replace_tensors(self.kwargs, swap) if self._kwargs_hold else self.kwargs
