"""Stands for the kernel in the judge's process: a function whose calls are first only recorded, and later answered from
the results of the kernel's process.

In the first round, a call returns the result of the reference and is written to a list. The kernel's process then makes
all calls of the list, and ends. In the next round, the same checks make the same calls, which now return the kernel's
results. If the checks then make calls that are not in the list, because a result was wrong, these calls are made in a
further round.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from conformance.kernels.calls_file import (
    CALLS,
    MEMORY,
    Answer,
    Output,
    PlannedCall,
    Region,
    View,
    arguments_text,
    write,
)
from conformance.kernels.guard_pages import PAGE, PAGED, contiguous
from conformance.kernels.marks import Marks
from conformance.kernels.reference_calls import NoAnswer
from opinfo.compare import DEFAULT_TOLERANCES, SUM_ROUNDINGS, Arguments, Wrong, difference
from opinfo.encoding import ARGUMENTS, read_value, write_value
from opinfo.torch_private import NO_FAKE_ANSWER, FakeTensorMode, storage_id, without_modes

#: The start of a storage is a multiple of this many bytes, as with torch's allocator.
_ALIGNED = 64


class CallEnded(RuntimeError):
    """Raised for a call that ended the kernel's process or did not return."""


class NotMade(RuntimeError):
    """Raised for a call that was not made, because earlier calls had ended the kernel's process too often."""


class NotAPlainTensor(TypeError):
    """Raised for a result that contains anything other than plain tensors of the device."""


@dataclass
class Given:
    """The kernel's answer to a planned call, with the bytes of its outputs and the file that has the bytes of its
    arguments' storages after the call."""

    answer: Answer
    blobs: memoryview
    call: PlannedCall
    memory: Path

    def left(self, number: int) -> bytes:
        """Returns the bytes that the call left in one of its storages, by the number of the storage."""
        region = self.call.storages[number]
        with self.memory.open("rb") as file:
            file.seek(region.at + region.lead)
            return file.read(region.nbytes)


@dataclass(frozen=True)
class Unanswered:
    """A call for which the kernel returned no result although the reference returns one: it raised an exception or ended
    its process, or it was not ``made``. ``why`` says what happened, ``call`` describes the arguments, which have ``size``
    elements."""

    why: str
    call: str
    size: int
    made: bool = True


@dataclass
class Exchange:
    """Calls a kernel on behalf of the checks: returns the kernel's answers of earlier rounds, and plans for the next
    round the calls that have no answer yet."""

    reference: Callable[..., Any]
    torch_type: str
    is_op: bool = True  # the reference is an op of torch, which FakeTensor knows
    closed: bool = False  # no further call can be made
    marks: Marks = field(default_factory=Marks)
    answers: dict[bytes, list[Given]] = field(default_factory=lambda: defaultdict(list))
    planned: list[PlannedCall] = field(default_factory=list)
    memory: list[tuple[Region, bytes]] = field(default_factory=list)
    made: int = 0
    not_plain: list[str] = field(default_factory=list)
    late: int = 0
    timed: list[tuple[Given, Given]] = field(default_factory=list)
    unanswered: list[Unanswered] = field(default_factory=list)
    _used: dict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    _end: int = 0
    _before: tuple[list[int], list[View]] | None = None  # storages and views of the call before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Makes a call. If an argument is a tensor of the device, returns the kernel's answer or, if there is none yet,
        plans the call. Otherwise returns the reference's result."""
        call = Arguments(args, kwargs)
        if not any(map(self.marks.has, call.tensors)):
            return self.reference(*args, **kwargs)
        with without_modes():
            return self._remote(call)

    def _remote(self, call: Arguments) -> Any:
        self.made += 1
        storages: dict[int, torch.Tensor] = {}
        views = []
        for tensor in call.tensors:
            identity = storage_id(tensor)
            storages.setdefault(identity, tensor)
            views.append(_view(list(storages).index(identity), tensor))
        numbers = iter(range(len(views)))
        held = [[k, v] for k, v in call.kwargs.items()]
        arguments = write_value([list(call.args), held], ARGUMENTS, lambda _: next(numbers))
        contents = [_bytes_of(each) for each in storages.values()]
        edges = [PAGED.get(each.untyped_storage().data_ptr(), "") for each in storages.values()]
        key = _key(arguments, views, contents, edges)
        used, known = self._used[key], self.answers.get(key, [])
        self._used[key] += 1
        if used < len(known):
            return self._answered(known[used], call, list(storages.values()))
        # First, because a call that the reference cannot answer is not made.
        args, kwargs = call.bind([each.clone() for each in call.tensors])
        try:
            result, refused = self.reference(*args, **dict(kwargs)), None
        except NoAnswer as error:
            raise NotImplementedError(str(error)) from error
        except Exception as error:  # the checks expect that the kernel raises, too
            result, refused = None, error
        if self.closed:
            why = "the call was not made: the check was given up, because wrong results of earlier calls led to new calls in each round"
            self._note(call, why, made=False)
            raise NotMade(why)
        again = self._before == (list(storages), views)
        self._before = list(storages), views
        regions = tuple(self._region(*each) for each in zip(contents, edges))
        self.planned.append(PlannedCall(key, arguments, tuple(views), regions, held=again))
        if refused is not None:
            raise refused
        return result

    # -- planning

    def _region(self, content: bytes, edge: str) -> Region:
        nbytes = len(content)
        mapped = -(-nbytes // PAGE) * PAGE
        rounded = nbytes if edge else -(-nbytes // _ALIGNED) * _ALIGNED
        region = Region(self._end, nbytes, mapped, 0 if edge == "before" else mapped - rounded)
        self.memory.append((region, content))
        self._end += mapped
        return region

    def save(self, folder: Path) -> None:
        """Writes the planned calls, and the memory of their tensors, to a folder."""
        write(folder / CALLS, self.planned)
        with (folder / MEMORY).open("wb") as file:
            file.truncate(max(self._end, PAGE))
            for region, content in self.memory:
                os.pwrite(file.fileno(), content, region.at + region.lead)

    # -- answering

    def learn(
        self, calls: Sequence[PlannedCall], answers: Iterable[Given]
    ) -> list[tuple[str, ...]]:
        """Stores the answers to planned calls. Returns the names of the ops that the kernel called: for each answered call
        whose tensors are contiguous and have elements. (For other tensors, many kernels have a simpler way.)"""
        by_number: dict[int, Given] = {}
        timed: list[Given] = []
        for each in answers:
            if each.answer.late:
                self.late += 1
            elif each.answer.timed:
                timed.append(each)
            else:
                by_number.setdefault(each.answer.call, each)
        self.timed += [(by_number[t.answer.call], t) for t in timed if t.answer.call in by_number]
        for number, call in enumerate(calls):
            missing = Given(Answer(number, ended=NOT_MADE), memoryview(b""), call, Path())
            self.answers[call.key].append(by_number.get(number, missing))
        return [
            each.answer.calls
            for number, each in by_number.items()
            if each.answer.raised is None
            and not each.answer.ended
            and all(map(_is_plain, calls[number].tensors))
        ]

    def _answered(self, given: Given, call: Arguments, bases: list[torch.Tensor]) -> Any:
        answer = given.answer
        if answer.ended == NOT_MADE:
            why = (
                "there is no answer: earlier calls had ended the process, or the answer was deleted"
            )
            self._note(call, why, made=False)
            raise NotMade(why)
        if answer.ended:
            self._note(call, answer.ended)
            raise CallEnded(answer.ended)
        for number, base in enumerate(bases):
            storage, left = base.untyped_storage(), given.left(number)
            ctypes.memmove(storage.data_ptr(), left, len(left))
        for place, geometry in answer.moved.items():
            _move(call.tensors[place], geometry)
        if answer.raised is not None:
            raise self._exception(call, *answer.raised)
        outputs = self._outputs(given, bases)
        if isinstance(answer.result, dict) and "other" in answer.result:
            return self._refuse(f"an object of type {answer.result['other']}")
        result = read_value(answer.result, ARGUMENTS, lambda n: outputs[n])
        if not isinstance(result, torch.Tensor):
            self._check_form(call, result)
        return result

    def _check_form(self, call: Arguments, result: Any) -> None:
        """Raises an exception for a result whose tensors are nested in another way than those of the reference, for
        example a list of one tensor in place of a tensor. (The comparison of values looks only at the tensors.)"""
        args, kwargs = call.bind([_like(each) for each in call.tensors])
        try:
            wanted = _form(self.reference(*args, **dict(kwargs)))
        except Exception:  # layout.values judges that the kernel did not raise
            return
        if _form(result) != wanted:
            self._refuse(f"{_form(result)} in place of {wanted}")

    def _exception(self, call: Arguments, name: str, text: str) -> Exception:
        """Returns the exception to raise for an exception of the kernel. If the reference raises for the same
        arguments, this is NotImplementedError, because a kernel may refuse inputs that its reference also refuses."""
        if name == NotImplementedError.__name__:
            return NotImplementedError(text)
        values = [_like(each) for each in call.tensors]
        args, kwargs = call.bind(values)
        try:
            self.reference(*args, **dict(kwargs))
        except Exception:  # whatever it raises, it refuses the arguments too
            return NotImplementedError(f"refused by the reference as well: {text}")
        if not (self.is_op and _fake_refuses(self.reference, call)):
            self._note(call, f"{name}: {text}")
        kind = type(name, (RuntimeError,), {})
        made: Exception = kind(text)
        return made

    def _note(self, call: Arguments, why: str, *, made: bool = True) -> None:
        """Notes that the kernel returned no result for a call. Some checks leave the judgement of such a call to another
        check, which may never make this call; so every such call is noted here."""
        size = sum(each.numel() for each in call.tensors)
        self.unanswered.append(Unanswered(why, arguments_text(call.args, call.kwargs), size, made))

    def _outputs(self, given: Given, bases: list[torch.Tensor]) -> list[torch.Tensor]:
        found, at = [], 0
        for out in given.answer.outputs:
            if out.kind != "torch.Tensor":
                self._refuse(f"an object of type {out.kind}")
            if out.device != self.torch_type:
                self._refuse(f"a tensor on {out.device}")
            if out.outside:
                self._refuse("a tensor that extends past its storage")
            found.append(_tensor(out, given.blobs[at : at + out.span], bases))
            at += out.span
        return found

    def timed_differently(self) -> list[Wrong]:
        """Returns how the results of timed calls differ from the result of the judged call with the same arguments. Calls
        whose results are views of an argument, or an argument itself, are left out, because each call may change it."""
        found = []
        for judged, timed in self.timed:
            outputs = (*judged.answer.outputs, *timed.answer.outputs)
            if any(each.storage is not None for each in outputs):
                continue
            try:
                first, again = self._outputs(judged, []), self._outputs(timed, [])
            except NotAPlainTensor as error:
                found.append(Wrong("values", "the result of the judged call", str(error)))
                continue
            wrong = difference(again, first, DEFAULT_TOLERANCES, roundings=SUM_ROUNDINGS)
            found += [wrong] if wrong is not None else []
        return found

    def _refuse(self, what: str) -> Any:
        if what not in self.not_plain:
            self.not_plain.append(what)
        raise NotAPlainTensor(f"the result contains {what}; expected a torch.Tensor on the device")


def _form(result: Any) -> str:
    """Returns the nesting of a result as text: "Tensor", or "(Tensor, Tensor)" for a tuple or list of two tensors."""
    if isinstance(result, torch.Tensor):
        return "Tensor"
    if isinstance(result, (tuple, list)):
        return f"({', '.join(map(_form, result))})"
    return "None" if result is None else "a number" if isinstance(result, (int, float)) else "…"


def _fake_refuses(reference: Callable[..., Any], call: Arguments) -> bool:
    """Returns True if FakeTensor refuses the call in the layout of its tensors, in which case layout.values accepts an
    exception of the kernel, too."""
    mode = FakeTensorMode()
    args, kwargs = call.bind([mode.from_tensor(_like(each)) for each in call.tensors])
    with mode:
        try:
            reference(*args, **dict(kwargs))
        except NO_FAKE_ANSWER:
            return False  # FakeTensor cannot know
        except Exception:  # any other exception is the op's own refusal of the arguments
            return True
    return False


#: The mark of a call that was not made.
NOT_MADE = "not made"


def _view(storage: int, tensor: torch.Tensor) -> View:
    geometry = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
    dtype = str(tensor.dtype).removeprefix("torch.")
    return View(storage, dtype, *geometry, tensor.is_conj(), tensor.is_neg())


def _is_plain(view: View) -> bool:
    """Returns True for a contiguous tensor that has elements."""
    return 0 not in view.shape and view.stride == contiguous(view.shape).stride


def _bytes_of(tensor: torch.Tensor) -> bytes:
    storage = tensor.untyped_storage()
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def _key(arguments: Any, views: list[View], contents: list[bytes], edges: list[str]) -> bytes:
    digest = hashlib.blake2b(repr((arguments, views, edges)).encode(), digest_size=16)
    for each in contents:
        digest.update(len(each).to_bytes(8, "little") + each)
    return digest.digest()


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a tensor with the same shape, strides and offset, in a new storage."""
    storage = tensor.untyped_storage().clone()
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _move(tensor: torch.Tensor, geometry: tuple[Any, Any, Any]) -> None:
    shape, stride, offset = geometry
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride)) if 0 not in shape else 0
    if (last + 1) * tensor.dtype.itemsize <= tensor.untyped_storage().nbytes():
        tensor.as_strided_(shape, stride, offset)
    else:
        tensor.resize_(shape)


def _tensor(out: Output, blob: memoryview, bases: list[torch.Tensor]) -> torch.Tensor:
    dtype = getattr(torch, out.dtype)
    if out.storage is not None:
        made = torch.empty(0, dtype=dtype)
        storage = bases[out.storage].untyped_storage()
        made.set_(storage, out.offset, out.shape, out.stride)
    elif out.span:
        flat = torch.frombuffer(bytearray(blob), dtype=dtype)
        made = flat.as_strided(out.shape, out.stride)
    else:
        made = torch.empty_strided(out.shape, out.stride, dtype=dtype)
    made = torch.conj(made) if out.conj else made
    return torch._neg_view(made) if out.neg else made
