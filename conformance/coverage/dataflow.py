"""Analyses the log of the observer: the calls that a thread made, and the calls whose results were used later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from opinfo.torch_private import has_kernel, is_composite, schema_named

_NO_STORAGE: Final = -1


@dataclass(frozen=True, slots=True)
class TensorId:
    """A tensor and its storage, as numbered in the observer's log. A view has its own tensor number, and the storage
    number of its base. ``storage`` is -1 for a tensor without storage, such as a sparse one."""

    tensor: int
    storage: int


@dataclass(slots=True)
class LoggedCall:
    """A call in the observer's log that was not made inside a kernel, or a mark that the observer's user has put into
    the log.

    ``overload`` is empty for a mark, and ``mark`` is then its text. ``in_backward`` is True if autograd made the call.
    """

    overload: str = ""
    inputs: tuple[TensorId, ...] = ()
    outputs: tuple[TensorId, ...] = ()
    in_backward: bool = False
    mark: str = ""


@dataclass(slots=True)
class _Frame:
    """A call that is still running. ``hides`` is True if the calls that it makes come from its kernel, so that they are not
    listed."""

    call: LoggedCall | None
    below: bool
    hides: bool
    overload: str = ""


@cache
def _is_composite(overload: str) -> bool:
    return is_composite(overload)


@cache
def _has_derivative(overload: str) -> bool:
    """Returns True if an overload has its own autograd function, which calls the kernel and may call other ops before
    and after it."""
    return any(has_kernel(overload, key) for key in ("Autograd", "AutogradCPU"))


def calls_in(log: str) -> list[LoggedCall]:
    """Returns the calls that the observer's log lists, in the order in which they ended, together with the marks
    between them. Calls made inside a kernel are left out.

    An inner call counts as made inside a kernel if the enclosing call is not replaced by other calls above autograd
    and, when the inner call began, either autograd was switched off for a kernel or the enclosing call has no autograd
    function.
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
    """Returns True if a call that begins now is made by the kernel of one of ``frames``, the calls that have not ended
    yet. ``below`` is True if autograd is switched off for a kernel now."""
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
    """Returns True if an overload returns tensors or writes to them; False if its result is only a number or a truth
    value."""
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
    """Returns the calls under test whose results were used afterwards. A result counts as used if it was read by a call
    that is not under test, by a call whose own result was used, or by a call that returns a number, because a number
    can decide what the program does next. With ``number``, which says that the function under test returned a number,
    calls under test that return a number count as used too.

    ``under_test`` says for each call whether it is under test. A view counts as used only if the view itself is read,
    not if another tensor of its storage is.
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
    """Returns True if the result of a call is among the ``tensors`` that later calls read, or if the memory that it
    wrote to is among their ``storages``."""
    if writes(call.overload):
        changed = call.outputs or call.inputs
        return any(each.tensor in tensors or each.storage in storages for each in changed)
    given = {each.storage for each in call.inputs}
    return any(
        each.tensor in tensors or (each.storage in storages and each.storage not in given)
        for each in call.outputs
    )
