"""What torch's documentation promises of a device, name by name: the methods of its objects, and the cells that check each.
The module does not import torch.

``promises.toml`` has the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from conformance.contract import Contract, Text, load
from devices.errors import ConformError, suggestion
from devices.files import converted, read_toml

_FILE: Final = Path(__file__).with_name("promises.toml")
#: A glob over clauses and cases, such as "streams.query::*".
CellGlob = Annotated[str, msgspec.Meta(pattern=r"^[a-z*][\w.*]*::[\w*]+$")]


class Promise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some attributes of an object of torch, and the cells that check what is documented of them, or the reason why no cell
    does. The fields are the keys of a ``[[promise]]`` table."""

    of: Text  # a class such as "torch.Stream", "torch.accelerator", or "torch.<device>", the device's module
    names: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    cells: tuple[CellGlob, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if bool(self.cells) == bool(self.reason.strip()):
            raise ValueError(
                "expected either 'cells' that check the promise, or a 'reason' why no cell does"
            )


@dataclass(frozen=True, slots=True)
class Promises:
    """The table, by object and name."""

    by_name: Mapping[tuple[str, str], Promise]

    def __iter__(self) -> Iterator[Promise]:
        return iter(dict.fromkeys(self.by_name.values()))

    @property
    def objects(self) -> list[str]:
        return list(dict.fromkeys(of for of, _ in self.by_name))

    def names_of(self, of: str) -> frozenset[str]:
        """Returns the names of an object that the table lists."""
        return frozenset(name for each, name in self.by_name if each == of)

    def select(self, word: str) -> dict[tuple[str, str], Promise]:
        """Returns the entries of an object ("torch.Stream", or "Stream"), or with a name that matches a glob. Raises
        ConformError if there are none."""
        found = {
            key: promise
            for key, promise in self.by_name.items()
            if word in (key[0], key[0].rpartition(".")[2]) or fnmatchcase(key[1], word)
        }
        if not found:
            words = {word for key in self.by_name for word in key}
            raise ConformError(
                f"the table of promises has no object or name {word!r}{suggestion(word, words)}"
            )
        return found


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of promises.toml. Tables are converted one by one, so that an error message can name the table."""

    promise: list[dict[str, Any]]


@cache
def promises() -> Promises:
    """Returns the table of promises.toml, which is read only once. Raises ConformError if the file is malformed."""
    return read_promises(_FILE, load())


def read_promises(path: Path, contract: Contract) -> Promises:
    """Reads a table of promises, checks every field, and returns it. Raises ConformError for the first mistake found."""
    found: dict[tuple[str, str], Promise] = {}
    for number, table in enumerate(read_toml(path, _File, ConformError).promise, start=1):
        where = f"{path}: promise {number}"
        promise = converted(table, Promise, where, ConformError)
        for glob in promise.cells:
            clause = glob.partition("::")[0]
            if not any(fnmatchcase(each, clause) for each in contract.clauses):
                raise ConformError(
                    f"{where}: no clause matches '{clause}'{suggestion(clause, contract.clauses)}"
                )
        for name in promise.names:
            if (promise.of, name) in found:
                raise ConformError(f"{where}: {promise.of}.{name} is listed twice")
            found[promise.of, name] = promise
    return Promises(MappingProxyType(found))
