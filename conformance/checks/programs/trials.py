"""Runs random programs (sequences of device operations) that hypothesis draws. A plan always draws the same programs; a
random search draws new ones. Failing programs are shrunk and written as straight-line code.

Hypothesis is imported inside of functions, because a repro script may contain this module and must run without
hypothesis.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from conformance.checks.cases.cases import Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotInFlight, NotShown, failure_of
from conformance.checks.cases.execution import PATIENCE
from conformance.checks.programs.language import Reach
from devices.errors import ConformError

Program = tuple[Any, ...]

#: The most seconds that a random search spends on shrinking one failing program.
SHRINKING = 120.0


def pinned(programs: int, **more: Any) -> Any:
    """Returns hypothesis settings for a search that depends only on its seed: no database, no deadline, and
    ``programs`` examples."""
    from hypothesis import HealthCheck, Phase, Verbosity, settings

    return settings(
        max_examples=programs,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        **more,
    )


def search(strategy: Any, holds: Callable[[Any], None], seed: int, programs: int) -> None:
    """Draws ``programs`` examples from a hypothesis strategy and calls ``holds`` with each. If examples fail, raises
    the exception of the smallest one."""
    from hypothesis import given
    from hypothesis import seed as seeded

    drawing: Any = given(strategy)
    repeating: Any = seeded(seed)
    repeating(pinned(programs)(drawing(holds)))()


def _nobody(*_: Any) -> None:
    """Does nothing. This is the default callback."""


@dataclass
class Search:
    """A random search through the programs of one case.

    Failures of a ``known`` kind are ignored. After the first failure of another kind, only failures of the same kind
    count, so that shrinking does not find another bug. Programs that prove nothing, for example because the work
    finished too early, are counted; they neither fail nor end the search.
    """

    kind_of: Callable[[BaseException], str]  # names the kind of a program's failure
    known: frozenset[str]
    end: float  # time.monotonic() after which no new program begins, except to shrink
    begun: Callable[[], None] = _nobody  # called before every program
    failing: Callable[[Program, BaseException], None] = (
        _nobody  # called with the first program that fails
    )
    programs: int = 0  # number of programs run, without those run to shrink
    unshown: int = 0  # number of those programs that proved nothing
    wanted: str = field(default="", init=False)
    cut: bool = field(default=False, init=False)  # True if shrinking ran out of time

    def takes(self) -> bool:
        """Returns True if the search still has time to run a program, and counts the program; otherwise returns
        False."""
        if time.monotonic() > self.end:
            self.cut = bool(self.wanted)
            return False
        self.begun()
        self.programs += not self.wanted
        return True

    def passes_over(self, program: Program, error: Exception) -> bool:
        """Returns True if the failure ``error`` of a program is to be ignored. The first failure of an unknown kind is
        not ignored; from then on the search looks only for this kind."""
        if isinstance(error, (NotShown, ConformError)):
            self.unshown += not self.wanted
            return True
        kind = self.kind_of(error)
        if not self.wanted and kind not in self.known:
            self.wanted, self.end = kind, time.monotonic() + SHRINKING
            self.failing(program, error)
        return kind != self.wanted


class Trial:
    """The programs of one case, which are run one after the other."""

    def __init__(self, context: CaseContext, drawn: Drawn) -> None:
        self.context = context
        self.drawn = drawn
        self.count = 0
        self.found: tuple[Program, Exception] | None = None  # the smallest failing program

    def begin(self) -> bool:
        """Counts one more program and returns True. Returns False if the random search is over, so no program may
        run any more."""
        if self.context.search is not None and not self.context.search.takes():
            return False
        self.count += 1
        return True

    def run(self, program: Program, part: Callable[[], Any]) -> bool:
        """Runs a program, or the part of the program that was drawn last. Returns True if the program may continue, and
        False if its failure is to be ignored. Raises any other failure of the program."""
        search = self.context.search
        try:
            part()
        except Exception as error:
            # What the program queued may still run, and would write to the memory of this program's buffers after the next
            # program has been given it: the next program would fail for the fault of this one.
            with suppress(Exception):  # the failure of the program is the one to report
                self.context.settle()
            # The collector is paused during a case: in a cycle with its exception, the memory of every failing program
            # would stay allocated until the device has none left.
            traceback.clear_frames(error.__traceback__)
            if search is not None and search.passes_over(program, error):
                if isinstance(error, NotInFlight):  # later programs use longer work
                    later = [each for each in PATIENCE if each > self.context.patience]
                    self.context.patience = later[0] if later else PATIENCE[-1]
                return False
            self.found = program, error
            raise
        return True

    def fails_alike(self, program: Program, part: Callable[[], Any]) -> bool:
        """Runs a program that is smaller than the failing one. If it fails with the same type of exception, stores it
        as the failing program and returns True."""
        if self.found is None or not self.begin():
            return False
        before = self.found
        try:
            self.run(program, part)
        except Exception as error:
            if type(error) is type(before[1]):
                return True
            self.found = before  # the smaller program fails in another way
        return False

    def shorten(self, place: int, run: Callable[..., Any]) -> None:
        """Removes the steps of the failing program that are not necessary for the failure; first many at once, then one
        by one. ``place`` is the index of the steps in the program, and ``run`` runs a program."""
        assert self.found is not None
        program = self.found[0]
        at_once = max(1, len(program[place]) // 2)
        while True:
            before = len(program[place])
            for start in reversed(range(0, before, at_once)):
                steps = program[place]
                fewer = (*steps[:start], *steps[start + at_once :])
                shorter = (*program[:place], fewer, *program[place + 1 :])
                if self._is_program(shorter) and self.fails_alike(shorter, partial(run, *shorter)):
                    program = shorter
            # Repeat one by one until nothing can be removed: removing one step may make another one
            # unnecessary.
            if at_once == 1 and len(program[place]) == before:
                return
            at_once = max(1, at_once // 2)

    def _is_program(self, program: Program) -> bool:
        try:
            self.drawn.validate(*program)
        except ValueError:
            return False
        return True

    def judge(
        self,
        reach: Reach,
        programs: int,
        *,
        search: Callable[[], None],
        steered: Iterable[Any],
        holds: Callable[[Any], None],
        shorter: Callable[[], None],
    ) -> None:
        """Runs the random programs of the case with ``search``, and then calls ``holds`` with each of the ``steered``
        programs, which were drawn to cover what the random programs missed. ``shorter`` shortens a failing program.
        Checks that at least ``programs`` programs ran and that they covered ``reach``.

        A random search (``--explore``) has no steered programs, and no number of programs or coverage is required.
        """
        with self.shrunk(shorter):
            search()
        with self.shrunk(shorter):
            for program in steered if self.context.search is None else ():
                holds(program)
        self.must_have_run(programs)
        self.must_have_reached(reach)

    def must_have_reached(self, reach: Reach) -> None:
        """Stores the coverage of the random programs for the report. Raises NotShown if they did not cover every entry
        of the coverage table, which is an error of this suite and not of the device."""
        if self.context.search is None:
            self.context.reached = str(reach)
            if reach.missing:
                raise NotShown(
                    f"the random programs do not cover every entry of the coverage table: {reach}"
                )

    def must_have_run(self, programs: int) -> None:
        """Checks that at least ``programs`` programs ran. In a random search, nothing is checked."""
        if self.context.search is None:
            text = f"expected at least {programs} programs to run; {self.count} ran"
            self.context.must(self.count >= programs, text)

    @contextmanager
    def shrunk(self, shorter: Callable[[], None] = _nobody) -> Iterator[None]:
        """Returns a context manager for a search. The smallest failing program becomes the failure of the check, and
        the repro script runs this program.

        ``shorter`` may shorten the program further with ``fails_alike``. Raises CheckFailed, or NotShown if the program
        proved nothing.
        """
        from hypothesis import errors
        from msgspec.structs import replace  # not available in a repro script

        try:
            yield
        except Exception as error:
            if self.found is None:
                raise  # the error is not from a program
            if isinstance(self.found[1], (NotShown, ConformError)):
                raise self.found[1] from None
            cut = self.context.search is not None and self.context.search.cut
            sometimes = isinstance(error, errors.Flaky) and not cut
            if not sometimes:
                shorter()
            program, cause = self.found
            self.context.program = program
            how = " (fails only sometimes)" if sometimes else " (not fully shrunk)" if cut else ""
            text = self.drawn.describe(*program) + how
            raise CheckFailed(replace(failure_of(cause), program=text)) from None
