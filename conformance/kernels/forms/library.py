"""The form of a module that overrides aten ops with ``torch.library``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.kernels.forms.overrides import Override, in_place, overrides_captured
from conformance.kernels.request import NotLoadable, Request
from conformance.kernels.targets import named_function
from opinfo.subject import Source, loaded


def load(request: Request, captured: list[Override]) -> Callable[..., Any]:
    """Returns a function that calls the op of the request while the module's overrides are registered."""
    request.kernel.load_module()
    op = named_function(request.target)
    name = request.target.removeprefix("aten::")
    if not any(each.op.removesuffix(".default") == name for each in captured):
        raise NotLoadable(f"{request.kernel.path} registers no kernel for {request.target}")

    def overridden(*args: Any, **kwargs: Any) -> Any:
        with in_place(captured):
            return op(*args, **kwargs)

    # Registering takes longer than many a kernel, so the function itself is timed.
    direct = next(each.function for each in captured if each.op.removesuffix(".default") == name)
    overridden.direct = direct  # type: ignore[attr-defined]
    return overridden


def script_source(request: Request) -> Source:
    """Returns the expression by which a repro script calls the op while the module's overrides are registered."""
    return f"overridden_by({request.kernel.path!r}, {request.target!r})", (overridden_by,)


def overridden_by(path: str, target: str) -> Callable[..., Any]:
    """Imports a file, and returns a function that calls an op such as "aten::softmax.int" while the file's overrides
    are registered."""
    name, _, overload = target.partition("::")[2].partition(".")
    op = getattr(getattr(torch.ops.aten, name), overload or "default")
    with overrides_captured() as captured:
        loaded(path, "__name__")

    def overridden(*args: Any, **kwargs: Any) -> Any:
        with in_place(captured):
            return op(*args, **kwargs)

    return overridden
