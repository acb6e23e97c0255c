"""The sizes at which indices, counters and grids overflow, and a function that executes a check at each of these sizes.

A case executes its check first with a small tensor, then just below a limit, at the limit, and above it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import Blocked, CheckFailed, NotDeclared, NotShown
from devices.errors import in_a_line
from devices.failure import Failure, Kind

GIB = 2**30

#: The names of the limits, as variants of cases name them.
NAMES = {2**16: "65536", 2**24: "2^24", 2**30: "2^30", 2**31: "2^31", 2**32: "2^32"}

#: Options of the cases: each in a process of its own, alone on the device; MORE for those that plan quick leaves out, and
#: WHOLE for those that only plan full has.
ALONE: dict[str, Any] = {"alone": True, "own_process": True, "seconds": 120.0}
MORE: dict[str, Any] = {**ALONE, "more": True, "slow": True}
WHOLE: dict[str, Any] = {**MORE, "whole": True, "seconds": 600.0}

#: The size of the first check. It is no multiple of the size of a vector or a block.
SMALL = 509

#: By how much the last size exceeds the limit: more than a vector. It is even, so that the last index past 2^24 is odd, which
#: float32 cannot hold.
_BEYOND = 68

#: Matches the message of an internal assertion (c10/util/Exception.h).
_INTERNAL = re.compile(r"INTERNAL ASSERT|report a bug", re.IGNORECASE)

#: The exception for errors of a driver, such as a kernel that could not be launched or that read outside of its memory.
_OF_THE_DRIVER = getattr(torch, "AcceleratorError", ())


def around(limit: int) -> tuple[int, ...]:
    """Returns the sizes that are tried: the limit minus one, the limit, the limit plus one, and a slightly larger
    size."""
    return limit - 1, limit, limit + 1, limit + _BEYOND


def few(limit: int) -> tuple[int, ...]:
    """Returns the sizes that are tried around a limit for ops that read or write every element. Above 2^30 elements
    such an op takes seconds, so only three sizes are tried there."""
    return around(limit) if limit < 2**30 else (limit - 1, limit, limit + 1)


def most(limit: int) -> int:
    """Returns the largest of the sizes that are tried around a limit."""
    return max(around(limit))


def variant_of(limit: int, what: str) -> dict[str, tuple[int]]:
    """Returns the variant of cases about a limit, by the name that the case has: ``{"2^24 rows": (2**24,)}`` for the
    limit 2^24 and ``what="rows"``."""
    return {f"{NAMES[limit]} {what}": (limit,)}


def at_each_size(
    context: CaseContext,
    check: Callable[[int], None],
    limit: int,
    what: str,
    small: int = SMALL,
    sizes: tuple[int, ...] = (),
) -> None:
    """Executes a check with ``small`` elements, and then with each of the ``sizes``; by default those around the limit.
    ``what`` names the thing that is counted, such as "elements" or "rows".

    If the check with ``small`` elements fails, the op is wrong at any size, and the case is blocked. At the other
    sizes the op may raise a clear error; the check with ``small`` elements must then still pass. The case is skipped
    if memory runs out.
    """
    _control(context, check, small, "the same check with a small tensor fails")
    for size in sizes or around(limit):
        try:
            check(size)
            context.settle()
        except (CheckFailed, NotShown):
            raise
        except Exception as error:
            _judge_error(context, error, f"{size:,} {what}")
            text = "after a large call raised an error, the device no longer computes a small one"
            _control(context, check, small, text, context.check)


def _control(
    context: CaseContext,
    check: Callable[[int], None],
    small: int,
    text: str,
    judge: Callable[..., None] | None = None,
) -> None:
    """Executes a check with a small tensor. It is not counted as a check of the case, because it says nothing about
    large tensors. If it fails, ``judge`` is called with ``text``; by default the case is then blocked."""
    before = context.checks
    try:
        check(small)
        context.settle()
    except CheckFailed as failed:
        if judge is None:
            raise Blocked("layout.values", f"{text}: {failed}") from None
        judge(False, text, found=failed)
    except Exception as error:
        if judge is None:
            raise
        judge(False, text, found=error)
    context.checks = before


def _judge_error(context: CaseContext, error: Exception, at: str) -> None:
    """Checks that an error of an op is clear: an exception with a message, raised by the op and not by the driver."""
    if out_of_memory(error):
        raise NotDeclared(f"the device ran out of memory with {at}") from None
    said = str(error).strip()
    of_the_op = isinstance(error, (RuntimeError, ValueError)) and not isinstance(
        error, _OF_THE_DRIVER
    )
    context.checks += 1
    if not of_the_op or not said or _INTERNAL.search(said):
        text = "a large call raised an error that does not say what is wrong"
        raise CheckFailed(
            Failure(
                kind=Kind.RAISED,
                subject=text,
                expected="right values, or an error that says that the tensor is too large",
                found=f"{in_a_line(error)} ({at})",
                raises=type(error).__name__,
                said=said,
            )
        ) from None
    context.note(f"with {at} the op raises {in_a_line(error)}")


def out_of_memory(error: Exception) -> bool:
    """Returns True if an exception says that memory ran out. The type is not enough: the CPU's allocator, and kernels
    that allocate memory themselves, raise a plain RuntimeError."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or any(text in str(error) for text in ("allocate memory", "bad_alloc"))
