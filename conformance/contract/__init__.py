"""The contract as data: every clause that a device honours or does not. Needs no torch.

The clauses lie in ``clauses/<family>.toml``; ``python -m conformance.contract`` prints the page
that people read, ``docs/contract.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from devices.descriptor import CAPABILITIES
from devices.errors import ConformError, listing, suggestion
from devices.failure import Word
from devices.files import tomllib
from devices.simulated.faults import BY_CLAUSE

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

_FOLDER: Final = Path(__file__).parent / "clauses"


class ContractError(ConformError):
    """The contract's data is malformed. The text names the file, the clause, and what to do."""


class UnknownClause(ConformError, LookupError):
    """A clause id or glob that names no clause. The text lists what was probably meant."""


class Status(Word):
    """Whether the suite holds a device to the clause yet."""

    CHECKED = "checked"
    PLANNED = "planned"


Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
FaultName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$")]


class Clause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One statement of the contract. The fields are the keys of its ``[[clause]]`` table."""

    #: "layout.values": the family and the clause's own name
    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z]+\.[a-z][a-z0-9_]*$")]
    statement: Text  # one or two sentences, in the present tense
    source: Text  # where it is documented: headers, pages, pytorch/pytorch threads
    requires: tuple[str, ...]  # capabilities that a device declares before the clause applies
    level: Annotated[int, msgspec.Meta(ge=1, le=max(LEVELS))]  # of conformance
    unit: Literal["op", "case"]  # "op": its cells are op x dtype; "case": its own named cases
    status: Status
    #: planted faults that trip it: the simulated device's, then those that the table lists
    faults: tuple[FaultName, ...] = ()
    since: Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]  # the suite's version that added it
    provisional: bool  # reported, and not gating

    @property
    def family(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]

    def snapshot(self) -> dict[str, Any]:
        """The clause as JSON can hold it."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return {"id": plain.pop("id"), "family": self.family, **plain}


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the clauses of one family share."""

    title: Text
    about: str = ""  # how its clauses are judged
    name: str = ""  # the name of the file


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
        """The contract as JSON can hold it, for a run's record and ``conform contract --json``."""
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
            " in conformance/contract/__init__.py, or remove the files"
        )
    clauses: dict[str, Clause] = {}
    kept: dict[str, Family] = {}
    for name in families:
        path = folder / f"{name}.toml"
        table = _parse(path)
        family = _convert(f"{path}: [family]", table.family, Family)
        kept[name] = msgspec.structs.replace(
            family, name=name, title=_joined(family.title), about=_joined(family.about)
        )
        for position, entry in enumerate(table.clause, start=1):
            clause = _clause(path, name, position, entry)
            if clause.id in clauses:
                raise ContractError(f"{path}: the id '{clause.id}' is used twice; rename one")
            clauses[clause.id] = clause
    return Contract(MappingProxyType(clauses), MappingProxyType(kept))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A family's file. The tables are converted one by one, so that an error names its clause."""

    family: dict[str, Any]
    clause: list[dict[str, Any]]


_Read = TypeVar("_Read")


def _convert(where: str, table: object, kind: type[_Read]) -> _Read:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ContractError(f"{where}: {error}") from None


def _parse(path: Path) -> _File:
    try:
        return _convert(str(path), tomllib.loads(path.read_text(encoding="utf-8")), _File)
    except FileNotFoundError:
        raise ContractError(f"{path} is missing: each family has a file of its clauses") from None
    except tomllib.TOMLDecodeError as error:
        raise ContractError(f"{path} is not valid TOML: {error}") from error


def _clause(path: Path, family: str, position: int, table: dict[str, Any]) -> Clause:
    where = f"{path}: clause {table.get('id', position)!r}"
    clause = _convert(where, table, Clause)
    if clause.family != family:
        raise ContractError(f"{where}: an id in this file starts with '{family}.'")
    for name in clause.requires:
        if name not in CAPABILITIES:
            raise ContractError(
                f"{where}: unknown capability '{name}'{suggestion(name, CAPABILITIES)}"
                f" (known: {listing(CAPABILITIES)})"
            )
    if len(set(clause.requires)) < len(clause.requires):
        raise ContractError(f"{where}: 'requires' names something twice: {list(clause.requires)}")
    faults = tuple(dict.fromkeys((*BY_CLAUSE.get(clause.id, ()), *clause.faults)))
    if not faults:
        raise ContractError(
            f"{where}: no planted fault trips it: declare one in devices/simulated/faults.toml, or name"
            " one of another device in 'faults'"
        )
    texts = {"statement": _joined(clause.statement), "source": _joined(clause.source)}
    return msgspec.structs.replace(clause, faults=faults, **texts)


def _joined(text: str) -> str:
    """The text on one line: a table may wrap it freely."""
    return " ".join(text.split())


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
  reported, and counts in no numerator. For the CPU itself only FakeTensor counts.
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
    "Faults are planted in the simulated device, and for layout also in a wrapper device of the test"
    " suite: with one of them on, the clause must fail; with all off, it must pass."
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
