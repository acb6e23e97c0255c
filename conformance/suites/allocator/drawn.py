"""Cases that run randomly drawn allocator programs and check the invariants of one clause after every step."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from conformance.checks.cases.cases import Cases, Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.programs.language import Reach, Step, Steps, steered
from conformance.checks.programs.operations import perform
from conformance.checks.programs.trials import Trial, pinned
from conformance.suites.allocator.allocator_programs import (
    ALLOCATOR,
    Model,
    Running,
    lowered,
    replay,
    source,
    validate,
)
from devices.failure import Kind

cases = Cases(Kind.MEMORY)

STEPS = 50
_FEW, _MORE = (0, 2), (1, 20)  # (seed, number of programs): in every plan; beyond quick

_DRAWN = Drawn(replay, lambda _, program: ALLOCATOR.describe(program), validate, source)


def _drawn(context: CaseContext, clause: str, seed: int, programs: int) -> None:
    """Programs of up to 50 allocator steps (requests, frees, views, pools, threads, work on other streams) are
    drawn at random and run. After every step the invariants of the clause must hold."""
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    descriptor = context.descriptor
    trial, reach = Trial(context, _DRAWN), Reach(ALLOCATOR.table(Model(descriptor)))
    begin = partial(_Drawing, trial, clause, reach)

    def search() -> None:
        drawing: Any = seeded(seed)(partial(_machine(), begin))
        run_state_machine_as_test(drawing, settings=pinned(programs, stateful_step_count=STEPS))

    def holds(program: Steps) -> None:
        drawing = begin()
        try:
            for step in program:
                drawing.do(*step)
        finally:
            drawing.end()

    further = steered(lambda _: Model(descriptor), reach, seed, STEPS)
    trial.judge(
        reach,
        programs,
        search=search,
        steered=(steps for _, steps in further),
        holds=holds,
        shorter=partial(trial.shorten, 1, partial(replay, context, judged=False)),
    )


class _Drawing:
    """A program that is run step by step while it is drawn, so that a failing program ends with the failing step."""

    def __init__(self, trial: Trial, clause: str, reach: Reach) -> None:
        self.trial, self.reach = trial, reach
        self.literal = (clause, list[Step]())
        self.run = Running(trial.context, clause)
        self.goes_on = trial.begin() and trial.run(self.literal, self.run.begin)

    def do(self, *step: Any) -> None:
        if self.goes_on:
            self.literal[1].append(step)
            self.reach.missing -= self.run.model.reaches(step)
            operations = lowered(self.run.model, step)
            self.goes_on = False  # stays False if the step raises
            self.goes_on = self.trial.run(self.literal, partial(perform, self.run, operations))

    def end(self) -> None:
        try:
            if self.goes_on:
                self.trial.run(self.literal, self.run.end)
        finally:
            self.run.let_go()


@cache
def _machine() -> Any:
    """Returns the hypothesis state machine that draws a program: each rule draws the operands of one step and runs
    the step.

    All searches use the same class, because hypothesis keeps data about every class forever.
    """
    from hypothesis.stateful import RuleBasedStateMachine, rule
    from hypothesis.strategies import integers

    class Machine(RuleBasedStateMachine):
        def __init__(self, begin: Any) -> None:
            super().__init__()
            self.drawing: _Drawing = begin()

        def teardown(self) -> None:
            self.drawing.end()

    def rule_of(step: str, name: str) -> Any:
        operands = ALLOCATOR.instructions[step].operands

        def act(self: Machine, **drawn: int) -> None:
            self.drawing.do(step, *(drawn[each.name] for each in operands))

        act.__name__ = name  # hypothesis disables rules by name
        numbers: Any = {each.name: integers(0, each.values[-1]) for each in operands}
        decorated: Any = rule(**numbers)
        return decorated(act)

    steps = {name: name for name in ALLOCATOR.instructions}
    more = {
        f"{name}_more": name for name, each in ALLOCATOR.instructions.items() if each.weight > 1
    }
    rules = {name: rule_of(step, name) for name, step in (steps | more).items()}
    return type("Drawing", (Machine,), rules)


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
    "pools": {"requires": {"pointers", "allocator_statistics"}},
}

for _name, _needs in _CLAUSES.items():
    _clause = f"allocator.{_name}"
    _needs = {**_needs, "slow": True, "drawn": _DRAWN}
    cases(_clause, over={"drawn": (_clause, *_FEW)}, **_needs)(_drawn)
    cases(_clause, over={"drawn_more": (_clause, *_MORE)}, more=True, **_needs)(_drawn)
