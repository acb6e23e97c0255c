"""``python -m tests.mutation.worker``: tries the mutants that standard input names, one a line.

For each mutant it writes what it bred before trying it, and the result at the end.
"""

from __future__ import annotations

import os
import sys
import traceback

import msgspec

from tests.mutation import families, kernels, runtime
from tests.mutation.kernels import Result
from tests.mutation.pool import Task


def main() -> None:
    # What kernels print must not come between the results.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def write(result: Result) -> None:
        answers.write(msgspec.json.encode(result) + b"\n")
        answers.flush()

    def tell(result: Result) -> None:
        """Report progress on a mutant. Only the last line of a mutant has a result."""
        write(msgspec.structs.replace(result, result=""))

    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=Task)
        try:
            if task.sort == "runtime":
                result = runtime.tried(task.number, int(task.name), tell)
            elif task.sort in families.MODULES:
                module = families.module_of(task.sort)
                result = module.tried(task.seed, task.number, task.name, tell)
            else:
                result = kernels.tried(task.seed, task.number, task.name, tell)
        except Exception:
            text = traceback.format_exc()
            result = Result(task.id, "", task.name, "", "", "broken", note=text[-800:])
        result.trying = ""
        write(result)


if __name__ == "__main__":
    main()
