"""Programs that hypothesis draws, as part of a plan: the same ones every time, and shrunk where they fail.

Hypothesis is imported inside functions: a repro script takes this module along, and replays without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from conformance.behaviour.judging import CheckFailed, NotShown

P = TypeVar("P")


def pinned(programs: int, **more: Any) -> Any:
    """Settings of a search that belongs to a plan: no database, no deadline, so many programs."""
    from hypothesis import HealthCheck, Phase, Verbosity, settings

    return settings(
        max_examples=programs,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        print_blob=False,
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


@contextmanager
def shrunk(
    failing: Callable[[], tuple[P, BaseException] | None],
    tell: Callable[[P, BaseException], tuple[str, BaseException]],
) -> Iterator[None]:
    """Around a search: what it found last, which is the smallest, fails the check.

    ``failing`` gives that program and its cause, or None where the search itself went wrong.
    ``tell`` says what the program is and what was wrong with it, and hands over its replay. Raises
    CheckFailed, or NotShown where nothing was shown by the program.
    """
    from hypothesis import errors

    try:
        yield
    except Exception as error:
        found = failing()
        if found is None:
            raise  # not from a program
        program, cause = found
        if isinstance(cause, NotShown):
            raise cause from None
        what, cause = tell(program, cause)
        sometimes = " (not every time)" if isinstance(error, errors.Flaky) else ""
        said = (
            cause if isinstance(cause, CheckFailed) else f"raised {type(cause).__name__}: {cause}"
        )
        raise CheckFailed(f"{what}{sometimes}: {said}") from None
