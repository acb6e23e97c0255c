"""The wrong answers that pass, with their reasons: ``right.toml``, and its table in ``docs/precision.md``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from devices.errors import ConformError
from devices.files import read_toml
from opinfo.exceptions import exceptions, names

_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]


@dataclass(frozen=True, slots=True)
class Pass:
    """A wrong answer that nothing notices, or that is the right one."""

    answer: str
    op: str
    dtype: str


class Right(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why answers pass: the ``ops`` are names or patterns that end in ``*``, or a ``family`` of ``exceptions.toml``."""

    answers: tuple[_Text, ...]
    reason: _Text
    ops: tuple[_Text, ...] = ()
    family: str = ""
    dtypes: tuple[str, ...] = ()  # all, if none are named

    def explains(self, found: Pass) -> bool:
        """Whether this is the reason."""
        return (
            found.answer in self.answers
            and any(names(each, found.op) for each in self.of_ops())
            and (not self.dtypes or found.dtype in self.dtypes)
        )

    def of_ops(self) -> tuple[str, ...]:
        if not self.family:
            return self.ops
        return next(each.ops for each in exceptions().families if each.name == self.family)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    right: tuple[Right, ...]


@cache
def reasons() -> tuple[Right, ...]:
    """Every entry of the file."""
    return read_toml(Path(__file__).with_name("right.toml"), _File, ConformError).right


def without_reason(found: Iterable[Pass]) -> list[Pass]:
    """What passes and should not."""
    return [each for each in found if not any(r.explains(each) for r in reasons())]


def unneeded(found: list[Pass]) -> list[str]:
    """The ops of the file that no longer let such an answer pass."""
    return [
        f"{answer} for {op}"
        for r in reasons()
        for op in (() if r.family else r.ops)
        for answer in r.answers
        if not any(
            each.answer == answer and r.explains(each) and names(op, each.op) for each in found
        )
    ]


def table() -> list[str]:
    """The lines of the table."""
    lines = ["| answer | passes for | because |", "|---|---|---|"]
    for r in reasons():
        ops = f"the family `{r.family}`" if r.family else ", ".join(f"`{op}`" for op in r.ops)
        only = f" ({', '.join(r.dtypes)})" if r.dtypes else ""
        lines.append(f"| {', '.join(r.answers)} | {ops}{only} | {r.reason} |")
    return lines
