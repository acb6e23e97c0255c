"""Checks that an op of integers raises for a Python number that their dtype cannot hold, such as the ``value`` of addcmul or
the ``alpha`` of add. The CPU decides which arguments are converted to the dtype of the operands."""

from __future__ import annotations

from typing import Any

import torch

from conformance.checks.ops import standalone_checks
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.script import NotApplicable
from conformance.suites.dispatch.fallback import dense_samples
from opinfo.compare import Wrong, replace_tensors
from opinfo.samples import Sample

#: The family of ops that convert a Python number to the dtype of their operands.
FAMILY = "numbers.converted"
#: A number that no integer dtype of up to 32 bits can hold, and the dtypes that are tried.
_TOO_LARGE, _SHORT = 2**40, ("int16", "int32", "uint8", "int8")
#: The most elements of a sample whose numbers are replaced. The result does not depend on the size.
_MOST_NUMBERS = 2_000


def too_large(ctx: OpContext, clause: str) -> None:
    """Checks an op of integers with a Python number that their dtype cannot hold, in each of its arguments that the op
    converts to that dtype."""
    dtype = next((each for each in _SHORT if each in ctx.device.descriptor.dtypes), None)
    tried: set[int | str] = set()
    for sample in dense_samples(ctx) if dtype is not None else ():
        call = sample.call
        places: tuple[tuple[int | str, Any], ...]
        places = (*enumerate(call.args), *call.kwargs.items())
        for at, value in places:
            if type(value) not in (int, float) or at in tried or sample.numel > _MOST_NUMBERS:
                continue
            given: dict[str, Any] = {"at": at, "value": _TOO_LARGE, "dtype": dtype}
            if not _cpu_refuses_number(ctx, sample, given):
                continue
            tried.add(at)
            place = len(tried)
            standalone_checks.run(ctx, clause, "", refuses_number, place, sample=sample, **given)
    if (record := ctx.recorder.get(clause)) is not None:
        record.pass_over_unless_checked(
            "the device made no call of the op with integers and a Python number"
        )


def _cpu_refuses_number(ctx: OpContext, sample: Sample, given: dict[str, Any]) -> bool:
    """Returns True if the CPU makes the call of integers with a small number, and says of the large one that it cannot
    be converted."""
    about = (ctx.subject.reference, sample.tensors, sample.call.bind, given["at"], given["dtype"])
    accepted = False
    try:
        with_number(*about, 1)
        accepted = True
        with_number(*about, given["value"])
    except Exception as error:  # any type: an op without integers, an argument that is a dimension
        overflows = f"to type {given['dtype']}_t without overflow" in str(error)
        return accepted and overflows
    return False


def with_number(op: Any, tensors: Any, arguments: Any, at: Any, dtype: Any, number: Any) -> Any:
    """Makes a call with floating-point tensors converted to an integer dtype, other floating-point numbers replaced by 1,
    and one of its arguments by ``number``."""
    kind = getattr(torch, dtype)
    made = [t.to(kind) if t.is_floating_point() else t.clone() for t in tensors]
    args, kwargs = arguments(made)
    args = [1 if type(each) is float else each for each in args]
    kwargs = {name: 1 if type(each) is float else each for name, each in kwargs.items()}
    if isinstance(at, int):
        args[at] = number
    else:
        kwargs[at] = number
    return op(*args, **kwargs)


def refuses_number(
    op: Any, move: Any, back: Any, tensors: Any, arguments: Any, at: Any, value: Any, dtype: Any
) -> Wrong | None:
    there = [move(tensor) for tensor in tensors]
    try:
        replace_tensors(with_number(op, there, arguments, at, dtype, 1), back)
    except NotImplementedError:
        raise
    except Exception as error:
        raise NotApplicable(f"the device makes no such call of {dtype}") from error
    try:
        # a lazy device raises when results are read
        replace_tensors(with_number(op, there, arguments, at, dtype, value), back)
    except Exception:  # the device refuses the number; torch documents no type
        return None
    return Wrong(
        "not_raised",
        f"an error for the number {value}, which {dtype} cannot hold",
        "no exception",
        f"argument {at}",
    )
