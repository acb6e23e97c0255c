"""Runs programs in a new interpreter, in which torch and the device have not been used yet."""

from __future__ import annotations

from typing import Any

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.checks.child import Child, ChildLimits, ask
from devices.autoload import switched_back
from devices.failure import Kind

SCRIPT_SECONDS = 180.0


def fresh(code: str, **environment: str) -> dict[str, Any]:
    """Runs a program in a new interpreter in which torch is not imported yet, with additional environment variables.
    Returns the dictionary that the program leaves in its variable ``told``.

    Raises CheckFailed if the program fails or exceeds its time limit.
    """
    target, limits = "conformance.checks.child:execute", ChildLimits(start=SCRIPT_SECONDS)
    told, ended = ask(Child(target, code, limits, {**switched_back(), **environment}))
    if told is None or not ended.well:
        text = "a program in a fresh process did not exit with status 0"
        raise CheckFailed.of(Kind.ENDED, text, expected="exit status 0", found=str(ended))
    return dict(told)


def source(context: CaseContext, text: str, **named: Any) -> str:
    """Returns the source of a program for ``fresh``, which runs programs in a new process. ``{preparation}`` in
    the template is replaced by the imports of torch and of the device's module, and ``{beginning}`` by the call
    that initializes the device, if the descriptor declares one."""
    module, init = context.descriptor.module, context.descriptor.init
    return text.format(
        preparation="import torch\n" + (f"import {module}\n" if module else ""),
        beginning=f"{module}.{init}()" if init else "pass",
        kind=context.kind,
        **named,
    )
