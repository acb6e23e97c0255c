"""Wrong answers to the calls of the suite, and the clauses that notice them, op by op.

Nothing is run again: each honest answer of the CPU is exchanged for a wrong one where it is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch

from conformance.checks.cells import VALUES, Recorder
from conformance.checks.ops import standalone_checks
from conformance.checks.ops.call_reference import Reference
from conformance.checks.ops.context import OpContext, run_checks
from conformance.checks.ops.script import NotApplicable
from conformance.suites import load
from conformance.suites.precision.bounds import is_exact
from conformance.suites.precision.elementwise import ULP
from conformance.suites.precision.exact_sums import EXACT
from conformance.suites.precision.stale_results import TRUST, others
from conformance.suites.precision.ulps import FORMATS, allowed
from devices.cell import Outcome
from devices.cpu.descriptor import DESCRIPTOR as CPU
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from opinfo.compare import Measured, Wrong, replace_tensors, tensors_of
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.layouts import CONTIGUOUS, uniform
from opinfo.plan import plan_spec
from opinfo.reference import StrideReference, value_answer
from opinfo.samples import choose, draw, probe

#: What results of a dtype are multiplied by, everywhere. Whole numbers become the next, truth values the other.
PARTS = {torch.bfloat16: 1.02, torch.float16: 1.02, torch.complex32: 1.02}
PART = 1.0001

#: Answers that every op is tried with.
GENERAL = ("scaled", "zeros", "a constant", "an operand", "the last result")
#: … that precision.ulp is: errors of so many bounds.
TWICE, HALF = "twice the bound", "half the bound"
ERRORS = {TWICE: 2.0, HALF: 0.5}
#: … and that sums are: one element of an operand is not read, is read twice, or in another's place.
TERMS = ("a term dropped", "a term doubled", "a term misplaced")


OK = {Outcome.PASS, Outcome.UNSUPPORTED, Outcome.AMBIGUOUS}


@dataclass(slots=True)
class Told:
    """Of an op and dtype: what noticed each wrong answer, and how many calls had one that is not the right answer."""

    honest: list[str] = field(default_factory=list)  # clauses that fail without any
    asked: set[str] = field(default_factory=set)  # clauses that judged a call
    given: dict[str, int] = field(default_factory=dict)
    noticed: dict[str, set[str]] = field(default_factory=dict)

    def tell(self, answer: str, clause: str, differs: bool, noticed: bool) -> None:
        self.given[answer] = self.given.get(answer, 0) + differs
        self.noticed.setdefault(answer, set()).update({clause} if noticed else ())

    def passing(self) -> list[str]:
        """The wrong answers that nothing noticed, or that are the right ones in every call; and errors of half the
        bound that something noticed."""
        expected = [*GENERAL, *(TERMS if EXACT in self.asked else ())]
        found = [each for each in expected if each in self.given and not self.noticed[each]]
        if self.given.get(TWICE) and not self.noticed[TWICE]:  # none where results have no bound
            found.append(TWICE)
        return found + ([HALF] if self.noticed.get(HALF) and not self.honest else [])


def told_of(op_id: str, dtype: str) -> Told | None:
    """What the precision suite says of each wrong answer, and layout.values of those that it does not notice; None for
    an op without a result."""
    op, known = catalogue()[op_id], exceptions()
    samples = choose(draw(op, dtype), plan_spec("quick").samples)
    traits = probe(op, dtype, samples, known)
    if not traits.returns:
        return None
    told = Told()
    device, strides = open_device(CPU), StrideReference("cpu", None)
    for suite, wanted in (("precision", (ULP, EXACT, TRUST)), ("layout", (VALUES,))):
        checks = [
            check
            for check in load(suite).op_checks
            if check.clause in wanted
            and check.applies(traits)
            and known.excluded(check.clause, op_id, dtype, fake_only=True) is None
        ]
        if suite == "layout":
            if told.noticed and not set(told.passing()) & set(GENERAL):
                break
            samples = samples_of(op, dtype, plan_spec("quick").samples)
        recorder = Recorder(op_id, dtype, [check.clause for check in checks])
        about = (op, dtype, traits, samples, device, strides, recorder, known)
        context = Trial(*about, cases=(uniform(CONTIGUOUS),))
        context.told = told
        with mock.patch.object(standalone_checks, "run", partial(_directed, standalone_checks.run)):
            run_checks(context, checks)
        told.honest += [c for c, r in recorder.cells.items() if r.outcome() not in OK]
    return told


class Trial(OpContext):
    """A context that asks the judges about wrong answers, too."""

    told: Told

    def judge(
        self,
        judges: Mapping[str, Any],
        procedure: Callable[..., Any],
        given: tuple[Any, ...],
        reference: Reference,
        **more: Any,
    ) -> Any:
        evidence = super().judge(judges, procedure, given, reference, **more)
        if getattr(evidence, "read", None) is None:
            return evidence
        for clause, judge in judges.items():
            if self.recorder.get(clause) is None:
                continue
            self.told.asked.add(clause)
            for name, read in self._wrong(clause, evidence.read, reference):
                differs = not same(read, evidence.read)
                found = judge(type(evidence)(read=read), reference) if differs else ()
                wrong = any(each is not None for each in found)
                self.told.tell(name, clause, differs, wrong)
        return evidence

    def _wrong(self, clause: str, read: Any, reference: Reference) -> Iterator[tuple[str, Any]]:
        sample = reference.laid.sample
        values, kind = sample.tensors, getattr(torch, self.dtype)

        def answer_to(tensors: list[torch.Tensor]) -> Any:
            found = value_answer(
                self.subject.reference, sample.call.on, tensors, mutates=self.mutates
            )
            return None if found.raises is not None else found.result

        if clause == EXACT:
            for name in TERMS:
                for place, each in enumerate(values):
                    if each.dtype == kind and (spoilt := _term(name, each)) is not None:
                        yield name, answer_to([*values[:place], spoilt, *values[place + 1 :]])
            return
        stale = answer_to(others(values, kind))
        yield from general(read, values, stale)
        if clause == ULP and reference.process is None:
            for name, factor in ERRORS.items():
                wants, bound = tensors_of(reference.wide.result), factor * reference.bound
                yield name, _off(read, wants, bound, self.dtype)


def general(read: Any, values: list[torch.Tensor], stale: Any) -> Iterator[tuple[str, Any]]:
    """The wrong answers that every op is tried with."""
    outputs = tensors_of(read)
    if not outputs:
        if isinstance(read, (bool, int, float)):
            yield "scaled", not read if isinstance(read, bool) else read * 1.02
            yield "zeros", type(read)(0)
            yield "the last result", stale
        return
    yield "scaled", replace_tensors(read, scaled)
    yield "zeros", replace_tensors(read, torch.zeros_like)
    if any(each.numel() > 1 and each.layout == torch.strided for each in outputs):
        yield "a constant", replace_tensors(read, constant)
    alike = [each for each in values if each.shape == outputs[0].shape]
    for each in alike or values[:1]:
        yield "an operand", exchanged(read, [each, *outputs[1:]])
    if values and stale is not None:
        yield "the last result", stale


def exchanged(read: Any, outputs: list[torch.Tensor]) -> Any:
    """The result with these tensors in it."""
    rest = iter(outputs)
    return replace_tensors(read, lambda _: next(rest))


def scaled(value: torch.Tensor) -> torch.Tensor:
    """Wrong everywhere by 2 % in 16 bits, and by 1e-4 in others."""
    part = PARTS.get(value.dtype, PART)
    if value.layout != torch.strided:
        return value * part
    if value.dtype == torch.bool:
        return ~value
    if not (value.is_floating_point() or value.is_complex()):
        return value + 1
    wide = torch.complex128 if value.is_complex() else torch.float64
    return (value.to(wide) * part).to(value.dtype)


def constant(value: torch.Tensor) -> torch.Tensor:
    """The first element everywhere."""
    if value.layout != torch.strided or not value.numel():
        return value
    return value.flatten()[:1].expand(value.numel()).reshape(value.shape).clone()


def same(left: Any, right: Any) -> bool:
    """Whether two results are equal: NaN equals NaN."""
    one, other = tensors_of(left), tensors_of(right)
    if not one and not other:
        return bool(left == right)
    return len(one) == len(other) and all(map(_same, one, other))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    if one.dtype.is_complex:
        one, other = one.to(torch.complex128), other.to(torch.complex128)
    one, other = one.to_dense(), other.to_dense()
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _term(name: str, value: torch.Tensor) -> torch.Tensor | None:
    """An operand whose last element that is not zero is lost, doubled, or in the place of one that differs."""
    flat = value.flatten().clone()
    places = flat.nonzero().flatten().tolist()
    if not places:
        return None
    last = places[-1]
    if name == "a term dropped":
        flat[last] = 0
    elif name == "a term doubled":
        flat[last] *= 2
    else:
        differing = (flat != flat[last]).nonzero().flatten().tolist()
        if not differing:
            return None
        flat[[last, differing[0]]] = flat[[differing[0], last]]
    return flat.view(value.shape)


def _off(read: Any, wants: list[torch.Tensor], bound: float, dtype: str) -> Any:
    """The exact results plus so many ulps of the largest element of each output, rounded."""
    outputs, found = tensors_of(read), []
    for got, want in zip(outputs, wants):
        if got.shape != want.shape or not (got.is_floating_point() or got.is_complex()):
            found.append(got)
            continue
        name = str(got.dtype.to_real()).removeprefix("torch.")
        sizes = want.abs().double()
        sizes = sizes[sizes < 2.0 ** FORMATS[dtype][2]]
        if name != dtype or not sizes.numel() or got.layout != torch.strided:
            found.append(got)
            continue
        digits, lowest, _ = FORMATS[name]
        unit = max(float(sizes.max()), 2.0**lowest) * 2.0 ** (1 - digits)
        found.append((want + bound * unit).to(got.dtype))
    return exchanged(read, found)


# -- directed checks: the answer is exchanged in the op that they are given


class Impostor:
    """An op that answers wrongly where it is given a tensor that was moved."""

    def __init__(self, function: Callable[..., Any], make: Callable[..., Any]) -> None:
        self.function, self.make = function, make
        self.moved: list[torch.Tensor] = []
        self.differs = False

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        self.moved.append(tensor.clone())
        return self.moved[-1]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.function(*args, **kwargs)
        given = {id(each) for each in tensors_of((args, kwargs))}
        if not given & {id(each) for each in self.moved}:
            return result
        wrong = self.make(args, kwargs, result)
        self.differs = self.differs or not same(wrong, result)
        return wrong


def _directed(
    honest: Callable[..., bool],
    ctx: Trial,
    clause: str,
    layout: str,
    check: Any,
    *more: Any,
    sample: Any = None,
    **parameters: Any,
) -> bool:
    made = honest(ctx, clause, layout, check, *more, sample=sample, **parameters)
    if not made:
        return False
    ctx.told.asked.add(clause)
    values = [each.clone() for each in sample.tensors] if sample is not None else []
    given = (values, partial(sample.call.on, device=torch.device("cpu"))) if sample else ()

    def asked(make: Callable[..., Any]) -> tuple[Wrong | None, bool]:
        op = Impostor(ctx.subject.function, make)
        try:
            found = check(op, op.move, torch.clone, *given, **parameters)
        except NotApplicable:  # other clauses notice it
            return None, op.differs
        return found.wrong if isinstance(found, Measured) else found, op.differs

    right, _ = asked(lambda args, kwargs, result: result)
    for name, make in _makers(clause, ctx, parameters):
        found, differs = asked(make)
        noticed = found is not None and (right is None or found.count > right.count)
        ctx.told.tell(name, clause, differs, noticed)
    return True


def _makers(
    clause: str, ctx: Trial, parameters: dict[str, Any]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    if clause == TRUST:
        kept: list[Any] = []

        def stale(args: Any, kwargs: Any, result: Any) -> Any:
            kept.append(result)
            return kept[0]

        yield "the last result", stale
        return

    def of_general(name: str, args: Any, kwargs: Any, result: Any) -> Any:
        count = parameters["operands"]
        before = ctx.subject.function(
            *(each.flip(0) for each in args[:count]), *args[count:], **kwargs
        )
        found = dict(general(result, list(args[:count]), before))
        return found.get(name, result)

    def off(factor: float, args: Any, kwargs: Any, result: Any) -> Any:
        count, limit = parameters["operands"], parameters["limit"]
        if not isinstance(result, torch.Tensor) or result.dtype != args[0].dtype:
            return result
        if is_exact(ctx.subject.id):
            bound: Any = 0.0
            want = result.double()
        else:
            wide = [each.double() for each in args[:count]]
            want = ctx.subject.function(*wide, *args[count:], **kwargs)
            bound = allowed(want, list(args[:count]), ctx.dtype, limit)
        if want.dtype != torch.float64:
            return result
        if factor > 1:
            steps: Any = torch.as_tensor(2.0 * bound).ceil().clamp(min=1.0)
        else:
            steps = (torch.as_tensor(factor * bound) - 0.5).floor().clamp(min=0.0)
        digits, lowest, highest = FORMATS[ctx.dtype]
        exponent = torch.frexp(want).exponent.sub(1).clamp(lowest, highest)
        unit = torch.ldexp(torch.ones_like(want), exponent - (digits - 1))
        return (want.to(result.dtype).double() + steps * unit).to(result.dtype)

    for name in GENERAL:
        yield name, partial(of_general, name)
    for name, factor in ERRORS.items():
        yield name, partial(off, factor)
