"""The forms of kernels: a function, a custom op, a library module, a KernelBench model, a FlashInfer-Bench solution.
Each form is a module that loads a kernel in the kernel's process; the functions here call the module of a request's
form."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch._ops import OpOverload, OpOverloadPacket

from conformance.kernels.forms.overrides import Override
from conformance.kernels.forms.overrides import overrides_captured as overrides_captured
from conformance.kernels.request import Request
from conformance.kernels.targets import named_function
from opinfo.subject import Source, loaded

CUSTOM_OP = "custom_op"


class Form(Protocol):
    """The function that the module of a form defines."""

    def load(self, request: Request, captured: list[Override]) -> Callable[..., Any]:
        """Returns the kernel as a function. ``captured`` has the overrides of aten ops that the file registered when it
        was imported. Raises any exception that the file raises."""
        ...


def load(request: Request, captured: list[Override]) -> Callable[..., Any]:
    """Imports the file of a kernel and returns the kernel as a function. ``captured`` is the list that the context
    ``overrides_captured`` yields: the overrides of aten ops that the import registers are added to it."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    kernel: Callable[..., Any] = form.load(request, captured)
    return kernel


def replaced_op(request: Request) -> Callable[..., Any] | None:
    """Returns the function to which the kernel's speed is compared: the op that it replaces, or its reference."""
    if request.target:
        return named_function(request.target)
    return reference_of(request)


def reference_of(request: Request) -> Callable[..., Any]:
    """Returns the reference of a kernel for which no op was named."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    if hasattr(form, "reference"):
        found: Callable[..., Any] = form.reference(request)
        return found
    assert request.reference is not None
    return request.reference.load()  # type: ignore[no-any-return]


def samples_of(request: Request) -> Iterator[Any]:
    """Yields the arguments of the samples that were given for a kernel: tuples, or pairs (args, kwargs)."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    if hasattr(form, "samples"):
        yield from form.samples(request)
    elif request.samples is not None:
        yield from request.samples.load()()


def keeps_dtypes(request: Request) -> bool:
    """Returns True if the samples must not be converted to the dtype that is judged."""
    return bool(
        getattr(importlib.import_module(f"{__name__}.{request.form}"), "KEEPS_DTYPES", False)
    )


def reference_source(request: Request) -> Source:
    """Returns the expression by which a repro script refers to the kernel's reference."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    if hasattr(form, "reference_source"):
        found: Source = form.reference_source(request)
        return found
    assert request.reference is not None
    return f"loaded({request.reference.path!r}, {request.reference.name!r})", (loaded,)


def is_custom_op(request: Request, kernel: Callable[..., Any]) -> bool:
    """Returns True if a loaded kernel is a custom op of ``torch.library``, however the request names it."""
    found = hasattr(kernel, "_opoverload") or isinstance(kernel, (OpOverload, OpOverloadPacket))
    return request.form == CUSTOM_OP or found


def checked_by_torch(kernel: Any, args: Any, kwargs: Any) -> dict[str, str]:
    """Returns the results of ``torch.library.opcheck`` for a custom op, by the name of opcheck's test."""
    found = torch.library.opcheck(kernel, tuple(args), kwargs, raise_exception=False)
    return {name: str(result) for name, result in found.items()}


def script_source(request: Request) -> Source:
    """Returns the expression by which a repro script refers to the kernel, and the functions that the expression uses."""
    form: Any = importlib.import_module(f"{__name__}.{request.form}")
    found: Source = form.script_source(request)
    return found
