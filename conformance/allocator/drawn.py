"""Programs that hypothesis draws: every invariant of a clause after every step of fifty.

The seeds are pinned, so that a plan draws the same programs every time. What fails is shrunk, and its repro
script replays the shrunk program, without hypothesis.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from conformance.allocator.model import Machine, Step, replay, told, validate
from conformance.behaviour.cases import Cases, Drawn
from conformance.behaviour.context import Context
from conformance.behaviour.drawing import Trial, pinned

cases = Cases()

STEPS = 50
_FEW, _MORE = (0, 5), (1, 20)  # seed, programs: of every plan, and of those beyond quick


_DRAWN = Drawn(replay, lambda _, program: f"after {told(program) or 'nothing'}", validate)


def _drawn(context: Context, clause: str, seed: int, programs: int) -> None:
    """The clause holds after every step of drawn programs of requests and frees."""
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    trial = Trial(context, _DRAWN)
    kind = _machine()

    def machine() -> Any:
        return kind(trial, clause)

    with trial.shrunk():
        begun: Any = seeded(seed)(machine)
        run_state_machine_as_test(begun, settings=pinned(programs, stateful_step_count=STEPS))
    trial.must_have_run(programs)


@cache
def _machine() -> Any:
    """The state machine: rules draw numbers, the model's machine does what they say.

    One class for all searches: hypothesis keeps what it knows of every class for ever.
    """
    from hypothesis.stateful import RuleBasedStateMachine, rule
    from hypothesis.strategies import integers

    number, few = integers(0, 11), integers(0, 2)
    size, index = integers(0, 6), integers(0, 1)

    class Drawing(RuleBasedStateMachine):
        def __init__(self, trial: Trial, clause: str) -> None:
            super().__init__()
            self.trial = trial
            self.program: list[Step] = []
            self.literal = (clause, self.program)
            self.machine: Machine | None = None
            self.goes_on = trial.begin() and trial.run(self.literal, self.set_up)

        def set_up(self) -> None:
            self.machine = Machine(self.trial.context, self.literal[0])

        def do(self, *step: Any) -> None:
            if self.goes_on and (machine := self.machine) is not None:
                self.program.append(step)
                self.goes_on = False  # where it raises
                self.goes_on = self.trial.run(self.literal, lambda: machine.do(step))

        def teardown(self) -> None:
            machine, self.machine = self.machine, None
            if machine is None:
                return
            if self.goes_on:
                self.trial.run(self.literal, machine.end)
            machine.live.clear()

        @rule(size=size, stream=few, index=index)
        def take(self, size: int, stream: int, index: int) -> None:
            self.do("take", size, stream, index)

        @rule(size=size, stream=few, index=index)
        def take_more(self, size: int, stream: int, index: int) -> None:
            self.do("take", size, stream, index)

        @rule(stream=few, index=index)
        def take_and_split(self, stream: int, index: int) -> None:
            self.do("take_and_split", stream, index)

        @rule(which=number)
        def view(self, which: int) -> None:
            self.do("view", which)

        @rule(which=number)
        def free(self, which: int) -> None:
            self.do("free", which)

        @rule(which=number)
        def free_more(self, which: int) -> None:
            self.do("free", which)

        @rule(which=number, stream=few)
        def use_elsewhere(self, which: int, stream: int) -> None:
            self.do("use_elsewhere", which, stream)

        @rule()
        def empty_cache(self) -> None:
            self.do("empty_cache")

        @rule(index=index)
        def reset_peaks(self, index: int) -> None:
            self.do("reset_peaks", index)

        @rule(index=index)
        def reset_totals(self, index: int) -> None:
            self.do("reset_totals", index)

        @rule(index=index)
        def too_much(self, index: int) -> None:
            self.do("too_much", index)

        @rule(size=size)
        def pool_take(self, size: int) -> None:
            self.do("pool_take", size)

        @rule()
        def pool_end(self) -> None:
            self.do("pool_end")

        @rule(size=size, index=index)
        def threads(self, size: int, index: int) -> None:
            self.do("threads", size, index)

    return Drawing


#: The clauses whose invariants hold after every step, and what a program needs to judge them.
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
