"""Forks a child for each line of JSON on stdin, which runs ``conform ARGUMENTS``; answers ``[exit status, output]``.

An import of torch ends the process with status 99: a wrong use is found before it. With the argument ``torch`` torch is
loaded at once instead, for the wrong uses that need it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import IO, Any

LIMIT = 60  # seconds that a child may take
MEMORY = 4 << 30  # bytes


class NoTorch:
    """Finds torch first, as its version may be asked for, and ends the process that imports it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        found = PathFinder.find_spec(name)
        return found and ModuleSpec(name, self, origin=found.origin)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        os.write(1, b"torch was imported\n")
        os._exit(99)

    def exec_module(self, module: object) -> None:
        raise NotImplementedError


def main() -> None:
    if "torch" in sys.argv[1:]:
        import conformance.run.session
    else:
        sys.meta_path.insert(0, NoTorch())  # type: ignore[arg-type]
    import pytest  # noqa: F401  # loaded here so that the children need not
    import xdist.plugin  # noqa: F401

    import conformance.cli
    import conformance.run.xdist_adapter  # noqa: F401

    for line in sys.stdin:
        arguments, folder = json.loads(line)
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                _be_child(arguments, folder, output)
            _, status = os.waitpid(child, 0)
            output.seek(0)
            text = output.read().decode(errors="replace")
        print(json.dumps([os.waitstatus_to_exitcode(status), text]), flush=True)


def _be_child(arguments: Sequence[str], folder: str, output: IO[Any]) -> None:
    from conformance.cli import conform

    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    if "torch" not in sys.modules:  # which reserves more
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(folder)
    code: object = 1
    try:
        conform(list(arguments))
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main()
