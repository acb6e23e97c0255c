"""``python -m tests.mutation.unmet``: lists, op by op, the conditions of mutants that no call of plan quick meets.

A seed draws only a few mutants of each op. This command tries all conditions that can be drawn for the kernels with the
op's name. It leaves out conditions that the probe does not meet either, as perhaps no call can. Without the probe
(``--unprobed``), all ops take minutes; a long list then means that the op has few samples.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import Any, NamedTuple

from opinfo.catalog import catalogue
from tests.mutation.conditions import AXES, Condition
from tests.mutation.items import Subject, dtypes_of
from tests.mutation.kernels import drawn_at_random, facts_of, named_targets
from tests.mutation.probe import observable
from tests.planting.calls import NOT_MET, Effect, KernelCall, Refusal
from tests.planting.places import planted

#: Draws of each axis: more than any has conditions.
_DRAWS = 60
#: Of one condition: calls that the probe makes, and seconds.
_ROUNDS, _SECONDS = 70, 12


class Unmet(NamedTuple):
    """A condition that no call of the suite meets.

    If the probe was asked, ``call`` is its call that meets the condition, or says that its time was over.
    """

    op: str
    kernel: str
    axis: str
    condition: str
    call: str = ""


class _Late(BaseException):
    pass


def conditions(op: str, overloads: tuple[str, ...]) -> dict[tuple[str, str], Condition]:
    """All conditions that can be drawn for these kernels of an op, by axis and label."""
    facts, found = facts_of(op, overloads), {}
    for axis, draw in AXES.items():
        for number in range(_DRAWS):
            drawn = draw(facts, Random(f"{op} {axis} {number}"))
            if drawn is None:
                break
            found.setdefault((axis, drawn[0]), drawn[1])
    return found


def noting(left: dict[tuple[str, str], Condition]) -> Effect:
    """An effect that removes from ``left`` each condition that a call meets."""

    def effect(call: KernelCall) -> Any:
        for key in [key for key, condition in left.items() if condition(call)]:
            del left[key]
        return NOT_MET

    return effect


def refusing(condition: Condition) -> Effect:
    def effect(call: KernelCall) -> Any:
        if condition(call):
            raise Refusal("the condition is met")
        return NOT_MET

    return effect


def unprobed(op: str) -> Iterator[Unmet]:
    """The conditions that no call of the op's items in plan quick meets."""
    for overloads, left in _left(op).items():
        yield from (Unmet(op, "/".join(overloads), axis, label) for axis, label in left)


def unmet(op: str) -> Iterator[Unmet]:
    """The unprobed conditions that a call of the probe meets."""
    dtypes = dtypes_of(op, "quick")
    for overloads, left in _left(op).items():
        known = conditions(op, overloads)  # anew: some count calls
        for axis, label in left:
            found = f"not known: the probe found none in {_SECONDS} seconds"
            with _at_most(_SECONDS):
                effect = refusing(known[axis, label])
                found = observable(overloads, effect, op, dtypes, Random(1), _ROUNDS)
            # An index out of range is refused whatever it is called with.
            if found and "IndexError" not in found:
                yield Unmet(op, "/".join(overloads), axis, label, found)


def _left(op: str) -> dict[tuple[str, ...], dict[tuple[str, str], Condition]]:
    """For the overloads of each kernel of an op: the conditions that no call of its items in plan quick meets."""
    kernels = [each for each in named_targets(op) if not drawn_at_random(each)]
    left = {overloads: conditions(op, overloads) for overloads in kernels}
    for dtype in dtypes_of(op, "quick"):
        with ExitStack() as stack:
            runs = [stack.enter_context(planted(o, noting(of))) for o, of in left.items()]
            Subject(op, dtype, run=False).run()
        # A condition that cannot be asked would hide those after it.
        if failures := [failure for run in runs for failure in run.failures]:
            raise RuntimeError(f"{op}: {failures[0]}")
    return left


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        with suppress(_Late):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.unmet", description=__doc__)
    parser.add_argument("ops", nargs="*", metavar="OP", help="of these ops only (default: all)")
    parser.add_argument(
        "--unprobed", action="store_true", help="list what no call at all may be able to meet, too"
    )
    given = parser.parse_args()
    known = [op for op in catalogue() if dtypes_of(op, "quick")]
    if strange := sorted({*given.ops} - {*known}):
        parser.error(f"{strange[0]!r} is no op that plan quick runs on the simulated device")
    for op in given.ops or known:
        for each in unprobed(op) if given.unprobed else unmet(op):
            print(" | ".join(filter(None, each)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
