"""The results of judging a kernel as data: its faults, the checks that were made, its speed, and the verdict."""

from __future__ import annotations

import msgspec

from devices.cell import Outcome
from devices.failure import Failure, Word


class Verdict(Word):
    """The verdict on a kernel. If nothing could be checked, the verdict is "not judged", which is not a pass."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_JUDGED = "not judged"


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way in which a kernel is wrong.

    ``check`` is a clause of the contract, such as ``layout.values``, or a check that exists only for kernels, such as
    ``kernel.guard_pages``. ``failure`` describes the smallest failing call; it is None if the fault is not about a
    single call. Of ``checks`` comparisons, ``failed`` failed. ``script`` is the source of a repro script; it is empty
    if there is none.
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
    is neither pass nor fail."""

    check: str
    dtype: str
    outcome: Outcome
    checks: int = 0
    note: str = ""


class Speed(msgspec.Struct, frozen=True):
    """The median times of one call of the kernel and of the op that it replaces, in microseconds, on the same inputs.
    ``call`` describes the inputs."""

    kernel_us: float
    replaced_us: float
    call: str

    @property
    def ratio(self) -> float:
        """The time of the replaced op divided by the time of the kernel. If it is above 1, the kernel is faster."""
        return self.replaced_us / self.kernel_us


class Judgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """The judgement of one kernel.

    ``kernel`` and ``replaces`` are names. ``calls`` is the number of calls of the kernel. ``notes`` are remarks that do
    not affect the verdict. ``why`` is the reason why a kernel was not judged. ``speed`` is set only for a right kernel.
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
        """The fault to show first, or None if there are no faults. Faults with a repro script come first, then those
        whose failing call has the fewest elements."""
        return min(self.faults, key=lambda each: (not each.script, _elements(each)), default=None)

    @property
    def comparisons(self) -> int:
        """The number of comparisons that all checks made."""
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
