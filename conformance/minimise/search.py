"""The search: hypothesis over simpler forms of a failing call, as long as the same failure stays.

One aspect after another (which sample, dimensions, sizes, layouts, arguments, values), and again from the
first until none gives anything simpler. Within an aspect hypothesis looks for any simpler form that fails
alike and shrinks it; a small space it looks through whole, so that the end of the search is a local minimum
and not a matter of luck. Derandomised: the same failure gives the same example each time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from conformance.cells import Failure
from conformance.layout.directed import DirectedScript
from conformance.minimise.simpler import (
    Aspect,
    Space,
    Vector,
    fewer_dimensions,
    other_samples,
    simpler_arguments,
    simpler_layouts,
    simpler_values,
    smaller_sizes,
)
from conformance.minimise.subject import Candidate, Sign, Subject
from opinfo.layouts import parse_layout
from opinfo.reference import forget_dispatches
from opinfo.samples import Sample

#: Calls of the op that one search may make, and seconds of this process' time that it may take: a machine
#: that is busy with other things gives the same example as an idle one, later.
MOST_CALLS = 500
MOST_SECONDS = 2.0
#: Wall time is another matter: a device that lets the process wait is not waited for without end.
_MOST_WAITED = 5 * MOST_SECONDS

#: Calls that one look into one space may make.
_MOST_LOOKS = 80


@dataclass(frozen=True, slots=True)
class Found:
    """The end of a search: the smallest failing candidate and its failure."""

    candidate: Candidate
    failure: Failure
    tried: int
    whole: bool  # False where the budget ended the search


class _Budget:
    def __init__(self, calls: int, seconds: float) -> None:
        self.calls = calls
        self.used = 0
        self._end = time.process_time() + seconds
        self._latest = time.monotonic() + max(seconds, _MOST_WAITED)

    @property
    def over(self) -> bool:
        late = time.process_time() > self._end or time.monotonic() > self._latest
        return late or self.used >= self.calls


def start_of(
    subject: Subject, clause: str, sign: Sign, layout: str
) -> tuple[Candidate, Failure] | None:
    """The smallest sample of the plan that fails in this way, in this layout; None where none does now."""
    for sample in sorted(subject.samples, key=lambda s: s.numel):
        record = subject.run_layout(sample, clause, layout)
        for failure in record.failures:
            if failure.layout == layout and Sign.of(failure) == sign:
                return candidate_of(sample, layout), failure
    return None


def candidate_of(sample: Sample, layout: str) -> Candidate:
    """The candidate of a sample and a layout's name: ``A``, ``A/B``, ``out=C``, or a directed check's."""
    try:
        if layout.startswith("out="):
            return Candidate(sample, target=parse_layout(layout.removeprefix("out=")))
        first, _, rest = layout.partition("/")
        return Candidate(sample, parse_layout(first), parse_layout(rest or first))
    except ValueError:
        return Candidate(sample)  # a directed check lays its tensors out itself


def minimise(
    subject: Subject,
    clause: str,
    start: Candidate,
    failure: Failure,
    *,
    calls: int = MOST_CALLS,
    seconds: float = MOST_SECONDS,
) -> Found:
    """The simplest candidate that fails as ``start`` does: same clause, sort of check and kind of failure."""
    if isinstance(
        failure.repro, DirectedScript
    ):  # made on small tensors of its own: nothing to vary
        return Found(start, failure, 0, whole=True)
    search = _Search(subject, clause, Sign.of(failure), start, failure, _Budget(calls, seconds))
    search.run()
    forget_dispatches()
    return Found(search.current, search.failure, search.budget.used, not search.budget.over)


class _Search:
    def __init__(
        self,
        subject: Subject,
        clause: str,
        sign: Sign,
        start: Candidate,
        failure: Failure,
        budget: _Budget,
    ) -> None:
        self.subject = subject
        self.clause = clause
        self.sign = sign
        self.current = start
        self.failure = failure
        self.budget = budget
        self._samples = other_samples(subject.drawn)
        self._defined = subject.is_defined(start.sample)

    def run(self) -> None:
        aspects: tuple[Aspect, ...] = (
            self._samples,
            fewer_dimensions,
            smaller_sizes,
            simpler_layouts,
            simpler_arguments,
            simpler_values,
        )
        idle = 0
        while idle < len(aspects) and not self.budget.over:
            for aspect in aspects:
                idle = 0 if self._simplify(aspect) else idle + 1
                if idle >= len(aspects) or self.budget.over:
                    return

    def _simplify(self, aspect: Aspect) -> bool:
        """Take the simplest failing form that this aspect has; whether there is a simpler one."""
        simpler = False
        while not self.budget.over:
            space = aspect(self.current)
            if space.size < 2 or not self._look(space):
                return simpler
            simpler = True
        return simpler

    def _look(self, space: Space) -> bool:
        """Search one space once, and go to what was found."""
        failures: dict[Vector, tuple[Candidate, Failure] | None] = {}

        def fails(vector: Vector) -> bool:
            if vector == space.bounds:
                return False  # that is the current candidate
            if vector not in failures:
                if self.budget.over:
                    return False
                failures[vector] = self._try(space, vector)
            return failures[vector] is not None

        strategy = st.tuples(*(st.integers(0, bound) for bound in space.bounds))
        try:
            found = find(strategy, fails, settings=_SETTINGS)
        except NoSuchExample:
            return False
        kept = failures[found]
        assert kept is not None
        self.current, self.failure = kept
        return True

    def _try(self, space: Space, vector: Vector) -> tuple[Candidate, Failure] | None:
        self.budget.used += 1
        try:
            candidate = space.build(vector)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return None  # the values do not go with such a shape or dtype
        if candidate is None:
            return None
        failure = same_failure(self.subject, self.clause, self.sign, candidate)
        if failure is None or (self._defined and not self.subject.is_defined(candidate.sample)):
            return None
        return candidate, failure


def same_failure(subject: Subject, clause: str, sign: Sign, candidate: Candidate) -> Failure | None:
    """The candidate's failure of this kind, where it has one."""
    try:
        record = subject.run(candidate, [clause])[clause]
    except Exception:  # a form that the harness cannot lay out or compare is no failure of the op
        return None
    for failure in record.failures:
        if Sign.of(failure) == sign and not isinstance(failure.repro, DirectedScript):
            return failure
    return None


_SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=_MOST_LOOKS,
    phases=(Phase.generate, Phase.shrink),
    verbosity=Verbosity.quiet,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
