"""Bugs of process groups: faults of the group of ``tests/distributed/faulty.py``, in the collectives that were reported."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import Final
from unittest import mock

from conformance.checks.cases.cases import BehaviourCase
from conformance.contract.bugs import Bug
from devices.cell import Outcome
from opinfo.device import Device
from tests.distributed import measure
from tests.distributed.faulty import ENVIRONMENT

_STRIDED: Final = "not contiguous"

#: By name: the faults, as tests/mutation/group_mutants.py names them. Of a bug of several collectives there is one for each.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "all_reduce_max_is_min": ("all_reduce|MAX as MIN|always",),
    "average_of_one_rank_loses_its_end": ("average of one rank",),
    "gather_reads_in_a_row": (f"gather|read as dense|{_STRIDED}",),
    "scatter_broadcast_and_reduce_read_in_a_row": (
        f"scatter|read as dense|{_STRIDED}",
        f"broadcast|read as dense|{_STRIDED}",
        f"reduce|read as dense|{_STRIDED}",
    ),
    "reduce_scatter_single_reads_in_a_row": (f"reduce_scatter_single|read as dense|{_STRIDED}",),
    "lists_are_written_in_a_row": (
        f"all_gather|written as dense|{_STRIDED}",
        f"reduce_scatter|written as dense|{_STRIDED}",
    ),
}


def noticed_by_groups(bug: Bug) -> tuple[str, bool]:
    """The clause of the cases that the bug names, if each of its faults fails one of them that passes without a fault, and
    whether all of these cases are of plan core."""
    (clause,) = bug.clauses
    cases = [
        case
        for case in measure.cases(clause)
        if any(fnmatchcase(case.name, glob) for glob in bug.ops)
    ]
    in_core = []
    with mock.patch.dict("os.environ"), measure.opened() as device:
        for fault in GROUPS[bug.patch]:
            for case in cases:
                if _passes(case, "sound", device) and not _passes(case, fault, device):
                    in_core.append(case.more)
                    break
            else:
                return "", False
    return clause, any(in_core)


def _passes(case: BehaviourCase, fault: str, device: Device) -> bool:
    os.environ[ENVIRONMENT] = fault
    return measure.outcome(case, device)[0] is Outcome.PASS
