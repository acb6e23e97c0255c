"""The framework for checks of ops: holds one op and dtype with its samples, makes calls, and judges their results.

A check has three parts. The *call* is data: a function, its arguments, and a geometry (shape, strides and offset) for
each tensor. A *procedure* makes the call and collects the *evidence*: what the device returned or raised, and what the
call left in memory. A *judge* is a function ``(evidence, reference)`` that judges one clause: for each comparison it
yields a fault or None. The framework makes each call once, passes the evidence to every judge whose clause is selected,
and counts the checks. The framework does not depend on clauses, and judges see no device, so that a verdict does not
depend on which other clauses are judged.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch

from conformance.checks.call_hooks import INPUTS, UNWATCHED, Guard, allows
from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import VALUES, VARIANTS, CellRecord, Recorder, Unread
from conformance.checks.ops.call_reference import NO_ANSWER, Part, Reference
from conformance.checks.ops.call_script import CallScript
from conformance.checks.ops.calls import (
    Ambiguous,
    Invocation,
    Judge,
    Laid,
    Unjudged,
    repeated,
)
from conformance.checks.ops.failures import failed, from_device, spoken, traced
from conformance.checks.ops.judgements import Judgement
from conformance.checks.ops.modes import EAGER, Mode
from conformance.checks.ops.roundings import exact_answer
from devices.cell import CallKey
from devices.errors import in_a_line
from devices.failure import Failure
from opinfo.compare import DEFAULT_TOLERANCES
from opinfo.determinate_calls import all_differ, draws_random_numbers
from opinfo.device import Device
from opinfo.exceptions import Exceptions
from opinfo.guarded import ByValues, Guarded
from opinfo.layouts import (
    CONTIGUOUS,
    RECORDED,
    AnyLayout,
    Geometry,
    LayoutCase,
    Operand,
    Placed,
    covering,
    covering_set,
    distinct,
    geometries_of,
    uniform,
)
from opinfo.reference import (
    StrideAnswer,
    StrideOracle,
    StrideReference,
    ValueAnswer,
    ieee,
    value_answer,
)
from opinfo.samples import Sample, Traits, choose, direct_seeding, expand_rule, expandable, mutates
from opinfo.subject import Subject
from opinfo.written_tensors import written_tensors

#: Samples up to this size keep their buffers and references for all clauses of an item.
_KEPT_BYTES = 2**18
#: Buffers of larger samples are dropped between two cases once they hold this many bytes: some devices have
#: little memory.
_MOST_BYTES = 2**23


class NotPlaced(Exception):
    """The exception raised if a tensor could not be copied to the device, so the clauses that need it cannot be checked."""

    def __init__(self, cause: Exception, dtype: torch.dtype) -> None:
        super().__init__(f"copying an input to the device raised {in_a_line(cause)}")
        self.cause, self.dtype = cause, str(dtype).removeprefix("torch.")


class EndsProcess(Exception):
    """The exception raised if the next step ended a process in an earlier attempt, so that the step is not repeated."""


#: The largest tolerance, relative and absolute, that torch's database may set for float32 gradients.
_MOST_OF_GRADIENTS = 1e-5


def _error(evidence: Any) -> Exception | None:
    """Returns the exception that the call or a step after it raised; None if there is none."""
    return getattr(evidence, "raised", None) or getattr(evidence, "unjudged", None)


def _unread(evidence: Any, error: Exception) -> Unread:
    """Returns the record of a call whose result could not be judged, with the clause that judges the exception: the
    clause that the evidence names, otherwise layout.variants for calls with ``out=`` and layout.values for all other
    calls."""
    of_calls = VARIANTS if getattr(evidence, "targets", ()) else VALUES
    return Unread.of(error, getattr(evidence, "judged_by", "") or of_calls)


@dataclass
class OpContext:
    """Everything that the checks of one op and dtype need: samples, device, references and records. The tensors of a
    sample are built once and shared by all checks."""

    subject: Subject
    dtype: str
    traits: Traits
    samples: list[Sample]
    device: Device
    strides: StrideReference
    recorder: Recorder
    known: Exceptions
    guard: Guard = UNWATCHED
    mode: Mode = EAGER  # how the calls of the item are executed
    cases: tuple[LayoutCase, ...] = field(default_factory=lambda: covering_set().cases)
    targets: tuple[AnyLayout, ...] = field(default_factory=lambda: covering_set().targets)
    grad: bool = False  # True while checks that record gradients run
    seconds: float = 0.0  # the least time limit of the checks that run
    scripts: dict[str, Any] | None = None  # script of each clause's first judged call, if wanted
    makes: bool = True  # False: calls are not made, only their scripts are recorded
    judgements: list[Judgement] | None = None  # of all calls, if wanted
    kept: dict[Any, Any] = field(default_factory=dict)  # data that checks share with each other
    _built: dict[tuple[int, int, int], Guarded] = field(default_factory=dict)
    _held: int = 0  # upper bound of the bytes in _built
    # for each sample and set of layouts: the cases that differ
    _distinct: dict[Any, list[Placed]] = field(default_factory=dict)
    _values: dict[tuple[int, tuple[int | None, ...]], ValueAnswer] = field(default_factory=dict)
    _apart: dict[tuple[int, int | None], bool] = field(default_factory=dict)
    _draws: dict[int, bool] = field(
        default_factory=dict
    )  # by sample: whether the CPU draws numbers

    def __post_init__(self) -> None:
        self._rule = expand_rule(self.traits.families)
        self.guarded = Guarded if self.device.lays_out else ByValues
        capabilities = self.device.descriptor.capabilities
        self._storage, self._pointers = "storage" in capabilities, "pointers" in capabilities
        self.mutates = mutates(self.traits.families)
        kind: torch.dtype = getattr(torch, self.dtype)
        self.has_exact = kind.is_floating_point or kind.is_complex

    @property
    def variant(self) -> str:
        """The variant of the cells in which the checks record their results; empty for most cells."""
        return self.recorder.variant

    @property
    def reference_name(self) -> str:
        """The name of the op's reference in a repro script: "op" if the reference is the function under test, otherwise
        "reference_op"."""
        return "op" if self.subject.reference is self.subject.function else "reference_op"

    @property
    def common(self) -> list[Sample]:
        """The samples for all checks. Samples with ``reads_only``, which are only for calls that write to no argument,
        are left out."""
        return [sample for sample in self.samples if not sample.reads_only]

    # -- recording

    @contextmanager
    def running(self, *clauses: str) -> Iterator[CellRecord]:
        """Returns a context manager that guards the checks of clauses which share their calls, and yields the record of
        the first selected clause. The time of the block is divided among the clauses.

        An exception of the device in a step of the check ends the clauses: NotImplementedError makes them unsupported;
        any other exception marks them as blocked by the clause that checks that step. An exception of this project's
        code is an error of the cells. In each case the run continues with the next clauses.
        """
        wanted = [record for record in map(self.recorder.get, clauses) if record is not None]
        self.guard.begin(clauses, wanted, self.seconds)
        start = time.perf_counter()
        try:
            yield wanted[0]
            self.device.synchronise()  # a late exception belongs to these clauses
        except EndsProcess:
            pass  # the failure was recorded when the process ended
        except NotPlaced as exc:
            for record in wanted:
                if isinstance(exc.cause, NotImplementedError):
                    record.refuse(exc.cause)
                elif exc.dtype in self.device.descriptor.dtypes:
                    record.block("device.capability", str(exc), spoken(exc.cause))
                else:
                    why = f"an input has dtype {exc.dtype}, which the descriptor does not declare"
                    record.pass_over(why)
        except Exception as exc:  # from the device or from this project's code; neither passes
            for record in wanted:
                if isinstance(exc, NotImplementedError):
                    record.refuse(exc)
                elif from_device(exc):
                    record.block(VALUES, traced(exc), spoken(exc))
                else:
                    record.error(traced(exc))
        finally:
            for record in wanted:
                record.seconds += (time.perf_counter() - start) / len(wanted)
            self.guard.end()

    # -- inputs

    def laid_out(self, sample: Sample, only: frozenset[str] | None = None) -> Iterator[Laid]:
        """Yields the sample on the device, once in each different layout of the covering set (the layouts that every
        plan uses), or in the layouts that the sample names. With ``only``, yields just the layouts with these names."""
        key = sample.index, sample.layouts
        if key not in self._distinct:
            self._distinct[key] = self._cases_of(sample)
        for case, geometries in self._distinct[key]:
            if only is not None and case.id not in only:
                continue
            if not self.guard.call(CallKey(sample.index, case.id)):
                continue  # the call ended a process before, which was recorded then
            yield self.lay(sample, case, geometries)

    def _cases_of(self, sample: Sample) -> list[Placed]:
        recorded: list[Placed] = []
        if sample.geometries is not None:
            recorded.append((RECORDED, sample.geometries))
        return [*recorded, *self._covering(sample)]

    def _covering(self, sample: Sample) -> list[Placed]:
        operands, fitting = self._operands(sample), sample.layouts
        if self.device.lays_out and self.cases is covering_set().cases:
            return covering(operands, fitting)
        fits = (c for c in self.cases if fitting is None or c.id in fitting)
        # Layouts that the descriptor excludes are left out, as in the plan.
        return distinct((c for c in fits if self.device.takes(c.id)), operands)

    def mutable_inputs(self, sample: Sample) -> frozenset[int]:
        """Returns the positions of the tensors that the call may change (see ``written_tensors``)."""
        return written_tensors(self.subject, self.traits.families, sample.call)

    def geometries(self, sample: Sample, case: LayoutCase) -> tuple[Geometry, ...]:
        """Returns the geometry (shape, strides and offset) of each of the sample's tensors in a layout case."""
        return geometries_of(case, self._operands(sample))

    def _operands(self, sample: Sample) -> tuple[Operand, ...]:
        """Returns the sample's tensors as operands, from which a layout case computes geometries. Tensors that the call
        may write to are never expanded."""
        mutable = self.mutable_inputs(sample)
        return tuple(
            Operand(
                tuple(t.shape),
                0 if place in mutable else expandable(self._rule, t),
                t.layout == torch.strided,
            )
            for place, t in enumerate(sample.tensors)
        )

    def lay(
        self, sample: Sample, case: LayoutCase, geometries: tuple[Geometry, ...] | None = None
    ) -> Laid:
        geometries = geometries or self.geometries(sample, case)
        if self._held > _MOST_BYTES:
            self._built.clear()
            self._held = 0
        inputs: list[Guarded | torch.Tensor] = []
        for place, (tensor, geometry) in enumerate(zip(sample.tensors, geometries, strict=True)):
            if tensor.layout != torch.strided:
                inputs.append(self.place(tensor))
                continue
            key = (sample.index, place, id(geometry))
            if key not in self._built:
                self._built[key] = self.guarded(tensor, geometry, self.place)
                self._held += len(self._built[key].before)  # released buffers count too
            inputs.append(self._built[key])
        return Laid(sample, case, geometries, inputs)

    def laid_contiguous(self, sample: Sample) -> Laid:
        """Returns the sample on the device with every tensor contiguous. Raises EndsProcess if an earlier attempt to
        lay out this sample ended a process."""
        return self.laid_as(sample, uniform(CONTIGUOUS))

    def laid_first(self, sample: Sample) -> Laid:
        """Returns the sample on the device in the layouts of ``cases[0]``, the first layout case. Raises EndsProcess if
        an earlier attempt to lay out this sample ended a process."""
        return self.laid_as(sample, self.cases[0])

    def laid_as(self, sample: Sample, case: LayoutCase) -> Laid:
        """Returns the sample on the device in the layouts of a layout case. Raises EndsProcess if an earlier attempt to
        lay out this sample ended a process."""
        if not self.guard.call(CallKey(sample.index, INPUTS)):
            raise EndsProcess
        return self.lay(sample, case)

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of a CPU tensor on the device. Raises NotPlaced if the copy fails or changes the dtype."""
        try:
            there = self.device.to_device(tensor)
        except Exception as exc:  # a vendor's copy may raise anything
            raise NotPlaced(exc, tensor.dtype) from exc
        if there.dtype != tensor.dtype:  # some devices silently narrow dtypes that they lack
            error = TypeError(f"the copy of a {tensor.dtype} tensor has dtype {there.dtype}")
            raise NotPlaced(error, tensor.dtype)
        return there

    def release(self, sample: Sample) -> None:
        """Drops a sample's buffers and references if they are too large to keep for the next clause. Small buffers are
        kept, because allocating new pages costs more than copying into used ones."""
        if sum(t.numel() * t.element_size() for t in sample.tensors) > _KEPT_BYTES:
            self.rebuild(sample)
            self._values = {k: v for k, v in self._values.items() if k[0] != sample.index}

    def rebuild(self, sample: Sample) -> None:
        """Drops the buffers of a sample, so that the next check builds new ones, for example because a call may have
        resized the tensors."""
        self._built = {k: v for k, v in self._built.items() if k[0] != sample.index}

    # -- calls

    def call(
        self, laid: Laid, function: Callable[..., Any] | None = None, mode: Mode | None = None
    ) -> Invocation:
        """Returns the call of the op, or of ``function`` if given, on these tensors. It is executed in ``mode``, by
        default the mode of this context."""
        sample, device, mode = laid.sample, self.device, mode or self.mode
        eager = function or self.subject.function
        return Invocation(
            function=mode.applied(eager),
            arguments=sample.call.on,
            values=sample.tensors,
            inputs=laid.inputs,
            device=device.torch_device,
            move=self.place,
            back=device.from_device,
            settle=device.settle,
            guarded=self.guarded,
            strides=self.device.lays_out,
            storage=self._storage,
            pointers=self._pointers,
            eager=None if mode is EAGER else eager,
        )

    def judge(
        self,
        judges: Mapping[str, Judge],
        procedure: Callable[..., Any],
        given: tuple[Any, ...],
        reference: Reference,
        *,
        function: Callable[..., Any] | None = None,
        layout: str = "",
        check: str = "",
        refusable: bool = True,
        mode: Mode | None = None,
    ) -> Any:
        """Makes the call of the op, or of ``function``, by ``procedure(call, *given)``, and judges its result with
        ``judges``, which maps clauses to judges. Faults are recorded in the clauses' cells. Returns the evidence; None
        if no clause of ``judges`` is selected, or if the call ended a process in an earlier attempt.

        ``layout`` is the layout name to record, by default the name of the inputs' layout. ``check`` is the sort of
        check to record (see ``devices.failure.Failure``), by default ``layout`` if it is given, otherwise "inputs". If
        ``refusable``, NotImplementedError means that the device does not implement the call. ``mode`` is the mode of
        the call, by default the mode of this context.
        """
        sample, check = reference.laid.sample, check or layout or "inputs"
        layout = layout or reference.laid.case.id
        wanted = [
            (clause, judge, record)
            for clause, judge in judges.items()
            if (record := self.recorder.get(clause)) is not None
        ]
        if not wanted or not self.guard.call(CallKey(sample.index, layout), judges):
            return None
        mode = mode or self.mode
        call = self.call(reference.laid, function, mode)
        if not self.makes and self.scripts is not None:
            self.scripts.clear()  # drop the scripts of earlier calls
            for clause, judge, _ in wanted:
                about = (clause, judge, call, mode, procedure, given, reference, layout)
                self.scripts.setdefault(clause, CallScript(self, *about))
            return None
        evidence = procedure(call, *given)
        if _error(evidence) is not None and (why := self.asks_undeclared(sample)):
            for _, _, record in wanted:
                record.pass_over(why)
            return evidence
        refused = getattr(evidence, "raised", None) if refusable else None
        for clause, judge, record in wanted:
            judged, error = False, _error(evidence)
            if self.judgements is not None:
                judgement = Judgement(clause, judge, evidence, reference, layout, sample.index)
                self.judgements.append(judgement.frozen())
            self.guard.judging(clause)
            for found in judge(evidence, reference):
                if isinstance(found, Unjudged):
                    error = found.error
                    continue
                judged = True
                record.check(sample.index, layout)
                if found is None and self.scripts is None:
                    continue
                script = CallScript(
                    self, clause, judge, call, mode, procedure, given, reference, layout
                )
                if self.scripts is not None:
                    self.scripts.setdefault(clause, script)
                if isinstance(found, Ambiguous):
                    record.ambiguous.append(f"[{layout}] {found.text}")
                elif isinstance(refused, NotImplementedError) and found and found.kind == "raised":
                    record.refuse(refused)
                elif found is not None:
                    record.fail(failed(found, layout, sample.numel, script, script.complete, check))
            # An exception that the CPU raises too does not keep the cell from passing.
            if not judged and error is not None and reference.value.raises is None:
                record.unread = record.unread or _unread(evidence, error)
        return evidence

    def asks_undeclared(self, sample: Sample) -> str:
        """Returns the reason why the device may refuse a call: an argument is a dtype that the descriptor does not
        declare. Empty if every dtype argument is declared."""
        named = (*sample.call.args, *sample.call.kwargs.values())
        for each in named:
            if isinstance(each, torch.dtype):
                name = str(each).removeprefix("torch.")
                if name not in self.device.descriptor.dtypes:
                    return f"the dtype argument of a call is {name}, which the descriptor does not declare"
        return ""

    # -- references

    def expected(self, laid: Laid) -> ValueAnswer:
        """Returns the CPU's result for the values that the inputs have in this layout. (In an expanded input, some
        values are repeated.)"""
        key = (laid.sample.index, tuple(g.expanded for g in laid.geometries))
        if key not in self._values:
            values = repeated(laid.sample.tensors, laid.geometries)
            self._values[key] = value_answer(
                self.subject.reference, laid.sample.call.on, values, mutates=self.mutates
            )
        return self._values[key]

    def apart(self, laid: Laid) -> bool:
        """Returns True if all elements of the first operand have different values in this layout. (In an expanded
        operand, some values are repeated.)"""
        key = (laid.sample.index, laid.geometries[0].expanded)
        if key not in self._apart:
            (first, *_) = repeated(laid.sample.tensors[:1], laid.geometries[:1])
            self._apart[key] = all_differ(first)
        return self._apart[key]

    def is_free(self, sample: Sample) -> bool:
        """Returns True if the inputs of a call do not determine the values of its result. Of an op that draws random numbers,
        they do in calls for which the CPU draws none, except for recorded calls."""
        families = self.traits.families
        if "values.free" not in families:
            return False
        if "values.uninitialized" in families or self.traits.recorded:
            return True
        if sample.index not in self._draws:
            self._draws[sample.index] = draws_random_numbers(self.subject, sample.call)
        return self._draws[sample.index]

    def answer_for(
        self, sample: Sample, make: Callable[..., Any], *given: Any, mutates: bool = False
    ) -> Part:
        """Returns a part of a Reference that computes the CPU's result for the tensors ``make(values, *given)`` when
        the part is first read."""
        values = ", ".join(["values", *map(repr, given)])
        more = ", mutates=True" if mutates else ""

        def answer() -> ValueAnswer:
            made = make(sample.tensors, *given)
            return value_answer(self.subject.reference, sample.call.on, made, mutates=mutates)

        code = f"value_answer({self.reference_name}, arguments, {make.__name__}({values}){more})"
        return Part(cache(answer), code, (value_answer, make))

    def exact_for(self, sample: Sample, make: Callable[..., Any], *given: Any) -> Part:
        """Returns a part of a Reference that computes the CPU's float64 result for the tensors ``make(values, *given)``
        when the part is first read."""
        if not self.has_exact:
            return Part(NO_ANSWER, "ValueAnswer(None)", (ValueAnswer,))

        def answer() -> ValueAnswer:
            return exact_answer(
                self.subject.reference, sample.call.on, make(sample.tensors, *given)
            )

        values = ", ".join(["values", *map(repr, given)])
        code = f"exact_answer({self.reference_name}, arguments, {make.__name__}({values}))"
        return Part(answer, code, (exact_answer, make))

    def stride_answer(
        self,
        laid: Laid,
        function: Callable[..., Any] | None = None,
        variant: str = "",
        *,
        where: StrideOracle = "device",
    ) -> StrideAnswer:
        return self.strides.answer(
            f"{self.subject.id}{variant}",
            function or self.subject.reference,
            laid.sample.call,
            laid.geometries,
            with_offset=self.traits.declares_view,
            where=where,
        )

    @cached_property
    def tolerances(self) -> dict[str, tuple[float, float]]:
        """The tolerances (rtol, atol) by dtype. The descriptor's values take precedence over those of torch's database,
        which take precedence over the defaults."""
        found = dict(DEFAULT_TOLERANCES)
        if (own := self.subject.tolerance(self.dtype, self.device.torch_device.type)) is not None:
            component = {"complex64": "float32", "complex128": "float64"}
            found |= {self.dtype: own, component.get(self.dtype, self.dtype): own}
        given = self.device.descriptor.tolerances
        return found | {name: (each.rtol, each.atol) for name, each in given.items()}

    @cached_property
    def gradient_tolerances(self) -> dict[str, tuple[float, float]]:
        """The tolerances (rtol, atol) of gradients by dtype. The reference has higher precision and accounts for
        rounding errors of the operands, so float32 does not get the tolerance of 1e-3 that torch's database sets for
        TensorFloat-32."""
        found = dict(self.tolerances)
        if "float32" not in self.device.descriptor.tolerances:
            rtol, atol = found["float32"]
            found["float32"] = min(rtol, _MOST_OF_GRADIENTS), min(atol, _MOST_OF_GRADIENTS)
        return found


class _One(Guard):
    """A guard that allows only one call and the steps that lead to it."""

    def __init__(self, only: CallKey) -> None:
        self._only = only

    def call(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        return allows(self._only, call)


def script_for_call(
    ctx: OpContext,
    checks: Iterable[OpCheck],
    clause: str,
    call: CallKey,
    *,
    seconds: float,
    judged: bool = False,
    failure: Failure | None = None,
) -> str:
    """Returns the script for a call that ended its process in the checks of a clause. The script makes only that call,
    also judges its result if ``judged``, and reports how its process ends. Returns an empty string if the checks make
    no such call. The function itself makes no call on the device."""
    ctx.guard, ctx.scripts, ctx.makes = _One(call), {}, False
    run_checks(ctx, checks)
    found = ctx.scripts.get(clause)
    if found is None:
        return ""
    script: str = found.until_it_ends(seconds, judged=judged, failure=failure)
    return script


#: Returns the most samples of an op that a plan takes for a check; None if it takes all.
Budget = Callable[[OpCheck], int | None]


def run_checks(
    ctx: OpContext, checks: Iterable[OpCheck], budget: Budget = lambda check: None
) -> None:
    """Runs the check functions of all selected clauses, in order. A function that serves several clauses is run only
    once, with the largest of their budgets. The recorder of ``ctx`` contains only the clauses that the plan has for the
    variant of ``ctx``."""
    wanted: dict[Callable[[OpContext], None], list[OpCheck]] = {}
    for check in checks:
        if ctx.recorder.get(check.clause) is not None:
            for function in check.checks:
                wanted.setdefault(function, []).append(check)
    if not wanted:
        return
    always = torch.is_warn_always_enabled()
    # Otherwise torch would give some warnings once per process, and only one cell would see them.
    torch.set_warn_always(True)
    samples = ctx.samples
    try:
        with ieee(), warnings.catch_warnings(), direct_seeding(ctx.device.torch_device.type):
            warnings.simplefilter("ignore")
            for function, served in wanted.items():
                ctx.grad, ctx.seconds = served[0].grad, max(each.seconds for each in served)
                most = [budget(each) for each in served]
                ctx.samples = samples if None in most else choose(samples, max(filter(None, most)))
                with torch.set_grad_enabled(ctx.grad):
                    function(ctx)
            # An exception of queued work belongs to the item that queued it, not to the next one.
            ctx.device.synchronise()
    finally:
        ctx.samples = samples
        torch.set_warn_always(always)
