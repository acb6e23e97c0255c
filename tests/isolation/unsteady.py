"""A pytest plugin that makes each third check of determinism fail."""

from __future__ import annotations

from conformance.cells import Failure
from conformance.layout import determinism, suite
from conformance.layout.context import ItemContext

_check = determinism.check
_runs = 0


def _unsteady(ctx: ItemContext) -> None:
    global _runs
    _check(ctx)
    record = ctx.recorder.get(determinism.CLAUSE)
    if record is not None:
        _runs += 1
        if _runs % 3 == 0:
            record.fail(Failure("contiguous", "not the same as before"))


suite.CHECKS = tuple(_unsteady if check is _check else check for check in suite.CHECKS)
suite.run.__defaults__ = (suite.CHECKS,)  # type: ignore[attr-defined]
