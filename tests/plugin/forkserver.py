"""Forks a child for each line of JSON on stdin; answers ``[exit status, output]`` on stdout. See running.py."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, Any

import torch

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT = 300  # seconds that a child may take
#: Modules that a run loads.
_MODULES = (
    *("pytest", "torch.testing._internal.common_methods_invocations"),
    *("conformance.plugin", "conformance.run.session", "conformance.run.worker"),
)
#: Functions that remember what they return, by module.
_DATA = {
    "conformance.contract": ("load",),
    "conformance.contract.levels": ("levels", "listed_units"),
    "conformance.suites": ("suites",),
    "opinfo.catalog": ("catalogue",),
    "opinfo.exceptions": ("exceptions",),
    "opinfo.module_catalog": ("module_entries",),
}


def main() -> None:
    torch.set_num_threads(1)  # no thread of this process must be lost in a fork
    sys.path[0] = str(CHECKOUT)
    _load_what_children_need()
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                _be_child(request, output)
            _, status = os.waitpid(child, 0)
            output.seek(0)
            text = output.read().decode(errors="replace")
        print(json.dumps([os.waitstatus_to_exitcode(status), text]), flush=True)


def _load_what_children_need() -> None:
    """Loads what every run loads, so that the children need not: modules, and data that no option and no variable
    changes. Devices and plug-ins are left to the children."""
    for module in _MODULES:
        importlib.import_module(module)
    for module, functions in _DATA.items():
        for name in functions:
            getattr(importlib.import_module(module), name)()


def _be_child(request: dict[str, Any], output: IO[bytes]) -> None:
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    # Ignored in what a shell runs in the background, and inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request["env"])
    # A new process would take this from its environment.
    sys.path[1:1] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    code = 1
    try:
        if request["kind"] == "pytest":
            import pytest

            code = int(pytest.main(request["arguments"]))
        else:
            sys.argv = list(request["arguments"])
            runpy.run_path(sys.argv[0], run_name="__main__")
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
