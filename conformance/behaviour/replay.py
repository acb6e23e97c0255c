"""The end of a repro script: makes its check as a run does, and exits 1 while it fails."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping

from conformance.behaviour import attempts
from conformance.behaviour.process import Where
from opinfo.device import DeviceUnusable, open_device


def main(check: Mapping[str, str], sources: Mapping[str, str], loader: str) -> int:
    """0 where the check passes now, 1 where it fails, 2 where it shows nothing."""
    where = Where(module=check["descriptor"], sources=sources, loader=loader)
    function = getattr(importlib.import_module(check["module"]), check["function"])
    arguments = ast.literal_eval(check["arguments"])
    if check["own_process"]:
        environment = ast.literal_eval(check["environment"])
        attempt = attempts.aside(
            function, arguments, check["seed"], where, environment, float(check["seconds"])
        )
    else:
        descriptor = importlib.import_module(check["descriptor"]).DESCRIPTOR
        try:
            device = open_device(descriptor)
        except DeviceUnusable as error:  # says nothing of the check
            print(f"cannot be tried here: {error}")
            return 2
        attempt = attempts.here(function, arguments, device, check["seed"], where)
    if attempt.failed or attempt.refused is not None:
        print(f"FAILS: {attempt.failed or attempt.refused}")
        return 1
    if attempt.not_shown:
        print(attempt.not_shown)
        return 2
    print(f"passes: {attempt.checks} checks")
    return 0
