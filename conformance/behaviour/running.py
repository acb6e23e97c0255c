"""Running a case of a suite into its cell."""

from __future__ import annotations

import time

from conformance.behaviour import attempts
from conformance.behaviour.cases import Case, not_here
from conformance.behaviour.process import Where
from conformance.behaviour.script import CaseScript
from conformance.cells import CellRecord, Failure
from opinfo.device import Device


def run_case(case: Case, record: CellRecord, device: Device, where: Where) -> None:
    """Make the check of a case, where the device is to be tried in it, and record what came of it."""
    if record.undeclared:
        return
    record.untried = untried(case, device)
    if record.untried:
        return
    started = time.perf_counter()
    seed = f"{case.clause}::{case.name}"
    if case.own_process:
        attempt = attempts.aside(
            *(case.check, case.arguments, seed, where),
            *(dict(case.environment), case.seconds),
        )
    else:
        attempt = attempts.here(case.check, case.arguments, device, seed, where)
    record.count(attempt.checks)
    for text in attempt.notes:
        record.note(text)
    if attempt.refused is not None:
        record.refuse(attempt.refused)
    elif attempt.not_shown:
        record.error(attempt.not_shown)
    elif attempt.failed:
        script = CaseScript.of(case, device.descriptor, attempt)
        record.fail(Failure("", attempt.failed, raises=attempt.raised or None, repro=script))
    record.seconds += time.perf_counter() - started


def untried(case: Case, device: Device) -> str:
    """Why a case is not tried on this device and machine; empty where it is."""
    indices = device.descriptor.device_count() if case.indices > 1 else 1
    return not_here(case, device.descriptor.capabilities, indices)
