"""The function that a subprocess of a case runs."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
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
from opinfo.device import Device, open_device


def serve_case(given: str, tell: Tell) -> None:
    """Runs in the subprocess: calls the function with a new context and reports the result."""
    orders: Orders = unpacked(given)
    try:
        opened = open_device(orders.where.described(), unused=orders.fresh)
    except ConformError as error:
        tell(packed(Result(not_shown=f"the device cannot be opened: {error}")))
        return
    tell.ready()  # from now on the time limit of the function counts
    tell(packed(_result(orders, opened, tell)))


def serve_cases(given: str, tell: Tell) -> None:
    """Runs in each process of a pool: calls one function after another, each with a new context, as long as lines with
    orders arrive on stdin."""
    where, unusable = unpacked(given), ""
    try:
        opened = open_device(where.described())
    except ConformError as error:
        unusable = f"the device cannot be opened: {error}"
    tell.ready()
    for line in sys.stdin:
        if unusable:
            tell(packed(Result(answered=True, not_shown=unusable)))
        else:
            tell(packed(_result(unpacked(json.loads(line)), opened, tell)))
    os._exit(0)  # the process groups that are left would wait for each other


def _result(orders: Orders, opened: Device, tell: Tell) -> Result:
    """Calls the function with a new context and returns its result."""
    rank = replace(orders.rank, tell=tell) if orders.rank is not None else None
    about = (opened, orders.seed, orders.patience, orders.where)
    context = CaseContext(*about, default=orders.default, rank=rank)
    function = attrgetter(orders.function)(importlib.import_module(orders.module))
    result = Result(answered=True)
    try:
        with limited(orders.memory if opened.descriptor.host_memory else 0):
            result.value = ast.literal_eval(repr(function(context, *orders.arguments)))
    except Exception as error:  # the case in the parent process judges the exception
        result.end(error)
        if not isinstance(error, (CheckFailed, NotShown)):
            result.raised = f"{type(error).__name__}: {error}"
    result.checks, result.notes, result.at = context.checks, tuple(context.notes), time.time()
    return result
