"""What is planned, run, expected and reported: a cell, its outcome, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class CellKey(NamedTuple):
    """The identity of a cell: clause x op x dtype.

    Clauses that are not about single ops put the name of their case in ``op`` and leave ``dtype`` empty.
    """

    clause: str
    op: str
    dtype: str

    def __str__(self) -> str:
        name = f"{self.op}[{self.dtype}]" if self.dtype else self.op
        return f"{self.clause}::{name}"

    @classmethod
    def parse(cls, text: str) -> CellKey:
        """Read ``clause::op[dtype]`` back. Raises ValueError where the text has another form."""
        clause, separator, rest = text.partition("::")
        if not separator or not clause or not rest:
            raise ValueError(f"expected a cell such as 'layout.values::add[float32]', got {text!r}")
        if rest.endswith("]") and "[" in rest:
            op, _, dtype = rest[:-1].rpartition("[")
            return cls(clause, op, dtype)
        return cls(clause, rest, "")


class Outcome(str, Enum):
    """What became of a cell when it was run."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"  # the check itself could not be made, or nothing was checked
    UNSUPPORTED = "unsupported"  # raised NotImplementedError, or a declared refusal
    AMBIGUOUS = "ambiguous-reference"  # the references differ, and the device equals neither
    CRASH = "crash"
    HANG = "hang"
    NOT_RUN = "not-run"

    def __str__(self) -> str:
        return self.value


class Verdict(str, Enum):
    """The outcome of a cell held against what the manifest expects of it."""

    OK = "ok"
    EXPECTED = "expected"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    FLAKY = "flaky"
    MISSING = "missing"  # planned, and without an outcome

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one cell.

    ``layouts`` are the stable ids of the layouts that failed (empty where the clause has none),
    ``raises`` the name of the exception type that decided the outcome, if one did. ``declared``
    says of an unsupported cell that nothing was tried, because the descriptor does not declare
    what its clause requires.
    """

    outcome: Outcome
    layouts: frozenset[str] = frozenset()
    raises: str | None = None
    message: str = ""
    declared: bool = False
