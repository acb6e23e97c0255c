"""What a subprocess of a case runs."""

from __future__ import annotations

import ast
import importlib
import time
from dataclasses import replace
from operator import attrgetter

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import (
    CheckFailed,
    NotShown,
)
from conformance.checks.cases.memory import limited
from conformance.checks.cases.processes import Orders, packed, unpacked
from conformance.checks.cases.results import Result
from conformance.checks.child import Tell
from devices.errors import ConformError
from opinfo.device import open_device


def serve_case(given: str, tell: Tell) -> None:
    """Runs in the subprocess: calls the function with a new context and reports the result."""
    orders: Orders = unpacked(given)
    try:
        opened = open_device(orders.where.described(), unused=orders.fresh)
    except ConformError as error:
        tell(packed(Result(not_shown=f"the device cannot be opened: {error}")))
        return
    rank = replace(orders.rank, tell=tell) if orders.rank is not None else None
    about = (opened, orders.seed, orders.patience, orders.where)
    context = CaseContext(*about, default=orders.default, rank=rank)
    function = attrgetter(orders.function)(importlib.import_module(orders.module))
    result = Result(answered=True)
    tell.ready()  # from now on the time limit of the function counts
    try:
        with limited(orders.memory if opened.descriptor.host_memory else 0):
            result.value = ast.literal_eval(repr(function(context, *orders.arguments)))
    except Exception as error:  # the case in the parent process judges the exception
        result.end(error)
        if not isinstance(error, (CheckFailed, NotShown)):
            result.raised = f"{type(error).__name__}: {error}"
    result.checks, result.notes, result.at = context.checks, tuple(context.notes), time.time()
    tell(packed(result))
