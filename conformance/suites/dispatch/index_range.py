"""Checks of the clause dispatch.index_range: an index out of range raises an error, and nothing is written outside of
the tensor.

The CPU decides which values are out of range. The checks try the smallest index past the end and the negative index
closest to zero that the CPU refuses. They also try indices far out of range, one of which would be in range if only its
low 32 bits were used. Values that the CPU accepts, such as documented wrapping or a padding index, are not tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from conformance.checks.child import Child, ChildLimits, ask
from conformance.checks.ops import standalone_checks
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.script import NotApplicable
from conformance.suites.dispatch.fallback import dense_samples
from conformance.suites.dispatch.refusals import once
from opinfo.compare import Wrong, replace_tensors
from opinfo.exceptions import exceptions
from opinfo.samples import Sample, Traits

CLAUSE = "dispatch.index_range"

#: The families of ops that take index tensors, and of ops that take indices as Python numbers.
_OPERANDS, _NUMBERS = "index_range.operands", "index_range.numbers"
_INDICES = (torch.int64, torch.int32)
#: Values far out of range. The third is 0 for a kernel that uses only the lowest 32 bits.
_FAR = (2**31 - 1, -(2**31), 2**32)
#: The largest number of elements of a call. The result of the check does not depend on the size.
_MOST = 20_000
#: Where a check changes not an index but the operand that is indexed: it has no elements then.
EMPTIED = "emptied"
#: Matches what the CPU says of an index into an operand without elements, but not what it says of shapes that do not fit.
_OF_INDEX = re.compile(r"out of (range|bounds)|an empty tensor|should be positive")
#: The time limit in seconds for a call in a process of its own.
_SECONDS = 60.0


def takes_index(traits: Traits) -> bool:
    """Returns True if an op takes an index and the dtype is the only one with which the op is checked."""
    return bool(traits.families & {_OPERANDS, _NUMBERS}) and once(traits)


def planned() -> dict[str, frozenset[str]]:
    """Returns the dtypes that every plan includes for an op, by the name of the op: {"int64"} for each op with
    index tensors, because such an op may take only integers."""
    ops = (f.ops for f in exceptions().families if f.name == _OPERANDS)
    return {op: frozenset({"int64"}) for each in ops for op in each}


def index_range(ctx: OpContext) -> None:
    """Checks an op with indices out of range, for up to three samples. In each operand that holds indices, the invalid
    index replaces the last element; in further checks it replaces the first element or all elements."""
    with ctx.running(CLAUSE):
        alone = (
            "device_assert" in ctx.device.descriptor.capabilities
            and ctx.device.descriptor.assertions_are_fatal
        )
        for given in _out_of_range(ctx):
            made = standalone_checks.run
            if not alone:
                made(ctx, CLAUSE, "", refuses_index, **given)
            elif _judged_alone(ctx, given):
                return  # each check needs a process, so make one per op


def _out_of_range(ctx: OpContext) -> Iterator[dict[str, Any]]:
    """Yields the arguments of each check: the sample, the form of the op (in place or not), the operand or Python
    number that is changed, the position in the operand, and the invalid index."""
    for sample in _telling(ctx):
        if _OPERANDS in ctx.traits.families:
            for place, tensor in enumerate(sample.tensors):
                if tensor.dtype in _INDICES and tensor.numel():
                    yield from _of_operand(ctx, sample, place)
            yield from _into_nothing(ctx, sample)
        if _NUMBERS in ctx.traits.families:
            for place, each in enumerate(sample.call.args):
                if type(each) is int:
                    yield from _of_number(ctx, sample, place)


def _telling(ctx: OpContext) -> list[Sample]:
    """Returns up to three samples, no two of which have the same arguments apart from their tensors. Samples
    with larger index tensors are preferred and come first."""
    held = [s for s in dense_samples(ctx) if 0 < s.numel <= _MOST]

    def indices(sample: Sample) -> int:
        return max((t.numel() for t in sample.tensors if t.dtype in _INDICES), default=0)

    found: list[Sample] = []
    for sample in sorted(held, key=lambda s: (-indices(s), s.index)):
        if len(found) < 3 and all(sample.call.form != each.call.form for each in found):
            found.append(sample)
    return found


def _of_operand(ctx: OpContext, sample: Sample, place: int) -> Iterator[dict[str, Any]]:
    bounds = torch.iinfo(sample.tensors[place].dtype)

    def refused(value: int) -> bool:
        given = ctx.subject.reference, sample.tensors, sample.call.bind, place, -1, value
        return bounds.min <= value <= bounds.max and cpu_refuses(*given)

    sizes = {n for t in sample.tensors for n in (*t.shape, t.numel())}
    sizes |= {v for v in (*sample.call.args, *sample.call.kwargs.values()) if type(v) is int}
    near = _nearest_refused(refused, sizes)
    far = _far(near, refused)
    forms = [False, True] if ctx.subject.inplace is not None else [False]
    for inplace in forms:
        for at, values in ((-1, [*near, *far]), (0, near), (None, near)):
            if at != -1 and sample.tensors[place].numel() < 2:
                continue
            for value in values:
                yield {
                    "sample": sample,
                    "inplace": inplace,
                    "place": place,
                    "at": at,
                    "value": value,
                }


def _into_nothing(ctx: OpContext, sample: Sample) -> Iterator[dict[str, Any]]:
    """Yields a check in which the first operand that holds no indices has no elements, so that every index is out of
    range."""
    places = (n for n, t in enumerate(sample.tensors) if t.dtype not in _INDICES and t.dim())
    for place in islice(places, 1):
        given = [each.clone() for each in sample.tensors]
        given[place] = changed_operand(given[place], EMPTIED, 0)
        args, kwargs = sample.call.bind(given)
        try:
            ctx.subject.reference(*args, **kwargs)
        except Exception as error:
            if not _OF_INDEX.search(str(error)):
                return
            for inplace in [False, True] if ctx.subject.inplace is not None else [False]:
                yield {
                    "sample": sample,
                    "inplace": inplace,
                    "place": place,
                    "at": EMPTIED,
                    "value": 0,
                }


def _of_number(ctx: OpContext, sample: Sample, place: int) -> Iterator[dict[str, Any]]:
    def refused(value: int) -> bool:
        return cpu_refuses(
            ctx.subject.reference, sample.tensors, sample.call.bind, place, "args", value
        )

    sizes = {n for t in sample.tensors for n in (*t.shape, t.dim())}
    near = _nearest_refused(refused, sizes)
    for value in [*near, *_far(near, refused)]:
        yield {"sample": sample, "inplace": False, "place": place, "at": "args", "value": value}


def _nearest_refused(refused: Callable[[int], bool], sizes: set[int]) -> list[int]:
    """Returns up to two indices out of range: the smallest of ``sizes`` that is refused as an index, and the
    refused negative index closest to zero. The negative indices tried are -1 and, for each size n, -n - 1. If
    no negative or no non-negative index is refused, the result contains no such index."""
    found = [next(filter(refused, sorted(n for n in sizes if n >= 0)), None)]
    below = (-1, *(-n - 1 for n in sorted(n for n in sizes if n > 0)))
    found.append(next(filter(refused, below), None))
    return [value for value in found if value is not None]


def _far(near: list[int], refused: Callable[[int], bool]) -> list[int]:
    """Returns those values of ``_FAR`` that are refused as an index. Negative values are left out if ``near``
    contains no negative value, and non-negative values if ``near`` contains no non-negative value: the op
    may then use the largest index as the size of its result, as an op that counts classes does."""
    sides = {value < 0 for value in near}
    return [value for value in _FAR if (value < 0) in sides and refused(value)]


def cpu_refuses(op: Any, tensors: Any, arguments: Any, place: Any, at: Any, value: Any) -> bool:
    """Returns True if the call raises on the CPU with the given index, but not with the original index."""
    for changed in (False, True):
        given = [each.clone() for each in tensors]
        if changed and at != "args":
            given[place] = changed_operand(given[place], at, value)
        args, kwargs = arguments(given)
        if changed and at == "args":
            args = (*args[:place], value, *args[place + 1 :])
        try:
            op(*args, **kwargs)
        except Exception:
            return bool(changed)
    return False


def changed_operand(operand: Any, at: Any, value: Any) -> Any:
    """Returns an operand of a call with an index out of range: an index tensor with ``value`` as its element at position
    ``at``, or as all elements if ``at`` is None; or, if ``at`` is "emptied", another operand without elements."""
    if at == "emptied":
        return operand[:0]
    if at is None:
        operand.fill_(value)
    else:
        operand.view(-1)[at] = value
    return operand


def refuses_index(
    op: Any,
    move: Any,
    back: Any,
    tensors: Any,
    arguments: Any,
    place: Any,
    at: Any,
    value: Any,
) -> Wrong | None:
    """Makes a call with an index out of range. The other operands lie inside larger tensors, so writes next to an
    operand are detected."""
    if not cpu_refuses(op, tensors, arguments, place, at, value):
        raise NotApplicable("the CPU accepts the index")
    given = [each.clone() for each in tensors]
    if at != "args":
        given[place] = changed_operand(given[place], at, value)
    bases, there = [], []
    for number, each in enumerate(given):
        if at not in ("args", "emptied") and number == place:
            there.append(move(each))
            continue
        room = 2 * each.numel() + 64  # as far as an index before the first row can reach
        known = torch.full((2 * room + each.numel(),), 5, dtype=each.dtype)
        known[room : room + each.numel()] = each.reshape(-1)
        base = move(known)
        bases.append((base, known, room, each.numel()))
        there.append(base.narrow(0, room, each.numel()).view(each.shape))
    args, kwargs = arguments(there)
    if at == "args":
        args = (*args[:place], value, *args[place + 1 :])
    raises = False
    try:
        # a lazy device raises when results are read
        replace_tensors(op(*args, **kwargs), back)
        back(move(torch.ones(1)))
    except NotImplementedError:
        raise
    except Exception:  # an assertion on the device may raise any type
        raises = True
    where = f"argument {place}" if at == "args" else f"operand {place}"
    if at == "emptied":
        where = f"operand {place}, which has no elements"
    for base, known, room, count in bases:
        try:
            found = back(base)
        except Exception:
            if raises:  # a lazy device may raise again for operands that the call changes
                continue
            raise
        before, after = found[:room], found[room + count :]
        if not torch.equal(before, known[:room]) or not torch.equal(after, known[room + count :]):
            side = "after its end" if torch.equal(before, known[:room]) else "before its start"
            expected = f"no write outside the operands for the index {value}"
            return Wrong("bytes", expected, f"changed bytes {side}", where)
    if raises:
        return None
    return Wrong("not_raised", f"an error for the index {value}", "no exception", where)


# If an assertion ends the process or makes the device unusable, the script of the check is run in a process
# of its own. An abort counts as an assertion. Writes outside the operands cannot be checked then.


def _judged_alone(ctx: OpContext, given: dict[str, Any]) -> bool:
    parameters = {name: given[name] for name in ("place", "at", "value")}
    made = standalone_checks.DirectedScript(
        ctx,
        CLAUSE,
        layout="",
        check=refuses_index,
        sample=given["sample"],
        inplace=given["inplace"],
        parameters=parameters,
    )
    if not made.may_run():
        return False
    made.found(alone(made(), ctx.device.descriptor.first_time(_SECONDS)))
    return True


def alone(script: str, seconds: float) -> Wrong | None:
    """Runs the script of a check in a separate process. Returns the fault that the check found, or None. An exception
    and an abort of the process both count as an error of the op."""
    limits = ChildLimits(total=seconds, exit=seconds)
    _, ended = ask(Child("conformance.checks.child:execute", script, limits, copied=True))
    if ended.well or ended.signal == "SIGABRT":
        return None
    expected = "an error, or an assertion that ends the process"
    return Wrong("not_raised", expected, f"the process {ended.how}")
