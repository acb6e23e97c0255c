"""The templates and what they may call. Everything that is not ours to write is escaped."""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports.diff import in_words
from reports.statuses import KIND_OF, KINDS, LABELS

_CODE = re.compile(r"`([^`]+)`")
_THREAD = re.compile(r"(?:\b([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)|(?<![\w/&]))#(\d{2,7})\b")
_LINK = Markup('<a href="https://github.com/{}/issues/{}" rel="noopener noreferrer">{}</a>')
_SQUARE = Markup('<span class="sq k-{}" role="img" aria-label="{}" title="{}"></span>')


@cache
def environment() -> Environment:
    """The one environment of all pages."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "number": "{:,}".format,
        "short": "{:.1f}".format,
        "day": lambda start: start[:10],
        "prose": prose,
        "web": web,
        "kind": KIND_OF.__getitem__,
        "words": in_words,
        "part": lambda text: quote(str(text), safe=""),
    }
    made.globals |= {"square": square, "kinds": KINDS}
    return made


def render(template: str, **context: object) -> Markup:
    """A template with its context."""
    return Markup(environment().get_template(template).render(context))


def instant(start: str) -> datetime:
    """A date as the site's documents hold it."""
    return datetime.fromisoformat(start.replace("Z", "+00:00"))


def web(url: object) -> str | None:
    """The address if it is one of the web, else None: other schemes can run code."""
    text = str(url or "")
    return text if re.fullmatch(r"https?://[^\s<>\"'\\]+", text) else None


def square(kind: str) -> Markup:
    """The shape of a kind, with its name for those who do not see it."""
    return _SQUARE.format(kind, LABELS[kind], LABELS[kind])


def prose(text: str) -> Markup:
    """Text with code between backticks as code, and threads of GitHub as links."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else _threads(part)
        for place, part in enumerate(_CODE.split(text))
    )


def _threads(text: str) -> Markup:
    """``pytorch/pytorch#123, #124``: a bare number is of the repository named last."""
    made, last = Markup(""), 0
    repository: str | None = None
    for found in _THREAD.finditer(text):
        repository = found[1] or repository
        if repository is not None:
            made += text[last : found.start()]  # escaped by the addition
            made += _LINK.format(repository, found[2], found[0])
            last = found.end()
    return made + text[last:]
