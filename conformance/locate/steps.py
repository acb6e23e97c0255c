"""Data structures for the calls of a program: each call with the geometry of its tensors. The bytes of the tensors'
storages are kept separately.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from opinfo.compare import tensors_of
from opinfo.torch_private import negated, schema_of, storage_id

#: Arguments that batch normalization updates in training, and that its schemas do not declare as written
#: (native_batch_norm in native_functions.yaml).
_UNDECLARED: Final = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class Operand:
    """Describes a strided tensor of a call: the number of its storage, its dtype, and its shape, strides and offset in
    elements."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    conj: bool = False
    neg: bool = False

    def view(self, data: torch.Tensor) -> torch.Tensor:
        """Returns the tensor that this operand describes, over ``data``, the bytes of its storage, and on the device of
        ``data``."""
        whole = data.numel() // self.dtype.itemsize * self.dtype.itemsize
        found = data[:whole].view(self.dtype).as_strided(self.shape, self.stride, self.offset)
        found = found.conj() if self.conj else found
        return negated(found) if self.neg else found

    @property
    def has_own_elements(self) -> bool:
        """True unless the tensor has a dimension of stride 0, along which several elements share one memory
        location."""
        return all(n <= 1 or s for n, s in zip(self.shape, self.stride))

    def __str__(self) -> str:
        text = f"{str(self.dtype)[6:]}{list(self.shape)} stride {self.stride}"
        return f"{text} offset {self.offset}" if self.offset else text


@dataclass(frozen=True, slots=True)
class Step:
    """A call of an op's overload. ``args`` and ``kwargs`` have an :class:`Operand` in place of each tensor, and so has
    ``results``, the result of the call. ``traits`` says how the call is judged (see
    :func:`conformance.locate.traits.traits_of`). ``bounds`` maps a dtype to the accepted error: a relative error, and a
    number of units in the last place of the result's largest element."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    traits: frozenset[str] = frozenset()
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    stream: int = 0
    results: Any = None
    raised: str = ""  # the exception that the call raised, in one line
    targets: Any = (
        None  # what the call has written to, described after it: ``out=`` may have been resized
    )

    @property
    def overload(self) -> Any:
        space, _, rest = self.op.partition(".")
        packet, _, name = rest.rpartition(".")
        return getattr(getattr(getattr(torch.ops, space), packet), name)

    @property
    def inputs(self) -> list[Operand]:
        return operands_of((self.args, self.kwargs))

    @property
    def distinct_inputs(self) -> list[Operand]:
        """The operands among the arguments, without repetitions."""
        return list(dict.fromkeys(self.inputs))

    @property
    def written(self) -> list[Operand]:
        """The operands that the call writes to, without repetitions."""
        given = self.targets
        if given is None:
            given = written_arguments(self.overload, self.args, self.kwargs)
        return list(dict.fromkeys(operands_of(given)))

    @property
    def outputs(self) -> list[Operand]:
        """The operands of the result, then those that the call wrote to."""
        return [*operands_of(self.results), *self.written]

    @property
    def changed(self) -> frozenset[int]:
        """The numbers of the storages that the call writes: those of new results, and of the arguments that it writes
        to."""
        read = {each.storage for each in self.inputs}
        fresh = {each.storage for each in operands_of(self.results)} - read
        return frozenset(fresh | {each.storage for each in self.written})


def substitute(value: Any, kind: type, swap: Callable[[Any], Any]) -> Any:
    """Returns a copy of a nested structure of lists, tuples and dicts in which each object of the type ``kind`` is
    replaced by ``swap(object)``."""
    if isinstance(value, kind):
        return swap(value)
    if isinstance(value, (list, tuple)):
        items = [substitute(each, kind, swap) for each in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {name: substitute(each, kind, swap) for name, each in value.items()}
    return value


def without_generators(value: Any) -> Any:
    """Returns a nested structure with None in place of each random number generator."""
    return substitute(value, torch.Generator, lambda _: None)


def operands_of(value: Any) -> list[Operand]:
    """Returns all operands in a nested structure, in order."""
    return list(_operands(value))


def _operands(value: Any) -> Iterator[Operand]:
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _operands(each)
    elif isinstance(value, dict):
        yield from _operands(list(value.values()))


def arguments_with(
    value: Step, tensors: Mapping[Operand, torch.Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the positional and keyword arguments of a recorded call, with tensors in place of its operands. An
    operand that occurs twice becomes the same tensor object both times, so that a write through one argument is seen
    through the other."""
    args, kwargs = substitute((value.args, value.kwargs), Operand, tensors.__getitem__)
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    return args, kwargs


def written_arguments(overload: Any, args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the arguments that a call of an overload writes to: according to its schema, or according to a list of
    ops whose schemas do not declare it."""
    arguments = schema_of(overload).arguments
    given = dict(zip((each.name for each in arguments), args)) | dict(kwargs)
    return [
        given.get(each.name)
        for each in arguments
        if (each.alias_info is not None and each.alias_info.is_write) or each.name in _UNDECLARED
    ]


class WithTargets:
    """Wraps an overload as a function that returns the tensors of its result, followed by the tensors that it writes to
    according to its schema. ``numbers`` are the Python numbers in the result of the latest call."""

    def __init__(self, overload: Any) -> None:
        self.overload = overload
        self.numbers: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        result = self.overload(*args, **kwargs)
        self.numbers = numbers_of(result)
        written = tensors_of(written_arguments(self.overload, args, kwargs))
        return [*tensors_of(result), *{id(each): each for each in written}.values()]


def numbers_of(value: Any) -> list[Any]:
    """Returns all Python numbers in a nested structure, in order."""
    if isinstance(value, (list, tuple)):
        return [number for each in value for number in numbers_of(each)]
    return [value] if isinstance(value, (bool, int, float, complex)) else []


@contextmanager
def keeping_random_state(overload: Any) -> Iterator[None]:
    """Within the context, calls of an overload on the CPU do not change the random state of the program."""
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        yield


class Numbering:
    """Gives a number to each storage, and describes tensors as operands. Keeps a reference to each storage, so that no
    other storage can get its memory and its number."""

    def __init__(self) -> None:
        self.storages: list[torch.UntypedStorage] = []
        self._numbers: dict[int, int] = {}

    def number(self, tensor: torch.Tensor) -> int:
        """Returns the number of a tensor's storage; gives it the next free number at the first call."""
        key = storage_id(tensor)
        if key not in self._numbers:
            self._numbers[key] = len(self.storages)
            self.storages.append(tensor.untyped_storage())
        return self._numbers[key]

    def operand(self, tensor: torch.Tensor) -> Operand:
        return Operand(
            self.number(tensor),
            tensor.dtype,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def describe(self, value: Any) -> Any:
        """Returns a nested structure with an operand in place of each tensor."""
        return substitute(value, torch.Tensor, self.operand)


def bytes_on_device(storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns a uint8 tensor on the storage's device that shares the storage's memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def read_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Returns a copy of a storage's bytes on the CPU. The copy from the device is contiguous, so it does not depend on
    how the device copies strides and offsets."""
    data = bytes_on_device(storage)
    return data.clone() if data.device.type == "cpu" else data.cpu()
