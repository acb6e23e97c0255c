"""Mutants of the Dynamo device interface of the simulated device: one of its functions answers wrongly, or does nothing.

The name of a mutant describes it completely: ``function|effect|condition``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple
from unittest import mock

import torch

from conformance.checks.behaviour.compiler import device_interface
from conformance.checks.cases.cases import BehaviourCase
from conformance.suites.compile.device_interface import CLAUSE
from devices.cell import Outcome
from tests.mutation.compile.listing import cases_of
from tests.mutation.compile.trial import Counted, Plant, attempt
from tests.mutation.compiled_probe import Answer
from tests.mutation.items import device, is_refused
from tests.mutation.kernels import Result

FAMILY: Final = "device_interface"


class Function(NamedTuple):
    """A function of the interface, and the effects that a mutant of it may have."""

    name: str
    effects: tuple[str, ...]


_NOTHING, _RAISES, _STALE = "does nothing", "raises an exception", "answers as at first"
_NUMBER = ("one more", "one less", "zero", _STALE, _RAISES)
_TRUTH = ("the opposite", "always true", "always false", _RAISES)
_ACT = (_NOTHING, _RAISES, "acts on index 0")
_CLASS = ("a class of another type", "none")
FUNCTIONS: Final = (
    Function("is_available", ("the opposite", _RAISES)),
    Function("device_count", _NUMBER),
    Function("current_device", _NUMBER),
    Function("Worker.current_device", _NUMBER),
    Function("set_device", _ACT),
    Function("exchange_device", (*_NUMBER, *_ACT)),
    Function("maybe_exchange_device", (_RAISES, "acts on index 0")),
    Function("device", (_NOTHING, _RAISES, "acts on index 0")),
    Function("Stream", _CLASS),
    Function("Event", _CLASS),
    Function("current_stream", (_STALE, _RAISES, "of index 0", "none")),
    Function("set_stream", (_NOTHING, _RAISES)),
    Function("stream", (_NOTHING, _RAISES)),
    Function("_set_stream_by_id", (_NOTHING, _RAISES)),
    Function("get_raw_stream", _NUMBER),
    Function("synchronize", (_NOTHING, _RAISES, "acts on index 0")),
    Function("is_bf16_supported", _TRUTH),
    Function("is_dtype_supported", _TRUTH),
    Function("memory_allocated", (*_NUMBER, "of index 0")),
    Function("get_device_properties", (_STALE, _RAISES, "of index 0", "none")),
    Function("Worker.get_device_properties", (_STALE, _RAISES, "of index 0", "none")),
    Function("get_compute_capability", ("another each time", "none", _RAISES)),
)
#: Calls in which a mutant is wrong.
CONDITIONS: Final = ("always", "after the first call", "on another index than 0")


class Spec(NamedTuple):
    """A mutant."""

    function: str
    effect: str
    condition: str


def names(seed: int, count: int) -> list[str]:
    """Mutants 0 to count - 1: of functions in turn, none of them twice."""
    rng, found = Random(f"{FAMILY} {seed}"), list[str]()
    while len(found) < count:
        for function in rng.sample(FUNCTIONS, len(FUNCTIONS)):
            classes = function.effects is _CLASS
            condition = "always" if classes or rng.random() < 0.6 else rng.choice(CONDITIONS)
            name = "|".join((function.name, rng.choice(function.effects), condition))
            if name not in found:
                found.append(name)
    return found[:count]


def _holder(name: str) -> tuple[Any, str]:
    """The class that has a function, and the function's name there."""
    interface = device_interface(device().descriptor.torch_type)
    inner = name.startswith("Worker.")
    return (interface.Worker if inner else interface), name.removeprefix("Worker.")


class _Wrong:
    """A function of the interface with a mutant."""

    def __init__(self, spec: Spec, right: Any, state: Counted) -> None:
        self._spec, self._right, self._state = spec, right, state
        self._calls, self._first = 0, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state = self._state
        self._calls += 1
        if not self._strikes():
            self._first = answer = self._right(*args, **kwargs)
            return answer
        state.ran += 1
        state.reached += 1
        if state.sham:
            return self._right(*args, **kwargs)
        return self._answer(args, kwargs)

    def _strikes(self) -> bool:
        if self._calls == 1 and self._spec.effect == _STALE:
            return False
        if self._spec.condition == "after the first call":
            return self._calls > 1
        current = torch.accelerator.current_device_index()
        return self._spec.condition == "always" or current != 0

    def _answer(self, args: Any, kwargs: Any) -> Any:
        effect = self._spec.effect
        if effect == _RAISES:
            raise RuntimeError("this function of the interface is wrong")
        if effect in (_NOTHING, "none"):
            return _Nothing() if self._spec.function in ("device", "stream") else None
        if effect == _STALE:
            return self._first
        if effect in ("acts on index 0", "of index 0"):
            return self._right(0, *args[1:], **kwargs)
        answer = self._right(*args, **kwargs)
        values = {
            "one more": lambda: answer + 1,
            "one less": lambda: answer - 1,
            "zero": lambda: 0,
            "the opposite": lambda: not answer,
            "always true": lambda: True,
            "always false": lambda: False,
            "another each time": lambda: f"{answer}{self._calls}",
        }
        return values[effect]()


class _Nothing:
    """A context manager that does nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


@contextmanager
def planted(spec: Spec, sham: bool) -> Iterator[Counted]:
    """Plants a mutant for a block."""
    state = Counted(sham)
    holder, name = _holder(spec.function)
    right = getattr(holder, name)
    if spec.effect in _CLASS:
        state.ran = state.reached = 1  # whoever reads the class
        wrong: Any = None if spec.effect == "none" else object
        if sham:
            wrong = right
    else:
        wrong = staticmethod(_Wrong(spec, right, state))
    with mock.patch.object(holder, name, wrong):
        yield state


@cache
def cases() -> tuple[BehaviourCase, ...]:
    """The cases of the device interface."""
    return cases_of(CLAUSE, device(), indices=2)


def outcome(case: BehaviourCase) -> Outcome:
    return Outcome.FAIL if is_refused(case) else Outcome.PASS


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    spec = Spec(*name.split("|"))
    found = Result(f"c{number:04d}", FAMILY, spec.function, spec.condition, spec.effect, "")
    tell(found)
    return attempt(
        found,
        cases(),
        lambda sham: planted(spec, sham),
        outcome,
        lambda plant: probe(plant, spec),
        tell,
    )


# -- equivalent or not


def probe(plant: Plant, spec: Spec) -> Answer:
    """Whether calls of the function tell a mutant from the interface, on each index, with and without an argument."""
    sound = _answers(plant, spec.function, True)[0]
    wrong, reached = _answers(plant, spec.function, False)
    text = f"{spec.function} answers otherwise" if sound != wrong else ""
    return Answer(text, reached)


def _answers(plant: Plant, name: str, sham: bool) -> tuple[list[object], int]:
    """What the function answers and does."""
    accelerator, found = torch.accelerator, list[object]()
    counted = 0
    with plant(sham) as state:
        holder, own = _holder(name)
        function = getattr(holder, own)
        for index in (0, 1, 1, 0):
            accelerator.set_device_index(index)
            for arguments in _ARGUMENTS.get(own, lambda: [()])():
                side = torch.Stream(device=accelerator.current_accelerator())
                arguments = tuple(side if each is _SIDE else each for each in arguments)
                for where in (_Nothing(), side):
                    event = _busy() if own == "synchronize" else None
                    try:
                        with where:
                            answer = function(*arguments)
                            with answer if hasattr(answer, "__enter__") else _Nothing():
                                found.append(_state(side))
                            found.append(_shown(answer, side))
                            found.append(_state(side))
                    except Exception as error:
                        found.append(type(error).__name__)
                    found.append(event is not None and event.query())
                    accelerator.synchronize()
                    accelerator.set_device_index(index)
        counted = state.reached
    accelerator.set_device_index(0)
    return found, counted


_SIDE: Final = "a new stream"
_INDICES = ((0,), (1,))
_ARGUMENTS: Final[dict[str, Callable[[], list[tuple[Any, ...]]]]] = {
    "set_device": lambda: [*_INDICES],
    "exchange_device": lambda: [*_INDICES],
    "maybe_exchange_device": lambda: [*_INDICES, (-1,)],
    "device": lambda: [*_INDICES],
    "set_stream": lambda: [(_SIDE,)],
    "stream": lambda: [(_SIDE,)],
    "get_raw_stream": lambda: [*_INDICES],
    "get_device_properties": lambda: [*_INDICES],
    "memory_allocated": lambda: [(), *_INDICES],
    "current_stream": lambda: [(), *_INDICES],
    "synchronize": lambda: [(), *_INDICES],
    "is_dtype_supported": lambda: [(torch.float32,), (torch.bfloat16,), (torch.float64,)],
}


def _busy() -> Any:
    """Queues work on the current stream. Returns an event that is complete after it."""
    busy = device().descriptor.busy
    assert busy is not None
    busy(20.0)
    event = torch.Event(device=torch.accelerator.current_accelerator())
    event.record()
    return event


def _state(side: torch.Stream) -> tuple[object, ...]:
    """The current index, and whether a stream is the current one."""
    accelerator = torch.accelerator
    return accelerator.current_device_index(), accelerator.current_stream() == side


def _shown(answer: Any, side: torch.Stream) -> str:
    """An answer as text, without addresses and numbers of streams, which differ between runs."""
    if isinstance(answer, torch.Stream):
        return f"stream of {answer.device_index}, the new one: {answer == side}"
    if type(answer) is int and answer == side.native_handle:
        return "the handle of the new stream"
    return repr(answer) if not hasattr(answer, "__enter__") else "a context manager"
