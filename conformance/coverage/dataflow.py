"""What the calls of a thread did: the log of the observer as data, and which calls' results reached something that was read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from opinfo.torch_private import has_kernel, is_composite, schema_named

_NO_STORAGE: Final = -1


@dataclass(frozen=True, slots=True)
class TensorId:
    """A tensor and its storage, by numbers of the log. Views of a tensor have numbers of their own, and its storage.
    ``storage`` is -1 if there is none, as of a sparse tensor."""

    tensor: int
    storage: int


@dataclass(slots=True)
class LoggedCall:
    """A call that reached no kernel, or that none made: calls made inside a kernel are not listed.

    ``overload`` is empty for a mark, whose text is ``mark``. ``in_backward`` is True if autograd made the call.
    """

    overload: str = ""
    inputs: tuple[TensorId, ...] = ()
    outputs: tuple[TensorId, ...] = ()
    in_backward: bool = False
    mark: str = ""


@dataclass(slots=True)
class _Frame:
    """A call that has not ended. ``hides`` is True if the calls in it are made by its kernel."""

    call: LoggedCall | None
    below: bool
    hides: bool
    overload: str = ""


@cache
def _is_composite(overload: str) -> bool:
    return is_composite(overload)


@cache
def _has_derivative(overload: str) -> bool:
    """Returns True if autograd has a function of its own for an overload, which calls the kernel and may make other calls
    before and after it."""
    return any(has_kernel(overload, key) for key in ("Autograd", "AutogradCPU"))


def calls_in(log: str) -> list[LoggedCall]:
    """Returns the calls in the observer's log, in the order in which they ended, and the marks between them.

    A call is made inside a kernel if an enclosing call is not replaced by other calls above autograd and, when the inner call
    began, autograd was off for a kernel or has no function for the enclosing call.
    """
    found: list[LoggedCall] = []
    frames: list[_Frame] = []
    backward = hidden = 0
    for line in log.splitlines():
        sign = line[0]
        if sign == "(":
            backward += 1
        elif sign == ")":
            backward -= 1
        elif sign == "=":
            found.append(LoggedCall(mark=line[1:]))
        elif hidden:  # inside a kernel
            hidden += -1 if sign == "]" else 1
        elif sign == "]":
            call = frames.pop().call
            if call is not None:
                call.outputs = _tensors(line.split()[1:])
                found.append(call)
        elif _is_inside(frames, below=sign == "<"):
            hidden = 1
        else:
            _, *words = line.split()
            frames.append(_begun(words, below=sign == "<", in_backward=backward > 0))
    return found


def _is_inside(frames: Sequence[_Frame], *, below: bool) -> bool:
    """Returns True if a call that begins now is made by the kernel of a call that has not ended."""
    return any(
        each.hides and (below or each.below or not _has_derivative(each.overload))
        for each in frames
    )


def _begun(words: Sequence[str], *, below: bool, in_backward: bool) -> _Frame:
    if not words:
        return _Frame(None, below, False)
    overload = words[0]
    if _is_composite(overload):
        return _Frame(None, below, False)
    call = LoggedCall(overload, _tensors(words[1:]), in_backward=in_backward)
    return _Frame(call, below, True, overload)


@cache
def writes(overload: str) -> bool:
    """Returns True if an overload writes to one of its arguments."""
    return bool(schema_named(overload).is_mutable)


@cache
def returns_or_writes_tensors(overload: str) -> bool:
    """Returns False for an overload whose result is a number or a truth value."""
    schema = schema_named(overload)
    return bool(schema.is_mutable) or any("Tensor" in str(each.type) for each in schema.returns)


def _tensors(words: Iterable[str]) -> tuple[TensorId, ...]:
    found = []
    for word in words:
        tensor, _, storage = word.partition(":")
        found.append(TensorId(int(tensor), _NO_STORAGE if storage == "-" else int(storage)))
    return tuple(found)


def used(
    calls: Sequence[LoggedCall], under_test: Sequence[bool], *, number: bool = False
) -> list[LoggedCall]:
    """Returns the calls under test whose results were used: a call that is not under test read them, or a call whose own
    result was used, or one whose result is a number, because a number decides what the program does next. Calls whose result
    is a number are used if ``number`` is true: the function under test returned one.

    A view is used if the view itself is read, not if other tensors of its storage are.
    """
    tensors: set[int] = set()
    storages: set[int] = set()
    found: list[LoggedCall] = []
    for call, tested in zip(reversed(calls), reversed(under_test)):
        if tested:
            of_tensors = returns_or_writes_tensors(call.overload)
            is_used = _is_read(call, tensors, storages) if of_tensors else number
            if is_used:
                found.append(call)
            elif of_tensors:
                continue
        for each in call.inputs:
            tensors.add(each.tensor)
            storages.add(each.storage)
        storages.discard(_NO_STORAGE)
    found.reverse()
    return found


def _is_read(call: LoggedCall, tensors: set[int], storages: set[int]) -> bool:
    """Returns True if later calls read the result of a call: its own tensors, or the memory that it wrote to."""
    if writes(call.overload):
        changed = call.outputs or call.inputs
        return any(each.tensor in tensors or each.storage in storages for each in changed)
    given = {each.storage for each in call.inputs}
    return any(
        each.tensor in tensors or (each.storage in storages and each.storage not in given)
        for each in call.outputs
    )
