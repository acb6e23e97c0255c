"""Which faults of tests/distributed/faulty.py the suite notices.

``python -m tests.distributed.measure [NAME…]`` runs the cells with each fault until one fails; the exit status
is 0 if every fault is noticed and no cell fails without a fault.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance import contract, suites
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.pools import end_pool
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from conformance.checks.child import use_copier
from conformance.run.fork_client import ForkServer
from devices import registry
from devices.cell import Outcome
from opinfo.device import Device, open_device
from tests.distributed.faulty import ENVIRONMENT, MUTANTS

DESCRIPTOR = Path(__file__).parent / "device" / "descriptor.py"
#: The clauses that a synchronous group can keep. ``order`` and missing ranks are judged with faults of the simulated device.
CLAUSES = ("distributed.collectives", "distributed.ddp", "distributed.sharded")

#: Cells that fail on every device, because torch itself is wrong above the backend.
WRONG_ABOVE = frozenset(
    {
        *("reduce_conjugate", "reduce_scatter_output_conjugate"),
        *("reduce_scatter_single_output_conjugate", "ddp_no_sync_static_graph"),
    }
)


@contextmanager
def opened() -> Iterator[Device]:
    """The CPU with the faulty group, whose ranks are forked from a process that has torch loaded."""
    server = ForkServer(dict(os.environ))
    use_copier(server)
    try:
        yield open_device(registry.load_file(DESCRIPTOR))
    finally:
        end_pool()
        use_copier(None)
        server.close()


def cases(*clauses: str) -> list[BehaviourCase]:
    """The cases of these clauses for two ranks, those of plan quick first, except those that no group over gloo can pass."""
    planned = sorted(suites.planned_cases(contract.load()), key=lambda case: case.more)
    return [
        case
        for case in planned
        if case.clause in clauses
        and case.ranks == 2
        and not case.name.startswith(("other_", "sync_batch_norm"))
        and case.name not in WRONG_ABOVE
    ]


def outcome(case: BehaviourCase, device: Device) -> tuple[Outcome, str]:
    record = CellRecord(case.cell)
    run_case(case, record, device, DeviceLocator(path=str(DESCRIPTOR)))
    return record.outcome(), record.to_outcome().message


def first_failure(mutant: str, device: Device, wanted: list[BehaviourCase]) -> str:
    """The first cell that does not pass with a fault, and its message; empty if the fault is not noticed."""
    os.environ[ENVIRONMENT] = mutant
    for case in wanted:
        found, message = outcome(case, device)
        if found is not Outcome.PASS:
            return f"{case.id}: {found.value}: {message}"
    return ""


def main(names: list[str]) -> int:
    wrong = 0
    with opened() as device:
        for name in names or MUTANTS:
            clauses = CLAUSES if name == "sound" else (MUTANTS[name].clauses,)
            said = first_failure(name, device, cases(*clauses))
            print(f"{name:28}  {said[:150] or 'not noticed'}", flush=True)
            wrong += bool(said) == (name == "sound")
    print(f"{wrong} of {len(names or MUTANTS)} are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
