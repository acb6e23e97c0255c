"""``python -m tests.simulated.probing [FAULT...]``: each probe with its fault off, on and off again, as JSON.

Each fault in a process of its own, because faults of allocators and queues outlive their switch: counters stay
wrong, blocks stay lost, and whatever else the process holds on the device may have been written over.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from tests.simulated import children

ROOMS = ("probes_memory", "probes_streams", "probes_transfer", "probes_device", "probes_calls", "probes_process", "probes_graphs", "probes_nn", "probes_size")  # fmt: skip


def main(names: Sequence[str]) -> None:
    """One line a fault: its name, and whether the device misbehaved before, during and after."""
    children.prepare("bare")
    from devices.simulated.backend.fault_switches import planted
    from tests.simulated.probes import PROBES

    device = importlib.import_module("devices.simulated.backend").module
    children.prepare("loaded")
    for room in ROOMS:
        importlib.import_module(f"tests.simulated.{room}")

    def try_out(name: str) -> None:
        device.init()
        probe = PROBES[name]
        before = probe()
        with planted(name):
            during = probe()
        print(json.dumps([name, before, during, probe()]), flush=True)

    for name in names or PROBES:
        if name not in PROBES:
            print(
                json.dumps([name, "tests/simulated/probes*.py has no probe of it", None, None]),
                flush=True,
            )
            continue
        child = os.fork()
        if child == 0:
            _end_with(try_out, name)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 0:
            print(json.dumps([name, f"the probe's process ended by {status}", None, None]))


def _end_with(function: Callable[[str], None], name: str) -> None:
    """Call the function and end the process."""
    status = 1
    try:
        function(name)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # once a backward pass has run, torch's own end may abort the process
