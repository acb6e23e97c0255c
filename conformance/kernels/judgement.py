"""The structs of a judged kernel: its faults, the checks that were made, its speed, and the verdict."""

from __future__ import annotations

import msgspec

from devices.cell import Outcome
from devices.failure import Failure, Word


class Verdict(Word):
    """The verdict on a kernel. A kernel for which nothing could be checked is not judged, which is not a pass."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_JUDGED = "not judged"


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way in which a kernel is wrong.

    ``check`` is a clause of the contract, such as ``layout.values``, or a check of kernels alone, such as
    ``kernel.guard_pages``. ``failure`` describes the smallest failing call; it is None for a fault that belongs to no
    call. ``failed`` of ``checks`` comparisons failed. ``script`` is the text of a repro script; empty if there is none.
    """

    check: str
    message: str
    dtype: str = ""
    failure: Failure | None = None
    failed: int = 1
    checks: int = 1
    script: str = ""


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one check in one dtype, with the number of comparisons. ``note`` is the reason for an outcome that
    is neither a pass nor a failure."""

    check: str
    dtype: str
    outcome: Outcome
    checks: int = 0
    note: str = ""


class Speed(msgspec.Struct, frozen=True):
    """The median times of a call, in microseconds, of the kernel and of the op that it replaces, on the same inputs.
    ``call`` describes the inputs."""

    kernel_us: float
    replaced_us: float
    call: str

    @property
    def ratio(self) -> float:
        """The time of the replaced op divided by the time of the kernel: above 1, the kernel is faster."""
        return self.replaced_us / self.kernel_us


class Judgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict on one kernel.

    ``kernel`` and ``replaces`` are names. ``calls`` is the number of calls that the kernel got. ``notes`` are remarks that
    do not make the kernel wrong. ``why`` says why a kernel was not judged. ``speed`` is set only for a right kernel.
    """

    kernel: str
    replaces: str
    device: str
    verdict: Verdict
    faults: tuple[Fault, ...] = ()
    results: tuple[CheckResult, ...] = ()
    notes: tuple[str, ...] = ()
    why: str = ""
    calls: int = 0
    speed: Speed | None = None
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """True if the kernel is right: at least one check was made, and none failed."""
        return self.verdict is Verdict.RIGHT

    @property
    def smallest(self) -> Fault | None:
        """The fault to show first: one with a repro script, of the fewest elements; None for a kernel without faults."""
        return min(self.faults, key=lambda each: (not each.script, _elements(each)), default=None)

    @property
    def comparisons(self) -> int:
        """The number of comparisons of all checks."""
        return sum(each.checks for each in self.results)


def _elements(fault: Fault) -> int:
    if fault.failure is None:
        return 1 << 62
    total = 0
    for each in fault.failure.inputs:
        count = 1
        for size in each.shape:
            count *= size
        total += count
    return total
