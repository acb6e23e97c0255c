"""Public bugs of real devices, and the clauses whose checks detect these bugs. The module does not import torch.

``bugs.toml`` holds the bugs. An entry says what was wrong, and names a fault that imitates the bug: a planted fault of
the simulated device, or a fault that ``tests/bugs`` adds to an op by wrapping the op's function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec

from conformance.contract import Contract, Status, Text, load
from devices.cell import CellKey, Seen
from devices.errors import ConformError, listing, suggestion
from devices.files import converted, read_toml

_FILE: Final = Path(__file__).with_name("bugs.toml")

CONTIGUOUS: Final = "contiguous"  # the layout of that name
#: Trackers whose name in a reference is shorter than on GitHub.
_SHORT: Final = {"pytorch": "pytorch/pytorch"}

Family = Literal[
    "layout", "dtypes", "precision", "special_values", "integers", "sizes", "indexing", "errors", "random",
    "determinism", "transfer", "serialization", "allocator", "leaks", "streams", "graphs", "device", "autograd",
    "autocast", "optim", "nn", "compile", "profiler", "distributed", "sparse", "quantised",
]  # fmt: skip

#: Conditions on the operand, or on the call, under which an imitated fault strikes.
When = Literal[
    "strided", "dense", "stepped", "expanded", "offset", "unaligned", "channels_last", "conj", "rank", "extent",
    "size", "scalar", "single", "empty", "nan", "inf", "zero", "negative", "above", "below", "repeats", "complex", "bool",
    "int32", "int16", "mixed", "number", "leading_number", "negative_number", "count", "first_dim", "inplace", "out",
    "strided_out", "again", "flag", "flags", "uneven", "alone", "deterministic",
]  # fmt: skip

#: The conditions that compare with ``past``.
MEASURED: Final = frozenset({"rank", "extent", "size", "above", "below", "count"})

#: The conditions on the layout of an operand.
LAID_OUT: Final = frozenset(
    {"strided", "stepped", "expanded", "offset", "unaligned", "channels_last", "conj"}
)

#: What goes wrong if the conditions are met.
Then = Literal[
    "read_dense", "read_base", "unconjugated", "through_float32", "through_bfloat16", "through_int32", "ignored",
    "input", "wrong", "last_wrong", "zeros", "first_only", "nan", "no_nan", "imprecise", "next_number", "truncated", "as_float32",
    "varying", "shortened", "base_kept",
    "row_major", "column_major", "other_dtype", "write_lost", "write_outside", "accepted", "index_accepted", "refused",
]  # fmt: skip


#: What ``lacks`` says of a fault that strikes under the reported condition.
NOTHING: Final = "nothing"


class Noticed(StrEnum):
    """What the suite is shown to notice of a bug."""

    AS_REPORTED = "as reported"  # a fault that strikes under the reported condition
    EASIER = "easier"  # a fault that strikes under an easier condition
    MISSED = "missed"  # not even the fault that imitates it
    NOT_TRIED = "not tried"  # nothing imitates it


#: The pattern of a shape: see Imitation.
ShapePattern = Annotated[
    str, msgspec.Meta(pattern=r"^(\.\.\.(, (?=.))?)?((\*|\d+(-\d*)?)(, (?=.)|$))*$", min_length=1)
]


def sizes_of(pattern: str) -> tuple[bool, tuple[tuple[int, float], ...]]:
    """Returns whether the pattern of a shape allows more dimensions in front, and the least and the largest size of each
    dimension."""
    parts = pattern.split(", ")
    more = parts[0] == "..."
    sizes = []
    for part in parts[more:]:
        least, dash, most = part.partition("-")
        if part == "*":
            sizes.append((0, inf))
        else:
            sizes.append((int(least), float(most) if most else inf if dash else float(least)))
    return more, tuple(sizes)


class Imitation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of one op that imitates a bug. ``tests/bugs`` adds the fault by wrapping the op's function.

    - ``when`` lists conditions. The fault occurs in a call if operand number ``arg`` meets all of them; if ``arg`` is
      None, any operand may meet them.
    - ``shapes`` are patterns of the shapes of the operands, in their order: ``"*, 1, 2-4"`` is a tensor of three
      dimensions, the second of size 1 and the last of size 2, 3 or 4. ``"..."`` in the first place stands for any
      number of dimensions, and a size without an end (``"64-"``) is a least one. A call with fewer operands does not
      fit.
    - ``keyword`` names an argument that the call must also pass.
    - ``where`` is a condition on the whole call in words, which ``tests/bugs/conditions.py`` implements.
    - ``of`` says where the fault occurs: "call" in the result of the call, "input" in the gradient of an input, and
      "cotangent" where the backward pass reads a cotangent. For "input" and "cotangent", the input or the cotangent
      must meet the conditions instead of the operand, and the condition ``alone`` means that at least one operand does
      not require a gradient.
    """

    op: Text = ""  # of torch's database; by default the first of the entry's ops
    dtype: Text = "float32"
    of: Literal["call", "input", "cotangent"] = "call"
    when: tuple[When, ...] = ()
    arg: Annotated[int, msgspec.Meta(ge=0)] | None = None  # counted among the call's tensors
    past: float | None = (
        None  # the limit of the conditions that measure: strictly more (or less) than this
    )
    shapes: tuple[ShapePattern, ...] = ()
    keyword: str = ""
    where: str = ""
    then: Then

    def __post_init__(self) -> None:
        if bool(MEASURED & set(self.when)) != (self.past is not None):
            raise ValueError(
                f"expected 'past' if and only if 'when' has one of the conditions {listing(MEASURED)}"
            )
        for pattern in self.shapes:
            sizes_of(pattern)
        if self.then == "ignored" and not self.keyword and self.of == "call":
            raise ValueError("expected the name of the ignored argument in 'keyword'")

    def __str__(self) -> str:
        """Returns the imitation in words: ``mul[float32]: read_base where operand 1 is offset``."""
        kind = "operand" if self.of == "call" else self.of
        one = (
            "an operand" if kind == "operand" else "an input" if kind == "input" else "a cotangent"
        )
        operand = one if self.arg is None else f"{kind} {self.arg}"
        sign = "<" if "below" in self.when else ">"
        measures = f" {sign} {self.past:g}" if self.past is not None else ""
        held = [(w + measures if w in MEASURED else w).replace("_", " ") for w in self.when]
        where = [f"{operand} is {', '.join(held)}"] if held else []
        where += [f"{kind} {n} has the shape ({p})" for n, p in enumerate(self.shapes)]
        where += [f"{self.keyword}= is given"] if self.keyword else []
        where += [self.where] if self.where else []
        gradient = "" if self.of == "call" else "gradient "
        return f"{self.op}[{self.dtype}]: {gradient}{self.then}" + (
            f" where {' and '.join(where)}" if where else ""
        )


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One public bug of a real device. The fields are the keys of its ``[[bug]]`` table."""

    reference: Annotated[str, msgspec.Meta(pattern=r"^[\w.-]+(/[\w.-]+)?#\d+$")]  # "pytorch#139006"
    backend: Text
    versions: str = ""  # that have the bug, if the thread names them
    family: Family
    statement: Text  # what was wrong, in one sentence
    clauses: tuple[str, ...] = ()  # the clauses that notice the bug
    ops: tuple[
        Text, ...
    ] = ()  # globs over ops of torch's database, or cases; none: every cell of the clauses
    fault: str = ""  # a planted fault of the simulated device that imitates it
    imitation: Imitation | None = None
    patch: str = (
        ""  # a function of torch in tests/bugs/patches.py that imitates it, for clauses about cases
    )
    #: What the report needs beside the condition under which the fault strikes: "nothing" if the fault strikes under the
    #: reported condition. Of every bug that something imitates.
    lacks: str = ""
    missed: str = ""  # why the suite does not notice its imitation yet
    why: str = ""  # why no clause notices it, or nothing imitates it

    def __post_init__(self) -> None:
        if bool(self.fault) + bool(self.patch) + (self.imitation is not None) > 1:
            raise ValueError("expected at most one of 'fault', 'imitation' and 'patch'")
        imitated = self.fault or self.patch or self.imitation
        if not (self.clauses and imitated) and not self.why:
            raise ValueError(
                "expected clauses and a fault that imitates the bug, or a 'why' that explains why there are none"
            )
        if self.missed and not imitated:
            raise ValueError(
                "'missed' is given, but nothing imitates the bug: name a fault, an imitation or a patch"
            )
        if bool(self.lacks) != bool(imitated):
            raise ValueError(
                "expected 'lacks' if and only if something imitates the bug: \"nothing\" if the fault strikes under the"
                " reported condition, and otherwise what the report also needs"
            )
        if self.imitation is not None and not self.imitation.op:
            if not self.ops:
                raise ValueError("expected an 'op' in the imitation, because the bug has no 'ops'")
            named = msgspec.structs.replace(self.imitation, op=self.ops[0])
            msgspec.structs.force_setattr(self, "imitation", named)
        msgspec.structs.force_setattr(self, "statement", " ".join(self.statement.split()))

    @property
    def noticed(self) -> Noticed:
        """What the suite is shown to notice of the bug."""
        if not self.lacks:
            return Noticed.NOT_TRIED
        if self.missed:
            return Noticed.MISSED
        return Noticed.AS_REPORTED if self.lacks == NOTHING else Noticed.EASIER

    @property
    def url(self) -> str:
        tracker, _, number = self.reference.partition("#")
        return f"https://github.com/{_SHORT.get(tracker, tracker)}/issues/{number}"

    @property
    def imitated(self) -> str:
        """The fault that imitates the bug, in words; empty if no fault does."""
        if self.patch:
            return self.patch.replace("_", " ")
        return f"planted fault {self.fault}" if self.fault else str(self.imitation or "")

    def seen_in(self, cell: CellKey, layouts: Collection[str] = ()) -> bool:
        """Returns True if the bug could make this cell fail.

        If the failing ``layouts`` are known, a bug that depends on strides is ruled out if contiguous tensors fail too.
        A bug of one kind of dtype is ruled out in cells of another kind, except that a bug of float32 or float64 is
        never ruled out by the dtype.
        """
        if cell.clause not in self.clauses:
            return False
        if not any(fnmatchcase(cell.unit, glob) for glob in self.ops or ("*",)):
            return False
        if self.imitation is None:
            return True
        if CONTIGUOUS in layouts and LAID_OUT & set(self.imitation.when):
            return False
        kind, imitated = _kind(cell.dtype), _kind(self.imitation.dtype)
        return not cell.dtype or imitated in (kind, "float")

    def snapshot(self) -> dict[str, Any]:
        """Returns the bug as values that JSON can represent."""
        return {**msgspec.to_builtins(self), "noticed": str(self.noticed), "url": self.url}


@dataclass(frozen=True, slots=True)
class Bugs:
    """All bugs by reference (tracker and issue number), in the order of the file."""

    by_reference: Mapping[str, Bug]

    def __iter__(self) -> Iterator[Bug]:
        return iter(self.by_reference.values())

    def seen_in(self, cell: CellKey, layouts: Collection[str] = ()) -> tuple[Seen, ...]:
        """Returns the bugs of real devices that could make this cell fail in these layouts."""
        return tuple(Seen(b.reference, b.backend, b.url) for b in self if b.seen_in(cell, layouts))

    def select(self, word: str) -> tuple[Bug, ...]:
        """Returns the bugs that belong to a clause (or a glob of clauses), a backend or a family. Raises ConformError
        if no bug does."""
        found = tuple(
            bug
            for bug in self
            if word.lower() in (bug.backend.lower(), bug.family)
            or any(fnmatchcase(clause, word) for clause in bug.clauses)
        )
        if not found:
            words = {w for b in self for w in (*b.clauses, b.backend, b.family)}
            raise ConformError(
                f"no bug has the clause, backend or family {word!r}{suggestion(word, words)}"
            )
        return found


def _kind(dtype: str) -> str:
    """Returns the kind of numbers that a dtype holds, such as "int" for int8. float16 and bfloat16 are of a kind of
    their own, "half"."""
    if dtype in ("float16", "bfloat16"):
        return "half"
    name = dtype.rstrip("0123456789")
    return "int" if name == "uint" else name


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of bugs.toml. Bugs are converted one by one, so that an error message can name the bug."""

    bug: list[dict[str, Any]]


@cache
def bugs() -> Bugs:
    """Returns the bugs of bugs.toml, which is read only once. Raises ConformError if the file is malformed."""
    return read_bugs(_FILE, load())


def read_bugs(path: Path, contract: Contract) -> Bugs:
    """Reads a file of bugs, checks every field, and returns the bugs. Raises ConformError for the first mistake found."""
    found: dict[str, Bug] = {}
    for number, table in enumerate(read_toml(path, _File, ConformError).bug, start=1):
        where = f"{path}: bug {table.get('reference', number)!r}"
        bug = converted(table, Bug, where, ConformError)
        if bug.reference in found:
            raise ConformError(f"{where}: the reference is used twice; merge the two entries")
        for clause in bug.clauses:
            if clause not in contract.clauses:
                raise ConformError(
                    f"{where}: unknown clause '{clause}'{suggestion(clause, contract.clauses)}"
                )
        found[bug.reference] = bug
    return Bugs(MappingProxyType(found))


def is_planned(bug: Bug, contract: Contract) -> bool:
    """Returns True if all clauses of the bug are planned, so no check can detect the bug yet."""
    states = {contract.clauses[clause].status for clause in bug.clauses}
    return states == {Status.PLANNED}
