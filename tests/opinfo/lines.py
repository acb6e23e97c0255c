"""Tries what a line of ``exceptions.toml`` does: runs the cells of an op with the file as it is, and without the line."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

import msgspec

from conformance import contract
from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.plan.planner import undeclared_clauses, untried_with
from conformance.suites import planned_op_checks
from devices import registry
from opinfo.axes import samples_of
from opinfo.database import DATABASE
from opinfo.device import is_fake_only, limit_threads, open_device
from opinfo.exceptions import Exceptions, exceptions, names
from opinfo.plan import plan_specs
from opinfo.reference import StrideReference
from opinfo.samples import choose, draw, probe

QUICK = plan_specs()["quick"]
#: Seconds after which a process that runs cells is ended.
SECONDS = 120.0


class CellResult(NamedTuple):
    """The outcome of a cell, the number of its checks, and what a report says about it."""

    outcome: str
    checks: int
    text: str


#: The results of cells, by dtype and clause. A process that died has a single entry, for the clause "process".
Results = dict[str, CellResult]


@contextmanager
def instead(known: Exceptions) -> Iterator[None]:
    """Replaces the content of ``exceptions.toml`` in all modules that read it."""
    modules = [each for each in sys.modules.values() if vars(each).get("exceptions") is exceptions]
    for each in modules:
        each.exceptions = lambda: known
    try:
        yield
    finally:
        for each in modules:
            each.exceptions = exceptions


def _budget(check: OpCheck) -> int | None:
    return check.most_samples(more=False, whole=False)


def run_cells(
    op_id: str,
    dtypes: Collection[str],
    known: Exceptions,
    device_name: str = "cpu",
    wanted: Callable[[str], bool] = lambda clause: True,
) -> Results:
    """Runs the cells that plan ``quick`` has for an op under ``known``, in this process. As in a run, those of one suite share
    their samples."""
    limit_threads()
    found: Results = {}
    device = open_device(registry.get(device_name))
    op = DATABASE.subjects()[op_id]
    checks = planned_op_checks(contract.load())
    declared = device.descriptor
    fake_only = is_fake_only(declared)
    with instead(known), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in dtypes:
            drawn = draw(op, dtype)
            chosen = choose(drawn, QUICK.samples)
            traits = probe(op, dtype, chosen, known)
            if not traits.returns:
                continue
            clauses = [
                each.clause
                for each in checks
                if wanted(each.clause)
                and each.applies(traits)
                and known.excluded(each.clause, op_id, dtype, fake_only=fake_only) is None
            ]
            if not clauses:
                continue
            for _, group in groupby(clauses, lambda clause: clause.partition(".")[0]):
                of_suite = [*group]
                withheld = untried_with([op_id], declared, contract.load(), of_suite, DATABASE)
                recorder = Recorder(
                    op_id,
                    dtype,
                    of_suite,
                    undeclared_clauses(declared, contract.load()),
                    withheld[op_id],
                )
                samples = chosen
                if any(each.axes and each.clause in of_suite for each in checks):
                    samples = samples_of(op, dtype, QUICK.samples, declared.dtypes, drawn)
                context = OpContext(
                    subject=op,
                    dtype=dtype,
                    traits=traits,
                    samples=samples,
                    device=device,
                    strides=StrideReference(declared.torch_type, None),
                    recorder=recorder,
                    known=known,
                )
                run_checks(context, checks, _budget)
                for clause in of_suite:
                    told = recorder.cells[clause].to_outcome()
                    text = str(told.failure.message if told.failure is not None else told.note)
                    result = CellResult(told.outcome.value, told.checks, text[:300])
                    found[f"{dtype} {clause}"] = result
    return found


def in_a_fork(work: Callable[[], Results], seconds: float = SECONDS) -> Results:
    """Does the work in a fork of this process, which may die or hang."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        faulthandler.disable()  # a process that dies is a result here
        try:
            said = json.dumps(work())
        except BaseException as error:
            said = json.dumps({"process": ["error", 0, f"{type(error).__name__}: {error}"[:300]]})
        with os.fdopen(writing, "w") as pipe:
            pipe.write(said)
        os._exit(0)
    os.close(writing)
    until, told = time.monotonic() + seconds, b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            part = pipe.read(1 << 20)
            if not part:
                break
            told += part
        else:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status:
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else str(status)
        return {"process": CellResult("crash", 0, how)}
    return {name: CellResult(*each) for name, each in json.loads(told).items()}


def without_from_family(known: Exceptions, family: str, op_id: str) -> Exceptions:
    """The content without an op in a family. A pattern that names the op is replaced by the other ops that it names."""
    subjects = DATABASE.subjects()
    own = subjects[op_id].names

    def ops(patterns: Sequence[str]) -> tuple[str, ...]:
        left: list[str] = []
        for pattern in patterns:
            if not any(names(pattern, name) for name in own):
                left.append(pattern)
            elif pattern.endswith("*"):
                left += [o for o in subjects if names(pattern, o) and o not in own]
        return (*left, "no.op")

    families = [
        msgspec.structs.replace(each, ops=ops(each.ops)) if each.name == family else each
        for each in known.families
    ]
    return Exceptions(tuple(families), known.exclusions)


def without_exclusion(known: Exceptions, number: int) -> Exceptions:
    """The content without the exclusion of this number."""
    kept = (each for place, each in enumerate(known.exclusions) if place != number)
    return Exceptions(known.families, tuple(kept))
