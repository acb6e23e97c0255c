"""The frame of the checks of ops: one op and dtype, its samples, and how calls are made and judged.

A check is three things. The *call* is data: a function, its arguments, a geometry for each tensor. The *answer* is
what the device gave. A *judge* is a function ``(call, answer, reference)`` that judges one clause: it yields, for
each thing that it judged, what is wrong or None. The frame makes each call once, passes the answer to every judge
whose clause is wanted and counts the checks. It knows nothing about clauses, and judges know nothing about devices.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any

import torch

from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import VALUES, VARIANTS, CellRecord, Recorder, Unread
from conformance.checks.guard import INPUTS, UNWATCHED, Guard, allows
from conformance.checks.ops.call_script import CallScript
from conformance.checks.ops.calls import (
    Ambiguous,
    Call,
    Judge,
    Laid,
    elements_named,
    repeated,
)
from conformance.checks.ops.failures import failed, from_device, spoken, traced
from conformance.checks.ops.roundings import allowance, exact_answer
from conformance.checks.ops.script import literal
from devices.cell import CallKey
from devices.errors import in_a_line
from opinfo.catalog import Op, drawn_sample
from opinfo.compare import DEFAULT_TOLERANCES, SUM_ROUNDINGS
from opinfo.device import ByValues, Device, Guarded
from opinfo.exceptions import Exceptions
from opinfo.layouts import (
    CONTIGUOUS,
    AnyLayout,
    Case,
    Geometry,
    Operand,
    Placed,
    covering,
    covering_set,
    distinct,
    geometries_of,
    uniform,
)
from opinfo.reference import (
    OutputSpec,
    StrideAnswer,
    StrideReference,
    ValueAnswer,
    Where,
    ieee,
    value_answer,
)
from opinfo.samples import Sample, Traits, direct_seeding, expand_rule, expandable, mutates
from opinfo.specified import all_differ

#: Samples up to this size keep their buffers and references for all clauses of an item.
_KEPT_BYTES = 2**18
#: Buffers of larger samples are dropped between two cases once they hold this many bytes: some devices have
#: little memory.
_MOST_BYTES = 2**23


class NotPlaced(Exception):
    """A tensor could not be put on the device: the clauses that need it cannot be checked."""

    def __init__(self, cause: Exception, dtype: torch.dtype) -> None:
        super().__init__(f"putting an input on the device raised {in_a_line(cause)}")
        self.cause, self.dtype = cause, str(dtype).removeprefix("torch.")


class EndsProcess(Exception):
    """What comes next ended a process before, and is not done again."""


#: The widest tolerance of gradients of float32, relative and absolute, that upstream's database has a say in.
_MOST_OF_GRADIENTS = 1e-5
#: One in so many calls has its strides from FakeTensor even where the meta device has an answer.
_SPOT = 50


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a reference (its value, or what computes it) that is no literal in a script: the ``code``, or what writes
    it, and the ``functions`` that it names."""

    value: Any
    code: str | Callable[[], str]
    functions: tuple[Any, ...]


#: Where nothing is computed.
NO_ANSWER = ValueAnswer(None)


class Reference:
    """What the answer to a call should be, in parts; each is computed when a judge first asks for it.

    A repro script contains the parts that its judge reads. ``parts`` are in addition to the ones defined here;
    a function among them computes its part.
    """

    def __init__(self, ctx: ItemContext, laid: Laid, **parts: Any) -> None:
        self.ctx, self.laid = ctx, laid
        self._parts = parts
        self._value: ValueAnswer | None = None
        self._answer: StrideAnswer | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            part = self._parts[name]
        except KeyError:
            raise AttributeError(name) from None
        found = part.value if isinstance(part, Part) else part
        self.__dict__[name] = found = found() if callable(found) else found
        return found

    def source(self, name: str) -> tuple[str, tuple[Any, ...]]:
        """How a script has a part: source text, and the functions and classes that it names."""
        part = self._parts.get(name)
        if isinstance(part, Part):
            return part.code if isinstance(part.code, str) else part.code(), part.functions
        sample = self.laid.sample
        if name == "value":
            mutates = ", mutates=True" if self.ctx.mutates else ""
            text = f"value_answer(op, arguments, repeated(values, geometries){mutates})"
            return text, (value_answer, repeated)
        if name == "process" and self.process is not None:
            drawn = f"drawn_sample({self.ctx.op.id!r}, {self.ctx.dtype!r}, {sample.drawn})"
            return f"{drawn}.output_process_fn_grad", (drawn_sample,)
        if name == "named" and self.named is not None:
            operand = "repeated(values, geometries)[0]"
            text = f"lambda result: elements_named(result, {operand}, {self._along})"
            return text, (elements_named, repeated)
        if name == "exact" and self.ctx.has_exact:
            text = "exact_answer(op, arguments, repeated(values, geometries))"
            return text, (exact_answer, repeated)
        if name == "allowed" and self.conditioned:
            process, functions = self.source("process")
            text = f"allowance(op, arguments, repeated(values, geometries), {process})"
            return text, (allowance, repeated, *functions)
        found = getattr(self, name)
        classes = (OutputSpec,) if "OutputSpec(" in repr(found) else ()
        if found is NO_ANSWER:
            return "ValueAnswer(None)", (ValueAnswer,)
        return literal(found), classes

    @property
    def tolerances(self) -> dict[str, tuple[float, float]]:
        return self.ctx.tolerances

    @property
    def gradient_tolerances(self) -> dict[str, tuple[float, float]]:
        return self.ctx.gradient_tolerances

    @property
    def roundings(self) -> float:
        """Roundings at the size of the largest element that the result may be off by (``compare``)."""
        return SUM_ROUNDINGS if "values.sums" in self.families else 0.0

    @property
    def process(self) -> Callable[[Any], Any] | None:
        """What gives the part of a result that is unique, where not all is."""
        return self.laid.sample.process if "values.not_unique" in self.families else None

    @property
    def conditioned(self) -> bool:
        """Whether roundings of the operands may change the result by more than the tolerances."""
        return "values.conditioned" in self.families

    @property
    def allowed(self) -> list[torch.Tensor]:
        """How much each tensor of the result may be off by, where that is so; computed where it is asked for."""
        if not self.conditioned:
            return []
        sample = self.laid.sample
        values = repeated(sample.tensors, self.laid.geometries)
        return allowance(self.ctx.op.function, sample.call.on, values, self.process)

    @property
    def exact(self) -> ValueAnswer:
        """The CPU's result in float64; computed where it is asked for."""
        if not self.ctx.has_exact:
            return NO_ANSWER
        sample = self.laid.sample
        values = repeated(sample.tensors, self.laid.geometries)
        return exact_answer(self.ctx.op.function, sample.call.on, values)

    @property
    def named(self) -> Callable[[Any], Any] | None:
        """What gives the elements that are named, where an index may be that of any of several equal ones."""
        if not self.families & {"values.any_index", "values.of_any"}:
            return None
        if "values.of_any" in self.families and (self._is_stable or self.ctx.apart(self.laid)):
            return None
        operand = repeated(self.laid.sample.tensors, self.laid.geometries)[0]
        return partial(elements_named, operand=operand, dim=self._along)

    @property
    def _is_stable(self) -> bool:
        return bool(self.laid.sample.call.kwargs.get("stable"))

    @property
    def _along(self) -> int:
        """The dimension of a reduction, as its call says: after the number of elements that are wanted, if there is one."""
        args, kwargs = self.laid.sample.call.args, self.laid.sample.call.kwargs
        place = 2 if "values.of_k" in self.families else 1
        return int(args[place] if len(args) > place else kwargs.get("dim", -1))

    @property
    def families(self) -> frozenset[str]:
        return self.ctx.traits.families

    @property
    def free(self) -> bool:
        """Whether the values of the result are unspecified: not determined by the inputs."""
        return "values.free" in self.families

    @property
    def signed(self) -> bool:
        """Whether the signs of zeros are judged: where a standard defines them."""
        sample = self.laid.sample
        return sample.axis == "special values" and "zeros.signed" in self.families

    @property
    def mutable(self) -> frozenset[int]:
        return self.ctx.mutable_inputs(self.laid.sample)

    # Not cached properties, which take a lock: these are asked a hundred thousand times.
    @property
    def value(self) -> ValueAnswer:
        if self._value is None:
            self._value = self.ctx.expected(self.laid)
        return self._value

    @property
    def _fake(self) -> StrideAnswer:
        if self._answer is None:
            self._answer = self.ctx.stride_answer(self.laid)
        return self._answer

    @property
    def raises(self) -> bool:
        """Whether FakeTensor refuses the call in this layout: on another accelerator too, for on this one it runs what
        there is of the device's own code, and that fails there as it does in the call. What the meta device takes is not
        asked for: it answers sooner, and as FakeTensor does but for known ops."""
        known = "strides.not_of_meta" in self.families
        if not known and self.ctx.stride_answer(self.laid, where="meta").outputs is not None:
            return False
        return self._fake.raises is not None and (
            self.ctx.stride_answer(self.laid, where="elsewhere").raises is not None
        )

    @property
    def specs(self) -> tuple[OutputSpec, ...] | None:
        """FakeTensor's outputs, None if it has no answer."""
        return self._fake.outputs

    @property
    def meta_specs(self) -> tuple[OutputSpec, ...] | None:
        """The outputs on the meta device, which answers sooner; None if it has no answer, or if FakeTensor is to be asked:
        for an op of which the two are known to differ, and for some calls of every op, so that a new difference shows."""
        spot = zlib.crc32(f"{self.laid.sample.index} {self.laid.case.id}".encode()) % _SPOT == 0
        if spot or "strides.not_of_meta" in self.families:
            return None
        return self.ctx.stride_answer(self.laid, where="meta").outputs


def _error(answer: Any) -> Exception | None:
    """What was raised by a call, or by a judge that looked closer."""
    return getattr(answer, "raised", None) or getattr(answer, "unjudged", None)


def _unread(answer: Any, error: Exception) -> Unread:
    """Why there was nothing to judge, and by which clause that is judged: calls with ``out=`` by another than those
    without, unless the answer names one."""
    of_calls = VARIANTS if getattr(answer, "targets", ()) else VALUES
    return Unread.of(error, getattr(answer, "judged_by", "") or of_calls)


@dataclass
class ItemContext:
    """Everything that a check of one (op, dtype) needs. One sample's tensors are built once and shared."""

    op: Op
    dtype: str
    traits: Traits
    samples: list[Sample]
    device: Device
    strides: StrideReference
    recorder: Recorder
    known: Exceptions
    guard: Guard = UNWATCHED
    cases: tuple[Case, ...] = field(default_factory=lambda: covering_set().cases)
    targets: tuple[AnyLayout, ...] = field(default_factory=lambda: covering_set().targets)
    grad: bool = False  # whether the checks that run now record gradients
    scripts: dict[str, Any] | None = None  # of the first call that each clause judged, if asked for
    makes: bool = True  # whether calls are made, or only their scripts are noted
    kept: dict[Any, Any] = field(default_factory=dict)  # by checks that share more than buffers
    _built: dict[tuple[int, int, int], Guarded] = field(default_factory=dict)
    _held: int = 0  # bytes in them, at most
    # by sample, and the layouts that it is laid out in
    _distinct: dict[Any, list[Placed]] = field(default_factory=dict)
    _values: dict[tuple[int, tuple[int | None, ...]], ValueAnswer] = field(default_factory=dict)
    _apart: dict[tuple[int, int | None], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rule = expand_rule(self.traits.families)
        self.guarded = Guarded if self.device.lays_out else ByValues
        capabilities = self.device.descriptor.capabilities
        self._storage, self._pointers = "storage" in capabilities, "pointers" in capabilities
        self.mutates = mutates(self.traits.families)
        kind: torch.dtype = getattr(torch, self.dtype)
        self.has_exact = kind.is_floating_point or kind.is_complex

    @property
    def common(self) -> list[Sample]:
        """The samples that every check takes, and not only calls that read."""
        return [sample for sample in self.samples if not sample.reads_only]

    # -- recording

    @contextmanager
    def running(self, *clauses: str) -> Iterator[CellRecord]:
        """Run clauses that share their calls: watched, and with the time shared among them. Yields the record of the
        first that is wanted.

        What the device raises in a step of the check ends them: they are unsupported if it says that this is not
        implemented, else blocked by the clause about that step. An exception of ours is an error of these cells. In
        each case the item continues.
        """
        wanted = [record for record in map(self.recorder.get, clauses) if record is not None]
        self.guard.begin(clauses, wanted)
        start = time.perf_counter()
        try:
            yield wanted[0]
            self.device.synchronise()  # what fails late is these clauses' failure
        except EndsProcess:
            pass  # it counts where it ended the process
        except NotPlaced as exc:
            for record in wanted:
                if isinstance(exc.cause, NotImplementedError):
                    record.refuse(exc.cause)
                elif exc.dtype in self.device.descriptor.dtypes:
                    record.block("device.capability", str(exc), spoken(exc.cause))
                else:
                    why = f"an input is {exc.dtype}, which the descriptor does not declare"
                    record.pass_over(why)
        except Exception as exc:  # from the device, or a fault of ours: red either way
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
            self.guard.done()

    # -- inputs

    def laid_out(self, sample: Sample, only: frozenset[str] | None = None) -> Iterator[Laid]:
        """The sample in every case of the covering set that gives it a layout of its own, or in the fitting ones
        that it names; of those, the ones named by ``only``."""
        key = sample.index, sample.layouts
        if key not in self._distinct:
            self._distinct[key] = self._cases_of(sample)
        for case, geometries in self._distinct[key]:
            if only is not None and case.id not in only:
                continue
            if not self.guard.call(CallKey(sample.index, case.id)):
                continue  # it ended a process before, and counts there
            yield self.lay(sample, case, geometries)

    def _cases_of(self, sample: Sample) -> list[Placed]:
        operands, fitting = self._operands(sample), sample.layouts
        if self.device.lays_out and self.cases is covering_set().cases:
            return covering(operands, fitting)
        fits = (c for c in self.cases if fitting is None or c.id in fitting)
        # What is declared not to be taken is left out, as the plan says.
        return distinct((c for c in fits if self.device.takes(c.id)), operands)

    def mutable_inputs(self, sample: Sample) -> frozenset[int]:
        """Places of the tensors whose elements the call may change: self of an in-place op, running
        statistics in training, and weights with ``max_norm`` (which embedding renormalises)."""
        families = self.traits.families
        if "mutates.self" in families:
            return frozenset({0})
        if "mutates.running_stats" in families:
            return frozenset(i for i, t in enumerate(sample.tensors) if i and t.dim() == 1)
        if "mutates.max_norm" in families and sample.call.kwargs.get("max_norm") is not None:
            return frozenset(range(len(sample.tensors)))
        return frozenset()

    def geometries(self, sample: Sample, case: Case) -> tuple[Geometry, ...]:
        """The geometry of each tensor in this case."""
        return geometries_of(case, self._operands(sample))

    def _operands(self, sample: Sample) -> tuple[Operand, ...]:
        """Tensors that the call may write to are never expanded."""
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
        self, sample: Sample, case: Case, geometries: tuple[Geometry, ...] | None = None
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
                self._held += len(self._built[key].before)  # of released samples, too: a bound
            inputs.append(self._built[key])
        return Laid(sample, case, geometries, inputs)

    def plain(self, sample: Sample) -> Laid:
        """The sample with every tensor contiguous. Raises EndsProcess."""
        return self.laid_as(sample, uniform(CONTIGUOUS))

    def first(self, sample: Sample) -> Laid:
        """The sample in the first case. Raises EndsProcess."""
        return self.laid_as(sample, self.cases[0])

    def laid_as(self, sample: Sample, case: Case) -> Laid:
        """The sample in one case. Raises EndsProcess."""
        if not self.guard.call(CallKey(sample.index, INPUTS)):
            raise EndsProcess
        return self.lay(sample, case)

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU tensor on the device. Raises NotPlaced."""
        try:
            there = self.device.to_device(tensor)
        except Exception as exc:  # a vendor's copy may raise anything
            raise NotPlaced(exc, tensor.dtype) from exc
        if there.dtype != tensor.dtype:  # some devices narrow what they do not have
            error = TypeError(f"a tensor of {tensor.dtype} became one of {there.dtype}")
            raise NotPlaced(error, tensor.dtype)
        return there

    def release(self, sample: Sample) -> None:
        """Drop the buffers of a sample that are too large to keep for the next clause: fresh pages cost
        more than copying into used ones."""
        if sum(t.numel() * t.element_size() for t in sample.tensors) > _KEPT_BYTES:
            self.rebuild(sample)
            self._values = {k: v for k, v in self._values.items() if k[0] != sample.index}

    def rebuild(self, sample: Sample) -> None:
        """Drop the buffers of a sample whose tensors a call may have resized."""
        self._built = {k: v for k, v in self._built.items() if k[0] != sample.index}

    # -- calls

    def call(self, laid: Laid, function: Callable[..., Any] | None = None) -> Call:
        """The call of the op on these tensors; of another function where one is given."""
        sample, device = laid.sample, self.device
        return Call(
            function or self.op.function,
            *(sample.call.on, sample.tensors, laid.inputs, device.torch_device),
            *(self.place, device.from_device, device.settle),
            guarded=self.guarded,
            storage=self._storage,
            pointers=self._pointers,
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
    ) -> Any:
        """Make the call of the op, or of another ``function``, by ``procedure(call, *given)``, and judge it. Findings
        go to the clauses' cells. Returns the answer; None if no clause that it is judged for is wanted, or if the call
        ended a process before.

        ``layout`` names the layout where it is not that of the inputs, ``check`` the sort of check where that is not
        the layout. Where ``refusable``, NotImplementedError says that the device does not implement the call.
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
        call = self.call(reference.laid, function)
        if not self.makes and self.scripts is not None:
            self.scripts.clear()  # what came before the call that is asked for
            for clause, judge, _ in wanted:
                about = (clause, judge, call, procedure, given, reference, layout)
                self.scripts.setdefault(clause, CallScript(self, *about))
            return None
        answer = procedure(call, *given)
        if _error(answer) is not None and (why := self.asks_undeclared(sample)):
            for _, _, record in wanted:
                record.pass_over(why)
            return answer
        refused = getattr(answer, "raised", None) if refusable else None
        for clause, judge, record in wanted:
            judged = False
            self.guard.judging(clause)
            for found in judge(call, answer, reference):
                judged = True
                record.check(sample.index, layout)
                if found is None and self.scripts is None:
                    continue
                script = CallScript(self, clause, judge, call, procedure, given, reference, layout)
                if self.scripts is not None:
                    self.scripts.setdefault(clause, script)
                if isinstance(found, Ambiguous):
                    record.ambiguous.append(f"[{layout}] {found.text}")
                elif isinstance(refused, NotImplementedError) and found and found.kind == "raised":
                    record.refuse(refused)
                elif found is not None:
                    record.fail(failed(found, layout, sample.numel, script, script.complete, check))
            error = _error(answer)
            # What the CPU refuses, too, is not in the way of other calls.
            if not judged and error is not None and reference.value.raises is None:
                record.unread = record.unread or _unread(answer, error)
        return answer

    def asks_undeclared(self, sample: Sample) -> str:
        """Why the device may refuse a call: its arguments name a dtype that the descriptor does not declare."""
        named = (*sample.call.args, *sample.call.kwargs.values())
        for each in named:
            if isinstance(each, torch.dtype):
                name = str(each).removeprefix("torch.")
                if name not in self.device.descriptor.dtypes:
                    return f"a call asks for {name}, which the descriptor does not declare"
        return ""

    # -- references

    def expected(self, laid: Laid) -> ValueAnswer:
        """The CPU's result for the values that this case reads (an expanded input repeats some)."""
        key = (laid.sample.index, tuple(g.expanded for g in laid.geometries))
        if key not in self._values:
            values = repeated(laid.sample.tensors, laid.geometries)
            self._values[key] = value_answer(
                self.op.function, laid.sample.call.on, values, mutates=self.mutates
            )
        return self._values[key]

    def apart(self, laid: Laid) -> bool:
        """Whether no two elements of the first operand are equal, as this case reads it."""
        key = (laid.sample.index, laid.geometries[0].expanded)
        if key not in self._apart:
            (first, *_) = repeated(laid.sample.tensors[:1], laid.geometries[:1])
            self._apart[key] = all_differ(first)
        return self._apart[key]

    def answer_for(
        self, sample: Sample, make: Callable[..., Any], *given: Any, mutates: bool = False
    ) -> Part:
        """The CPU's result for ``make(values, *given)``, when it is first asked for."""
        values = ", ".join(["values", *map(repr, given)])
        more = ", mutates=True" if mutates else ""

        def answer() -> ValueAnswer:
            made = make(sample.tensors, *given)
            return value_answer(self.op.function, sample.call.on, made, mutates=mutates)

        code = f"value_answer(op, arguments, {make.__name__}({values}){more})"
        return Part(cache(answer), code, (value_answer, make))

    def exact_for(self, sample: Sample, make: Callable[..., Any], *given: Any) -> Part:
        """The same in float64."""
        if not self.has_exact:
            return Part(NO_ANSWER, "ValueAnswer(None)", (ValueAnswer,))

        def answer() -> ValueAnswer:
            return exact_answer(self.op.function, sample.call.on, make(sample.tensors, *given))

        values = ", ".join(["values", *map(repr, given)])
        code = f"exact_answer(op, arguments, {make.__name__}({values}))"
        return Part(answer, code, (exact_answer, make))

    def stride_answer(
        self,
        laid: Laid,
        function: Callable[..., Any] | None = None,
        variant: str = "",
        *,
        where: Where = "device",
    ) -> StrideAnswer:
        return self.strides.answer(
            f"{self.op.id}{variant}",
            function or self.op.function,
            laid.sample.call,
            laid.geometries,
            with_offset=self.traits.declares_view,
            where=where,
        )

    @cached_property
    def tolerances(self) -> dict[str, tuple[float, float]]:
        """dtype defaults, then the database's, then the descriptor's: the last one that is set wins."""
        found = dict(DEFAULT_TOLERANCES)
        if (own := self.op.tolerance(self.dtype, self.device.torch_device.type)) is not None:
            component = {"complex64": "float32", "complex128": "float64"}
            found |= {self.dtype: own, component.get(self.dtype, self.dtype): own}
        given = self.device.descriptor.tolerances
        return found | {name: (each.rtol, each.atol) for name, each in given.items()}

    @cached_property
    def gradient_tolerances(self) -> dict[str, tuple[float, float]]:
        """The same for gradients. Their reference is of higher precision, and is told what roundings of the operands change: a
        thousandth, which the database allows for TensorFloat-32, is not needed."""
        found = dict(self.tolerances)
        if "float32" not in self.device.descriptor.tolerances:
            rtol, atol = found["float32"]
            found["float32"] = min(rtol, _MOST_OF_GRADIENTS), min(atol, _MOST_OF_GRADIENTS)
        return found


class _One(Guard):
    """Allows one call, and what comes before it."""

    def __init__(self, only: CallKey) -> None:
        self._only = only

    def call(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        return allows(self._only, call)


def script_for_call(
    ctx: ItemContext,
    checks: Iterable[OpCheck],
    clause: str,
    call: CallKey,
    *,
    seconds: float,
    judged: bool = False,
) -> str:
    """The script of the call of this name that ended its process in the checks of a clause, or as it was ``judged``:
    it makes that call alone, and reports how its process ends. Empty if there is no such call. Nothing is called here."""
    ctx.guard, ctx.scripts, ctx.makes = _One(call), {}, False
    run_checks(ctx, checks)
    found = ctx.scripts.get(clause)
    return found.until_it_ends(seconds, judged=judged) if found is not None else ""


def run_checks(ctx: ItemContext, checks: Iterable[OpCheck]) -> None:
    """Make the checks whose clauses are wanted, in their order, each once; one check may serve several clauses."""
    wanted: dict[Callable[[ItemContext], None], bool] = {}
    for check in checks:
        if ctx.recorder.get(check.clause) is not None:
            for function in check.checks:
                wanted.setdefault(function, check.grad)
    if not wanted:
        return
    always = torch.is_warn_always_enabled()
    # A warning that torch gives once a process would be seen in one cell only.
    torch.set_warn_always(True)
    try:
        with ieee(), warnings.catch_warnings(), direct_seeding(ctx.device.torch_device.type):
            warnings.simplefilter("ignore")
            for function, grad in wanted.items():
                ctx.grad = grad
                with torch.set_grad_enabled(grad):
                    function(ctx)
            # A failure of queued work belongs to the item that queued it, not to the next.
            ctx.device.synchronise()
    finally:
        torch.set_warn_always(always)
