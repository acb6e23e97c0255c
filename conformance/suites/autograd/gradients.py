"""Functions that compute the gradients of a call for cotangents in given layouts: first and second gradients,
forward-mode derivatives, gradients for a batch of cotangents, and gradients that are accumulated into leaves.

Repro scripts contain copies of these functions, so the functions need only torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from conformance.checks.ops.calls import Invocation, address, views
from conformance.checks.ops.evidence import InputMemory, copied, input_memory, spoilt_inputs
from opinfo.compare import tensors_of
from opinfo.guarded import Damage, Guarded
from opinfo.layouts import Geometry


@dataclass(frozen=True, slots=True)
class Cotangent:
    """The description of a cotangent of one output, or of a tangent of one input. The values are fixed numbers of the
    given dtype (see ``weights``), multiplied by ``scale``; ``geometry`` describes their layout on the device.

    If ``shape`` is set, the tensor is expanded to that shape. If ``conj`` is true, the conj bit is set. Two
    cotangents of the same shape have different values if their ``turn`` differs.
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
    """Return the values of a cotangent before the cotangent is expanded, as a CPU tensor. The tensor is shared, so
    callers must not write to it."""
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
    unchanged: bool = False  # hooks were to change the layouts of saved tensors, and changed none
    judged_by: str = ""  # the clause that judges ``unjudged``, if it does not judge plain calls
    devices: Sequence[str] = ()  # the expected device of each gradient
    found_on: Sequence[str | None] = ()  # the device of each gradient
    cotangents: Sequence[Guarded | None] = ()  # while the call is made; then empty
    inputs: Sequence[InputMemory | None] = ()
    damages: Sequence[Damage | None] = ()  # of the cotangents
    before: Sequence[Sequence[Held | None]] = ()  # the leaves' gradients after each backward pass
    leaves: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = ()  # shape and strides of each leaf


def leaves_of(tensors: Iterable[torch.Tensor], places: Collection[int]) -> list[torch.Tensor]:
    """Return new leaf tensors that share the memory of the given tensors. Those whose index is in ``places`` require
    gradients."""
    return [t.detach().requires_grad_(n in places) for n, t in enumerate(tensors)]


def place_cotangent(call: Invocation, cotangent: Cotangent | None) -> Guarded | None:
    """Return a cotangent on the device in its layout, with known bytes around it; None if ``cotangent`` is None."""
    if cotangent is None:
        return None
    return call.guarded(held_by(cotangent), cotangent.geometry, call.move)


def given_to(
    call: Invocation, answer: Gradients, outputs: Sequence[torch.Tensor], cotangents: Cotangents
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the outputs that require a gradient and have a cotangent, and the cotangents of these outputs on the
    device."""
    answer.cotangents = [place_cotangent(call, each) for each in cotangents]
    ends, given = [], []
    for output, held, each in zip(outputs, answer.cotangents, cotangents):
        if held is not None and each is not None and output.requires_grad:
            ends.append(output)
            given.append(seen(held.view, each).to(output.device))  # some ops return a CPU tensor
    return ends, given


def read(call: Invocation, answer: Gradients, grads: Sequence[torch.Tensor | None]) -> None:
    """Wait for the gradients, and store a CPU copy and the device of each gradient in ``answer``."""
    call.settle(grads)
    answer.found_on = [None if each is None else str(each.device) for each in grads]
    answer.read = [None if each is None else call.back(each.to_dense()) for each in grads]


Procedure = Callable[..., Gradients]


def collects_memory(procedure: Procedure) -> Procedure:
    """Decorate a function that computes gradients. After each call, the decorated function finds the bytes of inputs
    and cotangents that the call changed, stores them in the result, and restores the inputs."""

    @wraps(procedure)
    def with_memory(call: Invocation, *given: Any) -> Gradients:
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


@collects_memory
def differentiated(call: Invocation, places: Sequence[int], cotangents: Cotangents) -> Gradients:
    """Make the call on leaves that share the memory of the inputs, and compute the gradients of the inputs at
    ``places``."""
    return _differentiated(call, places, cotangents)


@collects_memory
def differentiated_with_saved(
    call: Invocation, places: Sequence[int], cotangents: Cotangents, memory: str
) -> Gradients:
    """Compute the gradients as ``differentiated`` does, with saved-tensor hooks that give backward copies of the saved
    tensors, in the layout ``memory`` (see ``restrided``)."""
    changed = []

    def unpacked(saved: torch.Tensor) -> torch.Tensor:
        found = restrided(saved, memory)
        changed.append(found.stride() != saved.stride())
        return found

    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, unpacked):
        answer = _differentiated(call, places, cotangents)
    answer.unchanged = not any(changed)
    return answer


def _differentiated(call: Invocation, places: Sequence[int], cotangents: Cotangents) -> Gradients:
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


def restrided(tensor: torch.Tensor, memory: str) -> torch.Tensor:
    """Return a copy of a tensor that has the same values in the layout ``memory``: with "contiguous+step_inner+offset",
    the elements are every second element of a buffer, and the storage offset is 1; with "reversed", the first dimension
    is the innermost one; with "channels_last", the second dimension is, if there are four or five. Other tensors are
    returned as they are.

    The elements in between are copies of the first element, so that a kernel that reads them gets indices in range."""
    if tensor.layout != torch.strided or tensor.numel() < 2:
        return tensor
    if memory == "contiguous+step_inner+offset":
        pairs = tensor.new_empty([*tensor.shape, 2])
        first = tensor[(slice(0, 1),) * tensor.dim()]
        pairs.select(-1, 0).copy_(first.expand(tensor.shape))
        return pairs.select(-1, 1).copy_(tensor)
    order = list(range(tensor.dim()))
    if memory == "reversed":
        order.reverse()
    elif memory == "channels_last" and tensor.dim() in (4, 5):
        order.append(order.pop(1))
    else:
        return tensor
    made = tensor.new_empty([tensor.shape[each] for each in order])
    return made.permute([order.index(each) for each in range(len(order))]).copy_(tensor)


@collects_memory
def differentiated_in_place(
    call: Invocation, places: Sequence[int], cotangents: Cotangents, sliced: bool
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
    call: Invocation,
    answer: Gradients,
    outputs: Sequence[torch.Tensor],
    starts: Sequence[torch.Tensor],
    cotangents: Cotangents,
) -> None:
    try:
        ends, given = given_to(call, answer, outputs, cotangents)
        answer.read = [None] * len(starts)
        answer.devices = [str(each.device) for each in starts]
        if ends:
            read(call, answer, torch.autograd.grad(ends, starts, given, allow_unused=True))
    except Exception as error:  # a kernel may raise any type; judge_gradients judges it
        answer.raised = error


@collects_memory
def differentiated_twice(
    call: Invocation, places: Sequence[int], cotangents: Cotangents
) -> Gradients:
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
            answer.devices = [str(each.device) for each in (*starts, *given)]
            read(call, answer, gradients_of_gradients(first, [*starts, *given], call.move))
        except Exception as error:
            answer.raised = error
    return answer


def gradients_of_gradients(
    first: Sequence[torch.Tensor | None],
    starts: Sequence[torch.Tensor],
    move: Callable[[torch.Tensor], torch.Tensor],
) -> Sequence[torch.Tensor | None]:
    """Return the gradients of the first gradients ``first`` with respect to ``starts``, for cotangents with fixed
    values, which ``move`` copies to the device; None for a start without a gradient."""
    ends = [each for each in first if each is not None and each.requires_grad]
    if not ends:
        return [None] * len(starts)
    # Each end has its own cotangent: the gradients of f(x - y) with respect to x and y differ only in sign, so equal
    # cotangents would cancel. They are copies, because kernels must not see the cached tensor.
    given = [move(weights(each.shape, each.dtype, 1 + n).clone()) for n, each in enumerate(ends)]
    return torch.autograd.grad(ends, starts, given, allow_unused=True)


@collects_memory
def pushed_forward(call: Invocation, places: Sequence[int], tangents: Cotangents) -> Gradients:
    """Compute the forward-mode derivative of each output of the call, for the given tangents of the inputs at
    ``places``."""
    return _pushed(call, call.function, call.arguments, places, tangents)


@collects_memory
def pushed_forward_in_place(
    call: Invocation, places: Sequence[int], tangents: Cotangents, sliced: bool
) -> Gradients:
    """Compute the forward-mode derivative of the tensor that an in-place call writes to: a copy of its first input or, if
    ``sliced`` is true, a tensor twice as long, to whose second half the call writes."""
    function = in_place(call.function, call.arguments, sliced, call.device)
    return _pushed(call, function, plain, places, tangents)


def _pushed(
    call: Invocation,
    function: Callable[..., Any],
    arguments: Arguments,
    places: Sequence[int],
    tangents: Cotangents,
) -> Gradients:
    answer, tensors = Gradients(), [each.detach() for each in views(call.inputs)]
    try:
        args, kwargs = arguments(tensors, call.device)
        function(*args, **kwargs)
    except Exception as error:  # other clauses judge an exception of the plain call
        answer.unjudged = error
        return answer
    try:
        answer.cotangents = [place_cotangent(call, each) for each in tangents]
        given = [seen(h.view, t) for h, t in zip(answer.cotangents, tangents) if h and t]
        read(call, answer, products(function, arguments, tensors, places, given, call.device))
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
    """Return the tangent of each output of a call, computed in forward mode from the ``tangents`` of its inputs at
    ``places``; None for an output that has no tangent."""
    with forward_ad.dual_level():
        duals = list(tensors)
        for place, tangent in zip(places, tangents):
            duals[place] = forward_ad.make_dual(tensors[place], tangent)
        args, kwargs = arguments(duals, device)
        outputs = tensors_of(function(*args, **kwargs))
        # Do not copy the tangents here: an asynchronous copy to the host may be incomplete.
        return [forward_ad.unpack_dual(each).tangent for each in outputs]


@collects_memory
def pushed_through_backward(call: Invocation, places: Sequence[int], sent: Cotangents) -> Gradients:
    """Compute the forward-mode derivatives of the gradients of the inputs at ``places``. ``sent`` holds a tangent for each
    of these inputs, then the cotangents of the outputs."""
    answer, tensors = Gradients(), [each.detach() for each in views(call.inputs)]
    answer.devices = [str(tensors[place].device) for place in places]
    try:
        answer.cotangents = [place_cotangent(call, each) for each in sent]
        given = [seen(h.view, t) if h and t else None for h, t in zip(answer.cotangents, sent)]
        found = forward_over_reverse(
            call.function, call.arguments, tensors, places, given, call.device
        )
        read(call, answer, found)
    except Exception as error:
        answer.raised = error
    return answer


def forward_over_reverse(
    function: Callable[..., Any],
    arguments: Arguments,
    tensors: Sequence[torch.Tensor],
    places: Sequence[int],
    sent: Sequence[torch.Tensor | None],
    device: torch.device,
) -> Grads:
    """Return the tangent of the gradient of each input at ``places``: the derivative of backward in the direction of the
    tangents of these inputs, which are the first tensors of ``sent``. The others are the cotangents of the outputs. None
    for a gradient that has no tangent."""
    with forward_ad.dual_level(), torch.enable_grad():
        duals = list(tensors)
        for place, tangent in zip(places, sent):
            assert tangent is not None
            duals[place] = forward_ad.make_dual(tensors[place], tangent).requires_grad_()
        args, kwargs = arguments(duals, device)
        outputs = tensors_of(function(*args, **kwargs))
        pairs = list(zip(outputs, sent[len(places) :], strict=True))
        ends = [o for o, c in pairs if c is not None and o.requires_grad]
        given = [c.to(o.device) for o, c in pairs if c is not None and o.requires_grad]
        if not ends:
            return [None] * len(places)
        starts = [duals[place] for place in places]
        found = torch.autograd.grad(ends, starts, given, allow_unused=True)
        return [None if each is None else forward_ad.unpack_dual(each).tangent for each in found]


@collects_memory
def pulled_back_in_batch(
    call: Invocation, places: Sequence[int], cotangents: Cotangents
) -> Gradients:
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
def accumulated(call: Invocation, places: Sequence[int], cotangents: Cotangents) -> Gradients:
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
                steps.append([describe_leaf_gradient(call, *each) for each in zip(before, at, now)])
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


def describe_leaf_gradient(
    call: Invocation, before: torch.Tensor | None, at: int | None, now: torch.Tensor | None
) -> Held | None:
    """Return a description of a leaf's gradient after a backward pass; None if the leaf has no gradient or the gradient
    is not strided."""
    if now is None or now.layout != torch.strided:
        return None
    kept = before is now and address(call, now) == at
    old = None if before is None else call.back(before.detach()).clone()
    return Held(tuple(now.stride()), call.back(now.detach()).clone(), kept, old)


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
    """Return (args, kwargs) of a call whose only arguments are the given tensors, for any device."""
    return tuple(tensors), {}
