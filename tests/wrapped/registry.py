"""Planted faults: what one is, which are known, which are on.

A fault replaces some kernels of the wrapped device. ``planted("stride.ignore_channels_last")`` switches it
on for a block; ``WRAPPED_FAULTS=name,name`` for a whole process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch

from conformance.contract import WRAPPED
from devices.errors import ConformError, suggestion

#: An overload of an aten op (``torch.ops.aten.exp.default``), a method as Python sees it
#: (``torch.Tensor.neg``), or :func:`read`.
Kernel: TypeAlias = Callable[..., Any]
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
#: What stands in for a kernel: takes it, its positional and its keyword arguments. In place of an overload
#: it runs with dispatch to the subclass off: the kernel, and whatever else it calls, is the CPU's own.
Override: TypeAlias = Callable[[Kernel, Args, Kwargs], Any]

ENVIRONMENT = WRAPPED


class UnknownFault(ConformError):
    """The wrapped device has no fault of this name."""


class FaultConflict(ConformError):
    """Two faults that replace the same kernel cannot be on together."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break the device.

    ``clauses`` must fail with the fault on, each at one at least of the planted ops and dtypes; ``radius``
    lists the cells that may change besides, as globs over ``clause::op``. No other cell may change.
    """

    name: str
    clauses: tuple[str, ...]
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    statement: str
    radius: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    override: Override
    probe: Callable[[], bool]  # whether the device misbehaves in this way, asked without the suite

    def allows(self, clause: str, op: str) -> bool:
        """Whether a cell of this clause and op may differ from the clean run."""
        if clause in self.clauses and op in self.ops:
            return True
        return any(fnmatchcase(f"{clause}::{op}", pattern) for pattern in self.radius)


#: Every fault by name, in the order in which the modules of ``faults`` declare them.
REGISTRY: dict[str, Fault] = {}

_active: dict[Kernel, Override] = {}
_for_good: set[Kernel] = set()  # what plant_at replaced
_seen: set[Kernel] | None = None


def fault(
    name: str,
    *,
    clauses: tuple[str, ...],
    ops: tuple[str, ...],
    at: tuple[Kernel, ...],
    probe: Callable[[], bool],
    dtypes: tuple[str, ...] = ("float32",),
    radius: tuple[str, ...] = (),
) -> Callable[[Override], Override]:
    """Register the decorated override as a fault; the first line of its docstring is the statement.

    Clauses of the layout family are named without their prefix.
    """

    def register(override: Override) -> Override:
        statement = (override.__doc__ or "").strip().splitlines()
        if not statement:
            raise ValueError(f"fault {name!r}: say in a docstring what the device does wrong")
        if name in REGISTRY:
            raise ValueError(f"fault {name!r} is registered twice")
        REGISTRY[name] = Fault(
            name=name,
            clauses=tuple(f"layout.{clause}" for clause in clauses),
            ops=ops,
            dtypes=dtypes,
            statement=statement[0],
            radius=tuple(f"layout.{cell}" for cell in radius),
            kernels=at,
            override=override,
            probe=probe,
        )
        return override

    return register


def read(tensor: torch.Tensor) -> torch.Tensor:
    """The kernel behind ``from_device``: a copy of a device tensor as a plain CPU tensor."""
    return tensor.clone()


def call(kernel: Kernel, args: Args, kwargs: Kwargs) -> Any:
    """Run a kernel of the device, or what a planted fault put in its place."""
    if _seen is not None:
        _seen.add(kernel)
    override = _active.get(kernel)
    return kernel(*args, **kwargs) if override is None else override(kernel, args, kwargs)


@contextmanager
def planted(*names: str) -> Iterator[None]:
    """Switch faults on. Raises UnknownFault, and FaultConflict where two replace the same kernel."""
    before = dict(_active)
    try:
        for name in names:
            _plant(name)
        yield
    finally:
        _active.clear()
        _active.update(before)


@contextmanager
def watched() -> Iterator[set[Kernel]]:
    """Collect the kernels that run: a cell can change only where one that a fault replaces does."""
    global _seen
    before, _seen = _seen, set()
    try:
        yield _seen
    finally:
        _seen = before


def plant_at(overrides: Mapping[Kernel, Override]) -> None:
    """Put these in the places of kernels, for good: what a device is broken by that no fault describes.

    A descriptor's file may be executed twice in a process: the later overrides win. Raises FaultConflict
    where a fault that is on replaces one of the kernels.
    """
    if taken := [k for k in overrides if k in _active and k not in _for_good]:
        raise FaultConflict(f"a fault that is on replaces {taken[0]} already")
    _active.update(overrides)
    _for_good.update(overrides)


def plant_from_environment() -> None:
    """Switch on what ``WRAPPED_FAULTS`` names, for good. Raises as :func:`planted` does."""
    for name in os.environ.get(ENVIRONMENT, "").split(","):
        if name.strip():
            _plant(name.strip())


def _plant(name: str) -> None:
    if name not in REGISTRY:
        raise UnknownFault(
            f"{ENVIRONMENT}: the wrapped device has no fault {name!r}{suggestion(name, REGISTRY) or '.'}"
            " docs/contract.md lists its faults under 'Planted faults'"
        )
    chosen = REGISTRY[name]
    for kernel in chosen.kernels:
        if _active.get(kernel, chosen.override) is not chosen.override:
            raise FaultConflict(
                f"{ENVIRONMENT}: fault {name!r} replaces {kernel}, and so does another fault that is on;"
                " switch on one of the two"
            )
        _active[kernel] = chosen.override
