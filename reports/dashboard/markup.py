"""Renders the templates of the site and defines the filters that they use. All text that comes from runs is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports.diff import in_words
from reports.status_letters import KIND_OF, KINDS, LABELS

_CODE = re.compile(r"`([^`]+)`")
_THREAD = re.compile(r"(?:\b([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)|(?<![\w/&]))#(\d{2,7})\b")
_LINK = Markup('<a href="https://github.com/{}/issues/{}" rel="noopener noreferrer">{}</a>')
_SQUARE = Markup('<span class="sq k-{}" role="img" aria-label="{}" title="{}"></span>')


@cache
def environment() -> Environment:
    """Returns the template environment that all pages share."""
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
        "minute": lambda start: start[:16].replace("T", " "),
        "labels": label_texts,
        "prose": prose,
        "plain": lambda text: text.replace("`", ""),
        "web": web,
        "kind": KIND_OF.__getitem__,
        "words": in_words,
        "part": lambda text: quote(str(text), safe=""),
    }
    made.globals |= {"square": square, "kinds": KINDS}
    return made


def render(template: str, **context: object) -> Markup:
    """Returns the text of a template, rendered with the given context."""
    return Markup(environment().get_template(template).render(context))


def instant(start: str) -> datetime:
    """Parses a date as written in the documents of the site (ISO 8601, such as ``2026-01-31T12:00:00Z``)."""
    return datetime.fromisoformat(start.replace("Z", "+00:00"))


def web(url: object) -> str | None:
    """Returns an address if it is an http or https address, else None, because addresses of other schemes can run
    code."""
    text = str(url or "")
    return text if re.fullmatch(r"https?://[^\s<>\"'\\]+", text) else None


def label_texts(labels: Mapping[str, str]) -> list[str]:
    """Returns the labels of a run as texts: the branch, ten characters of the commit, ``PR 123``, then the others."""
    known = {"branch": "{}", "commit": "{:.10}", "pr": "PR {}"}
    names = [name for name in known if name in labels]
    others = [f"{name} {value}" for name, value in labels.items() if name not in known]
    return [*(known[name].format(labels[name]) for name in names), *others]


def square(kind: str) -> Markup:
    """Returns the HTML element that shows the shape of a kind of status. The label for screen readers is the name of
    the kind."""
    return _SQUARE.format(kind, LABELS[kind], LABELS[kind])


def prose(text: str) -> Markup:
    """Returns a text as escaped HTML. Parts in backticks become code elements, and references to GitHub issues become
    links."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else _threads(part)
        for place, part in enumerate(_CODE.split(text))
    )


def _threads(text: str) -> Markup:
    """Returns a text as escaped HTML with links for references such as ``pytorch/pytorch#123, #124``. A number without
    a repository belongs to the repository that was named last."""
    made, last = Markup(""), 0
    repository: str | None = None
    for found in _THREAD.finditer(text):
        repository = found[1] or repository
        if repository is not None:
            made += text[last : found.start()]  # escaped by the addition
            made += _LINK.format(repository, found[2], found[0])
            last = found.end()
    return made + text[last:]
