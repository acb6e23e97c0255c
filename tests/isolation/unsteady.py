"""A pytest plugin that makes each third check of determinism fail."""

from __future__ import annotations

from dataclasses import replace

from conformance.checks.ops.context import OpContext
from conformance.checks.ops.failures import failed
from conformance.suites.layout import SUITE, determinism
from opinfo.compare import Wrong

_runs = 0


def _unsteady(ctx: OpContext) -> None:
    global _runs
    determinism.determinism(ctx)
    record = ctx.recorder.get(determinism.DETERMINISM)
    assert record is not None
    _runs += 1
    if _runs % 3 == 0:
        wrong = Wrong("values", "the same as before", "something else")
        record.fail(failed(wrong, "contiguous", 0, None))


_checks = (
    replace(check, checks=(_unsteady,)) if check.clause == determinism.DETERMINISM else check
    for check in SUITE.op_checks
)
object.__setattr__(SUITE, "op_checks", tuple(_checks))
