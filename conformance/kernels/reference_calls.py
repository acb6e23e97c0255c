"""Makes the calls of a reference, and leaves out those that it cannot answer: the judge adds samples of other sizes and
values to the user's, and for some of them a reference may need gigabytes of memory, read outside of its tensors, or end
the process. Such a call says nothing about the kernel, and must not keep the other calls from being judged."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import hashlib
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch.overrides import TorchFunctionMode

from conformance.checks.cases.memory import limited
from conformance.checks.child import Ended
from conformance.checks.clock import Clock
from conformance.kernels.calls_file import arguments_text
from devices.errors import first_line
from opinfo.compare import tensors_of
from opinfo.torch_private import storage_id

#: The memory in bytes that a call of a reference may need, and in double precision, in which it needs twice as much.
LIMIT, WIDE_LIMIT = 2**31, 2**32
#: How much of that is granted to every process in addition to an allowance (conformance/checks/cases/memory.py).
_GRANTED = 2**30
_WIDE = (torch.float64, torch.complex128)
#: The files, among the findings of the judge's process, with the calls that were left out, and with those that were
#: tried in a fork.
_LEFT_OUT_FILE, _TRIED_FILE = "left_out.json", "tried.json"
#: The exit status of a fork in which a call has returned or raised. No other end of a process has it.
_ANSWERED: Final = 113
#: The shortest and the longest time in seconds between two looks at a fork.
_SOON, _LOOK = 0.0005, 0.02


class NoAnswer(RuntimeError):
    """Raised for a call that the reference cannot answer, because it needs too much memory or ends the process."""


class LeftOutCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that was left out: the number of elements of its arguments, the reason as the rest of a sentence, and the
    message of an exception."""

    size: int
    why: str
    message: str = ""


@dataclass
class LeftOut:
    """The calls that were left out, by their arguments as text. Later rounds do not ask again whether the reference
    answers a call, so the calls are kept in the folder of the judge's findings."""

    calls: dict[str, LeftOutCall] = field(default_factory=dict)
    in_double: bool = False  # the kernel is judged in double precision, too

    def add(self, args: Any, kwargs: Any, why: str, message: str = "") -> None:
        """Counts a call. A call in double precision repeats a call in the dtype that is judged, unless that is double."""
        tensors = tensors_of((args, kwargs))
        if self.in_double or not _is_wide(tensors):
            size = sum(each.numel() for each in tensors)
            self.calls[arguments_text(args, kwargs)] = LeftOutCall(size, why, message)

    def bounded(self, reference: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the reference with a limit on its memory. For a call that needs more, it raises NoAnswer. It raises
        ValueError for calls of torch's ops that these ops forbid and do not check on the CPU."""

        @functools.wraps(reference, updated=())  # a module has attributes of its own
        def within_limit(*args: Any, **kwargs: Any) -> Any:
            wide = _is_wide(tensors_of((args, kwargs)))
            try:
                with limited((WIDE_LIMIT if wide else LIMIT) - _GRANTED), ValuePerKey():
                    return reference(*args, **kwargs)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
            why = f"the reference needs more than {LIMIT >> 30} GiB of memory"
            self.add(args, kwargs, why)
            raise NoAnswer(why)

        return within_limit

    def keep(self, findings: Path) -> None:
        """Adds the calls that earlier rounds left out, and writes all to the folder of the findings."""
        path = findings / _LEFT_OUT_FILE
        if path.exists():
            kept = msgspec.json.decode(path.read_bytes(), type=dict[str, LeftOutCall])
            self.calls = kept | self.calls
        if self.calls:
            findings.mkdir(exist_ok=True)
            path.write_bytes(msgspec.json.encode(self.calls))

    @property
    def notes(self) -> list[str]:
        """What a judgement says of the calls: one note for each reason."""
        by_reason: dict[str, list[str]] = {}
        for call, each in sorted(self.calls.items(), key=lambda item: (item[1].size, item[0])):
            by_reason.setdefault(each.why, []).append(call)
        return [self._note(why, calls) for why, calls in by_reason.items()]

    def _note(self, why: str, calls: list[str]) -> str:
        smallest, count = calls[0], len(calls)
        message = self.calls[smallest].message
        return (
            f"{count:,} {'call was' if count == 1 else 'calls were'} left out, because {why}; "
            f"the smallest: ({smallest}){f': {message}' if message else ''}"
        )


def _is_wide(tensors: list[torch.Tensor]) -> bool:
    return any(each.dtype in _WIDE for each in tensors)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


#: The functions of torch whose second and third arguments are keys and values.
_ATTENTION = ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")


class ValuePerKey(TorchFunctionMode):
    """Within this mode, torch's attention raises ValueError if there is not one value for each key, as its
    documentation demands. On the CPU, it uses the number of values for both: it ignores the other keys, or reads beyond
    the last key, which may end the process."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if str(getattr(func, "__name__", "")).partition(".")[0] in _ATTENTION:
            given = dict(zip(("query", "key", "value"), args)) | kwargs
            keys, values = (given[name].shape[-2] for name in ("key", "value"))
            if keys != values:
                raise ValueError(
                    f"expected one value for each key, found {keys} keys and {values} values"
                )
        return func(*args, **kwargs)


@dataclass
class Trials:
    """Makes each call of a reference in a fork of this process first. Used once a call has ended a process of the judge.

    ``ends`` says how the fork ended, by the key of the call; it is empty for a call that returned or raised. Each call
    may take ``seconds``."""

    left_out: LeftOut
    seconds: float
    ends: dict[str, str] = field(default_factory=dict)

    def tried(self, reference: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a reference that raises NoAnswer for a call that ends the process or does not return."""

        @functools.wraps(reference, updated=())
        def first_in_a_fork(*args: Any, **kwargs: Any) -> Any:
            key = _key(reference, args, kwargs)
            if key not in self.ends:
                self.ends[key] = _end_of(lambda: reference(*args, **kwargs), self.seconds)
            if why := self.ends[key]:
                if all(map(_has_bytes, tensors_of((args, kwargs)))):
                    self.left_out.add(args, kwargs, why)
                raise NoAnswer(why)
            return reference(*args, **kwargs)

        return first_in_a_fork

    def load(self, findings: Path) -> None:
        """Reads the calls that earlier rounds tried from the folder of the findings."""
        path = findings / _TRIED_FILE
        if path.exists():
            self.ends |= msgspec.json.decode(path.read_bytes(), type=dict[str, str])

    def save(self, findings: Path) -> None:
        findings.mkdir(exist_ok=True)
        (findings / _TRIED_FILE).write_bytes(msgspec.json.encode(self.ends))


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Returns False for fake tensors and those of the meta device, with which the judge finds out sizes and strides."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return plain and tensor.device.type == "cpu" and tensor.layout == torch.strided


def _key(reference: Callable[..., Any], args: Any, kwargs: Any) -> str:
    """Returns a text that is the same for equal calls, also in another process."""
    name = getattr(reference, "__qualname__", "") or str(reference)
    tensors = tensors_of((args, kwargs))
    plain = [each for each in tensors if _has_bytes(each)]
    storages = {storage_id(each): each.untyped_storage() for each in plain}
    places = {each: number for number, each in enumerate(storages)}
    operands: list[Any] = [
        (places[storage_id(t)], t.storage_offset(), t.stride(), t.is_conj(), t.is_neg())
        for t in plain
    ]
    operands += [(type(t).__name__, t.device) for t in tensors if not _has_bytes(t)]
    text = f"{name} {arguments_text(args, kwargs)} {operands}"
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for storage in storages.values():
        if storage.nbytes():
            digest.update(ctypes.string_at(storage.data_ptr(), storage.nbytes()))
    return digest.hexdigest()


def _end_of(call: Callable[[], Any], seconds: float) -> str:
    """Makes a call in a fork of this process. Returns why the reference cannot answer it, as the rest of a sentence;
    empty if the call returned or raised an exception."""
    pid = os.fork()
    if not pid:
        status = 1
        faulthandler.disable()  # how the fork ends is the answer; nobody needs the stack
        try:
            with suppress(
                Exception
            ):  # the call is made again in this process, which looks at the exception
                call()
            status = _ANSWERED
        finally:
            os._exit(status)
    clock, pause = Clock(pid), _SOON
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "" if code == _ANSWERED else f"the process of the reference {Ended(code).how}"
        if clock.now() > seconds:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"the reference did not return within {seconds:g} s"
        time.sleep(pause)
        pause = min(2 * pause, _LOOK)


def refusal(error: BaseException) -> tuple[str, str]:
    """Returns why a call was left out for which the reference raised an exception, and the exception's message."""
    return f"the reference raises {type(error).__name__}", first_line(error)
