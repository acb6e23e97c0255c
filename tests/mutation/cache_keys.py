"""Kernels that are compiled once for the shapes and dtypes of a call, and whose cache forgets one of the other arguments.

``python -m tests.mutation.cache_keys [--seed N] [--count K]`` draws K pairs of an op and one of its arguments that are no
tensors. A later call with the same shapes and dtypes, and with the same other arguments, gets the value that the argument had in
the first such call. The command prints for each pair whether the op's cells notice it (``--only OP ARGUMENT`` tries one).
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from conformance import contract
from conformance.suites import planned_op_checks
from opinfo.catalog import catalogue
from opinfo.compare import replace_tensors, tensors_of
from tests.faulty import clauses_that_fail, samples_of_every_plan
from tests.planting.calls import NOT_MET, KernelCall

DTYPE = "float32"
#: The position or the name of an argument.
Slot = int | str


class Forgetful:
    """The effect. ``struck`` counts the calls that got another value than they were given, ``example`` names one of them."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.struck, self.example = slot, 0, ""
        self._first: dict[str, Any] = {}

    def __call__(self, call: KernelCall) -> Any:
        if isinstance(self.slot, int) and self.slot >= len(call.args):
            return NOT_MET
        value = call.args[self.slot] if isinstance(self.slot, int) else call.kwargs.get(self.slot)
        if tensors_of(value):
            return NOT_MET
        args, kwargs = list(call.args), dict(call.kwargs)
        others = [a for n, a in enumerate(args) if n != self.slot]
        named = {name: a for name, a in kwargs.items() if name != self.slot}
        key = repr((call.function, replace_tensors((others, named), _named)))
        first = self._first.setdefault(key, value)
        if repr(first) == repr(value):
            return NOT_MET
        self.struck += 1
        self.example = f"{value!r:.40} taken as {first!r:.40}"
        if isinstance(self.slot, int):
            args[self.slot] = first
        elif first is None:
            kwargs.pop(self.slot)
        else:
            kwargs[self.slot] = first
        return call.function(*args, **kwargs)


def _named(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{tuple(tensor.shape)}"


def slots(op: str) -> Iterator[Slot]:
    """The arguments that are no tensors and of which the samples have several values."""
    values: dict[Slot, set[str]] = {}
    for sample in samples_of_every_plan(op, DTYPE):
        given: list[tuple[Slot, Any]] = [*enumerate(sample.call.args)]
        for slot, value in [*given, *sample.call.kwargs.items()]:
            if not tensors_of(value):
                values.setdefault(slot, set()).add(repr(value))
    return iter(slot for slot, found in values.items() if len(found) > 1)


def result_of(op: str, slot: Slot) -> str:
    effect = Forgetful(slot)
    red = clauses_that_fail(op, DTYPE, planned_op_checks(contract.load()), effect)
    if red:
        return f"noticed by {red[0]}"
    return f"survived ({effect.example}, {effect.struck} calls)" if effect.struck else "not reached"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--only", nargs=2, metavar=("OP", "ARGUMENT"))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.only:
        op, slot = asked.only
        print(result_of(op, int(slot) if slot.isdigit() else slot))
        return 0
    ops = [op for op, info in catalogue().items() if DTYPE in info.dtypes]
    random.Random(asked.seed).shuffle(ops)
    counts: Counter[str] = Counter()
    draw = random.Random(asked.seed)
    for op in ops:
        if counts.total() == asked.count:
            break
        if found := sorted(slots(op), key=str):
            chosen = draw.choice(found)
            result = result_of(op, chosen)
            counts["not reached" if result == "not reached" else result.split()[0]] += 1
            print(f"{op} {chosen}: {result}", flush=True)
    print(dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
