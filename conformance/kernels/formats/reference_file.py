"""A Python file with the functions ``reference`` and ``samples``: each other public function is a kernel, which is
compared with the reference on the shapes of the samples, and on others."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from conformance.kernels.formats import Wanted
from conformance.kernels.formats.python_file import names_in, tree_of
from conformance.kernels.judgement import Judgement
from conformance.kernels.request import Request, Source

REFERENCE: Final = "reference"
SAMPLES: Final = "samples"

#: The decorators of Triton's functions, which Python code launches and does not call. They are no kernels here: the
#: functions that launch them are.
_LAUNCHED: Final = frozenset({"jit", "autotune", "heuristics"})


def takes(path: Path) -> bool:
    """Returns True if a file defines ``reference``, ``samples`` and a kernel."""
    return names_in(path) >= {REFERENCE, SAMPLES} and bool(_kernels_in(path))


def requests(path: Path, wanted: Wanted) -> list[Request]:
    """Returns a request for each kernel of a file, in the order of their definitions. As for a single function with a
    reference, the strides of the results are not compared. If the user names an op or another reference, no kernel of the
    file is meant."""
    if wanted.target or wanted.reference:
        return []
    place = str(path.resolve())
    return [
        wanted.request(
            kernel=Source(place, name),
            reference=Source(place, REFERENCE),
            samples=Source(place, SAMPLES),
            name=name,
            strides=False,
        )
        for name in _kernels_in(path)
    ]


def record(path: Path, judged: Sequence[tuple[Request, Judgement]]) -> list[Path]:
    """Writes nothing, because the format has no files for verdicts."""
    return []


def _kernels_in(path: Path) -> list[str]:
    functions = (each for each in tree_of(path).body if isinstance(each, ast.FunctionDef))
    return [
        each.name
        for each in functions
        if not each.name.startswith("_")
        and each.name not in (REFERENCE, SAMPLES)
        and not _LAUNCHED & {*map(_last_name, each.decorator_list)}
    ]


def _last_name(decorator: ast.expr) -> str:
    """Returns the last part of a decorator's name: "jit" of ``@triton.jit(…)``."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""
