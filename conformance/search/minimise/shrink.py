"""Shrinks a failing call: hypothesis searches simpler variants of the call for the same failure.

The aspects of the call (sample, dimensions, sizes, layouts, arguments, values) are searched one after another,
repeatedly, until none has a simpler variant that fails. Within an aspect, hypothesis finds a simpler variant that fails
in the same way, and shrinks it. If an aspect has only few variants, all of them are tried, so that the result is a
local minimum and does not depend on chance. The search is derandomized: the same failure always gives the same example.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import torch
from hypothesis import find
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from conformance.checks.cells import Failed
from conformance.checks.ops.call_script import CallScript
from conformance.checks.ops.standalone_checks import DirectedScript
from conformance.checks.programs.trials import pinned
from conformance.search.minimise.candidates import Candidate, CandidateRunner, Sign
from conformance.search.minimise.simplify import (
    ASPECTS,
    KEEPING_SIZES,
    Aspect,
    Space,
    Vector,
    other_samples,
)
from devices.failure import Failure
from opinfo.catalog import dtype_name
from opinfo.layouts import CONTIGUOUS, RECORDED, SHARED, Geometry, parse_layout
from opinfo.reference import forget_dispatches
from opinfo.samples import Sample
from reports.model import Example, ExampleTensor

#: The limits of one search: calls of the op, and seconds of processor time. Processor time is used so that a
#: busy machine finds the same example as an idle one.
MOST_CALLS = 500
MOST_SECONDS = 2.0
#: The limit in seconds of wall time, because the process may be waiting for the device.
_MOST_WAITED = 5 * MOST_SECONDS

#: The search of one space makes at most 80 calls.
_SETTINGS = pinned(80, derandomize=True)
#: The number of elements of a tensor that an example shows.
_SHOWN = 8


def start_of(
    runner: CandidateRunner, clause: str, wanted: Failure
) -> tuple[Candidate, Failed] | None:
    """Returns the smallest sample of the plan that fails in the same way and in the same layout as the failure
    ``wanted``, together with its own failure. Returns None if no sample fails in this way now. If ``wanted`` occurred
    in the recorded geometry, which does not fit a smaller call, every layout of the plan is tried."""
    for sample in sorted(runner.samples, key=lambda s: s.numel):
        record = runner.run_layout(sample, clause, wanted.layout)
        for failed in record.failures:
            alike = wanted.layout in (failed.layout, RECORDED.id, SHARED.id)
            if alike and Sign.of(failed.failure) == Sign.of(wanted):
                return candidate_of(sample, failed.failure), failed
    return None


def candidate_of(sample: Sample, failure: Failure) -> Candidate:
    """Returns a sample in the layouts in which it failed. The layout name of the failure is ``A`` (one layout for all
    tensors), ``A/B`` (the layouts of the first tensor and of all other tensors), ``A/B/C`` (the layouts of the first
    tensor, of the second tensor and of all other tensors), or ``out=D`` (the layout of the ``out=`` target)."""
    if failure.check == "target":
        return Candidate(sample, target=parse_layout(failure.layout.removeprefix("out=")))
    if failure.check == "inputs":
        first, *others = map(parse_layout, failure.layout.split("/"))
        # The layout of the last tensor after the first that is not contiguous.
        rest = next((each for each in reversed(others) if each != CONTIGUOUS), CONTIGUOUS)
        return Candidate(sample, first, rest if others else first)
    return Candidate(sample)  # a directed check chooses the layouts itself


@dataclass
class Search:
    """A search for the simplest call that fails like ``candidate``: with the same clause, check and kind of failure.
    ``run()`` stores the simplest call that it finds in ``candidate``, and the failure of this call in ``failure``."""

    runner: CandidateRunner
    clause: str
    candidate: Candidate
    failure: Failed
    calls: int = MOST_CALLS
    seconds: float = MOST_SECONDS
    tried: int = 0
    whole: bool = True  # False if a limit ended the search

    @property
    def is_exhausted(self) -> bool:
        """True if the limit of calls or the time limit is reached."""
        late = time.process_time() > self._end or time.monotonic() > self._latest
        return late or self.tried >= self.calls

    def run(self) -> Search:
        """Simplifies one aspect after another until none has a simpler variant that fails. Returns the search itself."""
        if isinstance(self.failure.repro, DirectedScript):
            return self  # a directed check has small tensors of its own: nothing to simplify
        self._end = time.process_time() + self.seconds
        self._latest = time.monotonic() + max(self.seconds, _MOST_WAITED)
        self._sign = Sign.of(self.failure.failure)
        self._defined = self.runner.is_defined(self.candidate.sample)
        others = partial(other_samples, self.runner.source_samples)
        sized = self.runner.subject.checks_sizes
        aspects: tuple[Aspect, ...] = (others, *(ASPECTS if sized else KEEPING_SIZES))
        idle = 0
        for aspect in cycle(aspects):
            idle = 0 if self._simplify(aspect) else idle + 1
            if idle >= len(aspects) or self.is_exhausted:
                break
        forget_dispatches()
        self.whole = not self.is_exhausted
        return self

    def _simplify(self, aspect: Aspect) -> bool:
        """Simplifies the call in one aspect as long as it still fails. Returns True if a simpler call was found."""
        simpler = False
        while not self.is_exhausted:
            space = aspect(self.candidate)
            if not any(space.bounds) or not self._search_space(space):
                break
            simpler = True
        return simpler

    def _search_space(self, space: Space) -> bool:
        """Searches one space once. If a simpler failing call is found, stores it in ``candidate`` and returns True."""
        failures: dict[Vector, tuple[Candidate, Failed] | None] = {}

        def fails(vector: Vector) -> bool:
            if vector == space.bounds:
                return False  # this is the current candidate
            if vector not in failures:
                if self.is_exhausted:
                    return False
                failures[vector] = self._try(space, vector)
            return failures[vector] is not None

        strategy = st.tuples(*(st.integers(0, bound) for bound in space.bounds))
        try:
            found = failures[find(strategy, fails, settings=_SETTINGS)]
        except NoSuchExample:
            return False
        assert found is not None
        self.candidate, self.failure = found
        return True

    def _try(self, space: Space, vector: Vector) -> tuple[Candidate, Failed] | None:
        self.tried += 1
        try:
            candidate = space.build(vector)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return None  # the values do not fit this shape or dtype
        if candidate is None:
            return None
        failure = same_failure(self.runner, self.clause, self._sign, candidate)
        if failure is None or (self._defined and not self.runner.is_defined(candidate.sample)):
            return None
        return candidate, failure

    @property
    def script(self) -> str:
        """The repro script of the smallest failure; an empty text if the failure has no script."""
        return self.failure.script()

    @property
    def example(self) -> Example:
        """The example as reports show it: the call, its tensors and the message."""
        failed, script = self.failure, self.failure.repro
        call = script.call() if isinstance(script, (CallScript, DirectedScript)) else failed.layout
        tensors: tuple[ExampleTensor, ...] = ()
        if isinstance(script, CallScript):
            tensors = tuple(map(_tensor, script.laid.sample.tensors, script.laid.geometries))
        return Example(call, failed.layout, failed.message, tensors, self.tried, self.whole)


def same_failure(
    runner: CandidateRunner, clause: str, sign: Sign, candidate: Candidate
) -> Failed | None:
    """Returns the failure of a call if the failure has the kind, exception type and check of ``sign``; None if the call
    has no such failure."""
    try:
        record = runner.run(candidate, [clause])[clause]
    except Exception:  # the harness cannot lay out or compare this form; the op did not fail
        return None
    for failure in record.failures:
        if Sign.of(failure.failure) == sign and not isinstance(failure.repro, DirectedScript):
            return failure
    return None


def _tensor(tensor: torch.Tensor, geometry: Geometry) -> ExampleTensor:
    dtype = dtype_name(tensor.dtype)
    if tensor.layout != torch.strided:
        name = str(tensor.layout).removeprefix("torch.")
        return ExampleTensor(dtype, tuple(tensor.shape), (), 0, f"<{name}>")
    if geometry.expanded is not None:
        tensor = tensor.narrow(geometry.expanded, 0, 1)
    values = [repr(value) for value in tensor.reshape(-1)[:_SHOWN].tolist()]
    values += ["…"] * (tensor.numel() > _SHOWN)
    shown = f"[{', '.join(values)}]"
    return ExampleTensor(dtype, geometry.shape, geometry.stride, geometry.offset, shown)
