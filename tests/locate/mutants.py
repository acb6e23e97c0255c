"""Plants faults in front of the kernels that a program calls on the simulated device, and lets ``locate`` name them:
``python -m tests.locate.mutants --seed N --count 20``. Exits 1 if it names less than nine of ten, if a second run says something
else, or if it reports a call without a mutant."""

from __future__ import annotations

import argparse
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import torch

from conformance.locate.lock_step import LockStep, Options
from conformance.locate.wire import Fault
from conformance.plan.selection import find_descriptor
from devices.errors import in_a_line
from opinfo.device import Device, open_device
from tests.mutation.kernels import TOOLS, drawn_fault, facts_of_calls
from tests.planting.calls import Effect, KernelCall
from tests.planting.places import SIMULATED, planted
from tests.planting.seen import Seen

#: The numbers of calls that are made without reading back, with the calls before the first window.
PASSES = ((1, 0), (3, 0), (3, 1))

Program = Callable[[], list[torch.Tensor]]


@dataclass(frozen=True)
class Mutant:
    """A fault in front of one overload that the program calls."""

    number: int
    overload: str
    kind: str
    effect: Effect

    @property
    def op(self) -> str:
        """The overload as ``locate`` names it."""
        return f"aten.{self.overload if '.' in self.overload else self.overload + '.default'}"


@dataclass(frozen=True)
class Row:
    """What ``locate`` said of a mutant, in two runs."""

    mutant: Mutant
    first: Fault | None
    second: Fault | None

    @property
    def named(self) -> bool:
        return self.first is not None and self.first.call.op == self.mutant.op

    @property
    def same(self) -> bool:
        return self.first == self.second


def calls_of(program: Program) -> dict[str, list[KernelCall]]:
    """The calls of the program that reach kernels of the device, by overload, without those that every call needs."""
    with Seen() as seen:
        program()
    return {name: calls for name, calls in seen.calls.items() if name not in TOOLS}


def mutant_of(calls: dict[str, list[KernelCall]], seed: int, number: int) -> Mutant | None:
    """The mutant of this number, new each time, because an effect may count its calls."""
    rng = Random(f"{seed} {number}")
    overload = rng.choice(sorted(calls))
    found = drawn_fault(facts_of_calls(calls[overload], ("float32",)), rng)
    return None if found is None else Mutant(number, overload, f"{found[0]}: {found[1]}", found[2])


def outcome(program: Program, mutant: Mutant | None) -> list[torch.Tensor] | str:
    """The results of the program on the CPU, or the exception that it raised."""
    with planted([mutant.overload], mutant.effect) if mutant else nullcontext():
        try:
            return [each.cpu() for each in program()]
        except Exception as error:  # a mutant may raise anything
            return in_a_line(error)


def is_alive(program: Program, mutant: Mutant, right: list[torch.Tensor]) -> bool:
    """Whether the program ends otherwise with the mutant than without."""
    found = outcome(program, mutant)
    return isinstance(found, str) or not all(map(torch.equal, found, right))


def located(program: Program, mutant: Mutant | None, device: Device) -> Fault | None:
    """What ``locate`` says: first of single calls, then of windows."""
    for window, phase in PASSES:
        mode = LockStep(device, Options(window, phase, growth=False))
        fault = planted([mutant.overload], mutant.effect) if mutant else nullcontext()
        # whatever a mutant raises, the report says which call raised it
        with fault, suppress(Exception), mode.judging_program():
            program()
        if mode.fault is not None:
            return mode.fault
    return None


def rows(program: Program, device: Device, seed: int, wanted: int) -> Iterator[Row]:
    """Draws mutants until so many are alive, and locates each twice."""
    calls = calls_of(program)
    right = outcome(program, None)
    assert not isinstance(right, str), right
    alive = 0
    for number in count():
        mutant = mutant_of(calls, seed, number)
        if mutant is None or not is_alive(program, mutant, right):
            continue
        again = [mutant_of(calls, seed, number) for _ in range(2)]
        yield Row(mutant, *(located(program, each, device) for each in again))
        alive += 1
        if alive == wanted:
            return


def trained_transformer() -> Program:
    """The program of examples/locate on the simulated device."""
    path = Path(__file__).parents[2] / "examples" / "locate" / "transformer.py"
    train = runpy.run_path(str(path))["train"]
    return partial(train, SIMULATED)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--count", type=int, default=20)
    given = options.parse_args()
    warnings.simplefilter("ignore")
    device, program = open_device(find_descriptor(SIMULATED, None)), trained_transformer()
    healthy = located(program, None, device)
    print(f"without a mutant: {healthy.call.op if healthy else 'no call is wrong'}", flush=True)
    print("| mutant | planted | named | call | twice the same | kind |", "|" + "---|" * 6, sep="\n")
    named = same = 0
    for row in rows(program, device, given.seed, given.count):
        named, same = named + row.named, same + row.same
        call = row.first.call if row.first else None
        about = f"{call.number}, {call.where}" if call else ""
        print(
            f"| {row.mutant.number} | {row.mutant.op} | {'yes' if row.named else call.op if call else 'nothing'} | "
            f"{about} | {'yes' if row.same else 'no'} | {row.mutant.kind} |",
            flush=True,
        )
    print(f"named: {named} of {given.count}; twice the same: {same} of {given.count}")
    return 0 if not healthy and 10 * named >= 9 * given.count and same == given.count else 1


if __name__ == "__main__":
    sys.exit(main())
