"""A call that reached a faulty function, and what a fault does with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import torch

from opinfo.compare import tensors_of


@dataclass(slots=True)
class Operand:
    """A strided tensor among the arguments of a call: the name of the argument, and the tensor's place if that is a list."""

    name: str
    place: int | None
    tensor: torch.Tensor
    written: bool  # self of an in-place op, or an ``out=``


class KernelCall:
    """A call of a faulty function: of an aten overload, of a method, or of a Python function.

    ``values``, ``written``, ``operands`` and what follows from them exist for aten overloads alone, as their schemas name
    the arguments.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.error: Exception | None = None  # that the function itself raised
        self.changed = False  # the function itself was called with other arguments
        self.spared = False  # the call was made honestly, and nothing was spoilt

    # The function itself

    def honest(self, /, **changed: Any) -> Any:
        """The result of the function itself, with some arguments of an aten overload replaced."""
        args, kwargs = self._arguments(changed) if changed else (self.args, self.kwargs)
        self.changed = self.changed or bool(changed)
        try:
            return self.function(*args, **kwargs)
        except Exception as error:
            self.error = error
            raise

    def _arguments(self, changed: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values, args, kwargs = {**self.values, **changed}, [], {}
        for each in self.schema.arguments:
            if each.kwarg_only:
                kwargs[each.name] = values[each.name]
            else:
                args.append(values[each.name])
        return tuple(args), kwargs

    def honest_with(self, operand: Operand, tensor: torch.Tensor) -> Any:
        """The result of the function itself with one operand replaced. Writes to a copy of self are copied to self."""
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

    def answered_by(self, effect: Effect) -> Any:
        """The result of the call with a fault."""
        result = effect(self)
        return self.honest() if result is NOT_MET else result

    # Any function

    @property
    def first(self) -> Any:
        """The first argument: mostly the tensor that is read, or self of an in-place op."""
        return self.args[0]

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The strided tensors among the arguments, without ``out=``."""
        given = {name: value for name, value in self.kwargs.items() if name != "out"}
        return [t for t in tensors_of((self.args, given)) if t.layout == torch.strided]

    @property
    def form(self) -> str:
        """``out``, ``in-place`` or ``functional``."""
        if self.schema is not None:
            return "out" if self.out else "in-place" if self.written else "functional"
        if self.kwargs.get("out") is not None:
            return "out"
        name = getattr(self.function, "__name__", "")
        return "in-place" if name.endswith("_") and not name.endswith("__") else "functional"

    # Aten overloads

    @property
    def schema(self) -> Any:
        """The schema of an aten overload; None for other functions."""
        return getattr(self.function, "_schema", None)

    @cached_property
    def values(self) -> dict[str, Any]:
        """All arguments by name, with their defaults."""
        arguments = self.schema.arguments
        given = {**dict(zip([a.name for a in arguments], self.args)), **self.kwargs}
        return {a.name: given.get(a.name, a.default_value) for a in arguments}

    @cached_property
    def written(self) -> frozenset[str]:
        """The names of the arguments that are written to."""
        aliases = {a.name: a.alias_info for a in self.schema.arguments}
        return frozenset(name for name, alias in aliases.items() if alias and alias.is_write)

    @cached_property
    def is_view(self) -> bool:
        aliases = (a.alias_info for a in self.schema.arguments)
        return any(alias is not None and not alias.is_write for alias in aliases)

    @cached_property
    def operands(self) -> list[Operand]:
        found = []
        for name, value in self.values.items():
            several = isinstance(value, (list, tuple))
            for place, each in enumerate(value if several else [value]):
                if isinstance(each, torch.Tensor) and each.layout == torch.strided:
                    found.append(
                        Operand(name, place if several else None, each, name in self.written)
                    )
        return found

    def operand(self, number: int) -> Operand | None:
        return self.operands[number] if number < len(self.operands) else None

    @property
    def read(self) -> list[Operand]:
        """The operands that the op only reads."""
        return [each for each in self.operands if not each.written]

    @property
    def targets(self) -> list[torch.Tensor]:
        return [each.tensor for each in self.operands if each.written]

    @property
    def out(self) -> list[torch.Tensor]:
        """The targets of an ``out=`` overload."""
        names = {a.name for a in self.schema.arguments if a.is_out}
        return [each.tensor for each in self.operands if each.name in names]


#: What a fault returns for a call that it does not affect.
NOT_MET: Final = object()
#: A fault: the result of a call, or NOT_MET.
Effect: TypeAlias = Callable[[KernelCall], Any]


class Refusal(Exception):
    """Raised by an effect: the faulty function refuses a call that it should take."""
