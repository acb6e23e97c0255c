"""Puts a mutant in front of kernels of the simulated device: an effect handles the calls that reach its overloads.

The override is registered only for the dispatch key of the device, so that the CPU, which is the reference, never sees it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opinfo.compare import tensors_of

#: As the device is called, and its dispatch key.
KIND, KEY = "simulated", "PrivateUse1"


@dataclass(slots=True)
class Operand:
    """A strided tensor among the arguments of a call: the name of the argument, and the tensor's place if that is a list."""

    name: str
    place: int | None
    tensor: torch.Tensor
    written: bool  # self of an in-place op, or an ``out=``


class Invocation:
    """One call that reached a mutated overload. ``values`` has all arguments by their names in the schema."""

    def __init__(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.overload = overload
        schema = overload._schema
        names = [a.name for a in schema.arguments]
        given = {**dict(zip(names, args)), **kwargs}
        self.values: dict[str, Any] = {
            a.name: given.get(a.name, a.default_value) for a in schema.arguments
        }
        self.written = {
            a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
        }
        self.is_view = any(
            a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments
        )
        self.operands = list(self._operands())
        self.error: Exception | None = None  # that the device's own kernel raised
        self.changed = False  # the device's own kernel was called with other arguments
        self.spared = False  # the call was made honestly, and nothing was spoilt

    def _operands(self) -> Iterator[Operand]:
        for name, value in self.values.items():
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                yield Operand(name, None, value, name in self.written)
            elif isinstance(value, (list, tuple)):
                for place, each in enumerate(value):
                    if isinstance(each, torch.Tensor) and each.layout == torch.strided:
                        yield Operand(name, place, each, name in self.written)

    @property
    def read(self) -> list[Operand]:
        """The operands that the op only reads."""
        return [each for each in self.operands if not each.written]

    @property
    def targets(self) -> list[torch.Tensor]:
        return [each.tensor for each in self.operands if each.written]

    def operand(self, number: int) -> Operand | None:
        return self.operands[number] if number < len(self.operands) else None

    @property
    def out(self) -> list[torch.Tensor]:
        """The targets of an ``out=`` overload."""
        names = {a.name for a in self.overload._schema.arguments if a.is_out}
        return [each.tensor for each in self.operands if each.name in names]

    @property
    def form(self) -> str:
        """``out``, ``in-place`` or ``functional``."""
        if self.out:
            return "out"
        return "in-place" if self.written else "functional"

    def honest(self, /, **changed: Any) -> Any:
        """The result of the device's own kernel, with some arguments replaced."""
        args, kwargs = [], {}
        for a in self.overload._schema.arguments:
            value = changed.get(a.name, self.values[a.name])
            if a.kwarg_only:
                kwargs[a.name] = value
            else:
                args.append(value)
        self.changed = self.changed or bool(changed)
        try:
            return self.overload(*args, **kwargs)
        except Exception as error:
            self.error = error
            raise

    def honest_with(self, operand: Operand, tensor: torch.Tensor) -> Any:
        """The result of the device's own kernel with one operand replaced. Writes to a copy of self are copied to self."""
        if operand.place is None:
            value: Any = tensor
        else:
            value = list(self.values[operand.name])
            value[operand.place] = tensor
        result = self.honest(**{operand.name: value})
        if not operand.written:
            return result
        operand.tensor.copy_(tensor)
        return operand.tensor if isinstance(result, torch.Tensor) else result


#: What a mutant does with a call: its result, or None where its condition does not hold.
Effect = Callable[[Invocation], Any]
NOT_MET = object()


@dataclass(slots=True)
class Planted:
    """The overrides of one mutant, and how often its condition held."""

    overloads: tuple[str, ...]
    effect: Effect
    reached: int = 0
    calls: int = 0
    failures: list[str] = field(default_factory=list)  # of the effect itself: a mistake of ours
    _libraries: list[Any] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def switch_on(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in self.overloads:
                library = torch.library.Library("aten", "IMPL")
                library.impl(name, self._override(name), KEY)
                self._libraries.append(library)

    def switch_off(self) -> None:
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()

    def _override(self, name: str) -> Callable[..., Any]:
        packet, _, overload = name.partition(".")
        function = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def override(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                # The effect may itself use what it breaks, and calls the device's own kernel.
                self.switch_off()
                try:
                    return self._run(Invocation(function, args, kwargs))
                finally:
                    self.switch_on()

        return override

    def _run(self, call: Invocation) -> Any:
        self.calls += 1
        if capturing():  # what an effect reads of the tensors may not be read then
            return call.honest()
        try:
            with torch.no_grad():
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


class Refusal(Exception):
    """A mutant's kernel raises although it should not."""


def capturing() -> bool:
    module: Any = getattr(torch, KIND)
    return bool(module.is_current_stream_capturing())


@contextmanager
def planted(overloads: Iterable[str], effect: Effect) -> Iterator[Planted]:
    """Put an effect in front of kernels for a block."""
    made = Planted(tuple(overloads), effect)
    made.switch_on()
    try:
        yield made
    finally:
        made.switch_off()


class Seen(TorchDispatchMode):
    """Notes the aten overloads that reach the device, with facts about the arguments of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[Invocation]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = tensors_of((args, kwargs)) or tensors_of(result)
        if func.namespace == "aten" and any(each.device.type == KIND for each in given):
            name = func._schema.name.removeprefix("aten::")
            name = f"{name}.{func._schema.overload_name}".rstrip(".")
            self.calls.setdefault(name, []).append(Invocation(func, args, kwargs or {}))
        return result
