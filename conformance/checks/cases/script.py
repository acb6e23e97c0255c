"""Writes repro scripts of cases.

A script begins with the failure and with the check, copied from the suite. Copies of everything that the check uses
follow: its helpers, the context, and the device's descriptor.
"""

from __future__ import annotations

import ast
import pprint
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.execution import conclude, in_its_own_process, on_a_fresh_device
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.served import serve_case, serve_cases
from conformance.checks.child import Child, serve
from conformance.checks.group import Pool
from conformance.checks.repro.bundle import Bundle
from conformance.checks.repro.modules import Import, Module, given_module, globals_in, read_module
from conformance.checks.repro.script import headed, script_text
from conformance.checks.repro.statements import Definition, evaluates
from devices.descriptor import Descriptor
from devices.failure import Failure, Kind


def has_source(descriptor: Descriptor) -> bool:
    """Returns True if the device's descriptor is in a file, so that a repro script can contain a copy of the file."""
    return descriptor.folder is not None and (descriptor.folder / "descriptor.py").is_file()


def script_of_case(
    case: BehaviourCase,
    descriptor: Descriptor,
    failure: Failure | None = None,
    program: tuple[Any, ...] | None = None,
    *,
    dies: bool = False,
) -> str:
    """Returns the repro script of a case on a device for which ``has_source`` is true. No run is needed.

    ``failure`` is shown in the first lines of the script, and ``program`` is the random program that failed, if known.
    ``dies`` is True for a check that crashes or hangs its process; the script then runs the check in a subprocess.
    """
    assert descriptor.folder is not None
    arguments: tuple[Any, ...] = ()
    if case.drawn is not None and program is not None:
        source = case.drawn.source(descriptor, *program)
        shown = _module_of_program(case.drawn.replay.__module__, source)
        above = [Definition(shown, name) for name in shown.defined]
        roots, check = above, "program"
    else:
        shown, check, arguments = (
            read_module(case.check.__module__),
            case.check.__name__,
            case.arguments,
        )
        # An argument may name a helper function.
        names = [check, *(each for each in arguments if isinstance(each, str))]
        roots = [Definition(shown, name) for name in names if name in shown.defined]
        above = roots[: _may_lead(case.check)]
    described = Definition(_module_of_descriptor(descriptor.folder / "descriptor.py"), "DESCRIPTOR")
    run = in_its_own_process if dies or case.own_process else on_a_fresh_device
    limit = ", DESCRIPTOR.first_time" if case.own_process and not dies else ""
    bundle = Bundle().add([*roots, described, *(Import(each, "", each) for each in ("os", "sys"))])
    bundle.take([BehaviourCase, DeviceLocator, Kind, conclude, run])
    start = "main()"
    if bundle.has(Child):
        bundle.take([serve, *(serve_cases,) * bundle.has(Pool), serve_case]).add(
            [Import("json", "", "json")]
        )
        serves = "serve(json.loads(sys.stdin.readline()), int(sys.argv[2]))"
        start = f'{serves} if sys.argv[1:2] == ["serve"] else main()'
    seen = failure or Failure(kind=Kind.ENDED, detail="the check did not finish")
    return script_text(
        bundle,
        [
            f"case = BehaviourCase({_written(case, check, arguments)})",
            'where = DeviceLocator(module="__main__", script=os.path.abspath(__file__))',
            f"sys.exit(conclude({run.__name__}(case, where{limit})))",
        ],
        head=headed(f"{case.id} on {descriptor.name}", textwrap.wrap(case.statement, 100), seen),
        needs=f" and {descriptor.module}" if descriptor.module else "",
        above=above,
        start=start,
    )


def _written(case: BehaviourCase, check: str, arguments: tuple[Any, ...]) -> str:
    """Returns the source of the constructor's arguments with which the script builds its BehaviourCase. Fields that do
    not affect the result of the check are left out."""
    given = [repr(case.clause), repr(case.name), check]
    if arguments:
        given.append(pprint.pformat(arguments, width=90, compact=True))
    given.append(f"kind=Kind.{case.kind.name}")
    plain = BehaviourCase(case.clause, case.name, case.check)
    for field in ("variant", "alone", "memory", "own_process", "environment", "seconds"):
        if (value := getattr(case, field)) != getattr(plain, field):
            given.append(f"{field}={value!r}")
    return ", ".join(given)


def _may_lead(check: Callable[..., Any]) -> bool:
    """Returns True if the definition of a function may come first in the script, before the definitions that it uses:
    if its execution evaluates no other names, as a decorator or a default value would."""
    [node] = read_module(check.__module__).defined[check.__name__]
    return isinstance(node, ast.FunctionDef) and not evaluates(node)


def _module_of_program(module: str, source: str) -> Module:
    """Returns a module that consists of the source of a random program and an import of the names that the program uses
    from ``module``."""
    tree, known = ast.parse(source), read_module(module)
    used = {each.id for node in tree.body for each in globals_in(node)}
    names = sorted(used & {*known.defined, *known.imported})
    return given_module("program", f"from {module} import {', '.join(names)}\n{source}")


def _module_of_descriptor(file: Path) -> Module:
    """Returns the module of a descriptor, with ``__file__`` replaced by the path of the descriptor's file."""
    text = re.sub(r"\b__file__\b", lambda _: repr(str(file)), file.read_text(encoding="utf-8"))
    return given_module(f"the descriptor {file}", text, "DESCRIPTOR")
