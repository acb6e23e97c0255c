"""The forms in which kernels are handed in. Each form is a module that loads a kernel in the kernel's process. The
functions of this module choose the form of a request."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from conformance.kernels.forms.overrides import Override
from conformance.kernels.forms.overrides import overrides_captured as overrides_captured
from conformance.kernels.request import Request
from conformance.kernels.targets import named_function
from opinfo.subject import Source, loaded

CUSTOM_OP = "custom_op"


class Form(Protocol):
    """A form of kernels: a module with this function."""

    def load(self, request: Request, captured: list[Override]) -> Callable[..., Any]:
        """Returns the kernel as a function. ``captured`` are the overrides of aten ops that the file has registered
        while it was imported. Raises whatever the file raises."""
        ...


def load(request: Request, captured: list[Override]) -> Callable[..., Any]:
    """Imports the file of a kernel and returns the kernel as a function."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    kernel: Callable[..., Any] = form.load(request, captured)
    return kernel


def replaced_op(request: Request) -> Callable[..., Any] | None:
    """Returns the function with whose time the kernel's is compared: the op that it replaces, or its reference."""
    if request.target:
        return named_function(request.target)
    return reference_of(request)


def reference_of(request: Request) -> Callable[..., Any]:
    """Returns the reference of a kernel that replaces no op."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    if hasattr(form, "reference"):
        found: Callable[..., Any] = form.reference(request)
        return found
    assert request.reference is not None
    return request.reference.load()  # type: ignore[no-any-return]


def samples_of(request: Request) -> Iterator[Any]:
    """Yields the arguments that were given for a kernel, as tuples or as pairs (args, kwargs)."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    if hasattr(form, "samples"):
        yield from form.samples(request)
    elif request.samples is not None:
        yield from request.samples.load()()


def keeps_dtypes(request: Request) -> bool:
    """Returns True if the samples of a form have their dtypes already."""
    return bool(
        getattr(importlib.import_module(f"{__name__}.{request.form}"), "KEEPS_DTYPES", False)
    )


def reference_source(request: Request) -> Source:
    """Returns the expression by which a repro script refers to the reference."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    if hasattr(form, "reference_source"):
        found: Source = form.reference_source(request)
        return found
    assert request.reference is not None
    return f"loaded({request.reference.path!r}, {request.reference.name!r})", (loaded,)


def checked_by_torch(request: Request, args: Any, kwargs: Any) -> dict[str, str]:
    """Returns the results of ``torch.library.opcheck`` for a custom op, by the name of the test."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    found: dict[str, str] = form.opcheck(request, args, kwargs)
    return found


def script_source(request: Request) -> Source:
    """Returns the expression by which a repro script refers to the kernel, and the functions that the expression uses."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    found: Source = form.script_source(request)
    return found
