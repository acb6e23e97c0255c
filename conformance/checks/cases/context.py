"""The context that a case receives: the device, functions that make checks, functions that keep the device busy, and
subprocesses.

The module imports only torch, the standard library and the modules that open a device, because every repro script
contains it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, methodcaller
from random import Random
from typing import Any, Protocol

import torch

from conformance.checks.cases.closeness import differences
from conformance.checks.cases.exceptions import (
    Blocked,
    CheckFailed,
    NotDeclared,
    NotInFlight,
    NotShown,
    short_repr,
)
from conformance.checks.cases.held_streams import (
    CALL,
    LIMIT,
    NOTHING_HELD,
    SOON,
    Hold,
    ends,
    together,
)
from conformance.checks.cases.layouts import DENSE, GuardedTensor
from conformance.checks.cases.pools import in_pool
from conformance.checks.cases.processes import DeviceLocator, Rank, in_process, in_processes
from conformance.checks.cases.results import Result, group_failure
from devices.descriptor import Descriptor
from devices.failure import Difference, Failure, Kind
from opinfo.compare import bit_equal, raw_bytes
from opinfo.device import Device
from opinfo.guarded import Move, identity

_NOTHING: Any = object()


#: Where a device can only be kept busy for a fixed time: the hold that is released first is shorter by this
#: factor.
_SHORTER = 8.0


class ProgramSearch(Protocol):
    """The interface of a random search through the programs of a case, which runs programs beyond those that a plan
    draws."""

    cut: bool

    def takes(self) -> bool: ...
    def passes_over(self, program: tuple[Any, ...], error: Exception) -> bool: ...


@dataclass(frozen=True, slots=True)
class Counters:
    """The values of ``torch.accelerator.memory.memory_stats`` for one device index. Values are in bytes unless the name
    says otherwise."""

    all: Mapping[str, int]

    @classmethod
    def of(cls, device: torch.device) -> Counters:
        return cls(dict(torch.accelerator.memory.memory_stats(device)))

    def __getitem__(self, name: str) -> int:
        return self.all[name]

    def get(self, name: str, default: int = 0) -> int:
        return self.all.get(name, default)

    @property
    def allocated(self) -> int:
        return self.all["allocated_bytes.all.current"]

    @property
    def active(self) -> int:
        return self.all["active_bytes.all.current"]

    @property
    def reserved(self) -> int:
        return self.all["reserved_bytes.all.current"]

    @property
    def requested(self) -> int:
        return self.all["requested_bytes.all.current"]

    @property
    def peak(self) -> int:
        """The largest number of allocated bytes since the peak was last reset."""
        return self.all["allocated_bytes.all.peak"]


@dataclass
class CaseContext:
    """The object through which the check of a case uses the device and reports results, for one attempt at the case.

    ``seed`` is the id of the case. ``patience`` is the duration in milliseconds of work that must be in flight (queued
    and not yet finished), on devices that can only be kept busy for a fixed time. ``checks`` counts the comparisons made so
    far. ``search`` is set during a random search. ``default`` is the kind of every failure for which the check names no
    kind.
    """

    opened: Device
    seed: str
    patience: float = 50.0
    where: DeviceLocator = field(default_factory=DeviceLocator)
    search: ProgramSearch | None = None
    default: Kind = Kind.STATE
    checks: int = 0
    program: tuple[Any, ...] | None = None  # the drawn program that failed, as Python literals
    reached: str = ""  # what the drawn programs covered, for the report
    notes: list[str] = field(default_factory=list)
    rank: Rank | None = None  # set in a process of a group
    killed: str = (
        ""  # the signal that killed a process of the check, if it may come from outside of the run
    )

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    # -- the device

    @property
    def descriptor(self) -> Descriptor:
        return self.opened.descriptor

    @property
    def kind(self) -> str:
        """The device's type as torch spells it, such as "cuda"."""
        return self.opened.torch_device.type

    @property
    def device(self) -> torch.device:
        return self.opened.torch_device

    @property
    def indices(self) -> range:
        return range(self.descriptor.device_count())

    def at(self, index: int) -> torch.device:
        return torch.device(self.kind, index)

    def named(self, index: int = 0) -> torch.device:
        """Returns the device of an index as the ``device`` attribute of a tensor shows it: "cpu" has no index."""
        return self.device if self.kind == "cpu" else self.at(index)

    def has(self, capability: str) -> bool:
        return capability in self.descriptor.capabilities

    @property
    def module(self) -> Any:
        """The torch module of the device's type, such as ``torch.cuda`` for "cuda"."""
        return torch.get_device_module(self.kind)

    def functions_of_the_module(self, *names: str) -> set[str]:
        """Returns those of the names that the torch module of the device's type has, such as ``set_device``. No device must
        have such a function beside that of torch.accelerator, but if it has one, the two agree. Raises NotDeclared if the
        module has none of them."""
        found = {name for name in names if hasattr(self.module, name)}
        if not found:
            raise NotDeclared(f"torch.{self.kind} has none of the functions {', '.join(names)}")
        return found

    def own(self, role: str) -> Any:
        """Returns the function of the device's own module that serves ``role``, as the descriptor declares. Roles are
        the names in ``FUNCTIONS`` of devices/descriptor.py.

        Raises CheckFailed if the module lacks the declared function, and DescriptorError if the descriptor declares no
        function for the role, because then nothing can be judged.
        """
        name = self.descriptor.function(role)
        try:
            return attrgetter(name)(self.module)
        except AttributeError:
            text = f"torch.{self.kind} lacks the function that the descriptor names for {role}"
            missing = "no such attribute"
            raise CheckFailed.of(Kind.STATE, text, expected=name, found=missing) from None

    def to_device(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        return self.opened.to_device(tensor) if index == 0 else tensor.to(self.at(index))

    def from_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.opened.from_device(tensor)

    def _on_cpu(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.from_device(tensor) if tensor.device.type == self.kind else tensor

    def lay(
        self,
        values: torch.Tensor,
        layout: str = DENSE,
        device: int | torch.device = 0,
        *,
        around: float | None = None,
    ) -> torch.Tensor:
        """Copies a CPU tensor to the device in a layout such as ``transposed+step_inner+offset`` (the ids of
        opinfo/layouts.py), with known bytes around it: see ``guarded``."""
        return self.guarded(values, layout, device, around=around).view

    def guarded(
        self,
        values: torch.Tensor,
        layout: str = DENSE,
        device: int | torch.device = 0,
        *,
        around: float | None = None,
    ) -> GuardedTensor:
        """Copies a CPU tensor to the device like ``lay``, but returns an object that can also check the bytes around
        the tensor.

        ``device`` is a device index, or a device to which the tensor is copied by ``to()``, such as the CPU. On devices
        without strides the layout is made by slicing, and a tensor that fills its storage has no bytes around it.
        ``around`` is the value of the elements around the tensor. The default is NaN; another value is needed if a
        wrong read of NaN would raise an exception instead of giving a wrong result.
        """
        if isinstance(device, int):
            move: Move = partial(self.to_device, index=device)
        else:
            move = methodcaller("to", device)
        here = isinstance(device, torch.device) and device.type != self.kind
        back = identity if here else self.from_device
        slices = not self.opened.lays_out
        return GuardedTensor(values, layout, move, back, slices=slices, around=around)

    def settle(self) -> None:
        """Synchronizes every device index. Raises the error of any queued work that failed."""
        wait = getattr(getattr(torch, self.kind, None), "synchronize", None)
        if self.kind == "cpu" or wait is None:
            return  # a module without synchronize() has no asynchronous work
        for index in self.indices:
            wait(self.at(index))

    @property
    def accelerated(self) -> bool:
        """True if this device is the current accelerator. torch.accelerator has functions only for the current
        accelerator."""
        current = torch.accelerator.current_accelerator()
        return current is not None and current.type == self.kind

    # -- judging

    def check(
        self,
        holds: object,
        text: str,
        *,
        expected: Any = _NOTHING,
        found: Any = _NOTHING,
        kind: Kind | None = None,
        at: str = "",
    ) -> None:
        """Makes one comparison and counts it. Raises CheckFailed if ``holds`` is false.

        ``text`` says what is wrong if the comparison fails, for example "the copy lost the strides". It does not depend
        on the arguments of the check, because failures with the same text are grouped. ``at`` says for which arguments
        the check failed.
        """
        self.checks += 1
        if not holds:
            raise CheckFailed(
                Failure(
                    kind=kind or self.default,
                    subject=text,
                    expected="" if expected is _NOTHING else short_repr(expected),
                    found=_at("" if found is _NOTHING else short_repr(found), at),
                    said=str(found) if isinstance(found, BaseException) else None,
                )
            )

    def same(
        self, found: Any, expected: Any, text: str, kind: Kind | None = None, at: str = ""
    ) -> None:
        """Checks that two values are equal (``==``). ``text`` says what is wrong if they differ."""
        self.check(found == expected, text, expected=expected, found=found, kind=kind, at=at)

    def equal(self, found: torch.Tensor, expected: torch.Tensor, text: str, at: str = "") -> None:
        """Checks that two tensors have the same bits, shape and dtype. Either tensor may be on the device."""
        there, want = self._on_cpu(found), self._on_cpu(expected)
        if there.dtype != want.dtype:
            self.same(there.dtype, want.dtype, text, Kind.DTYPE, at)
        if there.shape != want.shape:
            self.same(tuple(there.shape), tuple(want.shape), text, Kind.SHAPE, at)
        self.checks += 1
        if bit_equal(there, want):
            return
        mine, theirs = raw_bytes(there), raw_bytes(want)
        wrong = (mine != theirs).reshape(there.numel(), -1).any(1).nonzero().flatten()
        item = int(wrong[0])
        place = torch.unravel_index(wrong[0], there.shape) if there.dim() else ()
        expected_text, found_text = (
            short_repr(each.reshape(-1)[item].item()) for each in (want, there)
        )
        if expected_text == found_text:  # NaN with other bits
            size = there.itemsize
            part = slice(item * size, (item + 1) * size)
            expected_text += f" with the bytes {theirs[part].tolist()}"
            found_text += f" with the bytes {mine[part].tolist()}"
        where = Difference(len(wrong), there.numel(), tuple(int(i) for i in place))
        raise _unlike(Kind.VALUES, text, at, expected_text, found_text, where)

    def assert_close(
        self,
        found: torch.Tensor,
        want: torch.Tensor,
        text: str,
        at: str = "",
        *,
        rtol: float = 0.0,
        atol: float | torch.Tensor = 0.0,
        equal_nan: bool = False,
        check_dtype: bool = True,
    ) -> None:
        """Checks that two tensors have the same shape and dtype, and that ``|found - want| <= atol + rtol * |want|`` for
        each element. Either tensor may be on the device.

        ``text`` says what is wrong if they differ, and ``at`` for which arguments. NaN and infinities are compared as
        by ``closeness.differences``. With ``check_dtype=False`` the dtypes may differ.
        """
        self.checks += 1
        there, wanted = self._on_cpu(found.detach()), self._on_cpu(want.detach())
        if check_dtype and there.dtype != wanted.dtype:
            raise _unlike(Kind.DTYPE, text, at, str(wanted.dtype), str(there.dtype))
        if there.shape != wanted.shape:
            expected, shape = f"shape {tuple(wanted.shape)}", f"shape {tuple(there.shape)}"
            raise _unlike(Kind.SHAPE, text, at, expected, shape)
        wrong = differences(there, wanted, rtol=rtol, atol=atol, equal_nan=equal_nan)
        if wrong is not None:
            raise _unlike(Kind.VALUES, text, at, wrong.expected, wrong.found, wrong.where)

    def raises(
        self,
        types: type[BaseException] | tuple[type[BaseException], ...],
        function: Callable[..., Any],
        *arguments: Any,
        text: str,
        match: str | None = None,
        **named: Any,
    ) -> BaseException:
        """Checks that a call raises one of these exception types, with a message in which the pattern ``match`` is
        found. Returns the exception."""
        result: Any = None
        try:
            result, kind = function(*arguments, **named), Kind.NOT_RAISED
        except types as error:
            told = match is None or re.search(match, str(error))
            expected = f"a message that matches {match!r}"
            self.check(told, text, expected=expected, found=error, kind=Kind.RAISED)
            return error
        except Exception as error:
            result, kind = error, Kind.RAISED
        self.checks += 1
        names = " or ".join(
            one.__name__ for one in (types if isinstance(types, tuple) else [types])
        )
        said = str(result) if kind is Kind.RAISED else None
        raise CheckFailed(
            Failure(kind=kind, subject=text, expected=names, found=short_repr(result), said=said)
        )

    def ended_well(self, result: Result, text: str) -> None:
        """Checks that a function run by ``child`` raised no exception and that its process exited with status 0."""
        self.checks += 1
        if result.raised or not (result.answered and result.ended.well):
            found = f"the exception {result.raised}" if result.raised else str(result.ended)
            raise CheckFailed.of(Kind.ENDED, text, expected="exit status 0", found=found)

    def note(self, text: str) -> None:
        """Adds a remark to the report of a passing case. A remark does not fail the clause."""
        self.notes.append(text)

    def must(self, happened: object, text: str, by: str = "") -> None:
        """Requires that a precondition of the check holds. A precondition that holds is not counted as a check.

        ``text`` says what is wrong if ``happened`` is false. The case is then blocked by ``by``, the clause that
        requires the device to meet the precondition. Without ``by`` the case fails.
        """
        if happened:
            return
        if by:
            raise Blocked(by, f"the check could not be made: {text}")
        self.checks += 1
        raise CheckFailed.of(self.default, f"a precondition of the check failed: {text}")

    # -- work in flight

    def hold(
        self,
        stream: Any = None,
        limit: float = LIMIT,
        *,
        needed: bool = True,
        released_first: bool = False,
    ) -> Hold:
        """Returns a context manager that occupies a stream (the current one by default) until the hold is released::

            with context.hold(stream):
                ...           # queue work and observe: the stream is still occupied here

        A descriptor may declare two ways to occupy a stream. ``gate`` blocks the stream until the gate is opened; it
        opens by itself after ``limit`` seconds and then fails the case, because the host was blocked. ``busy`` occupies
        the stream for a fixed time, ``patience`` milliseconds; if that work finishes before the case has made its
        checks, the case is tried again with a longer ``patience``.

        If the descriptor declares neither ``gate`` nor ``busy``, the case is unsupported by declaration. With
        ``needed=False``, for cases that also compare values, the block runs without occupying the stream, and
        ``hold.waits`` and ``hold.check`` do nothing. If a case uses two holds, ``released_first=True`` gives the hold
        that is released first a shorter time.
        """
        limit *= self.descriptor.time_scale
        milliseconds = self.patience / _SHORTER if released_first else self.patience
        hold = Hold(self.opened, milliseconds, stream, limit, self.check)
        if not hold.holds and not needed and NOTHING_HELD not in self.notes:
            self.note(NOTHING_HELD)
        elif not hold.holds and needed:
            raise NotDeclared(NOTHING_HELD)
        return hold

    def ends(self, what: Any, seconds: float = SOON) -> bool:
        """Returns True if ``query`` of a stream or an event becomes True within ``seconds``. The caller must ensure
        that nothing blocks the work."""
        return ends(what, seconds * self.descriptor.time_scale)

    def is_capturing(self, stream: Any) -> bool:
        """Returns True if a stream is capturing a graph. Before torch 2.12 torch.Stream has no ``is_capturing``, so the
        function of the device's own module is called while the stream is current."""
        said = getattr(stream, "is_capturing", None)
        if said is not None:
            return bool(said())
        with stream:
            return bool(self.own("is_capturing")())

    def current_stream(self, index: int = 0) -> Any:
        return torch.accelerator.current_stream(self.at(index))

    def stream(self, index: int = 0, **options: Any) -> Any:
        """Returns a stream of the device's pool. Use it as ``with stream:``."""
        return torch.Stream(device=self.at(index), **options)

    def streams(self, count: int = 2) -> list[Any]:
        """Returns ``count`` different streams of the device's pool. The case is blocked by the clause streams.identity
        if two of them are the same."""
        made = [self.stream() for _ in range(count)]
        distinct = len({each.stream_id for each in made}) == count
        self.must(distinct, f"some of {count} new streams are the same", by="streams.identity")
        return made

    def event(self, index: int = 0, **options: Any) -> Any:
        return torch.Event(device=self.at(index), **options)

    @contextmanager
    def on(self, index: int) -> Iterator[None]:
        """Makes a device index the current one for the duration of the ``with`` block."""
        with torch.accelerator.device_index(index):
            yield

    # -- memory

    def counters(self, index: int = 0) -> Counters:
        return Counters.of(self.at(index))

    @property
    def granularity(self) -> int:
        """The allocator rounds up each request to a multiple of this number of bytes, as the descriptor declares."""
        return self.descriptor.granularity or self.descriptor.alignment

    def bytes_of(self, count: int, index: int = 0) -> torch.Tensor:
        """Returns an uninitialized tensor of ``count`` bytes on the device."""
        return torch.empty(count, dtype=torch.uint8, device=self.at(index))

    # -- threads and processes

    @staticmethod
    def together(*functions: Callable[[], Any], seconds: float = CALL) -> list[Any]:
        """Calls all functions at the same time, each in its own thread; see ``held_streams.together``."""
        return together(*functions, seconds=seconds)

    def child(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        fresh: bool = False,
        spawned: bool = False,
    ) -> Result:
        """Runs ``function(context, *arguments)`` in a subprocess and returns its result.

        ``function`` is defined at module level; its arguments and its result are Python literals. The checks of the
        child count as checks of this case, and a check that fails in the child fails this case. The result says how the
        process ended, what it printed and what the function returned. With ``fresh=True`` the child imports the
        device's module itself and has not used the device before the function starts. Without ``spawned=True`` the
        child may be forked from a process that has loaded torch but has not used the device.
        """
        result = in_process(
            function,
            arguments,
            self.where,
            self.seed,
            default=self.default,
            first_time=self.descriptor.first_time,
            patience=self.patience,
            fresh=fresh,
            spawned=spawned,
        )
        self.note_death(result)
        self._take(result)
        return result

    def _take(self, result: Result) -> None:
        """Adds the checks and the notes of a subprocess to those of this context. If a check failed in the subprocess,
        or could not be made there, raises the same kind of exception here."""
        self.checks += result.checks
        self.notes += result.notes
        if result.failure is not None and not result.raised:
            raise CheckFailed(result.failure)
        if result.undeclared:
            raise NotDeclared(result.undeclared)
        if result.not_shown:
            text = f"in another process: {result.not_shown}"
            if result.too_soon:  # the case is tried again with longer work
                raise NotInFlight(text)
            raise Blocked(result.blocked_by, text) if result.blocked_by else NotShown(text)

    def children(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        ranks: int,
        seconds: float = 60.0,
        lost: Sequence[int] = (),
    ) -> list[Result]:
        """Runs ``function(context, *arguments)`` in ``ranks`` subprocesses at the same time, and returns their results
        in order. In each subprocess, ``context.rank`` is its place in the group.

        As with ``child``, the checks of the subprocesses count as checks of this case. If a subprocess raises, dies, hangs,
        or does not start, all subprocesses are ended, and the case fails with one failure, which names the rank of that
        subprocess. ``seconds`` is the limit of the whole group, from the moment in which all have opened the device. The
        ranks in ``lost`` are killed by the function itself and need not answer.
        """
        about = (self.where, self.seed, self.default, self.patience)
        first_time = self.descriptor.first_time
        results = in_processes(function, arguments, ranks, seconds, *about, first_time, lost)
        return self._taken(results, lost)

    def pooled(
        self, function: Callable[..., Any], *arguments: Any, ranks: int, seconds: float = 60.0
    ) -> list[Result]:
        """Like ``children``, but runs the function in processes that remain for the next case if all ranks pass, which
        saves their start. The function must leave the state of the processes unchanged."""
        about = (self.where, self.seed, self.default, self.patience)
        results = in_pool(function, arguments, ranks, seconds, *about, self.descriptor.first_time)
        return self._taken(results)

    def note_death(self, result: Result) -> None:
        """If a signal that may come from outside of the run killed the process of ``result``, remembers this. If the
        check then fails, it runs a second time."""
        if result.ended.from_outside:
            self.killed = result.ended.signal

    def _taken(self, results: list[Result], lost: Sequence[int] = ()) -> list[Result]:
        for result in results:
            if result.rank not in lost:
                self.note_death(result)
        if (failure := group_failure(results, lost)) is not None:
            self.checks += sum(result.checks for result in results)
            self.notes += [note for result in results for note in result.notes]
            raise CheckFailed(failure)
        for result in results:
            self._take(result)
            if result.refused is not None and result.rank not in lost:
                raise NotImplementedError(result.refused)
            if result.failure is not None and result.rank not in lost:
                raise CheckFailed(result.failure.of_rank(result.rank))
        return results


def _at(found: str, at: str) -> str:
    return f"{found} ({at})" if found and at else found or (f"at {at}" if at else "")


def _unlike(
    kind: Kind, text: str, at: str, expected: str, found: str, where: Difference | None = None
) -> CheckFailed:
    return CheckFailed(
        Failure(kind=kind, subject=text, expected=expected, found=_at(found, at), where=where)
    )
