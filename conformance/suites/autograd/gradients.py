"""Gradients of a call: on the device, with cotangents in layouts of their own, and on the CPU in higher precision.

Repro scripts contain these functions, which need only torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from conformance.checks.ops.calls import Call, Found, address, damages, laid_out, repeated, views
from conformance.checks.ops.roundings import (
    DRAWS,
    FACTOR,
    ROUNDING,
    jolted,
    off,
    wider,
)
from opinfo.compare import SUM_ROUNDINGS, Wrong, raised, tensor_difference, tensors_of
from opinfo.device import Damage, Guarded, identity
from opinfo.layouts import Geometry

#: One rounding of what sums are accumulated in.
_ACCUMULATED = 2.0**-24


@dataclass(frozen=True, slots=True)
class Cotangent:
    """What is given for one output, or the tangent of an input: fixed numbers of this dtype and size (see ``weights``), as
    they are laid out on the device; ``shape`` is the one that they are expanded to, ``conj`` says whether they are a view
    with the conjugate bit, ``turn`` tells two of one shape apart."""

    dtype: torch.dtype
    geometry: Geometry
    shape: tuple[int, ...] | None = None
    conj: bool = False
    scale: float = 1.0
    turn: int = 0


#: By output; None for one whose gradient is undefined.
Cotangents: TypeAlias = Sequence[Cotangent | None]
Values: TypeAlias = Sequence[torch.Tensor]
Arguments: TypeAlias = Callable[[list[torch.Tensor], torch.device], Any]
Grads: TypeAlias = list[torch.Tensor | None]


def weights(shape: Sequence[int], dtype: torch.dtype, turn: int = 0) -> torch.Tensor:
    """Numbers between -2 and 2 in no order, always the same. Nothing writes to them."""
    count, first = torch.Size(shape).numel(), 37 * turn
    among = _unordered(max(1024, 1 << (first + count).bit_length()), dtype)
    return among[first : first + count].reshape(tuple(shape))


@lru_cache(maxsize=64)
def _unordered(count: int, dtype: torch.dtype) -> torch.Tensor:
    """The first of the numbers that ``weights`` are."""
    steps = torch.arange(count, dtype=torch.float64) + 1
    real, other = (
        ((steps * each) % 1 * 4 - 2) for each in (0.7548776662466927, 0.5698402909980532)
    )
    return (torch.complex(real, other) if dtype.is_complex else real).to(dtype)


@lru_cache(maxsize=64)
def held_by(cotangent: Cotangent) -> torch.Tensor:
    """The values that the device holds of a cotangent, on the CPU. Nothing writes to them."""
    return weights(cotangent.geometry.shape, cotangent.dtype, cotangent.turn) * cotangent.scale


def seen(held: torch.Tensor, cotangent: Cotangent) -> torch.Tensor:
    """The cotangent that autograd is given, of the tensor that holds its values."""
    given = held if cotangent.shape is None else held.expand(cotangent.shape)
    return torch.conj(given) if cotangent.conj else given


@dataclass(slots=True)
class Gradients:
    """What backward gave, or the exception that it raised."""

    grads: Sequence[torch.Tensor | None] = ()  # on the device
    read: Sequence[torch.Tensor | None] = ()
    raised: Exception | None = None
    unjudged: Exception | None = None  # raised by the call itself
    judged_by: str = ""  # the clause that judges that, if it is not about calls
    devices: Sequence[torch.device] = ()  # on which the gradients should be
    cotangents: Sequence[Guarded | None] = ()
    damages: list[Damage | None] | None = None
    before: Sequence[Sequence[Held | None]] = ()  # what leaves held, after each pass


def leaves_of(tensors: Iterable[torch.Tensor], places: Collection[int]) -> list[torch.Tensor]:
    """New leaves over the memory of these tensors; those at ``places`` require gradients."""
    return [t.detach().requires_grad_(n in places) for n, t in enumerate(tensors)]


def laid(call: Call, cotangent: Cotangent | None) -> Guarded | None:
    """A cotangent on the device, in its layout."""
    if cotangent is None:
        return None
    return call.guarded(held_by(cotangent), cotangent.geometry, call.move)


def given_to(
    call: Call, answer: Gradients, outputs: Sequence[torch.Tensor], cotangents: Cotangents
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs that have a gradient and a cotangent, and their cotangents, on the device."""
    answer.cotangents = [laid(call, each) for each in cotangents]
    ends, given = [], []
    for output, held, each in zip(outputs, answer.cotangents, cotangents):
        if held is not None and each is not None and output.requires_grad:
            ends.append(output)
            given.append(seen(held.view, each).to(output.device))  # some ops return to the host
    return ends, given


def read(call: Call, answer: Gradients, grads: Sequence[torch.Tensor | None]) -> None:
    """Wait for gradients, and read them back."""
    answer.grads = grads
    call.settle(grads)
    answer.read = [None if each is None else call.back(each.to_dense()) for each in grads]


# -- on the device


def differentiated(call: Call, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """Make the call on leaves over the inputs, and ask for the gradients of those at ``places``."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    with torch.enable_grad():
        try:
            args, kwargs = call.arguments(leaves, call.device)
            outputs = tensors_of(call.function(*args, **kwargs))
        except Exception as error:  # of the call without gradients, too: other clauses judge it
            answer.unjudged = error
            return answer
        _pulled_back(call, answer, outputs, [leaves[place] for place in places], cotangents)
    return answer


def differentiated_in_place(
    call: Call, places: Sequence[int], cotangents: Cotangents, sliced: bool
) -> Gradients:
    """The same of an in-place call: on a tensor of the layout of its input, or on a slice of a larger one, whose gradient
    is asked for with the untouched part."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    with torch.enable_grad():
        try:
            whole = in_place(call.function, call.arguments, sliced, call.device)(*leaves)
        except Exception as error:  # of the in-place call itself: layout.inplace judges it
            answer.unjudged = error
            return answer
        _pulled_back(call, answer, [whole], [leaves[place] for place in places], cotangents)
    return answer


def _pulled_back(
    call: Call,
    answer: Gradients,
    outputs: Sequence[torch.Tensor],
    starts: Sequence[torch.Tensor],
    cotangents: Cotangents,
) -> None:
    try:
        ends, given = given_to(call, answer, outputs, cotangents)
        answer.read = [None] * len(starts)
        answer.devices = [each.device for each in starts]
        if ends:
            read(call, answer, torch.autograd.grad(ends, starts, given, allow_unused=True))
    except Exception as error:  # anything may come out of a kernel; it is judged, not swallowed
        answer.raised = error


def differentiated_twice(call: Call, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """Gradients of gradients: by the inputs at ``places``, then by the cotangents."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    with torch.enable_grad():
        try:
            args, kwargs = call.arguments(leaves, call.device)
            outputs = tensors_of(call.function(*args, **kwargs))
        except Exception as error:  # of the call without gradients, too
            answer.unjudged = error
            return answer
        try:
            ends, given = given_to(call, answer, outputs, cotangents)
            given = leaves_of(given, range(len(given)))
            starts = [leaves[place] for place in places]
            first = torch.autograd.grad(ends, starts, given, create_graph=True, allow_unused=True)
        except Exception as error:
            answer.unjudged, answer.judged_by = error, "autograd.first"
            return answer
        try:
            answer.devices = [each.device for each in (*starts, *given)]
            read(call, answer, again(first, [*starts, *given], call.move))
        except Exception as error:
            answer.raised = error
    return answer


def again(
    first: Sequence[torch.Tensor | None],
    starts: Sequence[torch.Tensor],
    move: Callable[[torch.Tensor], torch.Tensor],
) -> Sequence[torch.Tensor | None]:
    """The gradients of some gradients."""
    ends = [each for each in first if each is not None and each.requires_grad]
    if not ends:
        return [None] * len(starts)
    # Each end has numbers of its own: where two gradients are one but for the sign, as by x and y of a function of x - y,
    # equal ones would cancel. Kernels get no kept ones.
    given = [move(weights(each.shape, each.dtype, 1 + n).clone()) for n, each in enumerate(ends)]
    return torch.autograd.grad(ends, starts, given, allow_unused=True)


def pushed_forward(call: Call, places: Sequence[int], tangents: Cotangents) -> Gradients:
    """The forward-mode products: of each output, with these tangents of the inputs at ``places``."""
    answer, tensors = Gradients(), [each.detach() for each in views(call.inputs)]
    try:
        args, kwargs = call.arguments(tensors, call.device)
        call.function(*args, **kwargs)
    except Exception as error:  # of the call without tangents, too: other clauses judge it
        answer.unjudged = error
        return answer
    try:
        answer.cotangents = [laid(call, each) for each in tangents]
        given = [seen(h.view, t) for h, t in zip(answer.cotangents, tangents) if h and t]
        read(
            call,
            answer,
            products(call.function, call.arguments, tensors, places, given, call.device),
        )
    except Exception as error:
        answer.raised = error
    return answer


def products(
    function: Callable[..., Any],
    arguments: Arguments,
    tensors: Sequence[torch.Tensor],
    places: Sequence[int],
    tangents: Sequence[torch.Tensor],
    device: torch.device,
) -> Grads:
    """The tangent of each output, None where it has none."""
    with forward_ad.dual_level():
        duals = list(tensors)
        for place, tangent in zip(places, tangents):
            duals[place] = forward_ad.make_dual(tensors[place], tangent)
        args, kwargs = arguments(duals, device)
        outputs = tensors_of(function(*args, **kwargs))
        # Not copied: a copy to the host may still be under way.
        return [forward_ad.unpack_dual(each).tangent for each in outputs]


def pulled_back_in_batch(call: Call, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """The gradients for two cotangents at once (``is_grads_batched``, which is vmap over backward)."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    with torch.enable_grad():
        try:
            args, kwargs = call.arguments(leaves, call.device)
            outputs = tensors_of(call.function(*args, **kwargs))
            ends, given = given_to(call, answer, outputs, cotangents)
        except Exception as error:  # autograd.first judges it
            answer.unjudged = error
            return answer
        try:
            read(call, answer, batched(ends, [leaves[place] for place in places], given))
        except Exception as error:
            answer.raised = error
    return answer


def batched(
    ends: Sequence[torch.Tensor], starts: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """The gradients for some cotangents and for their halves, stacked."""
    both = [torch.stack([each, each / 2]) for each in given]
    if not ends:
        return [None] * len(starts)
    return torch.autograd.grad(ends, starts, both, is_grads_batched=True, allow_unused=True)


@dataclass(frozen=True, slots=True)
class Held:
    """The gradient that a leaf held after a backward pass: its strides, its values, whether it is the tensor that was there
    before, where that was, and the values that that has now."""

    stride: tuple[int, ...]
    values: torch.Tensor
    kept: bool
    old: torch.Tensor | None


def accumulated(call: Call, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """Accumulate into leaves over the inputs: for the first time, again, and again with ``create_graph=True``. What is
    read is the first gradient."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    starts = [leaves[place] for place in places]
    with torch.enable_grad():
        try:
            args, kwargs = call.arguments(leaves, call.device)
            outputs = tensors_of(call.function(*args, **kwargs))
        except Exception as error:  # of the call without gradients, too
            answer.unjudged = error
            return answer
        try:
            steps = []
            for create in (False, False, True):
                # New ones each time: the gradient of a view is a view of its cotangent, and is added to.
                ends, given = given_to(call, answer, outputs, cotangents)
                if not ends:  # where the CPU's outputs have gradients
                    answer.unjudged = RuntimeError("the result does not require a gradient")
                    answer.judged_by = "autograd.first"
                    return answer
                before = [each.grad for each in starts]
                at = [address(call, each) if each is not None else None for each in before]
                torch.autograd.backward(
                    ends, given, retain_graph=True, create_graph=create, inputs=starts
                )
                now = [each.grad for each in starts]
                call.settle(now)
                steps.append([held(call, *each) for each in zip(before, at, now)])
            answer.before = steps
            answer.read = [None if h is None else h.values for h in steps[0]] if steps else []
        except Exception as error:
            answer.raised = error
        finally:
            for each in starts:  # a gradient with a graph refers to its leaf
                each.grad = None
    return answer


def held(
    call: Call, before: torch.Tensor | None, at: int | None, now: torch.Tensor | None
) -> Held | None:
    """What a leaf holds; None where that is nothing that has strides."""
    if now is None or now.layout != torch.strided:
        return None
    kept = before is now and address(call, now) == at
    old = None if before is None else call.back(before.detach()).clone()
    return Held(tuple(now.stride()), call.back(now.detach()).clone(), kept, old)


def changed(call: Call, answer: Gradients, mutable: Collection[int]) -> list[tuple[str, Damage]]:
    """The cotangents, and the inputs that the call does not update, whose memory was written to, and what became of it."""
    found = [
        (f"input {place}", each)
        for place, each in enumerate(damages(call, answer))  # type: ignore[arg-type]
        if each is not None and place not in mutable
    ]
    return found + [
        (f"cotangent {place}", each.damage(call.back))
        for place, each in enumerate(answer.cotangents)
        if each is not None and not each.intact(call.back)
    ]


# -- on the CPU


def as_the_cpu_does(
    procedure: Callable[..., Gradients],
    call: Call,
    geometries: Sequence[Geometry | None],
    *given: Any,
) -> Gradients:
    """The gradients on the CPU with inputs and cotangents in the same layouts: derivative formulas are the same on every
    device."""
    there = laid_out(call.values, geometries, identity)
    host = replace(call, inputs=there, device=torch.device("cpu"), guarded=Guarded)
    host = replace(host, move=identity, back=identity, settle=identity)  # type: ignore[arg-type]
    return procedure(host, *given)


def on_cpu(cotangents: Cotangents, outputs: Sequence[torch.Tensor]) -> Grads:
    """The cotangents as contiguous tensors on the CPU, in the outputs' dtypes."""
    found: Grads = []
    for each, output in zip(cotangents, outputs, strict=True):
        if each is None:
            found.append(None)
            continue
        (held,) = repeated([held_by(each)], [each.geometry])
        found.append(seen(held, each).resolve_conj().contiguous().to(output.dtype))
    return found


class Graph:
    """A call on the CPU, whose gradients can be asked for again and again: on contiguous copies, in higher precision where
    ``wide``. Raises what the call raises."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        values: Values,
        places: Sequence[int],
        *,
        wide: bool = True,
    ) -> None:
        copies = [wider(v) if wide else v.detach().clone() for v in values]
        self.leaves = leaves_of(copies, places)
        self.places = places
        with torch.enable_grad():
            args, kwargs = arguments(list(self.leaves), torch.device("cpu"))
            self.outputs = tensors_of(function(*args, **kwargs))

    @property
    def starts(self) -> list[torch.Tensor]:
        return [self.leaves[place] for place in self.places]

    def ends(self, cotangents: Cotangents) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs that have a gradient and a cotangent, and their cotangents."""
        pairs = zip(self.outputs, on_cpu(cotangents, self.outputs))
        found = [(o, c) for o, c in pairs if c is not None and o.requires_grad]
        return [output for output, _ in found], [each for _, each in found]

    def grads(self, cotangents: Cotangents) -> Grads:
        """The gradients of the inputs at the places, None of those that have none. Raises what backward raises."""
        ends, given = self.ends(cotangents)
        if not ends:
            return [None] * len(self.places)
        return list(
            torch.autograd.grad(ends, self.starts, given, retain_graph=True, allow_unused=True)
        )


def in_place(
    function: Callable[..., Any],
    arguments: Arguments,
    sliced: bool,
    device: torch.device,
) -> Callable[..., torch.Tensor]:
    """A function that calls another one in place, on a copy of its first argument or on the second half of one, and returns
    all that was copied."""

    def called(*tensors: torch.Tensor) -> torch.Tensor:
        first = tensors[0]
        whole = torch.cat([first, first]) if sliced else first.clone()
        target = whole.narrow(0, len(first), len(first)) if sliced else whole
        args, kwargs = arguments([target, *tensors[1:]], device)
        function(*args, **kwargs)
        return whole

    return called


def plain(tensors: list[torch.Tensor], device: torch.device) -> Any:
    """Arguments that are tensors only."""
    return tuple(tensors), {}


def gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Cotangents,
    wide: bool = True,
) -> Grads:
    """The gradients on the CPU, of the inputs at the places."""
    return Graph(function, arguments, values, places, wide=wide).grads(cotangents)


def second_gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Cotangents,
    wide: bool = True,
) -> Grads:
    """The gradients of gradients on the CPU, in the order of ``differentiated_twice``."""
    graph = Graph(function, arguments, values, places, wide=wide)
    ends, given = graph.ends(cotangents)
    given = leaves_of(given, range(len(given)))
    with torch.enable_grad():
        first = torch.autograd.grad(ends, graph.starts, given, create_graph=True, allow_unused=True)
        return list(again(first, [*graph.starts, *given], identity))


def tangents_of(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Cotangents,
    wide: bool = True,
) -> Grads:
    """The forward-mode products on the CPU, by output."""
    copies = [wider(v) if wide else v.detach().clone() for v in values]
    given = [each for each in on_cpu(cotangents, [copies[p] for p in places]) if each is not None]
    return products(function, arguments, copies, places, given, torch.device("cpu"))


def gradients_in_batch(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Cotangents,
    wide: bool = True,
) -> Grads:
    """The gradients for two cotangents, one after the other, in the order of ``pulled_back_in_batch``."""
    graph = Graph(function, arguments, values, places, wide=wide)
    ends, given = graph.ends(cotangents)
    found = []
    for scale in (1.0, 0.5):
        sent = [each * scale for each in given]
        found.append(
            torch.autograd.grad(ends, graph.starts, sent, retain_graph=True, allow_unused=True)
        )
    return [
        None if one is None or two is None else torch.stack([one, two]) for one, two in zip(*found)
    ]


Compute: TypeAlias = Callable[..., Grads]


def sensitivity(
    compute: Compute,
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Cotangents,
    epsilon: float,
    fixed: Collection[int] = (),
    draws: int = DRAWS,
) -> Grads:
    """How much each of the tensors that ``compute`` gives may be off where no algorithm can be blamed for it: by some times
    the largest change where the inputs change by one rounding of relative size ``epsilon``, element by element; and by
    some times the largest error that the CPU makes in the dtype of the inputs, as far as that is one of rounding; and, as
    the CPU's order of adding is only one of many, by a rounding of the sizes of all terms, of which each element of a
    gradient has its share. Inputs at the ``fixed`` places do not change: labels, which are only compared. With fewer ``draws``
    of changed inputs it is less, and sooner known."""
    about = (function, arguments)
    exact = compute(*about, values, places, cotangents)
    source = torch.Generator().manual_seed(0)
    jolt = partial(jolted, epsilon=epsilon, source=source)
    largest: Grads = [None if each is None else each.abs() * 0 for each in exact]
    for _ in range(draws):
        given = [v if n in fixed else jolt(wider(v)) for n, v in enumerate(values)]
        moved = compute(*about, given, places, cotangents)
        for place, (before, after) in enumerate(zip(exact, moved)):
            held = largest[place]
            if before is not None and after is not None and held is not None:
                largest[place] = torch.maximum(held, off(after, before))
    narrow = compute(*about, values, places, cotangents, False)
    sent = sum(_sum_of_sizes(each) for each in cotangents if each is not None)
    for place, (want, got) in enumerate(zip(exact, narrow)):
        held = largest[place]
        if want is not None and got is not None and held is not None and want.numel():
            error = float(off(got, want).max())
            scale = max(sent, float(want.abs().nan_to_num(0.0, 0.0, 0.0).max()))
            added = min(epsilon, _ACCUMULATED) * sent / want.numel()
            largest[place] = held * FACTOR + min(FACTOR * error, ROUNDING * scale) + added
    return largest


def _sum_of_sizes(cotangent: Cotangent) -> float:
    (held,) = repeated([held_by(cotangent)], [cotangent.geometry])
    return float(seen(held, cotangent).abs().sum())


# -- judging


def judge_gradients(call: Call, answer: Gradients, reference: Any) -> Found:
    """Each tensor that backward gave has the reference's values, and the shape, dtype and device that it should have. One
    that is None in the reference is None, or zeros. No input and no cotangent has changed. Where the CPU's formula refuses
    these layouts, or gives the same for them, that is not the device's fault. Where any of equal elements may have the
    gradient, they have it in sum."""
    if answer.unjudged is not None:
        return
    if answer.raised is not None:
        alike = reference.alike
        refused = alike is not None and alike.raised is not None
        yield None if refused else raised(answer.raised, "gradients, as on the CPU")
        return
    for place, (got, want) in enumerate(zip(answer.read, reference.wants)):
        if want is None and got is None:
            yield None
            continue
        over = partial(summed, along=reference.shared.get(place))
        slacks = (partial(least_of, reference, place), partial(slack_of, reference, place))
        judge = partial(
            other_gradient,
            kind=reference.kinds[place],
            slacks=slacks,
            tolerances=reference.gradient_tolerances,
        )
        wrong = judge(over(got), over(want))
        if wrong is not None:
            alike = reference.alike
            if alike is not None and alike.raised is None and alike.read:
                same = judge(over(got), over(alike.read[place]))
                wrong = wrong if same is not None else None
        yield wrong.about(reference.subjects[place]) if wrong is not None else None
    for place, (made, device) in enumerate(zip(answer.grads, answer.devices)):
        if made is not None and made.device != device:
            yield Wrong("device", str(device), str(made.device), reference.subjects[place])
    for subject, damage in changed(call, answer, reference.mutable):
        yield Wrong("bytes", "unchanged by backward", str(damage), subject)


def least_of(reference: Any, place: int) -> torch.Tensor | None:
    """How much a gradient may be off by roundings at least: what that takes to know is less than half of what takes the
    rest, and it is nearly always enough."""
    return summed(reference.least[place], reference.shared.get(place))


def slack_of(reference: Any, place: int) -> torch.Tensor | None:
    """How much a gradient may be off by roundings."""
    return summed(reference.slack[place], reference.shared.get(place))


def summed(gradient: torch.Tensor | None, along: int | None) -> torch.Tensor | None:
    """A gradient summed over a dimension, if one is given."""
    if gradient is None or along is None:
        return gradient
    return gradient.sum(along, keepdim=True)


def other_gradient(
    got: torch.Tensor | None,
    want: torch.Tensor | None,
    kind: torch.dtype,
    slacks: Iterable[Callable[[], torch.Tensor | None]],
    tolerances: Any,
) -> Wrong | None:
    """How a gradient differs from the reference's, beyond what roundings explain: each of the slacks is asked for only where
    those before it are not enough. None is as good as zeros."""
    there = want if got is None else got
    if there is None:
        return None
    if got is None or want is None:
        zeros = torch.zeros(there.shape, dtype=kind)
        got, want = (zeros if got is None else got), (zeros if want is None else want)
    wanted = want.to_dense().to(kind)
    wrong = tensor_difference(got, wanted, tolerances, SUM_ROUNDINGS)
    for slack in slacks:
        if wrong is None or wrong.kind != "values" or (near := slack()) is None:
            return wrong
        mended = torch.where((got - wanted).abs() <= near, wanted, got)
        wrong = tensor_difference(mended, wanted, tolerances, SUM_ROUNDINGS)
    return wrong
