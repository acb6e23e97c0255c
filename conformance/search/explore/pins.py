"""Runs pinned examples (failures of an earlier search) as additional checks of their cells, each under a layout name of
its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from conformance.checks.call_hooks import Guard
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import record_failure, run_program
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.ops.context import OpContext
from conformance.plan.selection import Item
from conformance.search.explore.encoding import NotRebuilt, decode, decode_program
from conformance.search.minimise.candidates import CandidateRunner
from conformance.suites.layout import SUITE
from devices.cell import CallKey
from devices.errors import in_a_line
from devices.pinned import Pinned
from opinfo.device import Device


def run_pins(ctx: OpContext, pins: Sequence[Pinned]) -> None:
    """Checks those pinned examples of an op and dtype whose clauses are selected, and records the results in the cells
    of ``ctx``."""
    runner = CandidateRunner(ctx.subject, ctx.dtype, ctx.device, 0, ctx.known)
    runner.__dict__.update(samples=ctx.samples, traits=ctx.traits, strides=ctx.strides)
    applying = set(SUITE.applying(ctx.traits))
    for pin in pins:
        record = ctx.recorder.get(pin.clause)
        if record is None:
            continue
        if pin.clause not in applying:
            _lost(record, pin, f"{pin.clause} no longer applies to the op")
            continue
        ctx.guard.begin((pin.clause,), [record])
        if ctx.guard.call(_name_of(pin)):
            _check(runner, pin, record)
        ctx.guard.end()


def _check(runner: CandidateRunner, pin: Pinned, record: CellRecord) -> None:
    try:
        process = "values.not_unique" in runner.traits.families
        drawn = runner.source_samples if process else ()
        candidate = decode(pin.call, pin.layouts, drawn)
        made = runner.run(candidate, [pin.clause])[pin.clause]
    except NotRebuilt as error:
        return _lost(record, pin, str(error))
    except Exception as error:  # an example that cannot be laid out or compared is an error
        return _lost(record, pin, in_a_line(error))
    errors = made.errors[:1] or ([] if made.checks else ["no check was executed"])
    if errors and not made.failures:
        return _lost(record, pin, errors[0])
    _count(record, pin, made.checks)
    for failure in made.failures:
        text = f"pinned in layout {failure.layout}: {failure.message}"
        pinned = msgspec.structs.replace(
            failure.failure, subject="", layout=pin.layout, detail=text
        )
        record.fail(replace(failure, failure=pinned))
    record.unsupported += made.unsupported
    record.ambiguous += made.ambiguous


def run_programs(
    case: BehaviourCase,
    record: CellRecord,
    device: Device,
    where: DeviceLocator,
    pins: Iterable[Pinned],
    guard: Guard,
) -> None:
    """Runs the pinned programs of a cell of a case. Each program counts as one more check of the cell."""
    if record.declared:
        return
    for pin in pins:
        if pin.cell == record.key:
            guard.begin((pin.clause,), [record])
            if guard.call(_name_of(pin)):
                _run_program(case, pin, record, device, where)
            guard.end()


def _run_program(
    case: BehaviourCase, pin: Pinned, record: CellRecord, device: Device, where: DeviceLocator
) -> None:
    try:
        program = decode_program(case, pin.program)
    except NotRebuilt as error:
        return _lost(record, pin, str(error))
    made = run_program(case, program, device, where)
    if made.undeclared or made.not_shown or not (made.checks or made.failure or made.refused):
        return _lost(record, pin, made.undeclared or made.not_shown or "no check was executed")
    _count(record, pin, made.checks)
    record_failure(case, record, device, made, pin.layout)


def unknown_here(item: Item, pins: Iterable[Pinned]) -> Recorder:
    """Returns the cells of an op that torch's database lacks, or of a case that the suite lacks, with an error for each
    pinned example."""
    op, dtype = item.unit, item.dtype
    recorder = Recorder(op, dtype, item.clauses, variant=item.variant)
    for pin in pins:
        if (record := recorder.get(pin.clause)) is not None:
            case = f"{pin.clause} has no case {op!r}"
            _lost(record, pin, f"torch's database has no op {op!r}" if dtype else case)
    return recorder


def _name_of(pin: Pinned) -> CallKey:
    """Returns the key of the call of a pinned example. The example counts as a sample with a negative number, which no
    sample of the plan has."""
    return CallKey(-1 - int(pin.id, 16), pin.layout)


def _count(record: CellRecord, pin: Pinned, checks: int) -> None:
    record.check(*_name_of(pin), checks)


def _lost(record: CellRecord, pin: Pinned, why: str) -> None:
    record.unbuilt.append(
        f"the pinned example {pin.layout} cannot be rebuilt: {why}. Fix or remove its line in the "
        "device's pinned.jsonl"
    )
