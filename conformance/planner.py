"""From a device and the catalogue to a plan. This is the side of planning that needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from conformance.behaviour.cases import not_here
from conformance.contract import Contract
from conformance.layout import applies
from conformance.machine import machine_of
from conformance.subjects import Entry, Subject, Subjects, file_of
from conformance.suites import checked, planned_cases, planned_op_checks
from conformance.version import VERSION
from devices.cell import CellKey
from devices.descriptor import Descriptor
from devices.pinned import Pinned, digest, read_pinned
from opinfo.device import LAYOUT_CAPABILITIES, Device
from opinfo.exceptions import exceptions
from opinfo.families import op_family
from opinfo.layouts import covering_set
from opinfo.plan import Excluded, Plan, PlanSpec, build, plan_hash
from opinfo.samples import RECIPE
from opinfo.traits import Traits


def dtypes_of(op: Entry, spec: PlanSpec, descriptor: Descriptor) -> list[str]:
    """The dtypes of an op that the plan takes on a device, in a fixed order."""
    offered = op.dtypes & descriptor.dtypes_of(op.id)
    return sorted(d for d in offered if spec.takes(d))


def withheld_dtypes(op: Entry, spec: PlanSpec, descriptor: Descriptor) -> list[str]:
    """Dtypes that the plan takes and the device has, but not, as it declares, for this op."""
    offered = op.dtypes & descriptor.dtypes
    return sorted(d for d in offered - descriptor.dtypes_of(op.id) if spec.takes(d))


def make_plan(spec: PlanSpec, device: Device, contract: Contract, kept: Path | None = None) -> Plan:
    """The plan of a device: every op and dtype, every checked clause that applies.

    A clause whose capabilities the device does not declare is planned too: its cells are reported
    as unsupported by declaration, so that two devices' plans can be held side by side. In the folder
    ``kept`` is what an earlier plan had to ask of torch's database, which takes seconds.
    """
    known, descriptor = exceptions(), device.descriptor
    left_out: dict[str, list[tuple[str, str]]] = {}
    missing = ", ".join(sorted(LAYOUT_CAPABILITIES - descriptor.capabilities))
    op_checks = planned_op_checks(contract)

    def applicable(traits: Traits) -> Iterator[str]:
        yield from applies.applicable(traits)
        yield from (check.clause for check in op_checks if check.applies(traits))

    kind, machine = descriptor.torch_type, machine_of(descriptor.facts())
    path = file_of(kept, kind, spec.samples, machine) if kept is not None else None
    subjects = Subjects(kind, spec.samples, applicable, path)

    def planned() -> Iterator[Subject]:
        for op in subjects.ops:
            for dtype in dtypes_of(op, spec, descriptor):
                subject = subjects.of(op.id, dtype)
                if subject.returns:
                    yield subject
                    continue
                reason = (
                    "the CPU, which is the reference, refuses every sample"
                    if subject.samples
                    else "torch's database offers no sample"
                )
                left_out.setdefault(reason, []).append((op.id, dtype))
            for dtype in withheld_dtypes(op, spec, descriptor):
                reason = "the descriptor declares that the device has not this op for the dtype"
                left_out.setdefault(reason, []).append((op.id, dtype))

    pins = pins_of(spec, device.descriptor)
    recipe: dict[str, str | int] = {
        "suite": VERSION,
        "plan": spec.name,
        "samples": spec.samples,
        "sampling": RECIPE,
        "layouts": covering_set().version,
        "pinned": digest(pins),
    }
    plan = build(
        spec,
        device.name,
        planned(),
        lambda subject: subject.clauses,
        known,
        recipe,
        fake_only=device.fake_only,
        pinned=(pin.cell for pin in pins if pin.dtype and pin.clause in contract.clauses),
    )
    subjects.keep()
    cases = [
        CellKey(case.clause, case.name, "")
        for case in planned_cases(contract, more=spec.more_cases)
    ]
    programs = (pin.cell for pin in pins if not pin.dtype and pin.clause in contract.clauses)
    cells = tuple(dict.fromkeys((*plan.cells, *cases, *programs)))
    ops = {cell.op for cell in plan.cells}
    more = [Excluded("layout.*", reason, tuple(ops)) for reason, ops in left_out.items()]
    if missing:
        only = tuple((op, dtype) for clause, op, dtype in plan.cells if clause == "layout.values")
        reason = (
            "In the contiguous layout alone: others need "
            f"{missing}, which the descriptor does not declare"
        )
        more.append(Excluded("layout.values", reason, only))
    return Plan(
        spec,
        device.name,
        cells,
        (*plan.excluded, *more),
        recipe,
        plan_hash(cells, recipe),
        {op.id: op_family(op.id, op.ufunc) for op in subjects.ops if op.id in ops},
    )


def pins_of(spec: PlanSpec, descriptor: Descriptor) -> tuple[Pinned, ...]:
    """The pinned examples of a device that the plan takes. Raises PinnedError."""
    pins = read_pinned(descriptor.folder)
    return tuple(pin for pin in pins if not pin.dtype or spec.takes(pin.dtype))


def known_layouts(descriptor: Descriptor) -> frozenset[str]:
    """Every name that a manifest of this device may use where layouts are."""
    return covering_set().ids | {pin.layout for pin in read_pinned(descriptor.folder)}


def undeclared_clauses(descriptor: Descriptor, contract: Contract) -> dict[str, str]:
    """Checked clauses that the device does not declare the capabilities for, with those missing."""
    found = {}
    for clause in checked(contract):
        missing = [name for name in clause.requires if name not in descriptor.capabilities]
        if missing:
            found[clause.id] = ", ".join(missing)
    return found


def untried_with(
    ops: Iterable[str], descriptor: Descriptor, contract: Contract
) -> dict[str, dict[str, str]]:
    """By op, then clause, why this device is not tried with it, where the clause's capabilities are declared."""
    undeclared = undeclared_clauses(descriptor, contract)
    checks = [c for c in planned_op_checks(contract) if c.clause not in undeclared]
    return {
        op: {check.clause: why for check in checks if (why := check.untried(descriptor, op))}
        for op in ops
    }


def untried(
    descriptor: Descriptor, contract: Contract, ops: Iterable[str] = ()
) -> Mapping[str, Mapping[str, str]]:
    """By clause and case, or one of the ops, why it is not tried on this machine, where its clause is."""
    undeclared, indices = undeclared_clauses(descriptor, contract), descriptor.device_count()
    found: dict[str, dict[str, str]] = {}
    for case in planned_cases(contract):
        why = not_here(case, descriptor.capabilities, indices)
        if why and case.clause not in undeclared:
            found.setdefault(case.clause, {})[case.name] = why
    for op, of_op in untried_with(ops, descriptor, contract).items():
        for clause, why in of_op.items():
            found.setdefault(clause, {})[op] = why
    return found


def capability_states(
    device: Device, answers: Mapping[str, bool | None] = MappingProxyType({})
) -> dict[str, dict[str, bool | None]]:
    """Declared and probed, held apart; None where nothing has asked the device yet.

    ``answers`` are what it answered in a process of its own (conformance/probing.py): a capability that
    is there and not declared is told too.
    """
    probed: dict[str, bool | None] = {"strides": None, "storage": None}
    base = device.to_device(torch.zeros(64))
    try:
        view = base.as_strided((2, 3), (10, 2), 7)
        probed["strides"] = view.stride() == (10, 2) and view.storage_offset() == 7
        probed["storage"] = (
            view.untyped_storage()._cdata == base.untyped_storage()._cdata
            and base.untyped_storage().data_ptr() != 0
        )
    except (RuntimeError, NotImplementedError):
        # The device refuses: it has neither, which is what the states then say.
        probed = {"strides": False, "storage": False}
    probed = {**answers, **probed}
    there = {name for name, answer in answers.items() if answer} | {"strides", "storage"}
    names = sorted(device.descriptor.capabilities | there)
    return {
        name: {"declared": name in device.descriptor.capabilities, "probed": probed.get(name)}
        for name in names
    }


def torch_build() -> str:
    """What a stride reference depends on: torch's version and commit."""
    commit: Any = getattr(torch.version, "git_version", None) or "unknown"
    return f"{torch.__version__}-{str(commit)[:12]}"
