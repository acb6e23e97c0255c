"""Pinned examples in a run: additional checks of their cells, each under a layout name of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from conformance.checks.cases.cases import Case
from conformance.checks.cases.context import Where
from conformance.checks.cases.run_case import record_failure, run_program
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.guard import Guard
from conformance.checks.ops.context import ItemContext
from conformance.search.explore.encoding import NotRebuilt, decode, decode_program
from conformance.search.minimise.subject import Subject
from conformance.suites.layout import SUITE
from devices.cell import CellKey
from devices.pinned import Pinned
from opinfo.device import Device
from opinfo.samples import draw


def run_pins(ctx: ItemContext, pins: Sequence[Pinned]) -> None:
    """Check the pinned examples of the item whose clauses are selected, into the cells of ``ctx``."""
    subject = Subject(ctx.op, ctx.dtype, ctx.device, 0, ctx.known)
    subject.__dict__.update(samples=ctx.samples, traits=ctx.traits, strides=ctx.strides)
    applying = set(SUITE.applying(ctx.traits))
    for pin in pins:
        record = ctx.recorder.get(pin.clause)
        if record is None:
            continue
        if pin.clause not in applying:
            record.unbuilt.append(_lost(pin, f"{pin.clause} no longer applies to the op"))
            continue
        ctx.guard.begin((pin.clause,), [record])
        _check(subject, pin, record)
        ctx.guard.done()


def _check(subject: Subject, pin: Pinned, record: CellRecord) -> None:
    try:
        process = "values.not_unique" in subject.traits.families
        drawn = draw(subject.op, subject.dtype) if process else ()
        candidate = decode(pin.call, pin.layouts, drawn)
        made = subject.run(candidate, [pin.clause])[pin.clause]
    except NotRebuilt as error:
        record.unbuilt.append(_lost(pin, str(error)))
        return
    except (
        Exception
    ) as error:  # it could not be laid out or compared: that is not a pass, and is reported
        line = (str(error).splitlines() or [""])[0][:200]
        record.unbuilt.append(_lost(pin, f"{type(error).__name__}: {line}"))
        return
    errors = made.errors[:1] or ([] if made.checks else ["no check was executed"])
    if errors and not made.failures:
        record.unbuilt.append(_lost(pin, errors[0]))
        return
    # A number that no sample of the plan has, so that the count of samples grows by one.
    record.check(-1 - int(pin.id, 16), pin.layout, made.checks)
    for failure in made.failures:
        text = f"pinned in layout {failure.layout}: {failure.message}"
        pinned = msgspec.structs.replace(
            failure.failure, subject="", layout=pin.layout, detail=text
        )
        record.fail(replace(failure, failure=pinned))
    record.unsupported += made.unsupported
    record.ambiguous += made.ambiguous


def run_programs(
    case: Case,
    record: CellRecord,
    device: Device,
    where: Where,
    pins: Iterable[Pinned],
    guard: Guard,
) -> None:
    """Run the pinned programs of a case's cell, each a check of it."""
    if record.declared:
        return
    for pin in pins:
        if pin.cell == record.key:
            guard.begin((pin.clause,), [record])
            _run_program(case, pin, record, device, where)
            guard.done()


def _run_program(case: Case, pin: Pinned, record: CellRecord, device: Device, where: Where) -> None:
    try:
        program = decode_program(case, pin.program)
    except NotRebuilt as error:
        record.unbuilt.append(_lost(pin, str(error)))
        return
    made = run_program(case, program, device, where)
    if made.not_shown or not (made.checks or made.failure or made.refused):
        record.unbuilt.append(_lost(pin, made.not_shown or "no check was executed"))
        return
    record.check(-1 - int(pin.id, 16), pin.layout, made.checks)
    record_failure(case, record, device, made, pin.layout)


def without_case(cell: CellKey, pins: Iterable[Pinned]) -> Recorder:
    """The cell of a case that the suite does not have: an error for each pinned program."""
    recorder = Recorder(cell.op, cell.dtype, [cell.clause])
    for pin in pins:
        if pin.cell == cell and (record := recorder.get(pin.clause)) is not None:
            record.unbuilt.append(_lost(pin, f"{pin.clause} has no case {pin.op!r}"))
    return recorder


def without_op(op: str, dtype: str, clauses: Sequence[str], pins: Sequence[Pinned]) -> Recorder:
    """The cells of an op that this torch's database does not have: an error for each pinned example."""
    recorder = Recorder(op, dtype, clauses)
    for pin in pins:
        if (record := recorder.get(pin.clause)) is not None:
            record.unbuilt.append(_lost(pin, f"torch's database has no op {op!r}"))
    return recorder


def _lost(pin: Pinned, why: str) -> str:
    return (
        f"the pinned example {pin.layout} cannot be rebuilt: {why}. Fix or remove its line in the "
        "device's pinned.jsonl"
    )
