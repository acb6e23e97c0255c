"""Runs a case, or one of its pinned programs (random programs that failed once and are now part of every plan), and
records the result in the case's cell."""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import replace

from conformance.checks.cases.cases import BehaviourCase, not_here
from conformance.checks.cases.execution import attempt, here
from conformance.checks.cases.memory import memory_of
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.results import Attempt
from conformance.checks.cases.script import has_source, script_of_case
from conformance.checks.cells import CellRecord, Failed
from devices.failure import Failure
from opinfo.device import Device


def run_case(case: BehaviourCase, record: CellRecord, device: Device, where: DeviceLocator) -> None:
    """Runs the check of a case, unless the case is not tried on this device, and records the result."""
    if record.undeclared:
        return
    record.untried = untried(case, device)
    if record.untried:
        return
    started = time.perf_counter()
    made = attempt(case, device, where)
    record.count(made.checks)
    record.reached = made.reached
    for text in made.notes:
        record.note(text)
    if made.undeclared:
        record.pass_over(made.undeclared)
    if made.not_shown and made.blocked_by:
        record.block(made.blocked_by, made.not_shown)
    elif made.not_shown:
        record.error(made.not_shown)
    record_failure(case, record, device, made)
    record.seconds += time.perf_counter() - started


def run_program(
    case: BehaviourCase, program: tuple[Any, ...], device: Device, where: DeviceLocator
) -> Attempt:
    """Runs a pinned program of a case (a random program that failed once and is now part of every plan) and returns the
    result. The caller counts the checks and records the failure."""
    assert case.drawn is not None
    made = here(case.drawn.replay, program, device, case.id, where, default=case.kind)
    if made.failure is None:
        return made
    failure = replace(made.failure, program=case.drawn.describe(*program))
    return Attempt(made.checks, failure, program=program)


def record_failure(
    case: BehaviourCase, record: CellRecord, device: Device, made: Attempt, layout: str = ""
) -> None:
    """Records that the device failed or refused a check, together with the function that writes the repro script."""
    if made.refused is not None:
        record.refuse(NotImplementedError(made.refused))
    elif made.failure is not None:
        failure = replace(made.failure, check="case", layout=layout)
        descriptor = device.descriptor

        def script(failure: Failure) -> str:
            return script_of_case(case, descriptor, failure, made.program)

        record.fail(Failed(failure, repro=script if has_source(descriptor) else None))


def untried(case: BehaviourCase, device: Device) -> str:
    """Returns the reason why a case is not tried on this device and machine. Empty if the case is tried."""
    descriptor = device.descriptor
    indices = descriptor.device_count() if max(case.indices, case.ranks) > 1 else 1
    memory = memory_of(device) if case.memory else None
    shared = descriptor.ranks_share_indices
    return not_here(case, descriptor.capabilities, indices, shared=shared, memory=memory)
