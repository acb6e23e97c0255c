"""One op and dtype on a device, with functions that check a single candidate: one sample of arguments in one layout.

A run makes every check on all samples and layouts of an item (an op and dtype). The minimiser, the random search and
the pinned examples make the same checks on a single candidate and find the same failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import torch

from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.ops.context import OpContext, run_checks, script_for_call
from conformance.suites import load, suite_of
from conformance.suites.layout import SUITE
from devices.cell import CallKey
from devices.failure import Failure, Kind
from opinfo.axes import samples_of
from opinfo.compare import difference
from opinfo.database import DATABASE
from opinfo.device import Device
from opinfo.exceptions import Exceptions, exceptions
from opinfo.layouts import CONTIGUOUS, AnyLayout, LayoutCase, covering_set
from opinfo.memory import fresh_memory
from opinfo.reference import StrideReference, value_answer
from opinfo.sample_source import SampleSource
from opinfo.samples import SEED, Sample, Traits, mutates, probe, seed_everything
from opinfo.subject import Subject


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call to try: a sample (the arguments), the layout of its first tensor, the layout of its other tensors, and the
    layout of an ``out=`` target."""

    sample: Sample
    first: AnyLayout = CONTIGUOUS
    rest: AnyLayout = CONTIGUOUS
    target: AnyLayout = CONTIGUOUS

    @property
    def case(self) -> LayoutCase:
        """The layouts of the inputs as a LayoutCase of opinfo.layouts. If all inputs have the same layout, the name of
        the case is the name of that layout."""
        same = self.first == self.rest or len(self.sample.tensors) < 2
        name = self.first.id if same else f"{self.first.id}/{self.rest.id}"
        return LayoutCase(name, self.first, self.rest)


class Sign(msgspec.Struct, frozen=True):
    """The properties by which failures of one cell are compared: two failures with equal kind, exception type and check
    count as the same failure."""

    kind: Kind
    raises: str | None
    check: str

    @classmethod
    def of(cls, failure: Failure) -> Sign:
        return cls(failure.kind, failure.raises, failure.check)


@dataclass
class CandidateRunner:
    subject: Subject
    dtype: str
    device: Device
    count: int  # number of samples that the plan takes
    known: Exceptions = field(default_factory=exceptions)
    source: SampleSource = DATABASE
    variant: str = ""

    @classmethod
    def of(
        cls,
        op: str,
        dtype: str,
        device: Device,
        count: int,
        source: SampleSource = DATABASE,
        variant: str = "",
    ) -> CandidateRunner:
        """Returns the runner for an op of a source. Raises KeyError if the source has no such op."""
        return cls(source.subjects()[op], dtype, device, count, source=source, variant=variant)

    @cached_property
    def source_samples(self) -> list[Sample]:
        """All samples of the op in its source from which a plan may choose."""
        return self.source.samples(self.subject, self.dtype)

    @cached_property
    def samples(self) -> list[Sample]:
        """The samples of the op that a plan runs."""
        declared = self.device.descriptor.dtypes
        return samples_of(self.subject, self.dtype, self.count, declared, self.source_samples)

    @cached_property
    def traits(self) -> Traits:
        return probe(self.subject, self.dtype, self.samples, self.known)

    @cached_property
    def strides(self) -> StrideReference:
        """The reference for the strides of results. It has no cache file, because each candidate is needed only
        once."""
        return StrideReference(self.device.descriptor.torch_type, None)

    def run(
        self,
        candidate: Candidate,
        clauses: Sequence[str],
        checks: Sequence[OpCheck] = SUITE.op_checks,
    ) -> dict[str, CellRecord]:
        """Makes the checks of the given clauses on one candidate (a call in one layout). Returns the records of the
        cells by clause."""
        case, target = (candidate.case,), (candidate.target,)
        context = self._context([candidate.sample], clauses, case, target)
        run_checks(context, checks)
        return context.recorder.cells

    def is_defined(self, sample: Sample) -> bool:
        """Returns True if the CPU's result of a call depends only on the arguments of the call.

        A smaller call may have arguments that no longer fit each other, such as a weight for fewer channels than the
        input has. Some kernels then read past the end, so their result depends on the contents of memory. Such a
        call is not a valid example.
        """
        answers = []
        for byte in (0x00, 0x7F):  # zeros, and the largest numbers
            seed_everything(SEED)
            with torch.no_grad(), fresh_memory(torch.device("cpu"), byte):
                function, values = self.subject.reference, copies(sample.tensors)
                mutable = mutates(self.traits.families)
                answers.append(value_answer(function, sample.call.on, values, mutates=mutable))
        first, second = answers
        if first.raises is not None or second.raises is not None:
            return type(first.raises) is type(second.raises)
        return difference(first.result, second.result, {}) is None

    def run_layout(self, sample: Sample, clause: str, layout: str) -> CellRecord:
        """Makes the checks of one clause on one sample, in the layout with this name, or in all layouts if no layout
        has this name. Returns the record of the clause."""
        covering = covering_set()
        cases = tuple(c for c in covering.cases if c.id == layout)
        targets = tuple(t for t in covering.targets if f"out={t.id}" == layout)
        if layout.startswith("out=") or layout in covering.directed:
            cases = covering.cases[:1]
        context = self._context([sample], [clause], cases, targets)
        run_checks(context, SUITE.op_checks)
        return context.recorder.cells[clause]

    def run_all(self, clause: str) -> CellRecord:
        """Makes the checks of one clause as the plan does, on every sample in every layout. Returns the record of the
        clause."""
        context = self._context(self.samples, [clause])
        run_checks(context, SUITE.op_checks)
        return context.recorder.cells[clause]

    def script_of(
        self, clause: str, call: CallKey, seconds: float, *, judged: bool, failure: Failure
    ) -> str:
        """Returns the text of a script that makes one call in a child process, which may take ``seconds``; an empty
        text if no script can be written."""
        checks = load(suite_of(clause)).op_checks
        context = self._context(self.samples, [clause])
        return script_for_call(
            context, checks, clause, call, seconds=seconds, judged=judged, failure=failure
        )

    def _context(
        self,
        samples: list[Sample],
        clauses: Sequence[str],
        cases: tuple[LayoutCase, ...] | None = None,
        targets: tuple[AnyLayout, ...] | None = None,
    ) -> OpContext:
        """Returns the OpContext for checks of the given clauses. The layouts are those of the plan unless ``cases``
        and ``targets`` are given."""
        if cases is not None:  # the given layouts replace those of the samples
            samples = [
                replace(each, layouts=None, geometries=None, storages=None) for each in samples
            ]
        return OpContext(
            subject=self.subject,
            dtype=self.dtype,
            traits=self.traits,
            samples=samples,
            device=self.device,
            strides=self.strides,
            recorder=Recorder(self.subject.id, self.dtype, clauses, variant=self.variant),
            known=self.known,
            cases=cases or covering_set().cases,
            targets=targets or covering_set().targets,
        )


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors, with each strided tensor copied to a contiguous one."""
    return [
        t.clone(memory_format=torch.contiguous_format) if t.layout == torch.strided else t
        for t in tensors
    ]
