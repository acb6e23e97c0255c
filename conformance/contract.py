"""The contract as data: every clause that a device honours or does not. Needs no torch.

The clauses lie in ``clauses/<family>.toml``; ``python -m conformance.contract`` prints the page
that people read, ``docs/contract.md``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from devices._text import listing, suggestion
from devices._toml import tomllib
from devices.descriptor import CAPABILITIES
from devices.errors import ConformError

FAMILIES: Final[tuple[str, ...]] = (
    "layout",
    "transfer",
    "allocator",
    "streams",
    "events",
    "graphs",
    "device",
    "dispatch",
    "random",
    "autograd",
    "autocast",
    "optim",
    "compile",
    "profiler",
    "distributed",
)
"""The families in the order in which they are shown, planned and reported."""

LEVELS: Final[Mapping[int, str]] = MappingProxyType(
    {1: "tensors", 2: "memory and order", 3: "graphs", 4: "full"}
)

_FOLDER: Final = Path(__file__).with_name("clauses")
_ID: Final = re.compile(r"[a-z]+\.[a-z][a-z0-9_]*")
_FAULT: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
_VERSION: Final = re.compile(r"\d+\.\d+")
_UNITS: Final = ("op", "case")


class ContractError(ConformError):
    """The contract's data is malformed. The text names the file, the clause, and what to do."""


class UnknownClause(ConformError, LookupError):
    """A clause id or glob that names no clause. The text lists what was probably meant."""


class Status(str, Enum):
    """Whether the suite holds a device to the clause yet."""

    CHECKED = "checked"
    PLANNED = "planned"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Clause:
    """One statement of the contract. The fields are the keys of its ``[[clause]]`` table."""

    id: str  # "layout.values": the family and the clause's own name
    statement: str  # one or two sentences, in the present tense
    source: str  # where it is documented: headers, pages, pytorch/pytorch threads
    requires: tuple[str, ...]  # capabilities that a device declares before the clause applies
    level: int  # of conformance, a key of LEVELS
    unit: Literal["op", "case"]  # "op": its cells are op x dtype; "case": its own named cases
    status: Status
    faults: tuple[str, ...]  # planted faults that trip it
    since: str  # the version of the suite that brought the clause
    provisional: bool  # reported, and not gating

    @property
    def family(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]

    def snapshot(self) -> dict[str, Any]:
        """The clause as JSON can hold it."""
        return {
            "id": self.id,
            "family": self.family,
            "statement": self.statement,
            "source": self.source,
            "requires": list(self.requires),
            "level": self.level,
            "unit": self.unit,
            "status": self.status.value,
            "faults": list(self.faults),
            "since": self.since,
            "provisional": self.provisional,
        }


@dataclass(frozen=True, slots=True)
class Family:
    """What the clauses of one family share."""

    name: str
    title: str
    about: str  # how its clauses are judged; may be empty


@dataclass(frozen=True, slots=True)
class Contract:
    """All clauses by id and all families by name, both in the order of the files."""

    clauses: Mapping[str, Clause]
    families: Mapping[str, Family]

    def clause(self, clause_id: str) -> Clause:
        """The clause of that id. Raises UnknownClause."""
        if clause_id not in self.clauses:
            raise UnknownClause(f"no clause is called {clause_id!r}{self._meant(clause_id)}")
        return self.clauses[clause_id]

    def select(self, globs: Iterable[str]) -> tuple[Clause, ...]:
        """The clauses that match any of the globs, in the order of the contract.

        Raises UnknownClause for a glob that matches nothing, so that a misspelt one is not taken
        for a selection.
        """
        chosen: set[str] = set()
        for glob in globs:
            matched = {name for name in self.clauses if fnmatchcase(name, glob)}
            if not matched:
                raise UnknownClause(f"no clause matches {glob!r}{self._meant(glob)}")
            chosen |= matched
        return tuple(clause for clause in self.clauses.values() if clause.id in chosen)

    def snapshot(self) -> dict[str, Any]:
        """The contract as JSON can hold it, for ``plan.json`` and ``conform contract --json``."""
        return {
            "families": [
                {"name": family.name, "title": family.title, "about": family.about}
                for family in self.families.values()
            ],
            "clauses": [clause.snapshot() for clause in self.clauses.values()],
        }

    def to_markdown(self) -> str:
        """The page ``docs/contract.md``."""
        checked = sum(clause.status is Status.CHECKED for clause in self.clauses.values())
        lines = [_PREAMBLE.format(clauses=len(self.clauses), checked=checked)]
        for family in self.families.values():
            lines += self._section(family)
        lines += ["## Planted faults", "", _FAULTS_INTRODUCTION, ""]
        lines += _table(
            ("Clause", "Planted faults"),
            (
                (f"[`{clause.id}`](#{clause.id})", _code(clause.faults))
                for clause in self.clauses.values()
            ),
        )
        return "\n".join(lines) + "\n"

    def _section(self, family: Family) -> list[str]:
        lines = [f"## {family.name}: {family.title}", ""]
        if family.about:
            lines += [_inline(family.about), ""]
        header = ("Clause", "Statement", "Requires", "Cell", "Level", "Status", "Source")
        rows = (
            (
                f'<a id="{clause.id}"></a>`{clause.id}`',
                _inline(clause.statement),
                _code(clause.requires) or "nothing",
                "op x dtype" if clause.unit == "op" else "case",
                str(clause.level),
                f"{clause.status} (provisional)" if clause.provisional else str(clause.status),
                _threads(_inline(clause.source)),
            )
            for clause in self.clauses.values()
            if clause.family == family.name
        )
        return [*lines, *_table(header, rows), ""]

    def _meant(self, word: str) -> str:
        if word in self.families:
            return f"; the clauses of that family are {word + '.*'!r}"
        return suggestion(word, self.clauses) or f"; the families are {listing(self.families)}"


@cache
def load() -> Contract:
    """The contract of this suite, read once. Raises ContractError where its data is malformed."""
    return read(_FOLDER, FAMILIES)


def read(folder: Path, families: Sequence[str]) -> Contract:
    """Read ``<family>.toml`` of each family, in order, and check every field.

    Raises ContractError for the first fault found.
    """
    stray = {path.stem for path in folder.glob("*.toml")} - set(families)
    if stray:
        raise ContractError(
            f"{folder} holds files of unknown families: {listing(stray)}; add them to FAMILIES"
            " in conformance/contract.py, or remove the files"
        )
    clauses: dict[str, Clause] = {}
    kept: dict[str, Family] = {}
    for name in families:
        path = folder / f"{name}.toml"
        table = _parse(path)
        _check_keys(f"{path}", table, required=("family", "clause"))
        kept[name] = _family(path, name, table["family"])
        if not isinstance(table["clause"], list):
            raise ContractError(f"{path}: write each clause as [[clause]], with double brackets")
        for position, entry in enumerate(table["clause"], start=1):
            clause = _clause(path, name, position, entry)
            if clause.id in clauses:
                raise ContractError(f"{path}: the id '{clause.id}' is used twice; rename one")
            clauses[clause.id] = clause
    return Contract(MappingProxyType(clauses), MappingProxyType(kept))


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ContractError(f"{path} is missing: each family has a file of its clauses") from None
    except tomllib.TOMLDecodeError as error:
        raise ContractError(f"{path} is not valid TOML: {error}") from error


def _family(path: Path, name: str, table: object) -> Family:
    where = f"{path}: [family]"
    if not isinstance(table, dict):
        raise ContractError(f"{where}: expected a table with a title, got {table!r}")
    _check_keys(where, table, required=("title",), optional=("about",))
    return Family(
        name,
        title=_text(where, "title", table["title"]),
        about=_text(where, "about", table["about"]) if "about" in table else "",
    )


def _clause(path: Path, family: str, position: int, table: object) -> Clause:
    where = f"{path}: clause {position}"
    if not isinstance(table, dict):
        raise ContractError(f"{where}: expected a table, got {table!r}")
    if isinstance(table.get("id"), str):
        where = f"{path}: clause '{table['id']}'"
    _check_keys(where, table, required=tuple(field.name for field in fields(Clause)))
    clause_id = _matching(where, "id", table["id"], _ID, "like 'layout.values'")
    if not clause_id.startswith(f"{family}."):
        raise ContractError(f"{where}: an id in this file starts with '{family}.'")
    requires = _names(where, "requires", table["requires"])
    for name in requires:
        if name not in CAPABILITIES:
            raise ContractError(
                f"{where}: unknown capability '{name}'{suggestion(name, CAPABILITIES)}"
                f" (known: {listing(CAPABILITIES)})"
            )
    faults = _names(where, "faults", table["faults"])
    if not faults:
        raise ContractError(f"{where}: 'faults' is empty; name a planted fault that trips it")
    for fault in faults:
        _matching(where, "faults", fault, _FAULT, "like 'stride.ignore_channels_last'")
    if type(table["provisional"]) is not bool:
        raise ContractError(f"{where}: 'provisional' must be true or false")
    unit = _one_of(where, "unit", table["unit"], _UNITS)
    return Clause(
        id=clause_id,
        statement=_text(where, "statement", table["statement"]),
        source=_text(where, "source", table["source"]),
        requires=requires,
        level=_level(where, table["level"]),
        unit=cast(Literal["op", "case"], unit),
        status=Status(_one_of(where, "status", table["status"], [str(s) for s in Status])),
        faults=faults,
        since=_matching(where, "since", table["since"], _VERSION, "like '0.1'"),
        provisional=table["provisional"],
    )


def _check_keys(
    where: str,
    table: Mapping[str, object],
    required: Sequence[str],
    optional: Sequence[str] = (),
) -> None:
    known = (*required, *optional)
    for key in table:
        if key not in known:
            raise ContractError(
                f"{where}: unknown key '{key}'{suggestion(key, known)} (known: {listing(known)})"
            )
    missing = [key for key in required if key not in table]
    if missing:
        raise ContractError(f"{where}: these keys are missing: {listing(missing)}")


def _text(where: str, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ContractError(f"{where}: '{key}' must be a text that is not empty, got {value!r}")
    return " ".join(value.split())


def _matching(where: str, key: str, value: object, pattern: re.Pattern[str], form: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ContractError(f"{where}: '{key}' must be {form}, got {value!r}")
    return value


def _one_of(where: str, key: str, value: object, known: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ContractError(f"{where}: '{key}' must be one of {listing(known)}, got {value!r}")
    return value


def _level(where: str, value: object) -> int:
    if type(value) is not int or value not in LEVELS:
        raise ContractError(f"{where}: 'level' must be one of {list(LEVELS)}, got {value!r}")
    return value


def _names(where: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ContractError(f"{where}: '{key}' must be a list of names, got {value!r}")
    if len(set(value)) < len(value):
        raise ContractError(f"{where}: '{key}' names something twice: {value!r}")
    return tuple(value)


_PREAMBLE: Final = """\
# The contract: what a PyTorch device must hold

<!-- Generated by `python -m conformance.contract > docs/contract.md`; do not edit. -->

Each line is one clause: a statement that a device either honours or does not. There are {clauses}
clauses, of which the suite checks {checked}; the others are planned, and no result counts for them.

- *Device*: the one under test. *Reference*: for values, the CPU's result on contiguous copies of
  the inputs; for strides, FakeTensor with the device under test as its device, or eager CPU. A
  device is never its own reference.
- Strides pass when they equal either reference, and fail when both agree and the device differs.
  Where the two differ and the device equals neither, the cell is `ambiguous-reference`: it is
  reported, and counts in no numerator. On `cpu` only FakeTensor counts.
- *As the CPU does*: in the cases where eager CPU raises (or warns), the device raises (or warns).
- There is no vacuous pass: each check states what must have happened (bytes grew, work was in
  flight, the capture recorded something); where it did not, the cell is an `error`.
- *Requires*: the capabilities that a device declares before the clause applies to it. *Cell*: what
  one result is about, an op and a dtype or a named case. *Level*: 1 tensors, 2 memory and order,
  3 graphs, 4 full.
- Sources under `docs/source` are PyTorch's documentation, in its own repository; `.h` files are
  found under `torch/include` of an installed torch.
"""

_FAULTS_INTRODUCTION: Final = (
    "The faults that are planted to see a clause fail, those of layout in a wrapper device of the"
    " test suite: with one of them on, the clause must fail; with all off, it must pass."
)

_THREAD: Final = re.compile(r"(?:pytorch/pytorch)?#(\d+)")
_OUTER_UNDERSCORES: Final = re.compile(r"(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])")


def _inline(text: str) -> str:
    """``text`` with what Markdown would take for markup escaped, code between backticks kept."""
    parts = text.replace("|", r"\|").split("`")
    for position in range(0, len(parts), 2):  # the odd parts lie between backticks
        prose = parts[position].replace("*", r"\*").replace("<", "&lt;")
        parts[position] = _OUTER_UNDERSCORES.sub(lambda found: r"\_" * len(found[0]), prose)
    return "`".join(parts)


def _threads(text: str) -> str:
    """``text`` with its issue and pull-request numbers linked to PyTorch's own tracker."""
    return _THREAD.sub(r"[pytorch/pytorch#\1](https://github.com/pytorch/pytorch/issues/\1)", text)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


if __name__ == "__main__":
    # Bytes, so that the page is the same whatever the console's encoding and line endings are.
    sys.stdout.buffer.write(load().to_markdown().encode())
