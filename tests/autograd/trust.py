"""Whether gradients of zeros would be noticed: ``python -m tests.autograd.trust [OP…]`` lists those of which they would
not: first and second gradients, and forward-mode products.

Where zeros pass, values are such that the function is flat, the judge allows too much, or what is given cancels. Of each
gradient two things are asked: that zeros fail in a good part of the elements that are not zero, in one sample or another;
and that they fail in some element of the first sample, which alone is asked for in every layout. Takes two minutes for all
ops.
"""

from __future__ import annotations

import sys
import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from conformance.suites.autograd import higher_order
from conformance.suites.autograd.cpu_gradients import gradients, second_gradients, tangents_of
from conformance.suites.autograd.first_order import FIRST, PLAIN, applies, lays_of
from conformance.suites.autograd.gradients import (
    differentiated,
    differentiated_twice,
    pushed_forward,
)
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


#: Second gradients by an input that are zero, and why that is right.
_LINEAR = "it is linear, between kinks if not everywhere"
SECOND_ZERO: dict[tuple[str, int], str] = {
    **{
        (op, 0): _LINEAR
        for op in (
            *("abs", "copysign", "fmod", "remainder", "__rmod__", "norm.inf"),
            *(
                f"nn.functional.adaptive_{kind}_pool{n}d"
                for kind in ("avg", "max")
                for n in (1, 2, 3)
            ),
            *(f"nn.functional.{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)),
            *(f"nn.functional.fractional_max_pool{n}d" for n in (2, 3)),
            *(
                f"nn.functional.pad.{mode}"
                for mode in ("reflect", "replicate", "replicate_negative")
            ),
            *(
                f"nn.functional.{name}"
                for name in (
                    *("relu", "relu6", "leaky_relu", "rrelu", "threshold", "hardtanh"),
                    *("hardshrink", "softshrink", "interpolate.area", "l1_loss", "nll_loss"),
                )
            ),
        )
    },
    **{
        (op, 1): _LINEAR
        for op in (
            "copysign",
            "fmod",
            "remainder",
            "__rmod__",
            "index_fill",
            "nn.functional.l1_loss",
        )
    },
    ("linalg.norm.subgradients_at_zero", 0): "of zeros, the subgradient is 0",
    **{
        ("scatter_reduce.prod", place): "upstream's first samples have products of one factor"
        for place in (0, 1)
    },
}
FORWARD_ZERO: dict[tuple[str, int], str] = {
    **{(op, 0): why for (op, place), why in ZERO.items() if not place},
    ("linalg.slogdet", 0): "the sign of a determinant is constant between steps",
    ("linalg.lstsq.grad_oriented", 1): "of systems with a solution, the residuals are 0",
}
_POLE = "what is allowed for the rounding of an element beside a pole is allowed for all"
#: Those of which zeros would be noticed in a smaller part, or not in the first sample.
THIN: dict[tuple[str, str, int], str] = {
    **{("second gradient", op, 0): _POLE for op in ("asin", "atanh", "__rdiv__")},
    **{("second gradient", "__rpow__", place): _POLE for place in (0, 2)},
    ("forward-mode product", "__rpow__", 0): _POLE,
    **{
        (form, "special.erfcx", place): "it is below every tolerance for most arguments"
        for form, place in (
            *(("second gradient", 0), ("second gradient", 1)),
            ("forward-mode product", 0),
        )
    },
    ("second gradient", "logcumsumexp", 0): "the largest of upstream's first numbers is alone",
}


class Part(NamedTuple):
    """Of the elements that are not zero, the part of which zeros would be noticed: in the sample in which it is largest, and
    in the first one."""

    best: float
    first: float


#: What is asked for, and those of it of which zeros pass.
FORMS: dict[str, Mapping[tuple[str, int], str]] = {
    "gradient": ChainMap(ZERO, MISSED),
    "second gradient": SECOND_ZERO,
    "forward-mode product": FORWARD_ZERO,
}


def noticed(op: str, form: str = "gradient") -> dict[int, Part]:
    """By number: gradients are those of the inputs that have one (other arguments may stand before them), second gradients
    those by these inputs and then by the cotangents, forward-mode products those of the outputs."""
    found: dict[int, Part] = {}
    for number, (wanted, slack) in enumerate(_asked(Subject(op, DTYPE, run=False), form)):
        with_gradient = (
            (w, s) for w, s in zip(wanted, slack, strict=True) if w is not None and s is not None
        )
        for place, (want, free) in enumerate(with_gradient):
            held = want.to_dense().abs().nan_to_num(0.0, 0.0, 0.0)
            seen = (held > _ZERO) & (held > free.to_dense().nan_to_num(0.0, 0.0, 0.0))
            part = float(seen.sum()) / max(1.0, float((held > 0).sum()))
            # Second gradients and products have another number of outputs in other samples.
            late = number and form == "gradient"
            before = found.get(place, Part(0.0, 0.0 if late else part))
            found[place] = Part(max(before.best, part), before.first)
    return found


_Grads = list[torch.Tensor | None]


def _asked(subject: Subject, form: str) -> Iterator[tuple[_Grads, _Grads]]:
    """What is expected of each sample in its plainest layout, and what is allowed."""
    traits = subject.traits
    context = subject.context([FIRST])
    if form == "gradient":
        for sample in chosen(context) if applies(traits) else ():
            known = known_of(context, sample)
            if known.places and not is_long(sample):
                laid = lays_of(context, sample, [PLAIN])[PLAIN]
                given = (known.places, known.cotangents(PLAIN, laid.geometries))
                parts = known.parts(laid, differentiated, given, gradients)
                yield parts["wants"].value(), parts["slack"].value()
        return
    second = form == "second gradient"
    if not (higher_order.has_second if second else higher_order.has_forward)(traits):
        return
    for known, laid, _, _ in higher_order.laid_out_samples(
        context, [(PLAIN, PLAIN)], higher_order.SAMPLES
    ):
        if second:
            sent = known.cotangents(PLAIN, laid.geometries)
            parts = known.parts(laid, differentiated_twice, (known.places, sent), second_gradients)
        else:
            sent = higher_order.tangents(known, laid, PLAIN)
            parts = known.parts(laid, pushed_forward, (known.places, sent), tangents_of)
        try:
            wanted = parts["wants"].value()
        except RuntimeError:  # the CPU has no such derivative: nothing is judged
            continue
        yield wanted, parts["slack"].value()


def told(op: str, form: str = "gradient") -> list[str]:
    """A line for each gradient that is not as it should be."""
    lines = []
    for place, part in noticed(op, form).items():
        excused = (form, op, place) in THIN if part.best else (op, place) in FORMS[form]
        about = f"{op}: {form} {place}: zeros would be noticed in"
        if excused:
            continue
        if part.best < LEAST:
            lines.append(f"{about} {part.best:.0%} of it")
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
        lines = [line for form in FORMS for line in told(op, form)]
        count += len(lines)
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    right = len(ZERO) + len(SECOND_ZERO) + len(FORWARD_ZERO)
    print(f"{count} gradients of which zeros would hardly be noticed; of {right} zeros are right")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
