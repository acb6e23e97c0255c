"""Whether a gradient that is off by a ten-thousandth or a thousandth would be noticed: ``python -m tests.autograd.off [OP…]``
lists the ops of which it would not. Takes four minutes for all ops.

A sample in a layout is enough: each gradient of an op is off, by the same part of itself.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

import torch

from conformance import contract
from conformance.checks.ops.context import run_checks
from conformance.suites import planned_op_checks
from conformance.suites.autograd.first_order import FIRST
from devices.cell import Outcome
from opinfo.catalog import catalogue
from tests.autograd.trust import ZERO
from tests.mutation.gradients import DTYPE, Mutant, ops, planted
from tests.mutation.items import Subject
from tests.planting.derivatives import Backward

#: By which part of itself a gradient is off.
PARTS = (1e-4, 1e-3)
#: Those that pass, and why that is right.
PASSES: dict[tuple[str, float], str] = {
    ("nn.functional.ctc_loss", 1e-4): "a rounding of its operands changes more",
}
#: Those whose gradients are all zeros. Of norm's, the one that is listed is zero in a sample of zeros only.
_ZEROS = {op for op, place in ZERO if not place} - {"linalg.norm.subgradients_at_zero"}


@dataclass
class _Off(Mutant):
    part: float = 0.0

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        self.reached += 1
        return gradient * (1 + self.part)


def passing(op: str) -> list[float]:
    """The parts by which each gradient of the op may be off, and pass."""
    subject, checks, found = Subject(op, DTYPE, run=False), planned_op_checks(contract.load()), []
    for part in PARTS:
        context = subject.context([FIRST])
        mutant = _Off(catalogue()[op], "always", f"off by {part:g}", None, part=part)
        with planted(mutant):
            run_checks(context, checks)
        if mutant.reached and context.recorder.cells[FIRST].outcome() is not Outcome.FAIL:
            found.append(part)
    return found


def told(op: str) -> list[str]:
    """A line for each that passes without a reason."""
    parts = [part for part in passing(op) if (op, part) not in PASSES and op not in _ZEROS]
    return [f"{op}: gradients that are off by {part:g} of themselves pass" for part in parts]


def main(names: list[str]) -> int:
    """The exit status is 1 if there are such ops."""
    warnings.simplefilter("ignore")
    if unknown := [each for each in names if each not in catalogue()]:
        sys.exit(f"torch's op database has no op {', '.join(unknown)}")
    asked, count = names or ops(), 0
    for op in asked:
        lines = told(op)
        count += len(lines)
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    zeros = len(_ZEROS.intersection(asked))
    print(
        f"{len(asked)} ops, of which {zeros} have gradients of zeros; {count} pass without a reason"
    )
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
