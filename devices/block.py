"""A block of a manifest: one root cause, the cells it covers and what is expected of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path

from devices.when import Condition


class ExpectedOutcome(str, Enum):
    """What a block expects of its cells."""

    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    UNSUPPORTED = "unsupported"
    FLAKY = "flaky"  # passes or fails; needs `expires` and `min_pass_rate`

    def __str__(self) -> str:
        return self.value


class Kind(str, Enum):
    """Whose cause it is."""

    NOT_IMPLEMENTED = "not-implemented"
    DEVICE_BUG = "device-bug"
    UPSTREAM_BUG = "upstream-bug"
    HARDWARE_LIMIT = "hardware-limit"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One ``[[expect]]`` block: one root cause.

    Each of ``clause``, ``op`` and ``dtype`` holds patterns: exact names, or prefixes that end in
    ``*``. ``layouts`` is None where any layout may fail.
    """

    line: int  # of its header, from 1
    path: Path | None = None
    clause: tuple[str, ...]
    op: tuple[str, ...] = ("*",)
    dtype: tuple[str, ...] = ("*",)
    layouts: frozenset[str] | None = None
    outcome: ExpectedOutcome
    raises: str | None = None
    match: re.Pattern[str] | None = None  # searched for in the message
    when: tuple[Condition, ...] = ()
    kind: Kind | None = None
    reason: str
    issue: str | None = None
    expires: date | None = None  # the last day on which it holds
    min_pass_rate: float | None = None  # of a flaky cell's runs, 0 to 1

    @property
    def where(self) -> str:
        """File and line, in the form that editors and terminals follow."""
        return place(self.path, self.line)

    def is_expired(self, today: date) -> bool:
        """Whether its last day is over."""
        return self.expires is not None and self.expires < today


def place(path: Path | None, line: int) -> str:
    """``path:line``, or ``line N`` where there is no file."""
    return f"{path}:{line}" if path else f"line {line}"
