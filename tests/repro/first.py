"""A module of which scripts carry parts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from os import path as place
from typing import TYPE_CHECKING, Any, ClassVar

import devices.errors
from devices import machine
from devices.errors import ConformError as Refused
from tests.repro.second import SIZES, Counter, changes_another_global, helper
from tests.repro.second import scaled as enlarged

if TYPE_CHECKING:
    from pathlib import Path

TABLE: dict[str, Callable[[int], int]] = {
    "doubled": lambda value: helper(value) * 2,  # é: columns count bytes
    "enlarged": lambda value: enlarged(value),
}


def _own(value: int) -> int:
    return value + 1


def uses_two_of_a_name(value: int) -> tuple[int, int]:
    return _own(value), helper(value)


def uses_aliases(value: int) -> tuple[int, bool, str]:
    refused: Path | None = None
    return enlarged(value), issubclass(Refused, ValueError) or refused is None, place.sep


def uses_modules() -> tuple[bool, str, bool]:
    found = devices.errors.listing(["b", "a"]), machine.is_installed("torch")
    return importlib.util is not None, *found


def hides_names(helper: int) -> list[int]:
    """The parameter, and the variable of the comprehension, have the names of functions."""
    return [SIZES[0] + helper for SIZES in [[1], [2]] for _own in [helper]]


def uses_a_table(value: int) -> list[Any]:
    return [each(value) for each in TABLE.values()]


@dataclass
class Pair:
    one: int
    other: int = SIZES[1]

    def total(self) -> int:
        return self.one + self.other

    def never_called(self) -> str:
        return "never"


def uses_classes() -> tuple[int, int]:
    counter = Counter()
    counter.count()
    return Pair(1).total(), counter.number


def imports_inside() -> str:
    from devices.errors import listing

    return listing(["a"])


def takes_a_module() -> Any:
    return vars(machine)


def changes_a_global() -> int:
    global _calls
    _calls = changes_another_global()
    return _calls


_calls = 0


@dataclass(frozen=True)
class HasMarks:
    """Dataclasses look up the names of these annotations."""

    one: int = 1
    _: KW_ONLY
    two: int
    shared: ClassVar[list[int]] = []


def uses_marks() -> tuple[str, list[int]]:
    return repr(HasMarks(two=2)), HasMarks.shared
