"""Compiles all programs of a module together, in one graph and one subprocess: a graph of a dozen programs takes little
longer to compile than a graph of one, and the subprocess imports torch once.

A program that passes in the common graph has passed. A program that fails there is compiled again alone, by its own
case, so that the failure belongs to the cell of this program, and the repro script contains this program only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from conformance.checks.behaviour.compiler import compiling
from conformance.checks.cases.cases import BehaviourCase, not_here
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotShown
from conformance.checks.scratch import VARIABLE
from conformance.suites.compile import (
    control_programs,
    essential_programs,
    network_programs,
    number_programs,
    view_programs,
)
from conformance.suites.compile.comparing import (
    ATOL,
    RTOL,
    Collected,
    Comparison,
    Inputs,
    backend_of,
    collecting,
    run_all,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_MODULES = (
    essential_programs,
    view_programs,
    network_programs,
    number_programs,
    control_programs,
)
#: By module: its cases, each of which calls ``compare`` and does nothing else on the device.
_GROUPS = {module.__name__: list(module.cases) for module in _MODULES}
#: The options of ``compare`` that a program in a common graph may have.
_KNOWN = frozenset({"rtol", "atol", "size_one"})


def passed_together(context: CaseContext) -> int:
    """Returns the number of checks that the case's program passed in the common graph of its module; 0 if the
    program failed there or is not part of that graph. The first process of a run that calls this function compiles
    the graph; the other processes read its result from a file."""
    above = os.environ.get(VARIABLE)
    found = [name for name, cases in _GROUPS.items() if context.seed in {case.id for case in cases}]
    if (
        fcntl is None or not above or not found
    ):  # without a folder that the processes of a run share
        return 0
    os.makedirs(above, exist_ok=True)
    name = found[0].rpartition(".")[2]
    file = Path(above, f"{name}-{context.descriptor.name}.json")
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(
                "{}"
            )  # if this process dies in the attempt, each program is compiled alone
            result = context.child(compile_together, found[0])
            file.write_text(json.dumps(result.value or {}))
        passed: dict[str, int] = json.loads(file.read_text())
    return passed.get(context.seed, 0)


def compile_together(context: CaseContext, group: str) -> dict[str, int]:
    """Compiles the programs of the module ``group`` in one graph. Returns, for each case whose program passed, the
    number of its checks."""
    collected = {
        case.id: program
        for case in _GROUPS[group]
        if (program := _program_of(context, case)) is not None
    }
    programs = list(collected.values())
    each = [CaseContext(context.opened, name, where=context.where) for name in collected]

    def eager(given: Sequence[Sequence[Any]]) -> list[Any]:
        return [one.program(*inputs) for one, inputs in zip(programs, given)]

    def inputs() -> list[Sequence[Any]]:
        return [one.calls[0](Inputs(here)) for one, here in zip(programs, each)]

    with compiling(backend_of(context)) as compiler:
        compiled = compiler(eager, dynamic=False)
        want, found = (run_all(context, call, inputs()) for call in (eager, compiled))
        if not compiler.graphs:
            return {}
    passed = {}
    for here, one, expected, made in zip(each, programs, want, found):
        options = {"rtol": RTOL, "atol": ATOL, **one.options}
        try:
            Comparison(here, "", **options).judge(expected, made)
        except CheckFailed:  # the program is compiled alone, and fails there
            continue
        passed[here.seed] = here.checks + 1  # and a graph was compiled
    return passed


def _program_of(context: CaseContext, case: BehaviourCase) -> Collected | None:
    """Returns the program of a case. Returns None if the program cannot be part of a common graph, or if the device
    lacks what the case requires."""
    indices = context.descriptor.device_count()
    if not_here(case, context.descriptor.capabilities, indices) or case.indices > 1:
        return None
    with collecting() as found, suppress(NotShown):
        case.check(context, *case.arguments)
    if len(found) != 1 or len(found[0].calls) != 1 or not _KNOWN.issuperset(found[0].options):
        return None
    return found[0]
