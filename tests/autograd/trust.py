"""Whether gradients of zeros would be noticed: ``python -m tests.autograd.trust [OP…]`` lists the inputs of which they
would not.

Where zeros pass, values are such that the function is flat, or the judge allows too much. Of each input two things are
asked: that zeros fail in a good part of the elements whose gradient is not zero, in one sample or another; and that they
fail in some element of the first sample, which alone is asked for in every layout. Takes a minute for all ops.
"""

from __future__ import annotations

import sys
import warnings
from typing import NamedTuple

from conformance.suites.autograd.first import FIRST, PLAIN, applies, lays_of
from conformance.suites.autograd.gradients import differentiated
from conformance.suites.autograd.samples import chosen, is_long, known_of
from opinfo.catalog import catalogue
from tests.mutation.items import Subject

DTYPE = "float32"
#: Of elements that are not zero, the part that must be noticed.
LEAST = 0.3
#: Below this a gradient is zero for the tolerance of float32, which is 1e-5 beside an expected 0.
_ZERO = 1e-5

#: Inputs by which the derivative is zero in every sample, and why that is right.
_STEPS = "it is constant between steps"
ZERO: dict[tuple[str, int], str] = {
    **{
        (op, 0): _STEPS
        for op in ("ceil", "floor", "round", "sgn", "sign", "trunc", "angle", "round.decimals_0")
    },
    **{(f"round.decimals_{digits}", 0): _STEPS for digits in ("3", "neg_3")},
    **{(f"div.{mode}_rounding", place): _STEPS for mode in ("floor", "trunc") for place in (0, 1)},
    ("copysign", 1): "its sign alone matters",
    ("nextafter", 1): "it names a direction",
    ("fill", 0): "it is overwritten",
    ("linalg.norm.subgradients_at_zero", 0): "of zeros, the subgradient is 0",
    ("max_pool2d_with_indices_backward", 0): "the gradient is scattered to places that it names",
}
#: Those of which a gradient is not asked for, though it could be.
MISSED: dict[tuple[str, int], str] = {
    (op, 1): "upstream's first samples with a tensor q have an input of one element"
    for op in ("quantile", "nanquantile")
}


class Part(NamedTuple):
    """Of the elements with a gradient, the part of which zeros would be noticed: in the sample in which it is largest, and in
    the first one."""

    best: float
    first: float


def noticed(op: str) -> dict[int, Part]:
    """Of each input that has a gradient, by its number among these: other arguments may stand before it."""
    subject = Subject(op, DTYPE, run=False)
    found: dict[int, Part] = {}
    if not applies(subject.traits):
        return found
    context = subject.context([FIRST])
    for number, sample in enumerate(chosen(context)):
        known = known_of(context, sample)
        if not known.places or is_long(sample):
            continue
        laid = lays_of(context, sample, [PLAIN])[PLAIN]
        given = (known.places, known.cotangents(PLAIN, laid.geometries))
        parts = known.parts(laid, differentiated, given)
        wanted, slack = parts["wants"].value(), parts["slack"].value()
        with_gradient = (
            (w, s) for w, s in zip(wanted, slack, strict=True) if w is not None and s is not None
        )
        for place, (want, free) in enumerate(with_gradient):
            held = want.abs().nan_to_num(0.0, 0.0, 0.0)
            seen = (held > _ZERO) & (held > free.nan_to_num(0.0, 0.0, 0.0))
            part = float(seen.sum()) / max(1.0, float((held > 0).sum()))
            before = found.get(place, Part(0.0, 0.0 if number else part))
            found[place] = Part(max(before.best, part), before.first)
    return found


def told(op: str) -> list[str]:
    """A line for each input that is not as it should be."""
    lines = []
    for place, part in noticed(op).items():
        flat = not part.best
        if flat and (op, place) in {**ZERO, **MISSED}:
            continue
        about = f"{op}: input {place}: zeros would be noticed in"
        if part.best < LEAST:
            lines.append(f"{about} {part.best:.0%} of the gradient")
        elif not part.first:
            lines.append(f"{about} no element of the first sample")
    return lines


def main(names: list[str]) -> int:
    """The exit status is 1 if there are such inputs."""
    warnings.simplefilter("ignore")
    if unknown := [each for each in names if each not in catalogue()]:
        sys.exit(f"torch's op database has no op {', '.join(unknown)}")
    count = 0
    for op in names or [each.id for each in catalogue().values() if DTYPE in each.gradient_dtypes]:
        lines = told(op)
        count += len(lines)
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    print(f"{count} inputs of which zeros would hardly be noticed; of {len(ZERO)} zeros are right")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
