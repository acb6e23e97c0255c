"""Apart from the vendor: what a device's module leaves behind in this process, and how our own work is kept out of it.

A module may enter modes for ever, replace functions of torch, and change defaults of torch and of the process. Users of
the device have all that; samples, references and comparisons must not. So a process looks at itself before it imports
the module, and again afterwards. Defaults are put back. Modes and replaced ops belong to calls on the device: ``Sorting``
puts them there, and nowhere else. A repro script carries all of this where its device needs it.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, get_testing_overrides

from opinfo.torch_private import (
    default_device,
    is_faking,
    put_modes,
    take_modes,
)

# -- what can be changed


@dataclass(frozen=True, slots=True)
class Default:
    """A default of torch or of the process: ``done`` says what a module did that has changed it, ``{}`` is the value."""

    done: str
    read: Callable[[], Any]
    write: Callable[[Any], Any] | None  # None: it cannot be put back


def _deterministic() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


def _make_deterministic(given: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(given[0], warn_only=given[1])


def _is_for_all(each: Any) -> bool:
    """Whether it takes every warning. torch itself adds others, as parts of it are imported."""
    return bool(each[1:] == (None, Warning, None, 0))


def _warning_actions() -> list[str]:
    return [each[0] for each in warnings.filters if _is_for_all(each)]


def _set_warning_actions(given: list[str]) -> None:
    kept = [each for each in warnings.filters if each[0] in given or not _is_for_all(each)]
    warnings.resetwarnings()  # so that the module knows that they have changed
    warnings.filters[:] = kept  # type: ignore[index]


def _flushes_denormals() -> bool:
    """Whether the processor does: libraries that were built with -ffast-math set it for the thread that loads them."""
    return not torch.tensor(1e-310, dtype=torch.float64).mul(1.0).item()


def _random_state() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()


def _set_random_state(given: bytes) -> None:
    torch.default_generator.set_state(torch.tensor(list(given), dtype=torch.uint8))


def _infer(enabled: bool) -> None:
    torch.inference_mode(enabled).__enter__()


def _handle(number: signal.Signals, handler: Any) -> None:
    # Not the main thread; a handler that Python does not know.
    with suppress(ValueError, TypeError):
        signal.signal(number, handler)


def _set_collector(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


#: Inference mode comes before gradients, which it changes too.
_DEFAULTS = (
    Default("sets the default dtype to {}", torch.get_default_dtype, torch.set_default_dtype),
    Default("sets inference mode to {}", torch.is_inference_mode_enabled, _infer),
    Default("sets gradients to {}", torch.is_grad_enabled, torch.set_grad_enabled),
    Default(
        "sets autocast of the CPU to {}",
        partial(torch.is_autocast_enabled, "cpu"),
        partial(torch.set_autocast_enabled, "cpu"),
    ),
    Default("sets deterministic algorithms to {}", _deterministic, _make_deterministic),
    Default(
        "sets the precision of float32 matmuls to {}",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    Default(
        "sets anomaly detection to {}",
        torch.is_anomaly_enabled,
        torch.autograd.set_detect_anomaly,
    ),
    Default("sets torch to {} threads", torch.get_num_threads, torch.set_num_threads),
    Default("sets torch to {} threads between ops", torch.get_num_interop_threads, None),
    Default(
        "sets flushing of denormal numbers to {}", _flushes_denormals, torch.set_flush_denormal
    ),
    Default("draws from torch's generator, or seeds it", _random_state, _set_random_state),
    Default("draws from Python's generator, or seeds it", random.getstate, random.setstate),
    Default("sets what becomes of warnings to {}", _warning_actions, _set_warning_actions),
    Default("sets the garbage collector to {}", gc.isenabled, _set_collector),
    Default("changes the folder to {}", os.getcwd, os.chdir),
    Default("starts threads: there are {}", threading.active_count, None),
    *(
        Default(f"replaces sys.{name}", partial(getattr, sys, name), partial(setattr, sys, name))
        for name in ("stdout", "stderr", "excepthook")
    ),
    *(
        Default(f"handles {each.name}", partial(signal.getsignal, each), partial(_handle, each))
        for each in signal.Signals
    ),
)

#: Where ops are. What is replaced elsewhere (``torch.save``, ``torch.cuda``) is the device's own business.
_HOMES = ("", "Tensor", "nn.functional", "linalg", "fft", "special")


def _home(name: str) -> Any:
    return attrgetter(name)(torch) if name else torch


class Before:
    """The process as it was."""

    def __init__(self) -> None:
        self.defaults = [each.read() for each in _DEFAULTS]
        self.names = {name: dict(vars(_home(name))) for name in _HOMES}


@dataclass(frozen=True, slots=True)
class Replaced:
    """A name of torch that now means something else. ``own`` says whether torch's is the home's own, or inherited."""

    home: Any
    where: str
    name: str
    torch: Any
    theirs: Any
    own: bool

    @property
    def is_op(self) -> bool:
        """Whether modes see the calls of torch's: then it can be told what they are about."""
        if isinstance(self.torch, types.FunctionType):
            return self.torch in get_testing_overrides()
        return not isinstance(self.torch, (type, types.ModuleType))

    def install(self) -> None:
        setattr(self.home, self.name, self.theirs)

    def put_back(self) -> None:
        if self.own:
            setattr(self.home, self.name, self.torch)
        else:
            delattr(self.home, self.name)


def _is_of_torch(function: Any) -> bool:
    """Whether torch defines it: ``torch._dynamo`` replaces functions too. Wrappers copy ``__module__``."""
    name: str = getattr(function, "__globals__", {}).get("__name__", "")
    return name.partition(".")[0] == "torch"


def _replaced(before: Before) -> Iterator[Replaced]:
    for where, names in before.names.items():
        home = _home(where)
        base = home.__base__ if isinstance(home, type) else None
        for name, theirs in list(vars(home).items()):
            own = name in names
            old = names[name] if own else getattr(base, name, None)
            if old is theirs or name.startswith("_") or _is_of_torch(theirs):
                continue
            if callable(old) or hasattr(old, "__set__"):
                yield Replaced(
                    home, ".".join(filter(None, ("torch", where))), name, old, theirs, own
                )


# -- calls on the device

#: Their arguments do not say that they are about a device.
_ABOUT_DEVICES = ("pin_memory", "is_pinned")


class Sorting(TorchFunctionMode):
    """Sends calls that concern the device through the modes and the replaced ops of its module, and no others.

    A call concerns it if a tensor is there, or an argument names it. While FakeTensor answers, none does.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.modes: tuple[list[Any], list[Any]] = ([], [])  # of functions, of dispatch
        self.replaced: list[Replaced] = []
        self.theirs: dict[Any, Any] = {}  # the module's op for torch's

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.concerns(args) or self.concerns(kwargs) or self._is_about_devices(func):
            return self.on_device(self.theirs.get(func, func), *args, **kwargs)
        return func(*args, **kwargs)

    def _is_about_devices(self, func: Any) -> bool:
        return getattr(func, "__name__", "") in (*_ABOUT_DEVICES, self.kind)

    def concerns(self, value: Any) -> bool:
        """Whether an argument is on the device or names it, or one of several."""
        if value is None or isinstance(value, (int, float, torch.dtype)):
            return False
        if isinstance(value, (list, tuple)):
            return any(map(self.concerns, value))
        if isinstance(value, dict):
            return any(map(self.concerns, value.values()))
        if isinstance(value, str):
            return value.partition(":")[0] == self.kind
        device = value if isinstance(value, torch.device) else getattr(value, "device", None)
        return isinstance(device, torch.device) and device.type == self.kind

    def take(self, replaced: Replaced) -> None:
        """Put an op of torch back, and keep the module's for calls on the device."""
        self.replaced.append(replaced)
        ours, theirs = replaced.torch, replaced.theirs
        if hasattr(ours, "__set__"):  # an attribute: modes see how it is read
            ours, theirs = ours.__get__, theirs.__get__
        self.theirs[ours] = theirs
        replaced.put_back()

    def on_device(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call as it would be made without us."""
        if is_faking():
            return call(*args, **kwargs)
        outside = take_modes()  # this one is among them if no op is called
        for each in self.replaced:
            each.install()
        put_modes(*self.modes)
        try:
            return call(*args, **kwargs)
        finally:
            self.modes = take_modes()  # the call may have entered or left one
            for each in self.replaced:
                each.put_back()
            put_modes(*outside)


#: Replaced names that are listed. Some modules replace hundreds.
_NAMED = 5


@dataclass
class LeftBehind:
    """What the module of a device has left behind in this process so far; ``done`` says it for people.

    Made before the module is imported. ``look()`` is called afterwards, and again after the first calls.
    """

    kind: str
    done: list[str] = field(default_factory=list)
    before: Before = field(default_factory=Before)
    sorting: Sorting | None = None
    _replaced: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Look for what was changed, put defaults back, and keep modes and ops for calls on the device."""
        functions, dispatches = take_modes()
        sorting = self.sorting or Sorting(self.kind)
        functions = [*sorting.modes[0], *(each for each in functions if each is not sorting)]
        dispatches = [*sorting.modes[1], *dispatches]
        devices = [device for mode in functions if (device := default_device(mode)) is not None]
        functions = [mode for mode in functions if default_device(mode) is None]
        if devices:
            torch.set_default_device(None)
        lines = [f"sets the default device to {device}" for device in devices]
        lines += [
            f"enters the mode {type(mode).__module__}.{type(mode).__qualname__} and does not leave it"
            for mode in (*functions, *dispatches)
        ]
        lines += self._defaults()
        sorting.modes = functions, dispatches
        names = []
        for replaced in _replaced(self.before):
            if (name := f"{replaced.where}.{replaced.name}") not in self._replaced:
                names.append(name)
            if replaced.is_op:
                sorting.take(replaced)
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            lines.append(f"replaces {', '.join(names[:_NAMED])}{more}")
            self._replaced.update(names)
        if functions or dispatches or sorting.replaced:
            self.sorting = sorting
            put_modes([sorting], [])
        self.done += [line for line in lines if line not in self.done]

    def _defaults(self) -> Iterator[str]:
        """Put the defaults back; what was done to them."""
        for each, old in zip(_DEFAULTS, self.before.defaults, strict=True):
            new = each.read()
            if new != old:
                yield each.done.format(new)
                if each.write is not None:
                    each.write(old)

    def on_device(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the descriptor, which calls the device."""
        return call if self.sorting is None else partial(self.sorting.on_device, call)
