"""The suite's options for pytest, which ``options.toml`` lists, and the values of these options in a command line. The
module imports neither pytest nor torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.errors import ConformError, suggestion

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


_DEFAULT_PLAN: Final = "quick"

#: The plan of a run that replays a recording.
REPLAY: Final = "replay"


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An option of the suite for pytest."""

    name: str
    help: str
    group: str  # its title in ``--help``
    kind: str = "text"
    metavar: str | None = None
    default: str | None = None

    @property
    def key(self) -> str:
        """The name of the field of ``Request`` that has the option's value."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def dest(self) -> str:
        """The name of the attribute in which pytest stores the option's value. A prefix avoids clashes with the options
        of other plugins."""
        return f"conform_{self.key}"

    def convert(self, value: Any) -> Any:
        """Returns the option's value, converted from text; None if the option was not given. Raises ConformError if the
        text is not valid."""
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
    """The options of a command line, with one field for each option. A field is None if its option was not given."""

    device: str | None
    descriptor: Path | None
    plan: str
    recording: Path | None
    recording_format: str | None
    backward: bool
    ops: tuple[str, ...] | None
    dtypes: tuple[str, ...] | None
    clauses: tuple[str, ...] | None
    max_elements: int | None  # of the tensors of a recorded call together
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
    def from_options(
        cls, values: Mapping[str, Any], *, collect_only: bool, deselects: Iterable[str]
    ) -> Request:
        """Returns a ``Request`` with the values of pytest's options. The keys of ``values`` are the ``dest`` of the
        options. Raises ConformError if a value is not valid."""
        read = {option.key: option.convert(values[option.dest]) for option in OPTIONS}
        if read["resume"] and read["no_resume"]:
            raise ConformError("--resume and --no-resume exclude each other: give one of them")
        if read["recording"] is not None:
            if read["plan"] not in (_DEFAULT_PLAN, REPLAY):
                raise ConformError(
                    f"--plan {read['plan']} and --recording exclude each other: a recording is a plan of its own"
                )
            read["plan"] = REPLAY
        elif read["max_elements"] is not None:
            raise ConformError(
                "--max-elements needs --recording FILE: the tensors of a plan's ops are small"
            )
        elif read["backward"]:
            raise ConformError(
                "--backward needs --recording FILE: the gradients of a plan's ops are always judged"
            )
        elif read["plan"] == REPLAY:
            raise ConformError(
                f"--plan {REPLAY} needs --recording FILE, a file of `conform record`"
            )
        elif read["recording_format"] is not None:
            raise ConformError("--recording-format needs --recording FILE")
        return cls(**read, collect_only=collect_only, deselects=tuple(deselects))

    @property
    def names_cells(self) -> bool:
        """True if an option names the ops, dtypes, clauses or tests that run."""
        return bool(self.ops or self.dtypes or self.clauses or self.deselects)

    @property
    def selection(self) -> dict[str, str]:
        """The options that restrict the run to a part of the plan, with their values; empty if the whole plan runs."""
        lists = {"--ops": self.ops, "--dtypes": self.dtypes, "--clauses": self.clauses}
        found = {name: ",".join(values) for name, values in lists.items() if values is not None}
        if self.max_elements is not None:
            found["--max-elements"] = str(self.max_elements)
        if self.max_time is not None:
            found["--max-time"] = f"{self.max_time:g}s"
        return found | {f"pytest {name}": "set" for name in self.deselects}


def joined(arguments: Iterable[str]) -> tuple[str, ...]:
    """Returns the command line, in which each option that takes a path is written as ``--option=PATH``.

    pytest searches its root folder before it knows the suite's options, and treats an existing path after an unknown
    option as a test path. The results folder exists when a worker starts, so the worker would search the folder for
    tests.
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
    """Returns the whole number that a text states. Raises ConformError unless the text is a whole number of 0 or
    more."""
    if not (text.isascii() and text.isdigit()):
        raise ConformError(f"{option} {text!r}: expected a whole number, 0 or more")
    return int(text)


def duration(text: str, option: str = "--max-time") -> float:
    """Returns the seconds of a duration such as ``90``, ``90s``, ``20m`` or ``1h``. Raises ConformError for other
    texts."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConformError(f"{option} {text!r}: expected a duration such as 90s, 20m or 1h")
    return seconds


def matching(option: str, globs: Iterable[str], names: Collection[str]) -> frozenset[str]:
    """Returns the names that match at least one of the globs. Raises ConformError for a glob that matches no name."""
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
