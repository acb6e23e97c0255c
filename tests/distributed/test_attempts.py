"""Calls that a rank refuses: no error of them is left for the next case. Without processes."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.suites.distributed.groups import Ranks


class Device:
    """Stands for the context of a case on a device where calls fail late: each synchronisation raises one error."""

    def __init__(self, errors: int) -> None:
        self.errors = errors

    def settle(self) -> None:
        if self.errors:
            self.errors -= 1
            raise RuntimeError("failed late")


class Alone(Ranks):
    """The only rank, whose group is always new."""

    def exchange(self, text: str = "") -> list[str]:
        return [text]

    def renew(self, **options: Any) -> None: ...

    def leave(self) -> None: ...


@pytest.mark.parametrize("errors", [1, 2, 7])
def test_all_errors_that_come_late_are_raised_before_the_next_call(errors: int) -> None:
    device: Any = Device(errors)
    ranks = Alone(device, device)
    assert ranks.attempt(lambda: None) == "RuntimeError: failed late"
    assert ranks.attempt(lambda: None) == ""
