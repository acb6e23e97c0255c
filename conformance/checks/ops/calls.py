"""A call of an op and its inputs, and the comparison of a result with the expected one. Repro scripts contain these
functions, which need only torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from conformance.checks.ops.roundings import as_exact, within
from opinfo.compare import Wrong, difference, in_order_of, tensors_of
from opinfo.guarded import Guarded, Move
from opinfo.layouts import Geometry, LayoutCase
from opinfo.reference import OutputSpec, ValueAnswer
from opinfo.samples import Sample


@dataclass(slots=True)
class Invocation:
    """A function, its input tensors, and the device on which the function is called.

    ``arguments(tensors, device)`` returns the positional and keyword arguments that contain these tensors. ``values``
    are contiguous tensors on the CPU. ``inputs`` hold the same values on the device; strided inputs lie inside guarded
    buffers (larger buffers of known bytes, which show a write outside of the tensor). ``settle(result)`` waits until a
    result can be read. If ``function`` executes another function in a mode such as compiled, ``eager`` is that other
    function. ``guarded`` is the class that lays a tensor out on the device. ``storage``, ``pointers`` and ``strides``
    say whether the device declares these capabilities.
    """

    function: Callable[..., Any]
    arguments: Callable[[list[torch.Tensor], torch.device], Any]
    values: Sequence[torch.Tensor]
    inputs: Sequence[Guarded | torch.Tensor]
    device: torch.device
    move: Move
    back: Move
    settle: Callable[[Any], None]
    guarded: type[Guarded] = Guarded
    storage: bool = True
    pointers: bool = True
    strides: bool = True
    eager: Callable[..., Any] | None = None


def laid_out(
    values: Sequence[torch.Tensor],
    geometries: Sequence[Geometry | None],
    move: Move,
    guarded: type[Guarded] = Guarded,
) -> list[Guarded | torch.Tensor]:
    """Returns the values as tensors on the device. A value that has a geometry (shape, strides and offset) lies inside
    a guarded buffer."""
    return [
        move(value) if geometry is None else guarded(value, geometry, move)
        for value, geometry in zip(values, geometries)
    ]


def repeated(
    values: Sequence[torch.Tensor], geometries: Sequence[Geometry | None]
) -> list[torch.Tensor]:
    """Returns the values that tensors of these geometries hold: along an expanded dimension, the first values are
    repeated."""
    found = []
    for value, geometry in zip(values, geometries):
        if geometry is not None and geometry.expanded is not None:
            value = value.narrow(geometry.expanded, 0, 1).expand(value.shape).contiguous()
        found.append(value)
    return found


def views(inputs: Iterable[Guarded | torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors that are passed to the op: for a guarded input the view into its buffer, for any other input
    the input itself."""
    return [each.view if isinstance(each, Guarded) else each for each in inputs]


def container(form: str, tensors: Sequence[torch.Tensor]) -> Any:
    """Returns the tensors as a value for ``out=``. ``form`` says whether ``out=`` takes a single "tensor", a "list" or
    a "tuple"."""
    if form == "tensor":
        return tensors[0]
    return list(tensors) if form == "list" else tuple(tensors)


def copies(call: Invocation) -> list[torch.Tensor]:
    """Returns contiguous copies of the call's values on the device."""
    return [call.move(each.clone()) for each in call.values]


def address(call: Invocation, tensor: torch.Tensor) -> int | None:
    """Returns the address of a tensor's first element; None if the device does not declare ``pointers``."""
    return tensor.data_ptr() if call.pointers else None


class ReferenceParts(Protocol):
    """The expected result of a call, in named parts (see ``Reference``, which computes them). Checks may add parts of
    their own, which judges read as attributes too."""

    @property
    def value(self) -> ValueAnswer: ...

    @property
    def exact(self) -> ValueAnswer: ...

    @property
    def raises(self) -> bool: ...

    @property
    def free(self) -> bool: ...

    @property
    def signed(self) -> bool: ...

    @property
    def mutable(self) -> frozenset[int]: ...

    @property
    def specs(self) -> tuple[OutputSpec, ...] | None: ...

    @property
    def meta_specs(self) -> tuple[OutputSpec, ...] | None: ...

    @property
    def other_specs(self) -> tuple[OutputSpec, ...] | None: ...

    @property
    def tolerances(self) -> dict[str, tuple[float, float]]: ...

    @property
    def gradient_tolerances(self) -> dict[str, tuple[float, float]]: ...

    @property
    def roundings(self) -> float: ...

    @property
    def process(self) -> Callable[[Any], Any] | None: ...

    @property
    def named(self) -> Callable[[Any], Any] | None: ...

    @property
    def masking(self) -> Callable[[Any, Any], Any] | None: ...

    @property
    def conditioned(self) -> bool: ...

    @property
    def unordered(self) -> bool: ...

    @property
    def allowed(self) -> list[torch.Tensor]: ...

    def __getattr__(self, name: str) -> Any: ...


def differs(
    read: Any, want: Any, reference: ReferenceParts, exact: Callable[[], Any] | None = None
) -> Wrong | None:
    """Returns how a result (``read``) differs from the expected result (``want``); None if they agree within tolerance.

    If the result is unique only up to signs or phases, ``reference.process`` extracts the unique part. If the index of
    any of several equal elements is right, ``reference.named`` replaces indices by elements. For an attention,
    ``reference.masking`` replaces elements that depend on how removed keys are treated. If ``exact`` is given (the
    result in float64), a result is accepted that is as close to the exact result as the CPU's result is. For
    ill-conditioned ops, errors that one rounding of the operands would cause are accepted. For ops that promise no order
    of the elements of a row, the elements are brought into the order of ``want`` first.
    """
    views: list[Callable[[Any], Any]] = []
    if reference.unordered:
        order = partial(in_order_of, want=want)
        views.append(order)
        read = order(read)
    if (named := reference.named) is not None:
        views.append(named)
        read, want = named(read), named(want)
    roundings = reference.roundings
    found = difference(read, want, reference.tolerances, roundings=roundings)
    masking = reference.masking if found is not None and found.kind == "values" else None
    if masking is not None:
        read = masking(read, want)
        found = difference(read, want, reference.tolerances, roundings=roundings)
    if found is not None and reference.process is not None:
        views.append(reference.process)
        read, want, roundings = reference.process(read), reference.process(want), 0.0
        found = difference(read, want, reference.tolerances)
    if found is not None and found.kind == "values" and exact is not None:
        true = exact()
        for view in views if tensors_of(true) else ():
            true = view(true)
        if as_exact(read, want, true, reference.tolerances, roundings):
            return None
    if found is not None and found.kind == "values" and reference.conditioned:
        return None if within(read, want, reference.allowed) else found
    return found


def elements_named(result: Any, operand: torch.Tensor, dim: int) -> Any:
    """Replaces the indices in a result with the elements that they select. Of several equal elements, each index is right,
    so that indices cannot be compared.

    Returns the values, the elements at the indices, whether each index is in range, and whether the indices are all
    different. A result whose second tensor cannot be an index is returned unchanged.
    """
    values, index = None, result
    if not isinstance(result, torch.Tensor):
        if len(result) != 2:
            return result
        values, index = result
    alike = index.shape == (operand.shape if values is None else values.shape)
    if not operand.dim() or index.dtype != torch.int64 or not alike:
        return result
    along = index if index.dim() == operand.dim() else index.unsqueeze(dim)
    last = operand.shape[dim] - 1
    elements = operand.gather(dim, along.clamp(0, last))
    apart = along.sort(dim).values.diff(dim=dim) != 0
    there = [elements, (along >= 0) & (along <= last), apart]
    return there if values is None else [values, *there]


def strided(result: Any) -> list[torch.Tensor]:
    return [each for each in tensors_of(result) if each.layout == torch.strided]


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """The verdict that nothing can be judged, because two references disagree and the device agrees with neither."""

    text: str


@dataclass(frozen=True, slots=True)
class Unjudged:
    """The verdict that nothing can be judged, because a step after the call raised an exception."""

    error: Exception


#: The verdicts of a judge, one for each comparison: None if the comparison passed.
Found = Iterator[Wrong | Ambiguous | Unjudged | None]


@dataclass(frozen=True, slots=True)
class Laid:
    """The tensors of one sample on the device, each in the layout that a layout case (a named choice of a layout for
    each tensor) assigns to it."""

    sample: Sample
    case: LayoutCase
    geometries: tuple[Geometry, ...]
    inputs: list[Guarded | torch.Tensor]  # strided tensors are guarded

    @property
    def expands(self) -> bool:
        return any(g.expanded is not None for g in self.geometries)


#: A function ``(evidence, reference)`` that judges a call for one clause. It sees no device.
Judge = Callable[[Any, ReferenceParts], Found]
