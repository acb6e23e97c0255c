"""Captures the overrides of aten ops that a module registers with ``torch.library`` when it is imported. The overrides
are registered only around the calls that are judged."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Override:
    """An override of an aten op such as "softmax.int": the function and its dispatch key."""

    op: str
    function: Callable[..., Any]
    key: str
    with_keyset: bool = False


@contextmanager
def overrides_captured() -> Iterator[list[Override]]:
    """Within the context, registrations of kernels for aten ops are not made but collected in the list that is yielded.
    Registrations for other ops are made."""
    found: list[Override] = []
    library = torch.library.Library
    original: Any = library.impl

    def impl(
        self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **given: Any
    ) -> Callable[..., Any]:
        if self.ns != "aten":
            made: Any = original(self, op_name, fn, dispatch_key, **given)
            return made  # type: ignore[no-any-return]
        name = getattr(op_name, "_schema", None)
        text = f"{name.name}.{name.overload_name}".rstrip(".") if name else str(op_name)
        keyset = bool(given.get("with_keyset"))
        key = dispatch_key or self.dispatch_key
        found.append(Override(text.removeprefix("aten::"), fn, key, keyset))
        return fn  # type: ignore[no-any-return]

    library.impl = impl  # type: ignore[method-assign]
    try:
        yield found
    finally:
        library.impl = original  # type: ignore[method-assign]


@contextmanager
def in_place(overrides: Sequence[Override]) -> Iterator[None]:
    """Registers the overrides, and removes them at the end of the context."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about kernels that are replaced, which is wanted
            for each in overrides:
                library.impl(each.op, each.function, each.key, with_keyset=each.with_keyset)
        yield
    finally:
        library._destroy()
