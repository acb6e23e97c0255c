"""Reading one ``[[expect]]`` block: each key's type, and what its value may be."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar

from devices._text import suggestion
from devices.block import Block, ExpectedOutcome, Kind
from devices.vocabulary import DTYPES
from devices.when import Condition, ConditionError

_E = TypeVar("_E", bound=Enum)

KEYS: Final = (
    "clause",
    "op",
    "dtype",
    "layouts",
    "outcome",
    "raises",
    "match",
    "when",
    "kind",
    "reason",
    "issue",
    "expires",
    "min_pass_rate",
)
_REQUIRED: Final = ("clause", "outcome", "reason")


class BlockError(ValueError):
    """What is wrong with a block, without its place."""


def read_block(
    table: Mapping[str, object],
    line: int,
    path: Path | None,
    known_clauses: Collection[str] | None,
    known_layouts: Collection[str] | None,
) -> Block:
    """Check a block's table and build it. Raises BlockError for the first problem."""
    for key in table:
        if key not in KEYS:
            raise BlockError(
                f"unknown key '{key}'{suggestion(key, KEYS)} (known: {', '.join(KEYS)})"
            )
    for key in _REQUIRED:
        if key not in table:
            raise BlockError(f"the key '{key}' is missing: {_MISSING[key]}")
    outcome = _choice(table, "outcome", ExpectedOutcome)
    block = Block(
        line=line,
        path=path,
        clause=_axis(table, "clause", known_clauses),
        op=_axis(table, "op", None),
        dtype=_axis(table, "dtype", DTYPES),
        layouts=_layouts(table, known_layouts),
        outcome=outcome,
        raises=_raises(table),
        match=_match(table),
        when=_when(table),
        kind=_choice(table, "kind", Kind) if "kind" in table else None,
        reason=_text(table, "reason", "say in a sentence what causes it"),
        issue=_issue(table),
        expires=_expires(table),
        min_pass_rate=_min_pass_rate(table),
    )
    if outcome is ExpectedOutcome.FLAKY:
        for key in ("expires", "min_pass_rate"):
            if key not in table:
                raise BlockError(f"outcome 'flaky' needs '{key}': {_MISSING[key]}")
    elif "min_pass_rate" in table:
        raise BlockError(f"'min_pass_rate' goes with outcome 'flaky' only, not '{outcome}'")
    return block


_MISSING: Final = {
    "clause": 'name the clauses that it is about, such as clause = "layout.values"',
    "outcome": f"write one of {', '.join(repr(each.value) for each in ExpectedOutcome)}",
    "reason": "say in a sentence what causes it",
    "expires": "write the last day on which it holds, such as expires = 2027-03-01",
    "min_pass_rate": "write the share of its runs that must pass, such as min_pass_rate = 0.9",
}


def _text(table: Mapping[str, object], key: str, todo: str) -> str:
    value = table[key]
    if not isinstance(value, str):
        raise BlockError(f"'{key}' must be a text, got {_shown(value)}: {todo}")
    if not value.strip():
        raise BlockError(f"'{key}' is blank: {todo}")
    return value


def _texts(table: Mapping[str, object], key: str, todo: str) -> tuple[str, ...]:
    """A list of texts, none blank, at least one."""
    value = table[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BlockError(f"'{key}' must be {todo}, got {_shown(value)}")
    if not value:
        raise BlockError(f"'{key}' is an empty list: leave the key out, or name at least one")
    for item in value:
        if not item or item != item.strip():
            raise BlockError(f"'{key}' holds {item!r}, which is blank or has blanks around it")
    return tuple(dict.fromkeys(value))  # a name said twice is said once


def _axis(table: Mapping[str, object], key: str, known: Collection[str] | None) -> tuple[str, ...]:
    """The patterns of one axis: exact names, or prefixes that end in one ``*``."""
    if key not in table:
        return ("*",)
    single = table[key]
    entry = {key: [single]} if isinstance(single, str) else table
    patterns = _texts(entry, key, "a text or a list of texts")
    for pattern in patterns:
        prefix = pattern.removesuffix("*")
        if "*" in prefix:
            raise BlockError(f"'{key}' holds {pattern!r}: a '*' may only stand once, at the end")
        if known is None or not prefix:
            continue
        if pattern == prefix and pattern not in known:
            raise BlockError(
                f"unknown {key} {pattern!r}{suggestion(pattern, known)}"
                f" ({_count(known, key)}; give one, or a prefix and '*')"
            )
        if pattern != prefix and not any(name.startswith(prefix) for name in known):
            raise BlockError(f"no {key} begins with {prefix!r}{suggestion(prefix, known)}")
    return patterns


def _layouts(table: Mapping[str, object], known: Collection[str] | None) -> frozenset[str] | None:
    if "layouts" not in table:
        return None
    layouts = _texts(table, "layouts", "a list of layout names")
    for layout in layouts:
        if "*" in layout:
            raise BlockError(f"'layouts' holds {layout!r}: name each layout in full, without '*'")
        if known is not None and layout not in known:
            raise BlockError(
                f"unknown layout {layout!r}{suggestion(layout, known)} ({_count(known, 'layout')})"
            )
    return frozenset(layouts)


def _choice(table: Mapping[str, object], key: str, choices: type[_E]) -> _E:
    names = ", ".join(repr(each.value) for each in choices)
    value = table[key]
    for choice in choices:
        if isinstance(value, str) and choice.value == value:
            return choice
    near = suggestion(value, [each.value for each in choices]) if isinstance(value, str) else ""
    raise BlockError(f"'{key}' must be one of {names}, got {_shown(value)}{near}")


def _raises(table: Mapping[str, object]) -> str | None:
    if "raises" not in table:
        return None
    todo = "write the exception type's bare name, such as 'RuntimeError'"
    name = _text(table, "raises", todo)
    if not name.isidentifier():
        raise BlockError(f"'raises' is {name!r}: {todo}")
    return name


def _match(table: Mapping[str, object]) -> re.Pattern[str] | None:
    if "match" not in table:
        return None
    pattern = _text(table, "match", "write a regular expression, or leave the key out")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise BlockError(f"'match' is no regular expression: {error}, got {pattern!r}") from None


def _when(table: Mapping[str, object]) -> tuple[Condition, ...]:
    if "when" not in table:
        return ()
    conditions = table["when"]
    if not isinstance(conditions, dict):
        raise BlockError(
            "'when' must be a table of facts, such as { torch = \">=2.12\" },"
            f" got {_shown(conditions)}"
        )
    if not conditions:
        raise BlockError("'when' is empty: leave the key out, or name at least one fact")
    try:
        return tuple(Condition.parse(fact, wanted) for fact, wanted in conditions.items())
    except ConditionError as error:
        raise BlockError(f"when: {error}") from None


def _issue(table: Mapping[str, object]) -> str | None:
    if "issue" not in table:
        return None
    todo = "write the address in full, such as 'https://github.com/pytorch/pytorch/issues/1'"
    issue = _text(table, "issue", todo)
    if not re.fullmatch(r"https?://[^\s/]+\S*", issue):
        raise BlockError(f"'issue' is {issue!r}, which is no URL: {todo}")
    return issue


def _expires(table: Mapping[str, object]) -> date | None:
    if "expires" not in table:
        return None
    value = table["expires"]
    if not isinstance(value, date) or isinstance(value, datetime):
        raise BlockError(
            "'expires' must be a date without quotes and time, such as expires = 2027-03-01,"
            f" got {_shown(value)}"
        )
    return value


def _min_pass_rate(table: Mapping[str, object]) -> float | None:
    if "min_pass_rate" not in table:
        return None
    value = table["min_pass_rate"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise BlockError(f"'min_pass_rate' must be a number from 0 to 1, got {_shown(value)}")
    return float(value)


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, (date, dict)) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _count(known: Collection[str], what: str) -> str:
    return f"{len(known)} {what}{'' if len(known) == 1 else 's'} are known"
