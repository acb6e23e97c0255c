"""Programs that hypothesis draws, captured and replayed on new inputs. The seeds are pinned.

What fails is shrunk: by hypothesis to simpler steps, then by leaving out steps, as every part of a program is one.
Its repro script replays the shrunk program, without hypothesis.
"""

from __future__ import annotations

from typing import Any

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.drawing import search, shrunk
from conformance.behaviour.judging import CheckFailed
from conformance.graphs.program import SIDES, Step, check, told, works_aside

cases = Cases()

STEPS = (12, 24)  # of a program: fewer do little, and are what shrinking is for
_FEW, _MORE = (0, 10), (1, 90)  # seed, programs: of every plan, and of those beyond quick


def _steps(forks: bool) -> Any:
    """One step of a program."""
    from hypothesis.strategies import integers, just, one_of, tuples

    place, kind = integers(0, 11), integers(0, 7)
    side, stream = integers(1, SIDES), integers(0, SIDES)
    kinds = [
        tuples(just("make"), stream, kind, place, place),
        tuples(just("make"), just(0), kind, place, place),
        tuples(just("write"), kind, place, place),
        tuples(just("free"), place),
    ]
    if forks:
        fork = tuples(just("fork"), side)
        kinds += [
            fork,
            fork,
            tuples(just("join"), side),
            tuples(just("make"), side, kind, place, place),
        ]
    return one_of(*kinds)


def _drawn(context: Context, forks: bool, seed: int, programs: int) -> None:
    """Drawn programs leave after each replay what they leave when they are run eagerly, in one order."""
    from hypothesis.strategies import lists

    tried = forking = 0
    failing: list[tuple[list[Step], Exception]] = []

    def programs_hold(program: list[Step]) -> None:
        nonlocal tried, forking
        tried += 1
        forking += works_aside(program)
        try:
            check(context, program)
        except Exception as error:
            failing.append((program, error))
            raise

    def tell(program: list[Step], cause: BaseException) -> tuple[str, BaseException]:
        program, cause = _shorter(context, program, cause)
        context.reproduce_by(check, program)
        return f"program {told(program)}", cause

    with shrunk(lambda: failing[-1] if failing else None, tell):
        search(
            lists(_steps(forks), min_size=STEPS[0], max_size=STEPS[1]),
            programs_hold,
            seed,
            programs,
        )
    context.must(tried >= programs, f"{programs} programs were to run, and {tried} did")
    context.must(
        not forks or forking >= programs // 2,
        f"half of them work on side streams, and not {forking}",
    )


def _shorter(
    context: Context, program: list[Step], cause: BaseException
) -> tuple[list[Step], BaseException]:
    """The program without the steps that its failure does not need."""
    steps = 0
    while steps != len(program):  # leaving one out may make another one needless
        steps = len(program)
        for place in reversed(range(steps)):
            fewer = program[:place] + program[place + 1 :]
            try:
                check(context, fewer)
            except CheckFailed as error:
                program, cause = fewer, error
            except Exception:
                pass  # fails otherwise: not the failure that is looked for
    return program, cause


cases("graphs.replay_equals_eager", over={"drawn": (False, *_FEW)}, slow=True)(_drawn)
cases("graphs.replay_equals_eager", over={"drawn_more": (False, *_MORE)}, slow=True, more=True)(
    _drawn
)
cases("graphs.fork_join", over={"drawn": (True, *_FEW)}, slow=True)(_drawn)
cases("graphs.fork_join", over={"drawn_more": (True, *_MORE)}, slow=True, more=True)(_drawn)
