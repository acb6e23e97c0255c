"""A call of an op, the inputs that it is given, and the answer of the device. Repro scripts contain these functions, which
need only torch."""

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
    """What is called, on which tensors, where.

    ``arguments(tensors, device)`` gives the positional and keyword arguments that hold these tensors. ``values``
    are the tensors as contiguous ones on the CPU; ``inputs`` hold the same on the device, guarded where they are
    strided. ``settle(result)`` waits until a result can be read. ``guarded`` lays a tensor out on the device.
    ``storage`` and ``pointers`` say whether the device declares these capabilities.
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
    """The result of a call, on the device and as read back, or the exception that it raised."""

    result: Any = None
    read: Any = None
    raised: Exception | None = None
    unjudged: Exception | None = None  # raised by what is not the call itself
    judged_by: str = ""  # the clause that judges that, if it is not about calls
    warnings: tuple[str, ...] = ()
    targets: Sequence[Guarded | torch.Tensor] = ()  # of ``out=``
    addresses: tuple[int | None, ...] = ()  # of the targets, or of the first input, before the call
    damages: list[Damage | None] | None = None  # to the inputs' storages, once a judge has asked


def laid_out(
    values: Sequence[torch.Tensor],
    geometries: Sequence[Geometry | None],
    move: Move,
    guarded: type[Guarded] = Guarded,
) -> list[Guarded | torch.Tensor]:
    """The values on the device, in guarded buffers if there is a geometry."""
    return [
        move(value) if geometry is None else guarded(value, geometry, move)
        for value, geometry in zip(values, geometries)
    ]


def repeated(
    values: Sequence[torch.Tensor], geometries: Sequence[Geometry | None]
) -> list[torch.Tensor]:
    """The values that the geometries hold: where a dimension is expanded, its first ones again and again."""
    found = []
    for value, geometry in zip(values, geometries):
        if geometry is not None and geometry.expanded is not None:
            value = value.narrow(geometry.expanded, 0, 1).expand(value.shape).contiguous()
        found.append(value)
    return found


def views(inputs: Iterable[Guarded | torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that an op is given."""
    return [each.view if isinstance(each, Guarded) else each for each in inputs]


def container(form: str, tensors: Sequence[torch.Tensor]) -> Any:
    """What ``out=`` takes: one tensor, a list or a tuple."""
    if form == "tensor":
        return tensors[0]
    return list(tensors) if form == "list" else tuple(tensors)


def copies(call: Call) -> list[torch.Tensor]:
    """Contiguous copies of the tensors, on the device."""
    return [call.move(each.clone()) for each in call.values]


def address(call: Call, tensor: torch.Tensor) -> int | None:
    """Where a tensor's first element is; None where ``data_ptr`` is no address."""
    return tensor.data_ptr() if call.pointers else None


def called(
    call: Call, read: bool = True, targets: Sequence[Guarded | torch.Tensor] = (), form: str = ""
) -> Answer:
    """Make the call, and ``read`` its result back: a late failure is also a failure of the call. A result that
    reaches past its storage is not read unless its values are judged: that can end the process. With a ``form``
    the targets are given as ``out=``."""
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
    except Exception as error:  # anything may come out of a kernel; it is judged, not swallowed
        answer.raised = error
    return answer


def damages(call: Call, answer: Answer) -> list[Damage | None]:
    """What the call did to the bytes of its inputs' storages, by place; None if all are unchanged."""
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
    """How what was read back differs from what the reference says. Where the answer is unique only up to signs or
    phases, ``process`` gives what is unique about it; where an index may be that of any of several equal elements, ``named``
    gives the elements; where roundings of the operands change it by more than the tolerances, it is as near as these leave
    it. Where ``want`` is the CPU's and ``exact`` gives the same in float64, the CPU's own error is nobody's fault."""
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
    """The values of a result and, for an index that may be that of any of several equal elements, the elements that it names,
    whether it is in range, and whether no other names the same. An index that cannot be one is left as it is."""
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
    """Two references differ, and the device agrees with neither."""

    text: str


#: What a judge yields for each thing that it judged.
Found = Iterator[Wrong | Ambiguous | None]


@dataclass(frozen=True, slots=True)
class Laid:
    """The tensors of one sample laid out on the device by one case."""

    sample: Sample
    case: Case
    geometries: tuple[Geometry, ...]
    inputs: list[Guarded | torch.Tensor]  # guarded where strided

    @property
    def expands(self) -> bool:
        return any(g.expanded is not None for g in self.geometries)


#: Judges a call for a clause.
Judge = Callable[[Call, Any, Any], Found]
