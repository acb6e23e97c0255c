"""The form of a custom op of ``torch.library``, which is compared with a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.kernels.forms.overrides import Override
from conformance.kernels.request import Request
from opinfo.subject import Source, loaded


def load(request: Request, captured: list[Override]) -> Callable[..., Any]:
    """Returns the custom op. The request names either the object in the file or the op, as "namespace::name"."""
    if "::" in request.kernel.name:
        request.kernel.load_module()
        space, _, name = request.kernel.name.partition("::")
        name, _, overload = name.partition(".")
        packet = getattr(getattr(torch.ops, space), name)
        return getattr(packet, overload or "default")  # type: ignore[no-any-return]
    found = request.kernel.load()
    return getattr(found, "_opoverload", found)  # type: ignore[no-any-return]


def script_source(request: Request) -> Source:
    """Returns the expression by which a repro script refers to the custom op."""
    return f"custom_op_of({request.kernel.path!r}, {request.kernel.name!r})", (custom_op_of,)


def custom_op_of(path: str, name: str) -> Any:
    """Returns the custom op that a file defines. ``name`` is the name of the object, or "namespace::name"."""
    if "::" not in name:
        return loaded(path, name)
    loaded(path, "__name__")
    space, _, name = name.partition("::")
    name, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, space), name), overload or "default")
