"""Finds the changes that importing a device's module makes in the process, and keeps these changes out of the suite's
own work.

A vendor's module may enter modes that it never leaves, replace functions of torch, and change defaults of torch and of
the process. A user's program runs with these changes, but samples, references and comparisons must not depend on them.
The process therefore records its state before it imports the module, and compares the state afterwards. Changed
defaults are restored. Modes and replaced ops stay in effect only for calls on the device, which ``Sorting`` recognizes.
A repro script carries a copy of this module if its device needs it.
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
    """A default of torch or of the process. ``done`` is the text that says how a module changed the default, with
    ``{}`` in place of the new value. ``write`` is None if the default cannot be restored."""

    done: str
    read: Callable[[], Any]
    write: Callable[[Any], Any] | None  # None: it cannot be restored


def _deterministic() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


def _make_deterministic(given: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(given[0], warn_only=given[1])


def _is_for_all(each: Any) -> bool:
    """Returns True if a warning filter applies to all warnings. torch adds filters for single warnings when it imports
    its parts."""
    return bool(each[1:] == (None, Warning, None, 0))


def _warning_actions() -> list[str]:
    return [each[0] for each in warnings.filters if _is_for_all(each)]


def _set_warning_actions(given: list[str]) -> None:
    kept = [each for each in warnings.filters if each[0] in given or not _is_for_all(each)]
    warnings.resetwarnings()  # so that the warnings module notices the change of its filters
    warnings.filters[:] = kept  # type: ignore[index]


def _flushes_denormals() -> bool:
    """Returns True if the processor flushes denormal numbers to zero. A library built with -ffast-math sets this mode
    for the thread that loads it."""
    return not torch.tensor(1e-310, dtype=torch.float64).mul(1.0).item()


def _random_state() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()


def _set_random_state(given: bytes) -> None:
    torch.default_generator.set_state(torch.tensor(list(given), dtype=torch.uint8))


def _infer(enabled: bool) -> None:
    torch.inference_mode(enabled).__enter__()


def _handle(number: signal.Signals, handler: Any) -> None:
    # ValueError: not the main thread. TypeError: the handler was not installed from Python.
    with suppress(ValueError, TypeError):
        signal.signal(number, handler)


def _set_collector(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


#: Inference mode comes before gradient mode, because it changes gradient mode too.
_DEFAULTS = (
    Default("sets the default dtype to {}", torch.get_default_dtype, torch.set_default_dtype),
    Default("sets inference mode to {}", torch.is_inference_mode_enabled, _infer),
    Default("sets gradient mode to {}", torch.is_grad_enabled, torch.set_grad_enabled),
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
    Default(
        "sets the number of torch's threads to {}", torch.get_num_threads, torch.set_num_threads
    ),
    Default(
        "sets the number of torch's inter-op threads to {}", torch.get_num_interop_threads, None
    ),
    Default(
        "sets flushing of denormal numbers to {}", _flushes_denormals, torch.set_flush_denormal
    ),
    Default(
        "changes the state of torch's random number generator", _random_state, _set_random_state
    ),
    Default(
        "changes the state of Python's random number generator", random.getstate, random.setstate
    ),
    Default("sets the action for all warnings to {}", _warning_actions, _set_warning_actions),
    Default("sets automatic garbage collection to {}", gc.isenabled, _set_collector),
    Default("changes the working directory to {}", os.getcwd, os.chdir),
    Default("starts threads: {} threads are running now", threading.active_count, None),
    *(
        Default(f"replaces sys.{name}", partial(getattr, sys, name), partial(setattr, sys, name))
        for name in ("stdout", "stderr", "excepthook")
    ),
    *(
        Default(
            f"installs a handler for {each.name}",
            partial(signal.getsignal, each),
            partial(_handle, each),
        )
        for each in signal.Signals
    ),
)

#: The places in torch that hold ops. A vendor may replace functions elsewhere (``torch.save``, ``torch.cuda``).
_HOMES = ("", "Tensor", "nn.functional", "linalg", "fft", "special")


def _home(name: str) -> Any:
    return attrgetter(name)(torch) if name else torch


class Before:
    """The state of the process before the device's module is imported: the values of the defaults, and the ops of torch
    by module."""

    def __init__(self) -> None:
        self.defaults = [each.read() for each in _DEFAULTS]
        self.names = {name: dict(vars(_home(name))) for name in _HOMES}


@dataclass(frozen=True, slots=True)
class Replaced:
    """A name of torch that the device's module replaced. ``home`` is the module or class that has the name. ``own`` is
    True if ``home`` defined the name itself, and False if it inherited the name."""

    home: Any
    where: str
    name: str
    torch: Any
    theirs: Any
    own: bool

    @property
    def is_op(self) -> bool:
        """True if torch-function modes see calls of the original, so calls on the device can be distinguished from
        other calls."""
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
    """Returns True if a function is defined in torch. Replacements that torch defines do not count as changes by a
    vendor, because ``torch._dynamo`` replaces functions too. The check uses the globals of the function, because a
    wrapper has the ``__module__`` of the function that it wraps."""
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

#: Functions that concern a device although none of their arguments names one.
_ABOUT_DEVICES = ("pin_memory", "is_pinned")


class Sorting(TorchFunctionMode):
    """A torch-function mode that applies the modes and replaced ops of the device's module only to calls that concern
    the device.

    A call concerns the device if one of its tensors is on the device or an argument names the device. While FakeTensor
    runs, no call concerns the device.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.modes: tuple[list[Any], list[Any]] = (
            [],
            [],
        )  # torch-function modes, torch-dispatch modes
        self.replaced: list[Replaced] = []
        self.theirs: dict[Any, Any] = {}  # from torch's op to the module's replacement
        self._in_effect = False  # a call on the device is being made

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
        """Returns True if a value is on the device or names the device. Lists, tuples and dicts are searched."""
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
        """Restores an op of torch that the device's module replaced. From now on, the replacement is used only in
        calls on the device."""
        others = [e for e in self.replaced if (e.home, e.name) != (replaced.home, replaced.name)]
        self.replaced = [*others, replaced]  # the module may replace a name again
        ours, theirs = replaced.torch, replaced.theirs
        if hasattr(ours, "__set__"):  # an attribute: a mode sees the call of its getter
            ours, theirs = ours.__get__, theirs.__get__
        elif not callable(
            theirs
        ):  # a partialmethod or a classmethod: the class makes a function of it
            theirs = theirs.__get__(None, replaced.home)
        self.theirs[ours] = theirs
        replaced.put_back()

    def on_device(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Makes a call while the module's modes and replaced ops are in effect, and returns its result."""
        if self._in_effect or is_faking():
            return call(*args, **kwargs)
        outside = take_modes()  # includes this mode, if no op is being called
        for each in self.replaced:
            each.install()
        put_modes(*self.modes)
        self._in_effect = True
        try:
            return call(*args, **kwargs)
        finally:
            self._in_effect = False
            self.modes = take_modes()  # the call may have entered or left a mode
            for each in self.replaced:
                each.put_back()
            put_modes(*outside)


#: The most replaced names that a message lists. Some modules replace hundreds.
_NAMED = 5


@dataclass
class LeftBehind:
    """The changes that a device's module has made in the current process so far; ``done`` lists them as texts for
    people.

    Create the object before the module is imported. Call ``look()`` after the import, and again after the first call on
    the device.
    """

    kind: str
    done: list[str] = field(default_factory=list)
    before: Before = field(default_factory=Before)
    sorting: Sorting | None = None
    _replaced: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Finds the changes since the previous call, restores defaults, and confines modes and replaced ops to calls on
        the device."""
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
        """Restores the defaults. Yields a text for each default that had changed."""
        for each, old in zip(_DEFAULTS, self.before.defaults, strict=True):
            new = each.read()
            if new != old:
                yield each.done.format(new)
                if each.write is not None:
                    each.write(old)

    def on_device(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a descriptor's function that calls the device, wrapped so that the module's modes and replaced ops
        are in effect."""
        return call if self.sorting is None else partial(self.sorting.on_device, call)
