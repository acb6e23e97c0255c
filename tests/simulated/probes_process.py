"""Direct probes of faults that concern a whole process: each runs in a child, forked before the device was used."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.simulated.children import HANGS, child, child_says
from tests.simulated.probes import ones, probe, raises

PATIENCE = 0.7  # seconds that a child is given which may hang
#: The second exp of the process strikes.
SECOND_EXP = {"SIMULATED_FAULT_OP": "aten::exp", "SIMULATED_FAULT_CALL": "2"}


def exps() -> bool:
    x = ones(2)
    first = x.exp()
    print(first.tolist(), file=sys.stderr)
    print(x.exp().tolist(), file=sys.stderr)
    return True


def exps_while_another_thread_ends_the_process() -> bool:
    """Ends by 7 where another thread of Python goes on while exp hangs."""
    threading.Timer(0.1, lambda: os._exit(7)).start()
    return exps()


def exps_raise() -> bool:
    """Whether the second exp and all that follows raise."""
    x = ones(2)
    x.exp().tolist()
    return raises(x.exp) and raises(lambda: x + 1) and raises(torch.simulated.synchronize)


@probe("process.segfault")
def _() -> bool:
    return child(exps, **SECOND_EXP) == -11


@probe("process.abort")
def _() -> bool:
    return child(exps, **SECOND_EXP) == -6


@probe("process.exit")
def _() -> bool:
    return child(exps, **SECOND_EXP) == 3


@probe("process.hang")
def _() -> bool:
    assert child(exps_while_another_thread_ends_the_process, **SECOND_EXP) != HANGS
    return child(exps, seconds=PATIENCE, **SECOND_EXP) == HANGS


@probe("process.hang_holding_gil")
def _() -> bool:
    return child(exps_while_another_thread_ends_the_process, seconds=PATIENCE, **SECOND_EXP) == HANGS  # fmt: skip


@probe("process.hang_on_stream")
def _() -> bool:
    return child(exps, seconds=PATIENCE, **SECOND_EXP) == HANGS


@probe("process.sticky_error")
def _() -> bool:
    return child_says(exps_raise, **SECOND_EXP)


# Forks, beginnings and ends


def used_after_a_fork() -> bool:
    """Whether a grandchild, forked after the device was used, may go on with it."""
    x = ones(2)
    torch.simulated.synchronize()
    grandchild = os.fork()
    if grandchild == 0:
        try:
            x.add_(1)
            os._exit(1)
        except RuntimeError as error:
            os._exit(0 if "forked subprocess" in str(error) else 1)
    return os.waitpid(grandchild, 0)[1] != 0


@probe("device.fork_silent")
def _() -> bool:
    return child_says(used_after_a_fork)


@probe("device.fork_loses_work")
def _() -> bool:
    return child_says(used_after_a_fork)


@probe("device.fork_hangs")
def _() -> bool:
    return child(used_after_a_fork, seconds=PATIENCE) == HANGS


def initialised_by_importing() -> bool:
    import devices.simulated.backend  # noqa: F401

    return bool(torch.simulated.is_initialized())


@probe("device.init_on_import")
def _() -> bool:
    return child_says(initialised_by_importing, kind="bare")


def failure_is_hidden() -> bool:
    """Whether torch hears of a backend that cannot be built."""
    with TemporaryDirectory() as folder:
        information = Path(folder, "failing-1.0.dist-info")
        information.mkdir()
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n"
        )
        (information / "entry_points.txt").write_text(
            "[torch.backends]\nsimulated = devices.simulated.autoload:autoload\n"
        )
        sys.path.insert(0, folder)
        os.environ["TORCH_CONFORMANCE_CACHE"] = "/dev/null/nowhere"
        try:
            torch._import_device_backends()
        except RuntimeError as error:
            assert "cannot be written" in str(error.__cause__), error.__cause__
            return False
        return True


@probe("device.autoload_failure_hidden")
def _() -> bool:
    return child_says(failure_is_hidden, kind="bare")


def end_of_the_process() -> bool:
    kept = ones(2) + 1
    torch.simulated.busy(1)
    return kept.numel() == 2


@probe("device.abort_at_exit")
def _() -> bool:
    return child(end_of_the_process) == -6


def seed_is_lost() -> bool:
    torch.manual_seed(3)
    before = torch.simulated.get_rng_state(0)
    ones(1)
    torch.manual_seed(3)
    return not torch.equal(before, torch.simulated.get_rng_state(0))


@probe("random.seed_lost_before_init")
def _() -> bool:
    return child_says(seed_is_lost)


# What needs a device of its own


def allocations_go_round() -> bool:
    memory, taken = torch.simulated.memory, []

    def take(size: int, device: int, stream: int) -> int:
        taken.append(size)
        return int(memory.driver_alloc(size, device))

    def give(address: int, size: int, device: int, stream: int) -> None:
        memory.driver_free(address, size)

    memory.change_current_allocator(memory.PluggableAllocator(take, give))
    kept = [torch.empty(count, dtype=torch.uint8, device="simulated") for count in (10, 20, 30)]
    return taken != [10, 20, 30] and len(kept) == 3


@probe("allocator.pluggable_bypassed")
def _() -> bool:
    return child_says(allocations_go_round)


def allocator_can_be_changed() -> bool:
    ones(1)
    memory = torch.simulated.memory
    plugged = memory.PluggableAllocator(lambda *_: 0, lambda *_: None)
    return not raises(memory.change_current_allocator, plugged)


@probe("allocator.pluggable_changed_after_use")
def _() -> bool:
    return child_says(allocator_can_be_changed)


def told() -> list[tuple[int, int]]:
    """The device and the stream that a user's function is told for blocks on index 1 and on a stream."""
    memory, seen = torch.simulated.memory, []

    def take(size: int, device: int, stream: int) -> int:
        seen.append((device, stream))
        return int(memory.driver_alloc(size, device))

    def give(address: int, size: int, device: int, stream: int) -> None:
        memory.driver_free(address, size)

    memory.change_current_allocator(memory.PluggableAllocator(take, give))
    kept = [torch.empty(10, device="simulated:1")]
    with torch.Stream("simulated:0"):
        kept.append(torch.empty(10, device="simulated:0"))
    assert len(kept) == 2
    return seen


def told_index_0() -> bool:
    return told()[0][0] == 0


def told_no_stream() -> bool:
    return told()[1][1] == 0


@probe("allocator.pluggable_told_index_0")
def _() -> bool:
    return child_says(told_index_0)


@probe("allocator.pluggable_told_no_stream")
def _() -> bool:
    return child_says(told_no_stream)


def refused_capture_goes_on() -> bool:
    """Whether a stream captures after the pool of another capture was refused to it."""
    x = ones(2)
    torch.simulated.synchronize()
    streams = [torch.Stream("simulated:0") for _ in range(2)]
    first, second = (torch.accelerator.Graph(pool=(0, 9001)) for _ in range(2))
    with streams[0]:
        first.capture_begin()
        x.add_(1)
    with streams[1]:
        refused = raises(second.capture_begin)
    with streams[0]:
        first.capture_end()
    return refused and bool(streams[1].is_capturing())


@probe("graphs.refused_capture_goes_on")
def _() -> bool:
    return child_says(refused_capture_goes_on)
