"""Programs that hypothesis draws: in a plan the same ones every time, in a random search new ones; shrunk where
they fail.

Hypothesis is imported inside functions: a repro script takes this module along, and replays without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from conformance.behaviour.attempts import PATIENCE
from conformance.behaviour.cases import Drawn
from conformance.behaviour.context import Context
from conformance.behaviour.judging import CheckFailed, NotInFlight, NotShown
from devices.errors import ConformError

Program = tuple[Any, ...]

#: Seconds that random search takes to shrink a program.
SHRINKING = 20.0


def pinned(programs: int, **more: Any) -> Any:
    """Settings of a search that depends on its seed alone: no database, no deadline, so many programs."""
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
    """Try ``holds`` on so many drawn programs. Raises what it raised on the smallest that fails."""
    from hypothesis import given
    from hypothesis import seed as seeded

    drawing: Any = given(strategy)
    repeating: Any = seeded(seed)
    repeating(pinned(programs)(drawing(holds)))()


def _nobody(*_: Any) -> None:
    """Nobody listens."""


@dataclass
class Search:
    """A random search through the programs of one case.

    What fails in a way that is ``known`` is passed over; from the first program on that fails in
    another, that way alone counts, so that what is shrunk stays the same failure. What shows nothing
    is counted, and neither fails nor ends the search.
    """

    kind_of: Callable[[BaseException], str]  # the way in which a program failed
    known: frozenset[str]
    end: float  # on time.monotonic(): no program is begun behind it but to shrink
    begun: Callable[[], None] = _nobody  # told before every program
    failing: Callable[[Program, BaseException], None] = _nobody  # told of the first that fails
    programs: int = 0  # that ran, those of shrinking left out
    unshown: int = 0  # … and proved nothing
    wanted: str = field(default="", init=False)
    cut: bool = field(default=False, init=False)  # shrinking took too long

    def takes(self) -> bool:
        """Whether one more program is to be run."""
        if time.monotonic() > self.end:
            self.cut = bool(self.wanted)
            return False
        self.begun()
        self.programs += not self.wanted
        return True

    def passes_over(self, program: Program, error: Exception) -> bool:
        """Whether this failure of a program is none that is looked for."""
        if isinstance(error, (NotShown, ConformError)):
            self.unshown += not self.wanted
            return True
        kind = self.kind_of(error)
        if not self.wanted and kind not in self.known:
            self.wanted, self.end = kind, time.monotonic() + SHRINKING
            self.failing(program, error)
        return kind != self.wanted


class Trial:
    """The programs of one case, as they are tried one after the other."""

    def __init__(self, context: Context, drawn: Drawn) -> None:
        self.context = context
        self.drawn = drawn
        self.count = 0
        self.found: tuple[Program, Exception] | None = None  # the last, which is the smallest

    def begin(self) -> bool:
        """Whether one more program is to be run."""
        if self.context.search is not None and not self.context.search.takes():
            return False
        self.count += 1
        return True

    def run(self, program: Program, part: Callable[[], Any]) -> bool:
        """Run a program, or the part that was drawn last; whether it may go on. Raises what failed it."""
        search = self.context.search
        try:
            part()
        except Exception as error:
            if search is not None and search.passes_over(program, error):
                if isinstance(error, NotInFlight):  # those behind it get more of it
                    later = [each for each in PATIENCE if each > self.context.patience]
                    self.context.patience = later[0] if later else PATIENCE[-1]
                return False
            self.found = program, error
            raise
        return True

    def fails_alike(self, program: Program, part: Callable[[], Any]) -> bool:
        """Whether a smaller program fails so too: it is then what was found."""
        if self.found is None or not self.begin():
            return False
        before = self.found
        try:
            self.run(program, part)
        except Exception as error:
            if type(error) is type(before[1]):
                return True
            self.found = before  # it fails otherwise: not the failure that is looked for
        return False

    def must_have_run(self, programs: int) -> None:
        """So many programs are evidence. In a random search each counts for itself."""
        if self.context.search is None:
            text = f"{programs} programs ran, and not {self.count}"
            self.context.must(self.count >= programs, text)

    @contextmanager
    def shrunk(self, shorter: Callable[[Program], None] = _nobody) -> Iterator[None]:
        """Around a search: the smallest program that it found fails the check, and a repro script replays it.

        ``shorter`` makes it shorter still, by ``fails_alike``. Raises CheckFailed, or NotShown where
        nothing was shown by the program.
        """
        from hypothesis import errors

        try:
            yield
        except Exception as error:
            if self.found is None:
                raise  # not from a program
            if isinstance(self.found[1], (NotShown, ConformError)):
                raise self.found[1] from None
            cut = self.context.search is not None and self.context.search.cut
            sometimes = isinstance(error, errors.Flaky) and not cut
            if not sometimes:
                shorter(self.found[0])
            program, cause = self.found
            self.context.reproduce_by(self.drawn.replay, *program)
            how = " (not every time)" if sometimes else " (not shrunk to its end)" if cut else ""
            raise CheckFailed(f"{self.drawn.told(*program)}{how}: {said(cause)}") from None


def said(cause: BaseException) -> str:
    """What was wrong, in a line."""
    return (
        str(cause) if isinstance(cause, CheckFailed) else f"raised {type(cause).__name__}: {cause}"
    )
