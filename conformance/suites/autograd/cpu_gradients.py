"""Gradients and derivatives that the CPU computes and that serve as references, and the rounding errors that a device
may add to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch

from conformance.checks.ops.calls import Invocation, laid_out, repeated
from conformance.checks.ops.roundings import (
    DRAWS,
    FACTOR,
    ROUNDING,
    jolted,
    off,
    wider,
)
from conformance.suites.autograd.gradients import (
    Arguments,
    Cotangent,
    Gradients,
    Grads,
    Values,
    forward_over_reverse,
    gradients_of_gradients,
    held_by,
    leaves_of,
    products,
    seen,
)
from opinfo.compare import tensors_of
from opinfo.guarded import Guarded, identity
from opinfo.layouts import Geometry

#: Relative error of one rounding in float32, the dtype in which sums are accumulated.
_ACCUMULATED = 2.0**-24


def as_the_cpu_does(
    procedure: Callable[..., Gradients],
    call: Invocation,
    geometries: Sequence[Geometry | None],
    *given: Any,
) -> Gradients:
    """Run ``procedure`` on eager CPU, with inputs and cotangents in the same layouts as on the device, and return
    the gradients. All devices share the derivative formulas, so an error that eager CPU makes too is not counted as
    a fault of the device."""
    there = laid_out(call.values, geometries, identity)
    host = replace(call, inputs=there, device=torch.device("cpu"), guarded=Guarded)
    host = replace(host, move=identity, back=identity, settle=identity)  # type: ignore[arg-type]
    return procedure(host, *given)


#: One entry for each output: a cotangent, its values, or None for an output without a cotangent.
Sent: TypeAlias = Sequence[Cotangent | torch.Tensor | None]


def on_cpu(cotangents: Sent, outputs: Sequence[torch.Tensor]) -> Grads:
    """Return the cotangents as contiguous CPU tensors in the dtypes of the outputs."""
    pairs = zip(cotangents, outputs, strict=True)
    return [
        None if each is None else _values_of(each).contiguous().to(output.dtype)
        for each, output in pairs
    ]


def _values_of(cotangent: Cotangent | torch.Tensor) -> torch.Tensor:
    """Return the values of a cotangent, expanded and conjugated, as a CPU tensor. Callers must not write to it."""
    if isinstance(cotangent, torch.Tensor):
        return cotangent
    (held,) = repeated([held_by(cotangent)], [cotangent.geometry])
    return seen(held, cotangent).resolve_conj()


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

    def ends(self, cotangents: Sent) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the outputs that require a gradient and have a cotangent, and the cotangents of these outputs."""
        pairs = zip(self.outputs, on_cpu(cotangents, self.outputs))
        found = [(o, c) for o, c in pairs if c is not None and o.requires_grad]
        return [output for output, _ in found], [each for _, each in found]

    def grads(self, cotangents: Sent) -> Grads:
        """Return the gradients of the inputs at ``places``; None for an input that has no gradient. Exceptions
        of backward are not caught."""
        ends, given = self.ends(cotangents)
        if not ends:
            return [None] * len(self.places)
        return list(
            torch.autograd.grad(ends, self.starts, given, retain_graph=True, allow_unused=True)
        )


def gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Sent,
    wide: bool = True,
) -> Grads:
    """Return the gradients of the inputs at ``places``, computed on the CPU."""
    return Graph(function, arguments, values, places, wide=wide).grads(cotangents)


def second_gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Sent,
    wide: bool = True,
) -> Grads:
    """Return the second gradients computed on the CPU: the gradients of the first gradients with respect to the
    inputs at ``places`` and then with respect to the cotangents, in the order of ``differentiated_twice``."""
    graph = Graph(function, arguments, values, places, wide=wide)
    ends, given = graph.ends(cotangents)
    given = leaves_of(given, range(len(given)))
    with torch.enable_grad():
        first = torch.autograd.grad(ends, graph.starts, given, create_graph=True, allow_unused=True)
        return list(gradients_of_gradients(first, [*graph.starts, *given], identity))


def tangents_of(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Sent,
    wide: bool = True,
) -> Grads:
    """Return the forward-mode derivative of each output, computed on the CPU for the tangents ``cotangents`` of the
    inputs at ``places``."""
    copies = [wider(v) if wide else v.detach().clone() for v in values]
    given = [each for each in on_cpu(cotangents, [copies[p] for p in places]) if each is not None]
    return products(function, arguments, copies, places, given, torch.device("cpu"))


def tangents_of_gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    sent: Sent,
    wide: bool = True,
) -> Grads:
    """Return the forward-mode derivative of each gradient, computed on the CPU. ``sent`` holds the tangents of the inputs at
    ``places``, then the cotangents of the outputs."""
    graph = Graph(function, arguments, values, places, wide=wide)
    like = [*graph.starts, *graph.outputs]
    tensors = [each.detach() for each in graph.leaves]
    device = torch.device("cpu")
    return forward_over_reverse(function, arguments, tensors, places, on_cpu(sent, like), device)


def gradients_in_batch(
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Sent,
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
    cotangents: Sent,
    epsilon: float,
    fixed: Collection[int] = (),
    draws: int = DRAWS,
) -> Grads:
    """Return the accepted error of each tensor that ``compute`` returns, element by element. The error is the sum of:

    - a multiple of the largest change of the element when each input value and each element of the cotangents is changed by
      a relative error of at least half of ``epsilon`` and at most ``epsilon``. A gradient is a sum of terms that are each
      proportional to an element of a cotangent, so a change of that element is a rounding error of its terms, which may be
      far larger than their sum,
    - a multiple of the CPU's largest error in the dtype of the inputs, but at most the largest error that counts as a
      rounding error (``ROUNDING``). The error is measured for the values and, with ``draws``, for the changed ones too:
      where terms cancel, the CPU's errors may cancel as well for some values, such as equal ones,
    - one rounding error times the sum of the cotangents' magnitudes, divided by the number of elements of the tensor,
      because a device may add the terms in another order than the CPU.

    Inputs at the ``fixed`` places, such as labels, are not changed. The inputs and cotangents are changed ``draws`` times at
    random; fewer draws give a smaller result and take less time.
    """
    about = (function, arguments)
    exact = compute(*about, values, places, cotangents)
    source = torch.Generator().manual_seed(0)
    jolt = partial(jolted, epsilon=epsilon, source=source)
    largest: Grads = [None if each is None else each.abs() * 0 for each in exact]
    errors = _errors(compute(*about, values, places, cotangents, False), exact)
    for _ in range(draws):
        given = [v if n in fixed else jolt(wider(v)) for n, v in enumerate(values)]
        sent_to = [None if each is None else jolt(wider(_values_of(each))) for each in cotangents]
        _raise_to_change(largest, exact, compute(*about, given, places, sent_to))
        near = [v if n in fixed else g.to(v.dtype) for n, (g, v) in enumerate(zip(given, values))]
        rounded = [None if each is None else each.to(_narrow(each)) for each in sent_to]
        narrow = compute(*about, near, places, rounded, False)
        errors = list(map(max, errors, _errors(narrow, compute(*about, near, places, rounded))))
    sent = sum(float(_values_of(each).abs().sum()) for each in cotangents if each is not None)
    for place, (want, error) in enumerate(zip(exact, errors)):
        held = largest[place]
        if want is not None and held is not None and want.numel():
            scale = max(sent, float(want.abs().nan_to_num(0.0, 0.0, 0.0).max()))
            added = min(epsilon, _ACCUMULATED) * sent / want.numel()
            largest[place] = held * FACTOR + min(FACTOR * error, ROUNDING * scale) + added
    return largest


def _raise_to_change(largest: Grads, exact: Grads, moved: Grads) -> None:
    """Raises each element of ``largest`` to the difference between ``exact`` and ``moved``, if that is larger."""
    for place, (before, after) in enumerate(zip(exact, moved)):
        held = largest[place]
        if before is not None and after is not None and held is not None:
            largest[place] = torch.maximum(held, off(after, before))


def changed_by_roundings(
    compute: Compute,
    function: Callable[..., Any],
    arguments: Arguments,
    values: Values,
    places: Sequence[int],
    cotangents: Sent,
    epsilon: float,
    factor: float,
    fixed: Collection[int] = (),
) -> Grads:
    """Return ``factor`` times the largest change of each element of the tensors that ``compute`` returns, when each input
    value, each element of the cotangents and each element that is saved for backward, such as a result, is changed by one
    rounding of relative size ``epsilon`` (at random, three times). The CPU's own errors do not count."""
    about = (function, arguments)
    exact = compute(*about, values, places, cotangents)
    source = torch.Generator().manual_seed(0)
    jolt = partial(jolted, epsilon=epsilon, source=source)
    largest: Grads = [None if each is None else each.abs() * 0 for each in exact]
    for _ in range(DRAWS):
        given = [v if n in fixed else jolt(wider(v)) for n, v in enumerate(values)]
        sent = [None if each is None else jolt(wider(_values_of(each))) for each in cotangents]
        with torch.autograd.graph.saved_tensors_hooks(jolt, identity):
            moved = compute(*about, given, places, sent)
        _raise_to_change(largest, exact, moved)
    return [None if each is None else each * factor for each in largest]


def _errors(found: Grads, exact: Grads) -> list[float]:
    """Return the largest error of each tensor; 0 for a gradient that is None or empty."""
    pairs = zip(found, exact)
    return [
        float(off(got, want).max())
        if got is not None and want is not None and want.numel()
        else 0.0
        for got, want in pairs
    ]


def _narrow(cotangent: torch.Tensor) -> torch.dtype:
    return torch.complex64 if cotangent.is_complex() else torch.float32
