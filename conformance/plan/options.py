"""The suite's options for pytest (``options.toml``), and what a user asked for, checked. Imports neither pytest nor torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.errors import ConformError, suggestion

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    help: str
    group: str  # its title in ``--help``
    kind: str = "text"
    metavar: str | None = None
    default: str | None = None

    @property
    def key(self) -> str:
        """The name of the option's field in Request."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def dest(self) -> str:
        """The attribute in which pytest keeps the value. The prefix keeps it apart from other plugins' options."""
        return f"conform_{self.key}"

    def read(self, value: Any) -> Any:
        """The option's value, converted from pytest's text; None if it was not given. Raises ConformError."""
        if self.kind in ("text", "flag") or value is None:
            return value
        return _READERS[self.kind](value, self.name)


def _options() -> Iterator[Option]:
    file = Path(__file__).with_name("options.toml")
    for group in msgspec.toml.decode(file.read_bytes()).values():
        title = group.pop("title")["text"]
        for name, table in group.items():
            yield msgspec.convert({"name": name, "group": title, **table}, Option)


OPTIONS: Final = tuple(_options())


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for: one field for each option, None if the option was not given."""

    device: str | None
    descriptor: Path | None
    plan: str
    ops: tuple[str, ...] | None
    dtypes: tuple[str, ...] | None
    clauses: tuple[str, ...] | None
    expectations: str | None
    results: Path | None
    max_time: float | None  # seconds
    minimise: int  # at most this many new failures
    explore: float | None  # seconds
    explore_seed: int
    shard: str | None  # I/N
    shard_times: Path | None  # an earlier run's folder
    resume: bool
    no_resume: bool
    cell_timeout: float | None  # seconds
    no_reference_cache: bool
    redact: bool
    collect_only: bool
    deselects: tuple[str, ...]  # pytest's own options that leave items out

    @classmethod
    def read(
        cls, values: Mapping[str, Any], *, collect_only: bool, deselects: Iterable[str]
    ) -> Request:
        """A request from the options' values by their ``dest``. Raises ConformError."""
        read = {option.key: option.read(values[option.dest]) for option in OPTIONS}
        if read["resume"] and read["no_resume"]:
            raise ConformError("--resume and --no-resume exclude each other: give one of them")
        return cls(**read, collect_only=collect_only, deselects=tuple(deselects))

    @property
    def selection(self) -> dict[str, str]:
        """What narrows the run, by option; empty for a whole run."""
        lists = {"--ops": self.ops, "--dtypes": self.dtypes, "--clauses": self.clauses}
        found = {name: ",".join(values) for name, values in lists.items() if values is not None}
        if self.max_time is not None:
            found["--max-time"] = f"{self.max_time:g}s"
        return found | {f"pytest {name}": "set" for name in self.deselects}


def joined(arguments: Iterable[str]) -> tuple[str, ...]:
    """The command line with each option that takes a path in the form ``--option=PATH``.

    pytest looks for its root folder before it knows our options, and takes an existing path after such an option for a
    test path. A worker starts after the results folder was made, so it would look for tests there.
    """
    paths = {option.name for option in OPTIONS if option.kind == "path"}
    paths |= {"--expectations", "--junitxml"}
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] in paths:
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return tuple(found)


def _count(text: str, option: str) -> int:
    """A whole number, 0 or more. Raises ConformError."""
    if not (text.isascii() and text.isdigit()):
        raise ConformError(f"{option} {text!r}: expected a whole number, 0 or more")
    return int(text)


def duration(text: str, option: str = "--max-time") -> float:
    """Seconds of ``90``, ``90s``, ``20m``, ``1h``. Raises ConformError."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConformError(f"{option} {text!r}: expected a duration such as 90s, 20m or 1h")
    return seconds


def matching(option: str, globs: Iterable[str], names: Collection[str]) -> frozenset[str]:
    """The names that the globs match. Raises ConformError for a glob that matches no name."""
    found: set[str] = set()
    for glob in globs:
        # Brackets are not special: op names hold none, and `__getitem__` must match itself.
        hits = {n for n in names if n == glob or fnmatch.fnmatchcase(n, glob)}
        if not hits:
            near = suggestion(glob, names)
            raise ConformError(f"{option} {glob!r} matches nothing in this plan{near}")
        found |= hits
    return frozenset(found)


def _listed(text: str, option: str) -> tuple[str, ...]:
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    if not values:
        raise ConformError(
            f"{option} is empty: expected names separated by commas; leave the option out to run everything"
        )
    return values


_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "path": lambda text, option: Path(text) if text else None,
    "list": _listed,
    "duration": duration,
    "count": _count,
}
