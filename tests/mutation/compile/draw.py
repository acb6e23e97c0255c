"""Mutants of compile: drawn from all kinds in turn, so that each clause of ``compile`` has some.

The name of a mutant is that of its kind, a colon, and its name there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Final

from tests.mutation import compilers
from tests.mutation.compile import (
    exported,
    fake_kernels,
    interfaces,
    op_graphs,
    runtime_wrappers,
    stride_tags,
    traced_backward,
)
from tests.mutation.compile.reach_table import TABLE
from tests.mutation.kernels import Result

KINDS: Final[dict[str, ModuleType]] = {
    "compilers": compilers,
    op_graphs.FAMILY: op_graphs,
    fake_kernels.FAMILY: fake_kernels,
    interfaces.FAMILY: interfaces,
    traced_backward.FAMILY: traced_backward,
    runtime_wrappers.FAMILY: runtime_wrappers,
    exported.FAMILY: exported,
    stride_tags.FAMILY: stride_tags,
}
#: The kinds of twenty mutants: six of graphs of programs, which most clauses compile.
_TURN: Final = (
    *("compilers", op_graphs.FAMILY, fake_kernels.FAMILY, "compilers", interfaces.FAMILY),
    *("compilers", runtime_wrappers.FAMILY, op_graphs.FAMILY, exported.FAMILY, fake_kernels.FAMILY),
    *("compilers", op_graphs.FAMILY, traced_backward.FAMILY, "compilers", fake_kernels.FAMILY),
    *(runtime_wrappers.FAMILY, "compilers", interfaces.FAMILY, exported.FAMILY, stride_tags.FAMILY),
)


def names(seed: int, count: int) -> list[str]:
    """The names of mutants 0 to count - 1."""
    kinds = [_TURN[number % len(_TURN)] for number in range(count)]
    drawn = {kind: iter(KINDS[kind].names(seed, wanted)) for kind, wanted in Counter(kinds).items()}
    return [f"{kind}:{next(drawn[kind])}" for kind in kinds]


def tried(seed: int, number: int, name: str, tell: Callable[[Result], None]) -> Result:
    kind, _, own = name.partition(":")
    result: Result = KINDS[kind].tried(seed, number, own, tell)
    return result


@contextmanager
def prepared() -> Iterator[None]:
    """Finds out which mutants of graphs each case reaches, for the processes that try mutants in a block. If the environment
    already has the path of such a table, that table is used, and made if it is missing."""
    with TemporaryDirectory() as folder:
        path = Path(os.environ.setdefault(TABLE, str(Path(folder, "reach.json"))))
        try:
            if not path.exists():
                command = [sys.executable, "-m", "tests.mutation.compiled_reach", str(path)]
                subprocess.run(command, check=True, stdout=sys.stderr)
            yield
        finally:
            if path.parent == Path(folder):
                del os.environ[TABLE]
