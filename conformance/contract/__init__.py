"""The contract as data: all clauses. A clause is a statement that a device either satisfies or fails. The module does
not import torch.

``clauses/<family>.toml`` holds the clauses; ``page.py`` renders docs/contract.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec

from devices.descriptor import CAPABILITIES
from devices.errors import ConformError, listing, suggestion
from devices.failure import Word
from devices.files import converted, read_toml

_FOLDER: Final = Path(__file__).parent
#: The environment variables that switch on faults of the simulated device, and of the wrapped device (tests/wrapped).
SIMULATED: Final = "SIMULATED_FAULTS"
WRAPPED: Final = "WRAPPED_FAULTS"


class _Words(msgspec.Struct, forbid_unknown_fields=True):
    """The content of contract.toml: the names of the families and of the levels."""

    families: tuple[str, ...]
    levels: tuple[str, ...]


_WORDS: Final = read_toml(_FOLDER / "contract.toml", _Words, ConformError)
FAMILIES: Final = _WORDS.families
#: The names of the levels by number, from 1.
LEVELS: Final[Mapping[int, str]] = MappingProxyType(dict(enumerate(_WORDS.levels, 1)))


class Status(Word):
    """The state of a clause: the suite checks the clause already, or a check is only planned."""

    CHECKED = "checked"
    PLANNED = "planned"


Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
FaultName = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$")]


Minor = Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]


class Clause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One statement of the contract. The fields are the keys of its ``[[clause]]`` table."""

    #: the family and the clause's own name, such as "layout.values"
    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z]+\.[a-z][a-z0-9_]*$")]
    statement: Text  # what the device must do: full sentences in the present tense
    source: Text  # the headers, pages and pytorch/pytorch threads that document the behaviour
    requires: tuple[str, ...]  # the clause applies only to devices that declare these capabilities
    level: Annotated[int, msgspec.Meta(ge=1, le=max(LEVELS))]  # the level of conformance
    unit: Literal["op", "case"]  # "op": a cell is op x dtype; "case": a cell is a named case
    status: Status
    #: planted faults that make the clause fail: those of the simulated device (devices/simulated/faults.toml), and those
    #: of the wrapped device of the tests (tests/wrapped)
    simulated_faults: tuple[FaultName, ...] = ()
    wrapped_faults: tuple[FaultName, ...] = ()
    since: Minor  # the version of the suite that added the clause
    #: the minor version in which the clause is reported without gating; it gates from the next one on
    provisional_since: Minor | None = None

    def __post_init__(self) -> None:
        for name in self.requires:
            if name not in CAPABILITIES:
                raise ValueError(
                    f"unknown capability '{name}'{suggestion(name, CAPABILITIES)}"
                    f" (known: {listing(CAPABILITIES)})"
                )
        if len(set(self.requires)) < len(self.requires):
            raise ValueError(f"'requires' names a capability twice: {list(self.requires)}")
        if self.status is Status.CHECKED and not self.faults:
            raise ValueError(
                "no planted fault makes this clause fail: name one of the simulated device in 'simulated_faults',"
                " or one of the wrapped device in 'wrapped_faults'"
            )
        if self.status is Status.PLANNED and self.provisional:
            raise ValueError(
                "a planned clause has no results, so it cannot be provisional: remove"
                " 'provisional_since' until the clause is checked"
            )
        _join(self, "statement", "source")

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]

    @property
    def provisional(self) -> bool:
        """True if failures of the clause are reported but do not turn the gate red."""
        return self.provisional_since is not None

    @property
    def faults(self) -> tuple[str, ...]:
        """The names of all planted faults that make the clause fail: those of the simulated device, then those of the
        wrapped device of the tests."""
        return (*self.simulated_faults, *self.wrapped_faults)

    def snapshot(self) -> dict[str, Any]:
        """Returns the clause as values that JSON can represent."""
        fields = msgspec.json.decode(msgspec.json.encode(self))
        del fields["simulated_faults"]  # "faults" has them
        return {
            "id": self.id,
            "family": self.family,
            **fields,
            "faults": list(self.faults),
            "provisional": self.provisional,
        }


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The title of a family of clauses, and a note that says how the clauses of the family are checked."""

    title: Text
    about: str = ""

    def __post_init__(self) -> None:
        _join(self, "title", "about")


def _join(table: msgspec.Struct, *texts: str) -> None:
    """Puts the text of each named field on one line. In the TOML file, the texts may be wrapped freely."""
    for name in texts:
        msgspec.structs.force_setattr(table, name, " ".join(getattr(table, name).split()))


@dataclass(frozen=True, slots=True)
class Contract:
    """All clauses by id and all families by name, both in the order of the files."""

    clauses: Mapping[str, Clause]
    families: Mapping[str, Family]

    def select(self, globs: Iterable[str]) -> tuple[Clause, ...]:
        """Returns the clauses that match at least one of the globs, in the order of the contract.

        Raises ConformError for a glob that matches no clause: the glob is probably misspelt.
        """
        chosen: set[str] = set()
        for glob in globs:
            matched = {name for name in self.clauses if fnmatchcase(name, glob)}
            if not matched:
                raise ConformError(f"no clause matches {glob!r}{self._meant(glob)}")
            chosen |= matched
        return tuple(clause for clause in self.clauses.values() if clause.id in chosen)

    def snapshot(self) -> dict[str, Any]:
        """Returns the contract as values that JSON can represent, for the record of a run and ``conform contract
        --json``."""
        return {
            "families": [
                {"name": name, **msgspec.to_builtins(family)}
                for name, family in self.families.items()
            ],
            "clauses": [clause.snapshot() for clause in self.clauses.values()],
        }

    def _meant(self, word: str) -> str:
        if word in self.families:
            return f"; the clauses of that family are {word + '.*'!r}"
        return suggestion(word, self.clauses) or f"; the families are {listing(self.families)}"


@cache
def load() -> Contract:
    """Returns the contract of this suite, which is read only once. Raises ConformError if a file is malformed."""
    return read_contract(_FOLDER / "clauses", FAMILIES)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file of one family. Its clauses are converted one by one, so that an error message can name
    the clause."""

    family: Family
    clause: list[dict[str, Any]]


def read_contract(folder: Path, families: Sequence[str]) -> Contract:
    """Reads the file ``<family>.toml`` of each family in a folder, checks every field, and returns the contract.

    Raises ConformError for the first mistake found.
    """
    stray = {path.stem for path in folder.glob("*.toml")} - set(families)
    if stray:
        raise ConformError(
            f"{folder} contains files of unknown families: {listing(stray)}; add the families to"
            f" {_FOLDER / 'contract.toml'}, or remove the files"
        )
    clauses: dict[str, Clause] = {}
    kept: dict[str, Family] = {}
    for name in families:
        path = folder / f"{name}.toml"
        file = read_toml(path, _File, ConformError)
        kept[name] = file.family
        for position, table in enumerate(file.clause, start=1):
            where = f"{path}: clause {table.get('id', position)!r}"
            clause = converted(table, Clause, where, ConformError)
            if clause.family != name:
                raise ConformError(f"{where}: expected an id that starts with '{name}.'")
            if clause.id in clauses:
                raise ConformError(f"{path}: the id '{clause.id}' is used twice; rename one")
            clauses[clause.id] = clause
    return Contract(MappingProxyType(clauses), MappingProxyType(kept))


def misdated(clauses: Iterable[Clause], version: str) -> list[str]:
    """Returns one sentence for each clause whose ``provisional_since`` is wrong in this version of the suite.

    A clause is provisional in one minor version only: that of ``version``, or the next one if the clause was written
    after the release of ``version``.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    wrong = []
    for clause in clauses:
        if clause.provisional_since is None:
            continue
        since = tuple(int(part) for part in clause.provisional_since.split("."))
        where = f"clauses/{clause.family}.toml: {clause.id}"
        if since < (major, minor):
            wrong.append(
                f"{where} has been provisional since {clause.provisional_since}, but this is version {version}:"
                " remove 'provisional_since', so that failures of the clause turn the gate red"
            )
        elif since not in ((major, minor), (major, minor + 1), (major + 1, 0)):
            wrong.append(
                f"{where}: expected 'provisional_since' to be the minor version of {version} or the"
                f" next one, got {clause.provisional_since}"
            )
    return wrong
