"""Compares the gradients of a device with those of the CPU, and finds changed inputs and cotangents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import torch

from conformance.checks.ops.calls import Found, ReferenceParts
from conformance.suites.autograd.gradients import Gradients
from opinfo.compare import SUM_ROUNDINGS, Wrong, raised, tensor_difference
from opinfo.guarded import Damage


def changed(evidence: Gradients, mutable: Collection[int]) -> list[tuple[str, Damage]]:
    """Return a (name, damage) pair for each cotangent whose memory backward changed, and for each input that was
    changed although it is not in ``mutable``, the positions of the inputs that the call updates."""
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


def judge_gradients(
    evidence: Gradients, reference: ReferenceParts, forgiving: bool = True
) -> Found:
    """Check the values, shape, dtype and device of each gradient against the reference, and check that backward changed
    no input and no cotangent.

    A gradient that is None in the reference may be None or zeros. A device that raises an exception passes if eager CPU
    raises for the same layouts too, and a gradient that differs from the reference passes if eager CPU computes the
    same gradient and ``forgiving`` is true. If the op may select any of several equal elements, the sum of the gradients of these elements is
    compared.
    """
    if evidence.unjudged is not None or evidence.unchanged:
        return
    if evidence.raised is not None:
        alike = reference.alike
        refused = alike is not None and alike.raised is not None
        expected = "gradients, because the CPU computes gradients for the same call"
        yield None if refused else raised(evidence.raised, expected)
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
        if wrong is not None and forgiving:
            alike = reference.alike
            if alike is not None and alike.raised is None and alike.read:
                same = judge(over(got), over(alike.read[place]))
                wrong = wrong if same is not None else None
        yield wrong.about(reference.subjects[place]) if wrong is not None else None
    for place, (found, device) in enumerate(zip(evidence.found_on, evidence.devices)):
        if found is not None and found != device:
            yield Wrong("device", device, found, reference.subjects[place])
    for subject, damage in changed(evidence, reference.mutable):
        yield Wrong("bytes", "no change by backward", str(damage), subject)


def judge_gradients_of_kernels(evidence: Gradients, reference: ReferenceParts) -> Found:
    """Check gradients as ``judge_gradients`` does, but do not accept a gradient that differs from the reference because
    eager CPU computes the same gradient: kernels of the CPU may misread strides, too."""
    yield from judge_gradients(evidence, reference, forgiving=False)


def least_of(reference: ReferenceParts, place: int) -> torch.Tensor | None:
    """Return a lower estimate of the accepted rounding error of gradient number ``place``. The estimate takes less
    than half the time of :func:`slack_of`, and most correct gradients differ from the reference by less than the
    estimate."""
    return summed(reference.least[place], reference.shared.get(place))


def slack_of(reference: ReferenceParts, place: int) -> torch.Tensor | None:
    """Return the accepted rounding error of each element of gradient number ``place``."""
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
    None. A gradient that is None counts as zeros. The functions in ``slacks`` return accepted errors in ascending
    order. Each of them is called only if the difference exceeds the errors that the functions before it returned."""
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
