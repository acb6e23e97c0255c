"""The contract as data: every clause that a device honours or does not. Needs no torch.

The clauses lie in ``clauses/<family>.toml``; ``page.py`` makes the page that people read.
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
from devices.simulated.faults import BY_CLAUSE

_FOLDER: Final = Path(__file__).parent


class _Words(msgspec.Struct, forbid_unknown_fields=True):
    """The contract's own file."""

    families: tuple[str, ...]
    levels: tuple[str, ...]


_WORDS: Final = read_toml(_FOLDER / "contract.toml", _Words, ConformError)
FAMILIES: Final = _WORDS.families
#: The names of the levels by number, from 1.
LEVELS: Final[Mapping[int, str]] = MappingProxyType(dict(enumerate(_WORDS.levels, 1)))


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

    def __post_init__(self) -> None:
        for name in self.requires:
            if name not in CAPABILITIES:
                raise ValueError(
                    f"unknown capability '{name}'{suggestion(name, CAPABILITIES)}"
                    f" (known: {listing(CAPABILITIES)})"
                )
        if len(set(self.requires)) < len(self.requires):
            raise ValueError(f"'requires' names something twice: {list(self.requires)}")
        faults = tuple(dict.fromkeys((*BY_CLAUSE.get(self.id, ()), *self.faults)))
        if not faults:
            raise ValueError(
                "no planted fault trips it: declare one in devices/simulated/faults.toml, or name one"
                " of another device in 'faults'"
            )
        msgspec.structs.force_setattr(self, "faults", faults)
        _join(self, "statement", "source")

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]

    def snapshot(self) -> dict[str, Any]:
        """The clause as JSON can hold it."""
        return {
            "id": self.id,
            "family": self.family,
            **msgspec.json.decode(msgspec.json.encode(self)),
        }


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the clauses of one family share."""

    title: Text
    about: str = ""  # how its clauses are judged

    def __post_init__(self) -> None:
        _join(self, "title", "about")


def _join(table: msgspec.Struct, *texts: str) -> None:
    """Put texts on one line: a table may wrap them freely."""
    for name in texts:
        msgspec.structs.force_setattr(table, name, " ".join(getattr(table, name).split()))


@dataclass(frozen=True, slots=True)
class Contract:
    """All clauses by id and all families by name, both in the order of the files."""

    clauses: Mapping[str, Clause]
    families: Mapping[str, Family]

    def select(self, globs: Iterable[str]) -> tuple[Clause, ...]:
        """The clauses that match any of the globs, in the order of the contract.

        Raises ConformError for a glob that matches nothing, so that a misspelt one is not taken
        for a selection.
        """
        chosen: set[str] = set()
        for glob in globs:
            matched = {name for name in self.clauses if fnmatchcase(name, glob)}
            if not matched:
                raise ConformError(f"no clause matches {glob!r}{self._meant(glob)}")
            chosen |= matched
        return tuple(clause for clause in self.clauses.values() if clause.id in chosen)

    def snapshot(self) -> dict[str, Any]:
        """The contract as JSON can hold it, for a run's record and ``conform contract --json``."""
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
    """The contract of this suite, read once. Raises ConformError where its data is malformed."""
    return read(_FOLDER / "clauses", FAMILIES)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A family's file. The clauses are converted one by one, so that an error names its clause."""

    family: Family
    clause: list[dict[str, Any]]


def read(folder: Path, families: Sequence[str]) -> Contract:
    """Read ``<family>.toml`` of each family, in order, and check every field.

    Raises ConformError for the first fault found.
    """
    stray = {path.stem for path in folder.glob("*.toml")} - set(families)
    if stray:
        raise ConformError(
            f"{folder} holds files of unknown families: {listing(stray)}; add them to"
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
                raise ConformError(f"{where}: an id in this file starts with '{name}.'")
            if clause.id in clauses:
                raise ConformError(f"{path}: the id '{clause.id}' is used twice; rename one")
            clauses[clause.id] = clause
    return Contract(MappingProxyType(clauses), MappingProxyType(kept))
