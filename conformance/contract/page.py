"""Renders docs/contract.md, the page that describes the contract, from the template ``page.md.jinja``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined

from conformance.contract import LEVELS, SIMULATED, WRAPPED, Contract
from conformance.contract.bugs import Bug, Noticed, bugs

_TEMPLATE: Final = Path(__file__).with_name("page.md.jinja")
_SIMULATED_COMMAND: Final = (
    f"{SIMULATED}=out.restride pytest --device simulated --ops add --clauses layout.out_kept"
)
_WRAPPED_COMMAND: Final = (
    f"{WRAPPED}=out.strided_unwritten pytest --descriptor tests/wrapped/descriptor.py"
    " --ops mm --clauses layout.out_kept"
)
_THREAD: Final = re.compile(r"(?:pytorch/pytorch)?#(\d+)")
_OUTER_UNDERSCORES: Final = re.compile(r"(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])")


def markdown(contract: Contract) -> str:
    made = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    made.filters |= {"prose": _prose, "threads": _threads, "code": _code, "links": _links}
    template = made.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        levels=LEVELS.items(),
        simulated=SIMULATED,
        simulated_command=_SIMULATED_COMMAND,
        wrapped=WRAPPED,
        wrapped_command=_WRAPPED_COMMAND,
        families=contract.families.items(),
        clauses=list(contract.clauses.values()),
        bugs={
            clause: found
            for clause in contract.clauses
            if (found := [bug for bug in bugs() if clause in bug.clauses])
        },
        bug_count=len(bugs().by_reference),
        noticed={str(each): sum(bug.noticed is each for bug in bugs()) for each in Noticed},
    )


def _prose(text: str) -> str:
    """Returns ``text`` with the characters escaped that Markdown would treat as markup, except in code between
    backticks."""
    parts = text.replace("|", r"\|").split("`")
    for position in range(0, len(parts), 2):  # odd parts are code between backticks
        prose = parts[position].replace("*", r"\*").replace("<", "&lt;")
        parts[position] = _OUTER_UNDERSCORES.sub(lambda found: r"\_" * len(found[0]), prose)
    return "`".join(parts)


def _threads(text: str) -> str:
    """Returns ``text`` with a link to PyTorch's issue tracker for each number of an issue or pull request."""
    return _THREAD.sub(r"[pytorch/pytorch#\1](https://github.com/pytorch/pytorch/issues/\1)", text)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _links(found: Iterable[Bug]) -> str:
    return ", ".join(f"[{bug.reference}]({bug.url}) ({bug.backend})" for bug in found)
