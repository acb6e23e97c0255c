"""Programs that hypothesis draws, captured and replayed on new inputs. The seeds are pinned.

What fails is shrunk: by hypothesis to simpler steps, then by leaving out steps, as every part of a program is one.
Its repro script replays the shrunk program, without hypothesis.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from conformance.behaviour.cases import Cases, Drawn
from conformance.behaviour.context import Context
from conformance.behaviour.drawing import Trial, search
from conformance.graphs.program import SIDES, Step, check, told, validate, works_aside

cases = Cases()

STEPS = (12, 24)  # of a program: fewer do little, and are what shrinking is for
_FEW, _MORE = (0, 10), (1, 90)  # seed, programs: of every plan, and of those beyond quick


@cache
def _programs(forks: bool) -> Any:
    """A strategy for programs. One for all searches: hypothesis keeps what it sees."""
    from hypothesis.strategies import integers, just, lists, one_of, tuples

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
    return lists(one_of(*kinds), min_size=STEPS[0], max_size=STEPS[1])


_DRAWN = Drawn(check, lambda program: f"program {told(program)}", validate)


def _drawn(context: Context, forks: bool, seed: int, programs: int) -> None:
    """Drawn programs leave after each replay what they leave when they are run eagerly, in one order."""
    trial = Trial(context, _DRAWN)
    forking = 0

    def holds(program: list[Step]) -> None:
        nonlocal forking
        if trial.begin():
            forking += works_aside(program)
            trial.run((program,), lambda: check(context, program))

    with trial.shrunk(lambda found: _shorter(trial, *found)):
        search(_programs(forks), holds, seed, programs)
    trial.must_have_run(programs)
    context.must(
        not forks or context.search is not None or forking >= programs // 2,
        f"half of them work on side streams, and not {forking}",
    )


def _shorter(trial: Trial, program: list[Step]) -> None:
    """Leave out the steps that a failure does not need."""
    steps = 0
    while steps != len(program):  # leaving one out may make another one needless
        steps = len(program)
        for place in reversed(range(steps)):
            fewer = program[:place] + program[place + 1 :]
            if trial.fails_alike((fewer,), partial(check, trial.context, fewer)):
                program = fewer


_SLOW: dict[str, Any] = {"slow": True, "drawn": _DRAWN}
for _clause, _forks in (("graphs.replay_equals_eager", False), ("graphs.fork_join", True)):
    cases(_clause, over={"drawn": (_forks, *_FEW)}, **_SLOW)(_drawn)
    cases(_clause, over={"drawn_more": (_forks, *_MORE)}, more=True, **_SLOW)(_drawn)
