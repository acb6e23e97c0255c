"""The functions that compute gradients of a call: on the device, with cotangents in given layouts, and on the CPU in
higher precision.

Repro scripts contain copies of these functions, so the functions need only torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, wraps
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from conformance.checks.ops.calls import Call, Found, address, laid_out, repeated, views
from conformance.checks.ops.evidence import InputMemory, copied, input_memory, spoilt_inputs
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

#: Relative error of one rounding in float32, the dtype in which sums are accumulated.
_ACCUMULATED = 2.0**-24


@dataclass(frozen=True, slots=True)
class Cotangent:
    """The cotangent of one output, or the tangent of one input. The values are fixed numbers of the given dtype (see
    ``weights``), multiplied by ``scale``; ``geometry`` describes their layout on the device.

    If ``shape`` is set, the tensor is expanded to that shape. If ``conj`` is true, the conj bit is set. Two cotangents
    of the same shape have different values if their ``turn`` differs.
    """

    dtype: torch.dtype
    geometry: Geometry
    shape: tuple[int, ...] | None = None
    conj: bool = False
    scale: float = 1.0
    turn: int = 0


#: One entry for each output; None for an output without a cotangent.
Cotangents: TypeAlias = Sequence[Cotangent | None]
Values: TypeAlias = Sequence[torch.Tensor]
Arguments: TypeAlias = Callable[[list[torch.Tensor], torch.device], Any]
Grads: TypeAlias = list[torch.Tensor | None]


def weights(shape: Sequence[int], dtype: torch.dtype, turn: int = 0) -> torch.Tensor:
    """Return a CPU tensor of fixed, unsorted numbers between -2 and 2. The tensor is shared, so callers must not write
    to it."""
    count, first = torch.Size(shape).numel(), 37 * turn
    among = _unordered(max(1024, 1 << (first + count).bit_length()), dtype)
    return among[first : first + count].reshape(tuple(shape))


@lru_cache(maxsize=64)
def _unordered(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the first ``count`` numbers of the sequence from which ``weights`` takes its values."""
    steps = torch.arange(count, dtype=torch.float64) + 1
    real, other = (
        ((steps * each) % 1 * 4 - 2) for each in (0.7548776662466927, 0.5698402909980532)
    )
    return (torch.complex(real, other) if dtype.is_complex else real).to(dtype)


@lru_cache(maxsize=64)
def held_by(cotangent: Cotangent) -> torch.Tensor:
    """Return the values of a cotangent before it is expanded, as a CPU tensor. The tensor is shared, so callers must
    not write to it."""
    return weights(cotangent.geometry.shape, cotangent.dtype, cotangent.turn) * cotangent.scale


def seen(held: torch.Tensor, cotangent: Cotangent) -> torch.Tensor:
    """Return the cotangent that is passed to autograd: ``held``, expanded and conjugated as ``cotangent`` requires."""
    given = held if cotangent.shape is None else held.expand(cotangent.shape)
    return torch.conj(given) if cotangent.conj else given


@dataclass(slots=True)
class Gradients:
    """The gradients that backward returned, copied to the CPU (``read``), or the exception that backward raised."""

    read: Sequence[torch.Tensor | None] = ()
    raised: Exception | None = None
    unjudged: Exception | None = None  # raised by the forward call, so backward was not judged
    judged_by: str = ""  # the clause that judges ``unjudged``, if it does not judge plain calls
    devices: Sequence[torch.device] = ()  # the expected device of each gradient
    found_on: Sequence[torch.device | None] = ()  # the device of each gradient
    cotangents: Sequence[Guarded | None] = ()  # while the call is made; then empty
    inputs: Sequence[InputMemory | None] = ()
    damages: Sequence[Damage | None] = ()  # of the cotangents
    before: Sequence[Sequence[Held | None]] = ()  # the leaves' gradients after each backward pass
    leaves: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = ()  # shape and strides of each leaf


def leaves_of(tensors: Iterable[torch.Tensor], places: Collection[int]) -> list[torch.Tensor]:
    """Return new leaf tensors that share the memory of the given tensors. Those whose index is in ``places`` require
    gradients."""
    return [t.detach().requires_grad_(n in places) for n, t in enumerate(tensors)]


def laid(call: Call, cotangent: Cotangent | None) -> Guarded | None:
    """Build a cotangent on the device in its layout. Returns None if ``cotangent`` is None."""
    if cotangent is None:
        return None
    return call.guarded(held_by(cotangent), cotangent.geometry, call.move)


def given_to(
    call: Call, answer: Gradients, outputs: Sequence[torch.Tensor], cotangents: Cotangents
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the outputs that require a gradient and have a cotangent, and the cotangents of these outputs on the
    device."""
    answer.cotangents = [laid(call, each) for each in cotangents]
    ends, given = [], []
    for output, held, each in zip(outputs, answer.cotangents, cotangents):
        if held is not None and each is not None and output.requires_grad:
            ends.append(output)
            given.append(seen(held.view, each).to(output.device))  # some ops return a CPU tensor
    return ends, given


def read(call: Call, answer: Gradients, grads: Sequence[torch.Tensor | None]) -> None:
    """Wait for the gradients. Store in ``answer`` a CPU copy of each of them, and its device."""
    call.settle(grads)
    answer.found_on = [None if each is None else each.device for each in grads]
    answer.read = [None if each is None else call.back(each.to_dense()) for each in grads]


Procedure = Callable[..., Gradients]


def collects_memory(procedure: Procedure) -> Procedure:
    """Decorate a procedure: after the call, look which bytes of inputs and cotangents it changed, and give the inputs
    their known bytes again."""

    @wraps(procedure)
    def with_memory(call: Call, *given: Any) -> Gradients:
        answer = procedure(call, *given)
        answer.inputs = [input_memory(call, each) for each in call.inputs]
        spoilt = spoilt_inputs(call, answer.inputs)
        if spoilt:
            answer.read = copied(answer.read)  # a gradient may lie in an input
        for each in spoilt:
            each.restore(call.move)
        answer.damages = [
            None if each is None or each.intact(call.back) else each.damage(call.back)
            for each in answer.cotangents
        ]
        answer.cotangents = ()
        return answer

    return with_memory


# -- on the device


@collects_memory
def differentiated(call: Call, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """Make the call on leaves that share the memory of the inputs, and compute the gradients of the inputs at
    ``places``."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    with torch.enable_grad():
        try:
            args, kwargs = call.arguments(leaves, call.device)
            outputs = tensors_of(call.function(*args, **kwargs))
        except Exception as error:  # other clauses judge an exception of the forward call
            answer.unjudged = error
            return answer
        _pulled_back(call, answer, outputs, [leaves[place] for place in places], cotangents)
    return answer


@collects_memory
def differentiated_in_place(
    call: Call, places: Sequence[int], cotangents: Cotangents, sliced: bool
) -> Gradients:
    """Compute the gradients of an in-place call. The call writes to a copy of its first input or, if ``sliced`` is
    true, to the second half of a larger tensor; the gradient then covers the untouched half too."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    with torch.enable_grad():
        try:
            whole = in_place(call.function, call.arguments, sliced, call.device)(*leaves)
        except Exception as error:  # layout.inplace judges an exception of the in-place call
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
    except Exception as error:  # a kernel may raise any type; judge_gradients judges it
        answer.raised = error


@collects_memory
def differentiated_twice(call: Call, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """Compute second gradients: the gradients of the first gradients, with respect to the inputs at ``places`` and then
    with respect to the cotangents."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    with torch.enable_grad():
        try:
            args, kwargs = call.arguments(leaves, call.device)
            outputs = tensors_of(call.function(*args, **kwargs))
        except Exception as error:  # other clauses judge an exception of the forward call
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
    """Return the gradients of the first gradients with respect to ``starts``."""
    ends = [each for each in first if each is not None and each.requires_grad]
    if not ends:
        return [None] * len(starts)
    # Each end has its own cotangent: the gradients of f(x - y) with respect to x and y differ only in sign, so equal
    # cotangents would cancel. They are copies, because kernels must not see the cached tensor.
    given = [move(weights(each.shape, each.dtype, 1 + n).clone()) for n, each in enumerate(ends)]
    return torch.autograd.grad(ends, starts, given, allow_unused=True)


@collects_memory
def pushed_forward(call: Call, places: Sequence[int], tangents: Cotangents) -> Gradients:
    """Compute the forward-mode derivative of each output, for the given tangents of the inputs at ``places``."""
    answer, tensors = Gradients(), [each.detach() for each in views(call.inputs)]
    try:
        args, kwargs = call.arguments(tensors, call.device)
        call.function(*args, **kwargs)
    except Exception as error:  # other clauses judge an exception of the plain call
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
    """Return the tangent of each output, computed in forward mode; None for an output that has no tangent."""
    with forward_ad.dual_level():
        duals = list(tensors)
        for place, tangent in zip(places, tangents):
            duals[place] = forward_ad.make_dual(tensors[place], tangent)
        args, kwargs = arguments(duals, device)
        outputs = tensors_of(function(*args, **kwargs))
        # Do not copy the tangents here: an asynchronous copy to the host may be incomplete.
        return [forward_ad.unpack_dual(each).tangent for each in outputs]


@collects_memory
def pulled_back_in_batch(call: Call, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """Compute the gradients for a batch of two cotangents with ``is_grads_batched``, which is vmap over backward."""
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
    """Return the gradients for the given cotangents and for these cotangents divided by 2, stacked in dimension 0."""
    both = [torch.stack([each, each / 2]) for each in given]
    if not ends:
        return [None] * len(starts)
    return torch.autograd.grad(ends, starts, both, is_grads_batched=True, allow_unused=True)


@dataclass(frozen=True, slots=True)
class Held:
    """The gradient of a leaf after a backward pass: its strides and values. ``kept`` is true if the gradient is still
    the same tensor at the same address as before the pass, and ``old`` holds the values that the previous gradient
    tensor has after the pass."""

    stride: tuple[int, ...]
    values: torch.Tensor
    kept: bool
    old: torch.Tensor | None


@collects_memory
def accumulated(call: Call, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """Accumulate gradients into leaves three times: first into leaves without a gradient, then into the existing
    gradient, then with ``create_graph=True``. The first gradients are stored in ``answer.read``."""
    answer, leaves = Gradients(), leaves_of(views(call.inputs), places)
    starts = [leaves[place] for place in places]
    answer.leaves = [(tuple(each.shape), strides_of(each)) for each in starts]
    with torch.enable_grad():
        try:
            args, kwargs = call.arguments(leaves, call.device)
            outputs = tensors_of(call.function(*args, **kwargs))
        except Exception as error:  # other clauses judge an exception of the forward call
            answer.unjudged = error
            return answer
        try:
            steps = []
            for create in (False, False, True):
                # New cotangents each time: the gradient of a view may be a view of its cotangent, and is written to.
                ends, given = given_to(call, answer, outputs, cotangents)
                if not ends:  # the CPU's outputs do require gradients
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


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if tensor.layout == torch.strided else ()


def held(
    call: Call, before: torch.Tensor | None, at: int | None, now: torch.Tensor | None
) -> Held | None:
    """Return a description of a leaf's gradient after a backward pass; None if the leaf has no gradient or the gradient
    is not strided."""
    if now is None or now.layout != torch.strided:
        return None
    kept = before is now and address(call, now) == at
    old = None if before is None else call.back(before.detach()).clone()
    return Held(tuple(now.stride()), call.back(now.detach()).clone(), kept, old)


def changed(evidence: Gradients, mutable: Collection[int]) -> list[tuple[str, Damage]]:
    """Return a (name, damage) pair for each cotangent whose memory was changed, and for each changed input that the
    call does not update."""
    found = [
        (f"input {place}", each.damage)
        for place, each in enumerate(evidence.inputs)
        if each is not None and each.damage is not None and place not in mutable
    ]
    return found + [
        (f"cotangent {place}", each)
        for place, each in enumerate(evidence.damages)
        if each is not None
    ]


# -- on the CPU


def as_the_cpu_does(
    procedure: Callable[..., Gradients],
    call: Call,
    geometries: Sequence[Geometry | None],
    *given: Any,
) -> Gradients:
    """Run the procedure on eager CPU, with inputs and cotangents in the same layouts as on the device. All devices
    share the derivative formulas, so a fault that eager CPU has too is not counted as a fault of the device."""
    there = laid_out(call.values, geometries, identity)
    host = replace(call, inputs=there, device=torch.device("cpu"), guarded=Guarded)
    host = replace(host, move=identity, back=identity, settle=identity)  # type: ignore[arg-type]
    return procedure(host, *given)


def on_cpu(cotangents: Cotangents, outputs: Sequence[torch.Tensor]) -> Grads:
    """Return the cotangents as contiguous CPU tensors in the dtypes of the outputs."""
    found: Grads = []
    for each, output in zip(cotangents, outputs, strict=True):
        if each is None:
            found.append(None)
            continue
        (held,) = repeated([held_by(each)], [each.geometry])
        found.append(seen(held, each).resolve_conj().contiguous().to(output.dtype))
    return found


class Graph:
    """A call on contiguous CPU copies of its inputs, in higher precision if ``wide`` is true. Its gradients can be
    computed repeatedly. The constructor makes the call and does not catch its exceptions."""

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
        """Return the outputs that require a gradient and have a cotangent, and the cotangents of these outputs."""
        pairs = zip(self.outputs, on_cpu(cotangents, self.outputs))
        found = [(o, c) for o, c in pairs if c is not None and o.requires_grad]
        return [output for output, _ in found], [each for _, each in found]

    def grads(self, cotangents: Cotangents) -> Grads:
        """Return the gradients of the inputs at ``places``; None for an input that has no gradient. Exceptions
        of backward are not caught."""
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
    """Return a function of tensors that calls the in-place ``function`` on a copy of the first tensor and returns the
    copy. If ``sliced`` is true, the copy is twice as long and the call writes to its second half."""

    def called(*tensors: torch.Tensor) -> torch.Tensor:
        first = tensors[0]
        whole = torch.cat([first, first]) if sliced else first.clone()
        target = whole.narrow(0, len(first), len(first)) if sliced else whole
        args, kwargs = arguments([target, *tensors[1:]], device)
        function(*args, **kwargs)
        return whole

    return called


def plain(tensors: list[torch.Tensor], device: torch.device) -> Any:
    """Return (args, kwargs) of a call whose only arguments are the given tensors."""
    return tuple(tensors), {}


def gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Cotangents,
    wide: bool = True,
) -> Grads:
    """Return the gradients of the inputs at ``places``, computed on the CPU."""
    return Graph(function, arguments, values, places, wide=wide).grads(cotangents)


def second_gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Cotangents,
    wide: bool = True,
) -> Grads:
    """Return the second gradients computed on the CPU, in the order of ``differentiated_twice``."""
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
    """Return the forward-mode derivative of each output, computed on the CPU."""
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
    """Return the gradients for the cotangents and for these cotangents divided by 2, computed on the CPU one after the
    other and stacked in dimension 0."""
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
    """Return the accepted error of each tensor that ``compute`` returns, element by element. The error is the sum of:

    - a multiple of the largest change of the element when each input value is changed by the factor ``1 + epsilon`` or
      ``1 - epsilon``,
    - a multiple of the CPU's largest error in the dtype of the inputs, but at most the largest error that counts as a
      rounding error (``ROUNDING``),
    - one rounding error times the sum of the cotangents' magnitudes, divided by the number of elements of the tensor,
      because a device may add the terms in another order than the CPU.

    Inputs at the ``fixed`` places, such as labels, are not changed. The inputs are changed ``draws`` times at random;
    fewer draws give a smaller result and take less time.
    """
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


def judge_gradients(evidence: Gradients, reference: Any) -> Found:
    """Check the values, shape, dtype and device of each gradient against the reference, and check that backward changed
    no input and no cotangent.

    A gradient that is None in the reference may be None or zeros. A device passes if eager CPU raises for the same
    layouts too, or gives the same gradient. If the op may select any of several equal elements, the sum of the
    gradients of these elements is compared.
    """
    if evidence.unjudged is not None:
        return
    if evidence.raised is not None:
        alike = reference.alike
        refused = alike is not None and alike.raised is not None
        yield None if refused else raised(evidence.raised, "gradients, as on the CPU")
        return
    for place, (got, want) in enumerate(zip(evidence.read, reference.wants)):
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
    for place, (found, device) in enumerate(zip(evidence.found_on, evidence.devices)):
        if found is not None and found != device:
            yield Wrong("device", str(device), str(found), reference.subjects[place])
    for subject, damage in changed(evidence, reference.mutable):
        yield Wrong("bytes", "no change by backward", str(damage), subject)


def least_of(reference: Any, place: int) -> torch.Tensor | None:
    """Return a lower estimate of the accepted rounding error of a gradient. The estimate takes less than half the time
    of :func:`slack_of`, and most correct gradients differ from the reference by less than the estimate."""
    return summed(reference.least[place], reference.shared.get(place))


def slack_of(reference: Any, place: int) -> torch.Tensor | None:
    """Return the accepted rounding error of each element of a gradient."""
    return summed(reference.slack[place], reference.shared.get(place))


def summed(gradient: torch.Tensor | None, along: int | None) -> torch.Tensor | None:
    """Return the gradient summed over the dimension ``along``, which is kept with size 1. If ``along`` is None, the
    gradient is unchanged."""
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
    """Return a failure if a gradient differs from the reference by more than the accepted rounding error, otherwise
    None. The functions in ``slacks`` return accepted errors in ascending order; each function is called only if the
    difference exceeds the errors of the functions before it. A gradient of None counts as zeros."""
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
        forgiven = torch.where((got - wanted).abs() <= near, wanted, got)
        wrong = tensor_difference(forgiven, wanted, tolerances, SUM_ROUNDINGS)
    return wrong
