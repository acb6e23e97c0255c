"""Pinned examples in a run: extra checks of their cells, under layout names of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from conformance.behaviour import attempts
from conformance.behaviour.cases import Case
from conformance.behaviour.process import Where
from conformance.behaviour.script import CaseScript
from conformance.cells import CellRecord, Failure, Recorder
from conformance.explore import programs
from conformance.explore.encoding import NotRebuilt, decode
from conformance.isolation.guard import Guard
from conformance.layout.applies import applicable
from conformance.layout.context import ItemContext
from conformance.minimise.subject import Subject
from devices.cell import CellKey
from devices.pinned import Pinned
from opinfo.device import Device
from opinfo.samples import draw


def by_item(pins: Iterable[Pinned]) -> dict[tuple[str, str], tuple[Pinned, ...]]:
    """Pinned examples by op and dtype; programs by the name of their case, and no dtype."""
    found: dict[tuple[str, str], tuple[Pinned, ...]] = {}
    for pin in pins:
        key = (pin.op, pin.dtype)
        found[key] = (*found.get(key, ()), pin)
    return found


def run_pins(ctx: ItemContext, pins: Sequence[Pinned]) -> None:
    """Check the pinned examples of the item whose clauses are selected, into the cells of ``ctx``."""
    subject = Subject(ctx.op, ctx.dtype, ctx.device, 0, ctx.known)
    subject.__dict__.update(samples=ctx.samples, traits=ctx.traits, strides=ctx.strides)
    applying = set(applicable(ctx.traits))
    for pin in pins:
        record = ctx.recorder.get(pin.clause)
        if record is None:
            continue
        if pin.clause not in applying:
            record.unbuilt.append(_lost(pin, f"{pin.clause} does not apply to the op any more"))
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
    except Exception as error:  # laying it out or comparing it broke: that is not a pass
        line = (str(error).splitlines() or [""])[0][:200]
        record.unbuilt.append(_lost(pin, f"{type(error).__name__}: {line}"))
        return
    errors = made.errors[:1] or ([] if made.checks else ["no check was executed on it"])
    if errors and not made.failures:
        record.unbuilt.append(_lost(pin, errors[0]))
        return
    # Numbered behind the plan's samples, so that the count of samples grows by one.
    record.check(-1 - int(pin.id, 16), pin.layout, made.checks)
    for failure in made.failures:
        text = f"pinned in layout {failure.layout}: {failure.message}"
        record.fail(replace(failure, layout=pin.layout, message=text))
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
        program = programs.decode(case, pin.program)
    except NotRebuilt as error:
        record.unbuilt.append(_lost(pin, str(error)))
        return
    assert case.drawn is not None  # it was rebuilt
    seed = f"{case.clause}::{case.name}"
    made = attempts.here(case.drawn.replay, program, device, seed, where)
    if made.not_shown or not (made.checks or made.failed or made.refused):
        record.unbuilt.append(_lost(pin, made.not_shown or "no check was executed on it"))
        return
    record.check(-1 - int(pin.id, 16), pin.layout, made.checks)
    if made.refused is not None:
        record.refuse(made.refused)
    elif made.failed:
        text = f"pinned program: {case.drawn.told(*program)}: {made.failed}"
        made = replace(made, failed=text, replay=(case.drawn.replay, program))
        script = CaseScript.of(case, device.descriptor, made)
        record.fail(Failure(pin.layout, text, raises=made.raised or None, repro=script))


def without_case(cell: CellKey, pins: Iterable[Pinned]) -> Recorder:
    """The cell of a case that this suite does not have: an error for each pinned program."""
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
        f"the pinned example {pin.layout} cannot be rebuilt: {why}. Mend or remove its line in the "
        "device's pinned.jsonl"
    )
