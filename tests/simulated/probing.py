"""``python -m tests.simulated.probing [FAULT...]``: each probe with its fault off, on and off again, as JSON.

In a process of its own, because faults of allocators and queues outlive their switch: counters stay wrong, blocks
stay lost, and whatever else the process holds on the device may have been written over.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from devices.simulated.faults import FAULTS, planted
from tests.simulated import probes_graphs, probes_memory, probes_streams  # noqa: F401 - they register probes
from tests.simulated.probes import PROBES


def main(names: Sequence[str]) -> None:
    """One line a fault: its name, and whether the device misbehaved before, during and after."""
    for name in names or FAULTS:
        probe = PROBES[name]
        before = probe()
        with planted(name):
            during = probe()
        print(json.dumps([name, before, during, probe()]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # once a backward pass has run, torch's own end may abort the process
