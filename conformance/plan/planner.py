"""Makes the plan of a device: the ops and dtypes of a source of samples, and the clauses that apply to them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import torch

from conformance.checks.cases.cases import OpCheck, not_here
from conformance.contract import Contract
from conformance.plan.applicable import ApplicableClauses, Entry, SubjectClauses, file_of
from conformance.plan.selection import Machine
from conformance.plan.usage import keep_ops
from conformance.suites import checked, planned_cases, planned_op_checks
from conformance.version import VERSION
from devices.descriptor import Descriptor
from devices.pinned import digest, read_pinned
from opinfo.database import DATABASE
from opinfo.device import BY_VALUES, LAYOUT_CAPABILITIES, is_fake_only
from opinfo.exceptions import exceptions, op_family
from opinfo.layouts import covering_set
from opinfo.plan import Excluded, Plan, PlanSpec, build, plan_hash
from opinfo.sample_source import SampleSource
from opinfo.samples import Traits
from reports.model import Capability

# -- the plan

# Why an op and dtype is left out.
_RAISES: Final = "the CPU, which is the reference, raises for every sample"
_NO_SAMPLES: Final = "torch's database has no samples for this op and dtype"
_WITHHELD: Final = "the descriptor declares that the device does not support this op for this dtype"


def dtypes_of(op: Entry, spec: PlanSpec, descriptor: Descriptor) -> tuple[list[str], list[str]]:
    """Returns two sorted lists of the plan's dtypes for an op: the dtypes that the device declares for this op, and the
    dtypes that the device declares for other ops only."""
    mine = descriptor.dtypes_of(op.id)
    withheld = (op.dtypes & descriptor.dtypes) - mine
    return sorted(filter(spec.takes, op.dtypes & mine)), sorted(filter(spec.takes, withheld))


def _always(op: Entry, op_checks: Iterable[OpCheck]) -> dict[str, set[str]]:
    """Returns the dtypes that every plan includes for an op because a clause is about them, each with the clauses that
    require it."""
    found: dict[str, set[str]] = {}
    for check in op_checks:
        asked = check.always.get(op.id, frozenset()) | check.always.get(op.ufunc, frozenset())
        for dtype in sorted(asked & op.dtypes):
            found.setdefault(dtype, set()).add(check.clause)
    return found


def _budgets(op_checks: Iterable[OpCheck], spec: PlanSpec) -> str:
    """Returns the budgets (the number of samples that a check with slow calls takes) as a text, such as
    ``compile.eager_equals_compiled=2``; an empty text if every check takes all samples."""
    found = {
        check.clause: most
        for check in op_checks
        if (most := check.most_samples(more=spec.more_cases, whole=spec.whole)) is not None
    }
    return " ".join(f"{clause}={most}" for clause, most in sorted(found.items()))


def make_plan(
    spec: PlanSpec,
    descriptor: Descriptor,
    contract: Contract,
    kept: Path | None = None,
    source: SampleSource = DATABASE,
    step: Callable[[int, int], None] = lambda done, count: None,
) -> Plan:
    """Returns the plan of a device: all ops and dtypes, each with all clauses that apply and that the suite checks.

    The plan includes clauses whose capabilities the device does not declare. The cells of such clauses are reported as
    unsupported by declaration, so that the plans of two devices can be compared. ``kept`` is the folder in which data
    from torch's op database is cached, because computing the data takes seconds; the name of the cache file depends on
    the device's facts. ``step`` is called before each op with the number of ops that are planned and the number of all.
    """
    known = exceptions()
    left_out: dict[str, list[tuple[str, str]]] = {}
    missing = ", ".join(sorted(LAYOUT_CAPABILITIES - descriptor.capabilities))
    judged_in = ", ".join(BY_VALUES)
    op_checks = planned_op_checks(contract)
    by_clause = {each.clause: each for each in op_checks}
    small = {} if spec.more_cases else {each.clause: each.quick for each in op_checks if each.quick}

    def applicable(traits: Traits) -> Iterator[str]:
        return (check.clause for check in op_checks if check.applies(traits))

    kind, path = descriptor.torch_type, None
    if kept is not None and not spec.recorded:
        path = file_of(kept, kind, spec.samples, Machine.of(descriptor.facts()))
    subjects = ApplicableClauses(source, kind, spec.samples, applicable, path)

    def planned() -> Iterator[SubjectClauses]:
        for number, op in enumerate(subjects.ops):
            step(number, len(subjects.ops))
            taken, withheld = dtypes_of(op, spec, descriptor)
            for dtype in taken:
                subject = subjects.of(op.id, dtype)
                if subject.returns:
                    yield subject
                    continue
                reason = _RAISES if subject.samples else _NO_SAMPLES
                left_out.setdefault(reason, []).append((op.id, dtype))
            for dtype, clauses in ({} if spec.recorded else _always(op, op_checks)).items():
                if dtype in descriptor.dtypes_of(op.id) and not spec.takes(dtype):
                    subject = subjects.of(op.id, dtype)
                    wanted = tuple(each for each in subject.clauses if each in clauses)
                    yield msgspec.structs.replace(subject, clauses=wanted)
            for dtype in withheld:
                left_out.setdefault(_WITHHELD, []).append((op.id, dtype))

    pins = [pin for pin in read_pinned(descriptor.folder) if not pin.dtype or spec.takes(pin.dtype)]
    if spec.recorded:
        pins = []
    recipe: dict[str, str | int] = {
        **{
            "suite": VERSION,
            "plan": spec.name,
            "samples": spec.samples,
            "sampling": source.describe(),
        },
        **{"layouts": covering_set().version, "pinned": digest(pins)},
    }
    if budgets := _budgets(op_checks, spec):
        recipe["budgets"] = budgets
    plan = build(
        spec,
        descriptor.name,
        planned(),
        lambda subject: (
            each for each in subject.clauses if each not in small or small[each](subject.op)
        ),
        known,
        recipe,
        fake_only=is_fake_only(descriptor),
        variants=lambda clause, subject: by_clause[clause].variants_of(
            subject.op, subject.clauses, more=spec.more_cases, whole=spec.whole
        ),
        pinned=(pin.cell for pin in pins if pin.dtype and pin.clause in contract.clauses),
    )
    subjects.save()
    if kept is not None and not spec.recorded:
        keep_ops(op.id for op in subjects.ops)
    wanted = planned_cases(contract, more=spec.more_cases, whole=spec.whole)
    cases = [] if spec.recorded else [case.cell for case in wanted]
    programs = (pin.cell for pin in pins if not pin.dtype and pin.clause in contract.clauses)
    cells = tuple(dict.fromkeys((*plan.cells, *cases, *programs)))
    ops = {cell.unit for cell in plan.cells}
    more = [Excluded("layout.*", reason, tuple(ops)) for reason, ops in left_out.items()]
    for check in op_checks:
        if missing and check.reduced:
            reason = f"Checked in these layouts only: {judged_in}. All other layouts need {missing}, which the descriptor does not declare"
            only = tuple(
                (cell.unit, cell.dtype) for cell in plan.cells if cell.clause == check.clause
            )
            more.append(Excluded(check.clause, reason, only))
    families = {op.id: op_family(op.id, op.ufunc) for op in subjects.ops if op.id in ops}
    excluded, digested = (*plan.excluded, *more), plan_hash(cells, recipe)
    return Plan(spec, descriptor.name, cells, excluded, recipe, digested, families)


def undeclared_clauses(descriptor: Descriptor, contract: Contract) -> dict[str, str]:
    """Returns the checked clauses that need capabilities which the device does not declare, each with a text that lists
    the missing capabilities."""
    return {
        clause.id: ", ".join(missing)
        for clause in checked(contract)
        if (missing := [name for name in clause.requires if name not in descriptor.capabilities])
    }


def untried_with(
    ops: Iterable[str],
    descriptor: Descriptor,
    contract: Contract,
    clauses: Container[str] | None = None,
    source: SampleSource = DATABASE,
) -> dict[str, dict[str, str]]:
    """Returns, by op and then by clause, the reasons why clauses are not tried on the device although it declares their
    capabilities. If ``clauses`` is given, only these clauses are included."""
    undeclared = undeclared_clauses(descriptor, contract)
    asked = [
        (check.clause, check.untried)
        for check in planned_op_checks(contract)
        if check.untried is not None
        and check.clause not in undeclared
        and (clauses is None or check.clause in clauses)
    ]
    return {
        op: {clause: why for clause, untried in asked if (why := untried(descriptor, op, source))}
        for op in ops
    }


def untried(
    descriptor: Descriptor,
    contract: Contract,
    ops: Iterable[str] = (),
    clauses: Container[str] | None = None,
    source: SampleSource = DATABASE,
) -> Mapping[str, Mapping[str, str]]:
    """Returns, by clause and then by case or op, the reasons why clauses are not tried on the device although it
    declares their capabilities. If ``clauses`` is given, only these clauses are included."""
    undeclared, indices = undeclared_clauses(descriptor, contract), descriptor.device_count()
    shared = descriptor.ranks_share_indices
    found: dict[str, dict[str, str]] = {}
    for case in () if source is not DATABASE else planned_cases(contract):
        wanted = case.clause not in undeclared and (clauses is None or case.clause in clauses)
        if wanted and (why := not_here(case, descriptor.capabilities, indices, shared=shared)):
            found.setdefault(case.clause, {})[case.cell.name] = why
    for op, of_op in untried_with(ops, descriptor, contract, clauses, source).items():
        for clause, why in of_op.items():
            found.setdefault(clause, {})[op] = why
    return found


def capability_states(
    declared: frozenset[str], answers: Mapping[str, bool | None]
) -> dict[str, Capability]:
    """Returns for each capability whether it is declared and whether a test found it on the device. Capabilities that
    the device has but does not declare are included."""
    names = declared | {name for name, answer in answers.items() if answer} | {"strides", "storage"}
    return {name: Capability(name in declared, answers.get(name)) for name in sorted(names)}


def torch_build() -> str:
    """Returns torch's version and commit as a text. The cached expected strides are valid only for this build of
    torch."""
    return f"{torch.__version__}-{str(torch.version.git_version or 'unknown')[:12]}"
