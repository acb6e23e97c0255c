"""The templates and what they may call. Everything that is not ours to write is escaped."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reports.diff import in_words
from reports.statuses import KIND_OF, KINDS

FOLDER = Path(__file__).with_name("templates")

_CODE = re.compile(r"`([^`]+)`")
_THREAD = re.compile(r"(?:\b([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)|(?<![\w/&]))#(\d{2,7})\b")
_LABELS = {kind.name: kind.label for kind in KINDS}


@cache
def environment() -> Environment:
    """The one environment of all pages."""
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "number": number,
        "day": day,
        "prose": prose,
        "web": web,
        "kind": KIND_OF.__getitem__,
        "words": in_words,
        "part": lambda text: quote(str(text), safe=""),
    }
    made.globals["square"] = square
    made.globals["kinds"] = KINDS
    return made


def number(count: int) -> str:
    """``252,000``."""
    return f"{count:,}"


def day(start: str) -> str:
    """``2026-11-21`` of an instant."""
    return start[:10]


def age(start: str, now: datetime) -> int:
    """Whole days from an instant to ``now``; never negative."""
    then = datetime.strptime(start, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return max((now - then).days, 0)


def web(url: object) -> str | None:
    """The address if it is one of the web, else None: other schemes can run code."""
    text = str(url or "")
    return text if re.fullmatch(r"https?://[^\s<>\"'\\]+", text) else None


def square(kind: str) -> Markup:
    """The shape of a kind, with its name for those who do not see it."""
    label = _LABELS[kind]
    return Markup('<span class="sq k-{}" role="img" aria-label="{}" title="{}"></span>').format(
        kind, label, label
    )


def prose(text: str) -> Markup:
    """Text with code between backticks as code, and threads of GitHub as links."""
    parts = _CODE.split(text)
    made: list[str] = []
    for place, part in enumerate(parts):
        if place % 2:
            made.append(f"<code>{escape(part)}</code>")
        else:
            made.append(_threads(part))
    return Markup("".join(made))


def _threads(text: str) -> str:
    """``pytorch/pytorch#123, #124``: a bare number is of the repository named last."""
    made: list[str] = []
    last = 0
    repository: str | None = None
    for found in _THREAD.finditer(text):
        repository = found[1] or repository
        if repository is None:
            continue
        made.append(str(escape(text[last : found.start()])))
        address = f"https://github.com/{repository}/issues/{found[2]}"
        made.append(f'<a href="{escape(address)}" rel="noopener noreferrer">{escape(found[0])}</a>')
        last = found.end()
    made.append(str(escape(text[last:])))
    return "".join(made)
