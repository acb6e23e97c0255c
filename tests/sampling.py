"""Of many values of a parameter those that the fast tests take; the others are marked slow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def first_of_each(
    values: Iterable[Any],
    kind: Callable[[Any], Hashable],
    name: Callable[[Any], str] | None = None,
) -> list[Any]:
    """The values as parameters of a test. The first one of each kind is fast; a tuple gives several arguments."""
    seen: set[Hashable] = set()
    made = []
    for value in values:
        marks = [pytest.mark.slow] if kind(value) in seen else []
        seen.add(kind(value))
        given = value if isinstance(value, tuple) else (value,)
        made.append(pytest.param(*given, marks=marks, id=name(value) if name else None))
    return made
