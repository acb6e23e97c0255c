"""What a case receives: the device, checks, ways to keep the device busy, and subprocesses.

Needs only torch, the standard library and what opens a device, because a repro script contains all of it.
"""

from __future__ import annotations

import ast
import base64
import importlib
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch

from conformance.checks.cases.endings import (
    Blocked,
    CheckFailed,
    NotDeclared,
    NotInFlight,
    NotShown,
    failure_of,
    shown,
)
from conformance.checks.cases.in_flight import LIMIT, NOTHING_HELD, SOON, Hold, ends, together
from conformance.checks.child import Child, Ended, Limits, Tell, ask
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.failure import Difference, Failure, Kind
from opinfo.compare import bit_equal, raw_bytes
from opinfo.device import Device, open_device

_NOTHING: Any = object()

#: Seconds that loading torch and opening the device may take in another process, in addition to the limit of the function.
START_SECONDS = 120.0

#: The module as which a fresh process imports a repro script.
SCRIPT = "conform_repro"

#: How much shorter the one of two holds is that ends first, where both take a time.
_SHORTER = 8.0


@dataclass(frozen=True, slots=True)
class Where:
    """How a fresh process finds the device, and the modules of the check."""

    device: str = ""  # a registered name
    path: str = ""  # or the path of a descriptor
    module: str = ""  # or the module that holds it, in a repro script
    script: str = ""  # the path of the repro script, which carries the modules

    @property
    def preamble(self) -> str:
        """Python that makes the script's modules known to a fresh process."""
        if not self.script:
            return ""
        return (
            "import importlib.util\n"
            f"spec = importlib.util.spec_from_file_location({SCRIPT!r}, {self.script!r})\n"
            "module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)\n"
            "spec.loader.exec_module(module)\n"
        )

    def described(self) -> Descriptor:
        """The descriptor of the device. Raises ConformError if there is none."""
        if self.module:
            found = importlib.import_module(self.module).DESCRIPTOR
        else:
            registry = importlib.import_module("devices.registry")
            found = registry.load_file(Path(self.path)) if self.path else registry.get(self.device)
        assert isinstance(found, Descriptor)
        return found


class ProgramSearch(Protocol):
    """A random search through the programs of a case, beyond what a plan draws."""

    cut: bool

    def takes(self) -> bool: ...
    def passes_over(self, program: tuple[Any, ...], error: Exception) -> bool: ...


@dataclass(frozen=True, slots=True)
class Counters:
    """``torch.accelerator.memory.memory_stats`` of one index. Bytes, unless the name says otherwise."""

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
        """The most that was allocated since the last reset."""
        return self.all["allocated_bytes.all.peak"]


@dataclass
class Context:
    """One attempt at one case.

    ``seed`` is the name of the case. ``patience`` is how long work that must be in flight takes
    (milliseconds), where the device can only be kept busy for a time. ``checks`` counts the comparisons
    that were made. ``search`` is set where programs are drawn at random, beyond a plan. ``default`` is
    the kind of failures that do not name one.
    """

    opened: Device
    seed: str
    patience: float = 50.0
    where: Where = field(default_factory=Where)
    search: ProgramSearch | None = None
    default: Kind = Kind.STATE
    checks: int = 0
    program: tuple[Any, ...] | None = None  # the drawn program that failed, as literals
    reached: str = ""  # what the drawn programs reached
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    # -- the device

    @property
    def descriptor(self) -> Descriptor:
        return self.opened.descriptor

    @property
    def kind(self) -> str:
        """The device's type, as torch calls it."""
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
        """The same, as a tensor there names it: "cpu" has no index."""
        return self.device if self.kind == "cpu" else self.at(index)

    def has(self, capability: str) -> bool:
        return capability in self.descriptor.capabilities

    @property
    def module(self) -> Any:
        """The device's own module: ``torch.cuda`` for "cuda"."""
        return torch.get_device_module(self.kind)

    def own(self, role: str) -> Any:
        """The function of the device's own module that serves ``role`` (a name of ``FUNCTIONS`` in
        devices/descriptor.py), as the descriptor says.

        Fails the check if the module does not have it. Raises DescriptorError if the descriptor
        names none: then nothing can be judged.
        """
        name = self.descriptor.function(role)
        try:
            return attrgetter(name)(self.module)
        except AttributeError:
            text = f"torch.{self.kind} has the function that the descriptor names for {role}"
            missing = "no such attribute"
            raise CheckFailed.of(Kind.STATE, text, expected=name, found=missing) from None

    def to_device(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        return self.opened.to_device(tensor) if index == 0 else tensor.to(self.at(index))

    def from_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.opened.from_device(tensor)

    def settle(self) -> None:
        """Wait for all work on every index. Raises what failed late."""
        wait = getattr(getattr(torch, self.kind, None), "synchronize", None)
        if self.kind == "cpu" or wait is None:
            return  # a module without one has nothing to wait for
        for index in self.indices:
            wait(self.at(index))

    @property
    def accelerated(self) -> bool:
        """Whether torch.accelerator speaks of this device: it is silent of others."""
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
        """One executed comparison. ``text`` says what the device must do, in the same words whatever it is
        done to: failures of one text are of one sort. ``at`` says what it was done to. Raises CheckFailed."""
        self.checks += 1
        if not holds:
            raise CheckFailed(
                Failure(
                    kind=kind or self.default,
                    subject=text,
                    expected="" if expected is _NOTHING else shown(expected),
                    found=_at("" if found is _NOTHING else shown(found), at),
                    said=str(found) if isinstance(found, BaseException) else None,
                )
            )

    def same(
        self, found: Any, expected: Any, text: str, kind: Kind | None = None, at: str = ""
    ) -> None:
        """A check that two values are equal (``==``)."""
        self.check(found == expected, text, expected=expected, found=found, kind=kind, at=at)

    def equal(self, found: torch.Tensor, expected: torch.Tensor, text: str, at: str = "") -> None:
        """A check that two tensors agree bit for bit, in shape and in dtype. Either may be on the device."""
        there = self.from_device(found) if found.device.type == self.kind else found
        want = self.from_device(expected) if expected.device.type == self.kind else expected
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
        expected_text, found_text = (shown(each.reshape(-1)[item].item()) for each in (want, there))
        if expected_text == found_text:  # NaN of other bits
            size = there.itemsize
            part = slice(item * size, (item + 1) * size)
            expected_text += f" of the bytes {theirs[part].tolist()}"
            found_text += f" of the bytes {mine[part].tolist()}"
        raise CheckFailed(
            Failure(
                kind=Kind.VALUES,
                subject=text,
                expected=expected_text,
                found=_at(found_text, at),
                where=Difference(len(wrong), there.numel(), tuple(int(i) for i in place)),
            )
        )

    def raises(
        self,
        types: type[BaseException] | tuple[type[BaseException], ...],
        function: Callable[..., Any],
        *arguments: Any,
        text: str,
        match: str | None = None,
        **named: Any,
    ) -> BaseException:
        """A check that a call raises one of these types, with a message that ``match`` is found in."""
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
            Failure(kind=kind, subject=text, expected=names, found=shown(result), said=said)
        )

    def ended_well(self, result: Result, text: str) -> None:
        """A check that a function of ``child`` raised nothing, and that its process ended with status 0."""
        self.checks += 1
        if result.raised or not (result.answered and result.ended.well):
            found = f"it raised {result.raised}" if result.raised else str(result.ended)
            raise CheckFailed.of(Kind.ENDED, text, expected="exit status 0", found=found)

    def note(self, text: str) -> None:
        """What the report says of a case that passes: worth knowing, and no clause is broken."""
        self.notes.append(text)

    def must(self, happened: object, text: str, by: str = "") -> None:
        """What the device must do for the check to mean anything. It is no check of its own, but where it does not
        hold the case fails; it is blocked where another clause, ``by``, says that the device does it."""
        if happened:
            return
        if by:
            raise Blocked(by, f"nothing was shown: {text}")
        self.checks += 1
        raise CheckFailed.of(self.default, text, expected="this before anything else is judged")

    # -- work in flight

    def hold(
        self,
        stream: Any = None,
        limit: float = LIMIT,
        *,
        needed: bool = True,
        released_first: bool = False,
    ) -> Hold:
        """Work that occupies a stream (the current one by default) from now on until it is released,
        or for ``patience`` where the device has only a primitive that takes a time::

            with context.hold(stream):
                ...           # queue, and observe: it is still held here

        A case that finds nothing in flight is tried again with more patience. A gate opens by itself
        after ``limit`` seconds, which fails the case: the host was kept waiting.

        Where the device has neither, the case is unsupported by declaration. If a hold is not ``needed``, because
        values are judged too, the block runs without one: ``hold.waits`` and ``hold.check`` then judge nothing. Of two
        holds one may be ``released_first``: where both take a time, it takes the shorter one.
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
        """Whether a stream's or an event's work is done within that time, by its ``query``: nothing holds it."""
        return ends(what, seconds * self.descriptor.time_scale)

    def is_capturing(self, stream: Any) -> bool:
        """Whether a stream records a graph. Before torch 2.12 the generic stream does not say: the device's module does, of
        the current one."""
        said = getattr(stream, "is_capturing", None)
        if said is not None:
            return bool(said())
        with stream:
            return bool(self.own("is_capturing")())

    def current_stream(self, index: int = 0) -> Any:
        return torch.accelerator.current_stream(self.at(index))

    def stream(self, index: int = 0, **options: Any) -> Any:
        """A stream of the device's pool; use it as ``with stream:``."""
        return torch.Stream(device=self.at(index), **options)

    def streams(self, count: int = 2) -> list[Any]:
        """So many streams of the device's pool, each a different one."""
        made = [self.stream() for _ in range(count)]
        distinct = len({each.stream_id for each in made}) == count
        self.must(distinct, f"{count} new streams differ", by="streams.identity")
        return made

    def event(self, index: int = 0, **options: Any) -> Any:
        return torch.Event(device=self.at(index), **options)

    @contextmanager
    def on(self, index: int) -> Iterator[None]:
        """A device index as the current one, for a block."""
        with torch.accelerator.device_index(index):
            yield

    # -- memory

    def counters(self, index: int = 0) -> Counters:
        return Counters.of(self.at(index))

    @property
    def granularity(self) -> int:
        """Bytes that the allocator rounds a request up to, as declared."""
        return self.descriptor.granularity or self.descriptor.alignment

    def bytes_of(self, count: int, index: int = 0) -> torch.Tensor:
        """An uninitialised block of so many bytes."""
        return torch.empty(count, dtype=torch.uint8, device=self.at(index))

    # -- threads and processes

    together = staticmethod(together)

    def child(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        fresh: bool = False,
        spawned: bool = False,
    ) -> Result:
        """Run ``function(context, *arguments)`` in a subprocess. If it is ``fresh``, the
        device's module is imported there, and nothing has used the device. One that is not ``spawned`` may be a copy
        of a process that has torch loaded and nothing of the device.

        ``function`` is a function of its module; arguments and result are literals. The child's checks
        count here, and one that fails there fails here. How the process ended, what it printed and
        what the function returned is in the answer; so is that it had not ended in time.
        """
        result = in_process(
            *(function, arguments, self.where, self.seed, self.default),
            first_time=self.descriptor.first_time,
            patience=self.patience,
            fresh=fresh,
            spawned=spawned,
        )
        self.checks += result.checks
        self.notes += result.notes
        if result.failure is not None and not result.raised:
            raise CheckFailed(result.failure)
        if result.undeclared:
            raise NotDeclared(result.undeclared)
        if result.not_shown:
            text = f"in another process: {result.not_shown}"
            raise Blocked(result.blocked_by, text) if result.blocked_by else NotShown(text)
        return result


def _at(found: str, at: str) -> str:
    return f"{found} ({at})" if found and at else found or at


# -- functions in a subprocess


@dataclass(slots=True)
class Attempt:
    """What became of a check. Where it passes, ``checks`` comparisons held."""

    checks: int = 0
    failure: Failure | None = None
    not_shown: str = ""  # why it proved nothing
    undeclared: str = ""  # what it takes and the descriptor does not declare
    blocked_by: str = ""  # … which was the device's: the clause that must hold first
    too_soon: bool = False  # … which was that work was over too soon
    refused: str | None = None  # what the device's NotImplementedError said
    program: tuple[Any, ...] | None = None  # the drawn program that failed, as literals
    notes: Sequence[str] = ()
    reached: str = ""  # what the drawn programs reached

    @property
    def passes(self) -> bool:
        shown = not self.not_shown and not self.undeclared
        return shown and self.failure is None and self.refused is None

    def end(self, error: BaseException) -> None:
        if isinstance(error, NotDeclared):
            self.undeclared = str(error)
        elif isinstance(error, (NotShown, ConformError)):
            self.not_shown, self.too_soon = str(error), isinstance(error, NotInFlight)
            self.blocked_by = error.by if isinstance(error, Blocked) else ""
        elif isinstance(error, NotImplementedError):
            self.refused = str(error)
        else:
            self.failure = failure_of(error)


@dataclass(slots=True)
class Result(Attempt):
    """The result of a function in a subprocess, and how the process ended."""

    ended: Ended = field(default_factory=lambda: Ended(None))
    answered: bool = False  # the function returned, raised or was judged
    value: Any = None  # what it returned
    raised: str = ""  # "Type: message" of an exception that is not a failed check


def in_process(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    where: Where,
    seed: str,
    default: Kind = Kind.STATE,
    environment: Mapping[str, str] | None = None,
    seconds: float = 60.0,
    patience: float = 50.0,
    fresh: bool = False,
    spawned: bool = False,
    first_time: Callable[[float], float] = float,
) -> Result:
    """Run ``function(context, *arguments)`` in a subprocess; see ``Context.child``. ``first_time`` is the device's.

    Waits for the process even after its answer, because a case may check that it exits cleanly.
    """
    module = SCRIPT if function.__module__ == "__main__" else function.__module__
    name = function.__qualname__
    orders = (module, name, arguments, where, seed, default, patience, fresh)
    target = "conformance.checks.cases.context:serve"
    total = first_time(seconds)
    limits = Limits(start=first_time(START_SECONDS), total=total, exit=total)
    given = environment or {}
    child = Child(target, _packed(orders), limits, given, where.preamble, copied=not spawned)
    answer, ended = ask(child)
    result = Result() if answer is None else _unpacked(answer)
    assert isinstance(result, Result)
    result.ended = ended
    return result


def serve(given: str, tell: Tell) -> None:
    """In the subprocess: call the function with a new context, and report the result."""
    module, name, arguments, where, seed, default, patience, fresh = _unpacked(given)
    try:
        opened = open_device(where.described(), unused=fresh)
    except ConformError as error:
        tell(_packed(Result(not_shown=f"the device cannot be opened: {error}")))
        return
    context = Context(opened, seed, patience, where, default=default)
    function = attrgetter(name)(importlib.import_module(module))
    result = Result(answered=True)
    tell.ready()  # from now on its own time runs
    try:
        result.value = ast.literal_eval(repr(function(context, *arguments)))
    except Exception as error:  # the parent's case says whether it should have been raised
        result.end(error)
        if not isinstance(error, (CheckFailed, NotShown)):
            result.raised = f"{type(error).__name__}: {error}"
    result.checks, result.notes = context.checks, tuple(context.notes)
    tell(_packed(result))


def _packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))
