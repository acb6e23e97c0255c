"""Planted faults: what one is, which are known, which are on.

A fault stands in front of some kernels of the wrapped device. ``planted("stride.ignore_channels_last")`` switches it
on for a block; ``WRAPPED_FAULTS=name,name`` for a whole process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from conformance.contract import WRAPPED
from devices.errors import ConformError, suggestion
from devices.simulated import faults as simulated
from tests.planting.calls import Effect, KernelCall
from tests.planting.places import overload_of

#: An overload of an aten op (``torch.ops.aten.exp.default``), a method as Python sees it
#: (``torch.Tensor.neg``), or :func:`read`. An effect in front of an overload runs with dispatch to the subclass off: the
#: kernel, and whatever else it calls, is the CPU's own.
Kernel: TypeAlias = Callable[..., Any]

ENVIRONMENT = WRAPPED


class UnknownFault(ConformError):
    """The wrapped device has no fault of this name."""


class FaultConflict(ConformError):
    """Two faults that replace the same kernel cannot be on together."""


class Fault(simulated.Fault, frozen=True, kw_only=True):
    """What every planted fault says of itself, and what the wrapped device needs to plant it."""

    kernels: tuple[Kernel, ...]
    effect: Effect
    probe: Callable[[], bool]  # whether the device misbehaves in this way, asked without the suite


#: Every fault by name, in the order in which the modules of ``faults`` declare them.
REGISTRY: dict[str, Fault] = {}

_active: dict[Kernel, Effect] = {}
_for_good: set[Kernel] = set()  # what plant_at replaced
_seen: set[Kernel] | None = None

_probes: dict[Effect, Callable[[], bool]] = {}
_radii: dict[Effect, str] = {}


def probe(function: Callable[[], bool]) -> Callable[[Effect], Effect]:
    """Whether the device misbehaves as the decorated effect describes. Stands below ``fault``."""

    def register(effect: Effect) -> Effect:
        _probes[effect] = function
        return effect

    return register


def may_change(cells: str) -> Callable[[Effect], Effect]:
    """The cells, separated by spaces, that the decorated effect may change besides. Stands below ``fault``."""

    def register(effect: Effect) -> Effect:
        _radii[effect] = cells
        return effect

    return register


def fault(
    name: str,
    clauses: str,
    *,
    ops: str,
    at: str | tuple[Kernel, ...] = "",
    dtypes: str = "float32",
) -> Callable[[Effect], Effect]:
    """Register the decorated effect as a fault; the first line of its docstring is the statement.

    Clauses, ops, dtypes and the aten overloads ``at`` which it is planted are separated by spaces. By default these are
    the default overloads of the ops. Clauses of the layout family are named without their prefix.
    """

    def register(effect: Effect) -> Effect:
        statement = (effect.__doc__ or "").strip().splitlines()
        if not statement:
            raise ValueError(f"fault {name!r}: say in a docstring what the device does wrong")
        if name in REGISTRY:
            raise ValueError(f"fault {name!r} is registered twice")
        named = at or ops
        REGISTRY[name] = Fault(
            name=name,
            clauses=tuple(f"layout.{clause}" for clause in clauses.split()),
            ops=tuple(ops.split()),
            dtypes=tuple(dtypes.split()),
            statement=statement[0],
            radius=tuple(f"layout.{cell}" for cell in _radii.get(effect, "").split()),
            kernels=tuple(map(overload_of, named.split())) if isinstance(named, str) else named,
            effect=effect,
            probe=_probes[effect],
        )
        return effect

    return register


def read(tensor: torch.Tensor) -> torch.Tensor:
    """The kernel behind ``from_device``: a copy of a device tensor as a plain CPU tensor."""
    return tensor.clone()


def call(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a kernel of the device, with the fault that is planted in front of it."""
    if _seen is not None:
        _seen.add(kernel)
    effect = _active.get(kernel)
    if effect is None:
        return kernel(*args, **kwargs)
    return KernelCall(kernel, args, kwargs).answered_by(effect)


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


def plant_at(effects: Mapping[Kernel, Effect]) -> None:
    """Put these in front of the kernels, for good: what a device is broken by that no fault describes.

    A descriptor's file may be executed twice in a process: the later effects win. Raises FaultConflict
    where a fault that is on replaces one of the kernels.
    """
    if taken := [k for k in effects if k in _active and k not in _for_good]:
        raise FaultConflict(f"a fault that is on replaces {taken[0]} already")
    _active.update(effects)
    _for_good.update(effects)


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
        if _active.get(kernel, chosen.effect) is not chosen.effect:
            raise FaultConflict(
                f"{ENVIRONMENT}: fault {name!r} replaces {kernel}, and so does another fault that is on;"
                " switch on one of the two"
            )
        _active[kernel] = chosen.effect
