"""Another module, which has a function of the same name."""

from __future__ import annotations

SIZES = [3, 4]
FACTOR = 10


def _own(value: int) -> int:
    return value - 1


def helper(value: int) -> int:
    return _own(value)


def scaled(value: int) -> int:
    return value * FACTOR


class Counter:
    """Counts."""

    number = 0

    def count(self) -> None:
        self.number += 1

    def reset(self) -> None:
        self.number = 0


_calls = 100


def changes_another_global() -> int:
    global FACTOR, _calls
    _calls += FACTOR
    return _calls
