"""Which cases reach which mutations of the runtime, found by one run of all cases without a mutant.

Each mutant is then tried only by the cases that can notice it. ``python -m tests.mutation.reach FILE`` writes the table.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

#: The number that notes what is reached, and the file in which every process of the device notes it.
NOTING: Final = -2
NOTES: Final = "SIMULATED_MUTANT_NOTES"
#: Where the table is, for the processes that try mutants.
TABLE: Final = "SIMULATED_MUTANT_TABLE"
_SIZE = 8192


@cache
def table() -> dict[str, list[int]] | None:
    """The mutations that each case or op reaches; None if there is no table."""
    path = os.environ.get(TABLE)
    if not path or not Path(path).exists():
        return None
    return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, list[int]])


def reaches(name: str, site: int) -> bool:
    """Whether a case or an op may reach a mutation."""
    known = table()
    return known is None or name not in known or site in known[name]


def _noted(path: Path) -> Iterator[tuple[str, list[int]]]:
    from tests.mutation import runtime
    from tests.mutation.items import device, is_refused

    device()
    runtime.library().simulated_set_mutant(NOTING)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), _SIZE) as notes:

        def since() -> list[int]:
            found = [number for number, byte in enumerate(notes[:]) if byte]
            notes[:] = bytes(_SIZE)
            return found

        for op in runtime.OPS:
            since()
            runtime.refused_clauses(op)
            yield op, since()
        for case in runtime.cases_for(""):
            since()
            is_refused(case)
            yield f"{case.clause}::{case.name}", since()


def main(target: Path) -> None:
    path = target.with_suffix(".notes")
    path.write_bytes(bytes(_SIZE))
    os.environ.update({NOTES: str(path), "SIMULATED_MUTANT": str(NOTING)})
    target.write_bytes(msgspec.json.encode(dict(_noted(path))))
    path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
