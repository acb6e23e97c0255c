"""Cases that run randomly drawn allocator programs and check the invariants of one clause after every step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.program_coverage import Reach
from conformance.checks.cases.random_programs import Trial, perform, pinned
from conformance.suites.allocator.program_states import HIGHEST, Walk, steered_programs, table
from conformance.suites.allocator.programs import (
    NUMBERS,
    STEPS,
    Running,
    Step,
    replay,
    source,
    told,
    validate,
)
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

_FEW, _MORE = (0, 2), (1, 20)  # (seed, number of programs): in every plan; beyond quick

_DRAWN = Drawn(replay, lambda _, program: told(program), validate, source)


def _drawn(context: CaseContext, clause: str, seed: int, programs: int) -> None:
    """Programs of up to 50 allocator steps (requests, frees, views, pools, threads, work on other streams) are
    drawn at random and run. After every step the invariants of the clause must hold."""
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    trial, reach = Trial(context, _DRAWN), Reach(table(context.descriptor))
    machine = partial(_machine(), trial, clause, reach)
    drawing: Any = seeded(seed)(machine)

    def holds(program: list[Step]) -> None:
        made = machine()
        try:
            for step in program:  # one by one, so that a failing program ends with the failing step
                made.do(*step)
        finally:
            made.teardown()

    with trial.shrunk():
        run_state_machine_as_test(drawing, settings=pinned(programs, stateful_step_count=STEPS))
    with trial.shrunk(lambda found: _shorter(trial, *found)):
        more = steered_programs(context.descriptor, frozenset(reach.missing), seed)
        trial.steered(more, holds)
    trial.must_have_run(programs)
    trial.must_have_reached(reach)


def _shorter(trial: Trial, clause: str, program: Sequence[Step]) -> None:
    """Removes the steps without which a failing program still fails."""

    def run(fewer: Sequence[Step]) -> None:
        replay(trial.context, clause, fewer, judged=False)

    trial.shorten(program, lambda fewer: (clause, list(fewer)), run)


@cache
def _machine() -> Any:
    """Returns the hypothesis state machine that draws a program: each rule draws the numbers of one step and
    performs the step.

    All searches use the same class, because hypothesis keeps data about every class forever.
    """
    from hypothesis.stateful import RuleBasedStateMachine, rule
    from hypothesis.strategies import integers

    class Drawing(RuleBasedStateMachine):
        def __init__(self, trial: Trial, clause: str, reach: Reach) -> None:
            super().__init__()
            self.trial = trial
            self.reach, self.walk = reach, Walk(trial.context.descriptor)
            self.literal = (clause, list[Step]())
            self.running: Running | None = None
            self.goes_on = trial.begin() and trial.run(self.literal, self.set_up)

        def set_up(self) -> None:
            self.running = Running(self.trial.context, self.literal[0])

        def do(self, *step: Any) -> None:
            if self.goes_on:
                self.literal[1].append(step)
                self.reach.missing -= self.walk.reaches(step)
                self.walk.take(step)
                self.goes_on = False  # stays False if the step raises
                self.goes_on = self.trial.run(self.literal, partial(self.perform, step))

        def perform(self, step: Step) -> None:
            assert self.running is not None
            perform(self.running, self.running.lowering.step(step))

        def teardown(self) -> None:
            run, self.running = self.running, None
            if run is None:
                return
            try:
                if self.goes_on:
                    self.trial.run(self.literal, partial(perform, run, run.lowering.end()))
            finally:
                run.let_go()

    def rule_of(step: str, name: str) -> Any:
        def act(self: Drawing, **numbers: int) -> None:
            self.do(step, *(numbers[each] for each in NUMBERS[step]))

        act.__name__ = name  # hypothesis disables rules by name
        drawn: Any = {each: integers(0, HIGHEST[each]) for each in NUMBERS[step]}
        decorated: Any = rule(**drawn)
        return decorated(act)

    steps = {name: name for name in NUMBERS} | {"take_more": "take", "free_more": "free"}
    return type("Drawing", (Drawing,), {name: rule_of(steps[name], name) for name in steps})


#: The clauses whose invariants are checked after every step, and the requirements of their cases.
_CLAUSES: dict[str, dict[str, Any]] = {
    "accounting": {},
    "ordering": {},
    "peaks": {},
    "disjoint": {"requires": {"allocator_statistics"}},
    "contents": {"requires": {"allocator_statistics"}},
    "oom": {"alone": True},
    "record_stream": {"requires": {"allocator_statistics"}},
    "device_isolation": {"indices": 2},
}

for _name, _needs in _CLAUSES.items():
    _clause = f"allocator.{_name}"
    _needs = {**_needs, "slow": True, "drawn": _DRAWN}
    cases(_clause, over={"drawn": (_clause, *_FEW)}, **_needs)(_drawn)
    cases(_clause, over={"drawn_more": (_clause, *_MORE)}, more=True, **_needs)(_drawn)
