"""Whether gradients of zeros would be noticed: ``python -m tests.autograd.trust [OP…]`` lists the inputs of which they
would not.

Of each input, the sample is looked at in which zeros would fail in the largest part of the elements whose gradient is not
zero. Where that part is small, values are such that the function is flat, or the judge allows too much. Takes a minute and
a half for all ops.
"""

from __future__ import annotations

import sys
import warnings

import torch

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


def noticed(op: str) -> dict[int, float]:
    """Of each input of an op, by its place, the part of the elements with a gradient of which zeros would be noticed.

    Without inputs whose gradient is zero in all samples.
    """
    subject = Subject(op, DTYPE, run=False)
    found: dict[int, float] = {}
    if not applies(subject.traits):
        return found
    context = subject.context([FIRST])
    for sample in chosen(context):
        known = known_of(context, sample)
        if not known.places or is_long(sample):
            continue
        laid = lays_of(context, sample, [PLAIN])[PLAIN]
        given = (known.places, known.cotangents(PLAIN, laid.geometries))
        parts = known.parts(laid, differentiated, given)
        wanted, slack = parts["wants"].value(), parts["slack"].value()
        for place, want, free in zip(known.places, wanted, slack, strict=True):
            held = want.abs().nan_to_num(0.0, 0.0, 0.0) if want is not None else torch.zeros(1)
            if bool(held.any()):
                seen = (held > _ZERO) & (held > free.nan_to_num(0.0, 0.0, 0.0))
                part = float(seen.sum()) / float((held > 0).sum())
                found[place] = max(found.get(place, 0.0), part)
    return found


def main(names: list[str]) -> int:
    """The exit status is 1 if there are such inputs."""
    warnings.simplefilter("ignore")
    if unknown := [each for each in names if each not in catalogue()]:
        sys.exit(f"torch's op database has no op {', '.join(unknown)}")
    flat = 0
    for op in names or [each.id for each in catalogue().values() if DTYPE in each.gradient_dtypes]:
        for place, part in noticed(op).items():
            if part < LEAST:
                flat += 1
                print(f"{op}: input {place}: {part:.0%} of the gradient", flush=True)
    print(f"{flat} inputs of which zeros would hardly be noticed")
    return min(flat, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
