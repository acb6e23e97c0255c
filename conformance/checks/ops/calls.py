"""A call of an op, its inputs, and the result of the device. Repro scripts contain these functions, which need only
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.checks.ops.roundings import as_exact, within
from opinfo.compare import Wrong, difference, replace_tensors, tensors_of
from opinfo.device import Damage, Guarded, Move, identity
from opinfo.layouts import Case, Geometry
from opinfo.samples import Sample


@dataclass(slots=True)
class Call:
    """A function, its input tensors, and the device on which the function is called.

    ``arguments(tensors, device)`` returns the positional and keyword arguments that contain these tensors. ``values``
    are contiguous tensors on the CPU. ``inputs`` hold the same values on the device; strided inputs lie inside guarded
    buffers (larger buffers of known bytes, which show a write outside of the tensor). ``settle(result)`` waits until a
    result can be read. ``guarded`` is the class that lays a tensor out on the device. ``storage`` and ``pointers`` say
    whether the device declares these capabilities.
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


@dataclass(slots=True)
class Answer:
    """The result of a call, on the device (``result``) and copied to the CPU (``read``), or the exception that the call
    raised."""

    result: Any = None
    read: Any = None
    raised: Exception | None = None
    unjudged: Exception | None = None  # an exception of a step other than the call itself
    judged_by: str = ""  # the clause that judges ``unjudged``, if it does not judge plain calls
    warnings: tuple[str, ...] = ()
    targets: Sequence[Guarded | torch.Tensor] = ()  # the tensors given as ``out=``
    addresses: tuple[int | None, ...] = ()  # before the call: of the targets, or of the first input
    damages: list[Damage | None] | None = None  # changes of the inputs' storages; see damages()


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


def copies(call: Call) -> list[torch.Tensor]:
    """Returns contiguous copies of the call's values on the device."""
    return [call.move(each.clone()) for each in call.values]


def address(call: Call, tensor: torch.Tensor) -> int | None:
    """Returns the address of a tensor's first element; None if the device does not declare ``pointers``."""
    return tensor.data_ptr() if call.pointers else None


def called(
    call: Call, read: bool = True, targets: Sequence[Guarded | torch.Tensor] = (), form: str = ""
) -> Answer:
    """Makes the call and waits for its result. An exception raised during this wait counts as an exception of the call.
    Returns the result or the exception. If ``read``, the result is copied to the CPU; callers that do not judge values
    pass False, because reading a result that extends past its storage can end the process. If ``form`` is given, the
    targets are passed as ``out=``."""
    given = views(targets) if targets else []
    answer = Answer(targets=targets)
    if given:
        answer.addresses = tuple([address(call, each) for each in given])
    args, kwargs = call.arguments(views(call.inputs), call.device)
    out = {"out": container(form, given)} if form else {}
    try:
        answer.result = call.function(*args, **kwargs, **out)
        call.settle(answer.result)
        if read and call.back is identity:
            answer.read = answer.result
        elif read:
            answer.read = replace_tensors(answer.result, call.back)
    except Exception as error:  # a kernel may raise any type; the judges judge it
        answer.raised = error
    return answer


def damages(call: Call, answer: Answer) -> list[Damage | None]:
    """Returns the damage to the storage of each input: None for an input whose bytes are unchanged."""
    if answer.damages is None:
        answer.damages = [
            None
            if not isinstance(each, Guarded) or each.intact(call.back)
            else each.damage(call.back)
            for each in call.inputs
        ]
    return answer.damages


def differs(
    read: Any, want: Any, reference: Any, exact: Callable[[], Any] | None = None
) -> Wrong | None:
    """Returns how a result (``read``) differs from the expected result (``want``); None if they agree within tolerance.

    If the result is unique only up to signs or phases, ``reference.process`` extracts the unique part. If an index may
    be that of any of several equal elements, ``reference.named`` replaces indices by elements. If ``exact`` is given
    (the result in float64), a result that is as close to the exact one as the CPU's is accepted. For ill-conditioned
    ops, errors that one rounding of the operands would cause are accepted.
    """
    views = []
    if (named := reference.named) is not None:
        views.append(named)
        read, want = named(read), named(want)
    roundings = reference.roundings
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
    """Replaces the indices in a result, each of which may point to any of several equal elements, by the elements.

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


#: The verdicts of a judge, one for each comparison: None if the comparison passed.
Found = Iterator[Wrong | Ambiguous | None]


@dataclass(frozen=True, slots=True)
class Laid:
    """The tensors of one sample, laid out on the device in the layouts of one case."""

    sample: Sample
    case: Case
    geometries: tuple[Geometry, ...]
    inputs: list[Guarded | torch.Tensor]  # strided tensors are guarded

    @property
    def expands(self) -> bool:
        return any(g.expanded is not None for g in self.geometries)


#: A function ``(call, answer, reference)`` that judges a call for one clause.
Judge = Callable[[Call, Any, Any], Found]
