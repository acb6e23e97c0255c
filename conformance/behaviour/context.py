"""What a case is given: the device, ways to judge, and ways to keep the device busy.

Torch and the standard library alone, beside what opens a device: a repro script takes all of it along.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from conformance.behaviour import process, threads
from conformance.behaviour.busy import LIMIT, Hold
from conformance.behaviour.judging import CheckFailed, NotInFlight, NotShown, shown
from conformance.behaviour.memory import Counters
from devices.descriptor import Descriptor
from opinfo.device import Device

if TYPE_CHECKING:
    from conformance.behaviour.drawing import Search

_NOTHING: Any = object()


@dataclass
class Context:
    """One attempt at one case.

    ``patience`` is how long work that is to be in flight takes (milliseconds), where the device can
    only be kept busy for a time. ``checks`` counts the comparisons that were made. ``search`` is set
    where programs are drawn at random, beyond a plan.
    """

    opened: Device
    seed: str
    patience: float = 50.0
    checks: int = 0
    replay: tuple[Callable[..., None], tuple[Any, ...]] | None = None
    where: process.Where = field(default_factory=process.Where)
    notes: list[str] = field(default_factory=list)
    search: Search | None = None

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
        """The first device."""
        return self.opened.torch_device

    @property
    def indices(self) -> range:
        """The device indices of this machine."""
        return range(self.descriptor.device_count())

    def at(self, index: int) -> torch.device:
        """The device of that index."""
        return torch.device(self.kind, index)

    def has(self, capability: str) -> bool:
        """Whether the descriptor declares it."""
        return capability in self.descriptor.capabilities

    @property
    def module(self) -> Any:
        """The device's own module: ``torch.cuda`` for "cuda"."""
        return torch.get_device_module(self.kind)

    def own(self, role: str) -> Any:
        """The function of the device's own module that serves ``role`` (a name of ``FUNCTIONS`` in
        devices/vocabulary.py), as the descriptor says.

        Fails the check where the module has it not. Raises DescriptorError where the descriptor
        names none: then nothing can be judged.
        """
        name = self.descriptor.function(role)
        found: Any = self.module
        for part in name.split("."):
            found = getattr(found, part, _NOTHING)
            if found is _NOTHING:
                raise CheckFailed(
                    f"torch.{self.kind} has no {name}, which the descriptor names for {role}"
                )
        return found

    def to_device(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        """A CPU tensor on the device of that index."""
        return self.opened.to_device(tensor) if index == 0 else tensor.to(self.at(index))

    def from_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the device on the CPU."""
        return self.opened.from_device(tensor)

    def settle(self) -> None:
        """Wait for all work on every index. Raises what failed late."""
        if self.kind == "cpu":
            return
        wait = getattr(getattr(torch, self.kind, None), "synchronize", None)
        if wait is None:
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
        self, holds: object, text: str, *, expected: Any = _NOTHING, got: Any = _NOTHING
    ) -> None:
        """One executed comparison. ``text`` says what the device must do. Raises CheckFailed."""
        self.checks += 1
        if holds:
            return
        more = [
            f"{name} {shown(value)}"
            for name, value in (("expected", expected), ("got", got))
            if value is not _NOTHING
        ]
        raise CheckFailed(f"{text}: {', '.join(more)}" if more else text)

    def same(self, got: Any, expected: Any, text: str) -> None:
        """A check that two values are equal (``==``)."""
        self.check(got == expected, text, expected=expected, got=got)

    def equal(self, got: torch.Tensor, expected: torch.Tensor, text: str) -> None:
        """A check that two tensors agree bit for bit, in shape and in dtype. ``got`` may be on the
        device."""
        there = self.from_device(got) if got.device.type == self.kind else got
        want = self.from_device(expected) if expected.device.type == self.kind else expected
        if (there.dtype, there.shape) != (want.dtype, want.shape):
            self.check(False, text, expected=_form(want), got=_form(there))
        mine, theirs = _bits(there), _bits(want)
        if torch.equal(mine, theirs):
            self.check(True, text)
            return
        place = int((mine != theirs).flatten().nonzero()[0])
        item = place * there.numel() // max(mine.numel(), 1)
        self.check(
            False,
            f"{text}: element {item} of {there.numel()}",
            expected=want.reshape(-1)[item].item(),
            got=there.reshape(-1)[item].item(),
        )

    def raises(
        self,
        types: type[BaseException] | tuple[type[BaseException], ...],
        function: Callable[..., Any],
        *arguments: Any,
        text: str,
        match: str | None = None,
        **named: Any,
    ) -> BaseException | None:
        """A check that a call raises one of these types, with a message that ``match`` is found in."""
        try:
            got = function(*arguments, **named)
        except types as error:
            if match is not None:
                found = re.search(match, str(error))
                self.check(found, text, expected=f"a message like {match!r}", got=str(error))
            else:
                self.check(True, text)
            return error
        except Exception as error:
            self.check(False, text, expected=_names(types), got=error)
        else:
            self.check(False, text, expected=_names(types), got=got)
        return None

    def note(self, text: str) -> None:
        """What the report says of a case that passes: worth knowing, and no clause is broken."""
        self.notes.append(text)

    def must(self, happened: object, text: str) -> None:
        """What must have happened for the check to mean anything. Raises NotShown: an error, not a
        pass and not a fail."""
        if not happened:
            raise NotShown(f"nothing was shown: {text}")

    # -- work in flight

    def hold(self, stream: Any = None, limit: float = LIMIT) -> Hold:
        """Work that occupies a stream (the current one by default) from now on until it is released,
        or for ``patience`` where the device has only a primitive that takes a time::

            with context.hold(stream) as hold:
                ...           # queue, and observe
                hold.must_be_in_flight()

        A case that finds nothing in flight is tried again with more patience. A gate opens by itself
        after ``limit`` seconds, which fails the case: the host was kept waiting.
        """
        return Hold(self.opened, self.patience, stream, limit)

    def must_be_in_flight(self, stream: Any, text: str = "work was in flight") -> None:
        """Evidence that a stream's work is not done. Raises NotInFlight: the case is tried again."""
        if stream.query():
            raise NotInFlight(
                f"nothing was shown: {text} on {shown(stream)}, and it is done already"
            )

    def current_stream(self, index: int = 0) -> Any:
        return torch.accelerator.current_stream(self.at(index))

    def stream(self, index: int = 0, **options: Any) -> Any:
        """A stream of the device's pool; use it as ``with stream:``."""
        return torch.Stream(device=self.at(index), **options)

    def event(self, index: int = 0, **options: Any) -> Any:
        return torch.Event(device=self.at(index), **options)

    @contextmanager
    def on(self, index: int) -> Iterator[None]:
        """A device index as the current one, for a block."""
        with torch.accelerator.device_index(index):
            yield

    # -- memory

    def counters(self, index: int = 0) -> Counters:
        """The allocator's counters now."""
        return Counters.of(self.at(index))

    @property
    def granularity(self) -> int:
        """Bytes that the allocator rounds a request up to, as declared."""
        return self.descriptor.granularity or self.descriptor.alignment

    def bytes_of(self, count: int, index: int = 0) -> torch.Tensor:
        """An uninitialised block of so many bytes."""
        return torch.empty(count, dtype=torch.uint8, device=self.at(index))

    # -- threads and processes

    def together(self, *functions: Callable[[], Any], seconds: float = 60.0) -> list[Any]:
        """Run each function in a thread of its own, all started at once; their results in order.

        Raises what the first one raised, and CheckFailed where one does not end in time.
        """
        return threads.together(functions, seconds)

    def child(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        environment: dict[str, str] | None = None,
        seconds: float = 60.0,
        fresh: bool = False,
    ) -> process.Ended:
        """Run ``function(context, *arguments)`` in a fresh process of its own. Where it is ``fresh``, the
        device's module is imported there, and nothing has used the device.

        ``function`` is one of its module's, arguments and result are literals. The child's checks
        count here, and one that fails there fails here. How the process ended, what it printed and
        what the function returned is in the answer; a time limit that is over is an end too.
        """
        ended = process.run(
            *(function, arguments, self.where, self.seed, environment or {}, seconds),
            patience=self.patience,
            fresh=fresh,
        )
        self.checks += ended.checks
        self.notes += ended.notes
        if ended.failed:
            raise CheckFailed(f"in a process of its own: {ended.failed}")
        if ended.not_shown:
            raise NotShown(f"in a process of its own: {ended.not_shown}")
        return ended

    # -- repro

    def reproduce_by(self, function: Callable[..., None], *arguments: Any) -> None:
        """What a repro script runs instead of the case: a function of its module, and literals.

        For cases that draw: the shrunk program is data, and replaying it needs nothing else.
        """
        self.replay = (function, arguments)


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes: a NaN equals itself, and -0.0 differs from 0.0."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.reshape(-1)


def _names(types: type[BaseException] | Sequence[type[BaseException]]) -> str:
    named = types if isinstance(types, tuple) else (types,)
    return " or ".join(one.__name__ for one in named)
