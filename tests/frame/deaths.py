"""Checks whose processes are killed by a signal, once or each time."""

from __future__ import annotations

import os
from pathlib import Path

from conformance.checks.cases.context import CaseContext


def dies(context: CaseContext, folder: str, signal: int, times: int) -> None:
    """Leaves a file, and dies unless as many files are there already as it may die times."""
    count = len(list(Path(folder).iterdir()))
    Path(folder, str(count)).touch()
    if count < times:
        os.kill(os.getpid(), signal)
    context.check(True, "it does not die")


def in_a_child(context: CaseContext, folder: str, signal: int, times: int) -> None:
    """The child of a case dies."""
    result = context.child(dies, folder, signal, times)
    context.ended_well(result, "the child did not end well")


def in_a_rank(context: CaseContext, folder: str, signal: int, times: int) -> None:
    """The process of a pool dies."""
    context.pooled(dies, folder, signal, times, ranks=1)
