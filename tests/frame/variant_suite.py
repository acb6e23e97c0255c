"""A pytest plug-in for runs of the tests: layout.values has a second variant, and so has a case of its own."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache, wraps
from typing import Any

from conformance import suites
from conformance.checks.cases.cases import Cases, OpCheck, Suite
from conformance.checks.cases.context import CaseContext
from conformance.checks.ops.context import OpContext
from conformance.checks.ops.modes import EAGER, Mode

#: Set to 1: every result that is executed twice is wrong.
FAULT = "VARIANT_FAULT"
CLAUSE, CASE_CLAUSE = "layout.values", "device.capability"


def executed_twice(function: Any, wrong: Any) -> Any:
    """Returns a function that makes each call twice. If ``wrong`` is true, the results are too large by one."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        result = function(*args, **kwargs)
        return result + 1 if wrong else result

    return run


def in_variants(check: OpCheck) -> OpCheck:
    """Returns the check with the variants "" and "twice"."""

    def judged(ctx: OpContext) -> None:
        wrong = os.environ.get(FAULT) == "1"
        ctx.mode = Mode("twice", executed_twice, {"wrong": wrong}) if ctx.variant else EAGER
        for function in check.checks:
            function(ctx)

    return replace(check, checks=(judged,), variants=("", "twice"))


cases = Cases()


@cases(CASE_CLAUSE, variants={"2 ranks": (2,), "4 ranks": (4,)})
def counts_ranks(context: CaseContext, ranks: int) -> None:
    """The number of ranks is the one of the variant."""
    wrong = os.environ.get(FAULT) == "1" and ranks == 4
    context.check(not wrong, f"{ranks} ranks were expected, and {ranks - 1} were found")


_load = suites.load


@cache
def load(name: str) -> Suite:
    suite = _load(name)
    if name == "layout":
        checks = (each if each.clause != CLAUSE else in_variants(each) for each in suite.op_checks)
        return replace(suite, op_checks=tuple(checks))
    return replace(suite, cases=(*suite.cases, *cases)) if name == "device" else suite


def pytest_addoption() -> None:
    """Runs before the suite makes its plan, and not where this module is only imported."""
    suites.load = load
