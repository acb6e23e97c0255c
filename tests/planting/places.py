"""Where a fault is planted: at a dispatch key in front of aten overloads, or in the place of a Python function."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from numbers import Number
from typing import Any, Final
from unittest import mock

import torch

from opinfo.compare import tensors_of
from tests.planting.calls import NOT_MET, Effect, KernelCall, Refusal

#: As the simulated device is called, and its dispatch key: the CPU, which is the reference, never sees a fault that is
#: planted there.
SIMULATED: Final = "simulated"
KEY: Final = "PrivateUse1"

# At a dispatch key


def overload_of(name: str) -> Any:
    """The aten overload of a name such as ``add_.Tensor``, or ``exp`` for the default one."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


@dataclass(slots=True)
class Planted:
    """A fault in front of aten overloads, and how often it struck."""

    overloads: tuple[str, ...]
    effect: Effect
    key: str = KEY
    reached: int = 0
    calls: int = 0
    failures: list[str] = field(default_factory=list)  # of the effect itself: a mistake of ours
    _libraries: list[Any] = field(default_factory=list)
    _thread: threading.local = field(default_factory=threading.local)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def switch_on(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the kernels are overridden on purpose
            for name in self.overloads:
                library = torch.library.Library("aten", "IMPL")
                library.impl(name, self._override(name), self.key, with_keyset=True)
                self._libraries.append(library)

    def switch_off(self) -> None:
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()

    def _override(self, name: str) -> Callable[..., Any]:
        function = overload_of(name)
        own_kernel = torch.library.get_kernel(function, self.key)
        tensors = [str(a.type) == "Tensor" for a in function._schema.arguments]

        def override(keys: Any, *args: Any, **kwargs: Any) -> Any:
            # The effect may itself use what it breaks, and calls the device's own kernel. The fault stays in its place
            # meanwhile: other threads may be in it, and a kernel that is removed while it is called ends the process.
            if getattr(self._thread, "in_effect", False):
                if any(isinstance(a, Number) and tensor for a, tensor in zip(args, tensors)):
                    return self._without_fault(function, args, kwargs)
                return own_kernel.call_boxed(keys, *args, **kwargs)
            self._thread.in_effect = True
            try:
                return self._answer(KernelCall(function, args, kwargs))
            finally:
                self._thread.in_effect = False

        return override

    def _without_fault(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of an overload for a number in the place of a tensor, which torch takes only where it dispatches the
        call itself. No other thread may be in the fault."""
        with self._lock:
            self.switch_off()
            try:
                return function(*args, **kwargs)
            finally:
                self.switch_on()

    def _answer(self, call: KernelCall) -> Any:
        self.calls += 1
        if self.key == KEY and capturing():  # what an effect reads of the tensors may not be read
            return call.honest()
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.key.startswith("Auto")):
                result = self.effect(call)
        except Refusal as refusal:
            self.reached += 1
            raise RuntimeError(str(refusal)) from None
        except Exception as error:
            if error is call.error:
                self.reached += call.changed
                raise
            self.failures.append(f"{type(error).__name__}: {error}")
            result = NOT_MET
        if result is NOT_MET:
            return call.honest()
        self.reached += not call.spared
        return result


def capturing() -> bool:
    module: Any = getattr(torch, SIMULATED)
    return bool(module.is_current_stream_capturing())


@contextmanager
def planted(overloads: Iterable[str], effect: Effect, key: str = KEY) -> Iterator[Planted]:
    """Put a fault in front of aten overloads for a block: for the tensors of the simulated device, or at another
    dispatch key."""
    made = Planted(tuple(overloads), effect, key)
    made.switch_on()
    try:
        yield made
    finally:
        made.switch_off()


# In the place of a Python function

#: Whether a tensor is on the faulty device.
Here = Callable[[torch.Tensor], bool]


def on_simulated(tensor: torch.Tensor) -> bool:
    return tensor.device.type == SIMULATED


def in_front_of(
    function: Callable[..., Any], effect: Effect, here: Here | None = None
) -> Callable[..., Any]:
    """The function with a fault. With ``here``, calls without such a tensor stay as they are."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if here is None or any(map(here, tensors_of((args, kwargs)))):
            return KernelCall(function, args, kwargs).answered_by(effect)
        return function(*args, **kwargs)

    return called


@contextmanager
def replaced(owner: Any, name: str, effect: Effect, here: Here | None = None) -> Iterator[None]:
    """Put a fault in front of a function of a module, of a class or of an op for a block."""
    with mock.patch.object(owner, name, in_front_of(getattr(owner, name), effect, here)):
        yield
