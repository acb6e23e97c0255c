"""Converts failed calls to records: the exception, where it was raised, whether the device raised it, and the verdict
of the function that judged the call."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from conformance.checks.cells import Failed
from devices.errors import in_a_line
from devices.failure import Difference, Failure, Kind
from opinfo.compare import Wrong

_OURS = tuple(str(Path(__file__).resolve().parents[3] / each) for each in ("conformance", "opinfo"))


def spoken(exc: BaseException) -> tuple[str, str]:
    """Returns the type name of an exception and its text."""
    return type(exc).__name__, str(exc)


def traced(exc: Exception) -> str:
    """Returns a sentence with the exception that a check raised and the last line of this project's code in its
    traceback."""
    ours = [f for f in traceback.extract_tb(exc.__traceback__) if f.filename.startswith(_OURS)]
    place = f", at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"a step of the check raised {in_a_line(exc)}{place}"


def from_device(exc: Exception) -> bool:
    """Returns True if the device, and not a mistake in this project, caused the exception. That is so for a
    RuntimeError (the type that torch's kernels raise), and for an exception that was raised in a file of neither this
    project nor torch, for example in the vendor's package."""
    frames = traceback.extract_tb(exc.__traceback__)
    last = frames[-1].filename if frames else ""
    known = [f"{folder}{os.sep}" for folder in (*_OURS, Path(torch.__file__).parent)]
    return isinstance(exc, RuntimeError) or not last.startswith(tuple(known))


def failed(
    wrong: Wrong,
    layout: str,
    size: int,
    repro: Callable[[Failure], str] | None,
    complete: Callable[[Failure], Failure] | None = None,
    check: str = "inputs",
) -> Failed:
    """Converts a judge's verdict to the form that a cell records. ``layout`` is the name of the layout, ``size`` the
    number of elements of the inputs, and ``check`` the sort of check that found the fault."""
    where = None
    if wrong.count or wrong.error is not None:
        where = Difference(wrong.count, wrong.total, wrong.first, wrong.error)
    failure = Failure(
        kind=Kind(wrong.kind),
        subject=wrong.subject,
        expected=str(wrong.expected),
        found=str(wrong.found),
        detail=wrong.detail,
        where=where,
        raises=wrong.raises,
        said=wrong.said,
        check=check,
        layout=layout,
    )
    return Failed(failure, size, repro, complete)
