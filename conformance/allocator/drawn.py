"""Programs that hypothesis draws: every invariant of a clause after every step of fifty.

The seeds are pinned, so that a plan draws the same programs every time. What fails is shrunk, and its repro
script replays the shrunk program, without hypothesis.
"""

from __future__ import annotations

from typing import Any

from conformance.allocator.model import Machine, Step, replay, told
from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.behaviour.drawing import pinned, shrunk

cases = Cases()

STEPS = 50
_FEW, _MORE = (0, 5), (1, 20)  # seed, programs: of every plan, and of those beyond quick


def _drawn(context: Context, clause: str, seed: int, programs: int) -> None:
    """The clause holds after every step of drawn programs of requests and frees."""
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    tried: list[tuple[list[Step], BaseException | None]] = []
    machine = seeded(seed)(_machine(context, clause, tried))

    def failing() -> tuple[list[Step], BaseException] | None:
        found = [(program, cause) for program, cause in tried if cause is not None]
        return found[-1] if found else None

    def tell(program: list[Step], cause: BaseException) -> tuple[str, BaseException]:
        context.reproduce_by(replay, clause, program)
        return f"after {told(program) or 'nothing'}", cause

    with shrunk(failing, tell):
        chosen = pinned(programs, stateful_step_count=STEPS)
        run_state_machine_as_test(machine, settings=chosen)
    context.must(len(tried) >= programs, f"{programs} programs ran, and not {len(tried)}")


def _machine(
    context: Context, clause: str, tried: list[tuple[list[Step], BaseException | None]]
) -> Any:
    """The state machine: rules draw numbers, the model's machine does what they say."""
    from hypothesis.stateful import RuleBasedStateMachine, rule
    from hypothesis.strategies import integers

    number, few = integers(0, 11), integers(0, 2)
    size, index = integers(0, 6), integers(0, 1)

    class Drawn(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.program: list[Step] = []
            tried.append((self.program, None))
            self.machine = Machine(context, clause)

        def do(self, *step: Any) -> None:
            self.program.append(step)
            try:
                self.machine.do(step)
            except Exception as error:
                tried[-1] = (self.program, error)
                raise

        def teardown(self) -> None:
            if tried[-1][1] is not None:
                self.machine.live.clear()
                return
            try:
                self.machine.end()
            except Exception as error:
                tried[-1] = (self.program, error)
                raise

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

    return Drawn


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
    cases(_clause, over={"drawn": (_clause, *_FEW)}, slow=True, **_needs)(_drawn)
    cases(_clause, over={"drawn_more": (_clause, *_MORE)}, slow=True, more=True, **_needs)(_drawn)
