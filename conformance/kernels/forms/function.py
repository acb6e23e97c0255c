"""The form of a Python function that replaces an op or is compared with a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.kernels.forms.overrides import Override
from conformance.kernels.request import NotLoadable, Request
from opinfo.subject import Source, loaded


def load(request: Request, captured: list[Override]) -> Callable[..., Any]:
    """Returns the function that the request names."""
    found = request.kernel.load()
    if not callable(found):
        raise NotLoadable(f"{request.kernel.name}: expected a function, found {found!r:.80}")
    return found  # type: ignore[no-any-return]


def script_source(request: Request) -> Source:
    """Returns the expression by which a repro script refers to the function."""
    return f"loaded({request.kernel.path!r}, {request.kernel.name!r})", (loaded,)
