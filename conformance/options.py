"""The suite's options for pytest, and what a user asked for, checked."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest

from devices.errors import ConformError

#: pytest options that leave items out: such a run is partial.
_DESELECTING = ("keyword", "markexpr", "lf", "deselect", "stepwise")


class BadOption(ConformError):
    """An option's value does not fit. The text says what would."""


def add_options(parser: pytest.Parser) -> None:
    """Register every option under a destination that starts with ``conform_``.

    Raises UsageError naming the option that another plugin has taken.
    """
    # pytest tells of a clash by an argparse.ArgumentError: from 9.0 at once, before that when it parses.
    others = (parser._anonymous, *parser._groups)
    taken = {name for other in others for option in other.options for name in option.names()}
    group = parser.getgroup("conform", "torch-conformance: hold a device to the contract")

    def add(name: str, **settings: Any) -> None:
        if name in taken:
            raise pytest.UsageError(
                f"torch-conformance needs the option {name}, and another pytest plugin has it already. "
                "Switch that plugin off: pytest -p no:NAME …"
            )
        dest = "conform_" + name.removeprefix("--").replace("-", "_")
        group.addoption(name, dest=dest, **settings)

    add(
        "--device",
        metavar="NAME",
        help="device to test (default: the machine's accelerator, else cpu)",
    )
    add(
        "--descriptor",
        metavar="PATH",
        help="descriptor.py of a device that is not registered, or its folder",
    )
    add("--plan", metavar="NAME", default="quick", help="quick (default), core or full")
    add("--ops", metavar="GLOB,…", help="only these ops: the run is partial")
    add("--dtypes", metavar="NAME,…", help="only these dtypes: the run is partial")
    add("--clauses", metavar="GLOB,…", help="only these clauses: the run is partial")
    add(
        "--expectations", metavar="PATH|none", help="manifest (default: the device's expected.toml)"
    )
    add("--results", metavar="DIR", help="results folder (default: conform-results/DEVICE-PLAN)")
    add(
        "--max-time",
        metavar="DURATION",
        help="start no item after this long (90s, 20m, 1h): partial",
    )
    add(
        "--minimise",
        metavar="N",
        default="200",
        help="minimise at most N new failures at the end (default 200; 0: none)",
    )
    add(
        "--explore",
        metavar="DURATION",
        help="then search at random for this long (10m); the plan's outcomes stay as they are",
    )
    add("--explore-seed", metavar="N", default="0", help="seed of --explore (default 0)")
    add(
        "--shard", metavar="I/N", help="run one of N shards of the plan; `conform merge` joins them"
    )
    add(
        "--shard-times",
        metavar="RUN",
        help="balance the shards by the times of this earlier run (its results folder)",
    )
    add(
        "--resume",
        action="store_true",
        help="go on with the run that the results folder holds: run what is missing",
    )
    add(
        "--cell-timeout",
        metavar="DURATION",
        help="time that a cell may take before it counts as hung (default: by plan and clause)",
    )
    add(
        "--no-reference-cache",
        action="store_true",
        help="compute every stride reference, and what the plan asks of torch's database, anew",
    )
    add("--redact", action="store_true", help="leave host name and device uuid out of the results")


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for. Lists are None where nothing was asked."""

    device: str | None
    descriptor: Path | None
    plan: str
    ops: tuple[str, ...] | None
    dtypes: tuple[str, ...] | None
    clauses: tuple[str, ...] | None
    expectations: str | None
    results: Path | None
    max_seconds: float | None
    minimise: int  # new failures that are minimised at most
    explore_seconds: float | None
    explore_seed: int
    reference_cache: bool
    redact: bool
    collect_only: bool
    deselects: tuple[str, ...]  # pytest's own options that leave items out
    resume: bool = False
    cell_timeout: float | None = None  # seconds
    shard: str | None = None  # I/N
    shard_times: Path | None = None  # an earlier run's folder

    @classmethod
    def of(cls, config: pytest.Config) -> Request:
        """Read the options. Raises BadOption."""
        option = config.option
        deselects = [name for name in _DESELECTING if getattr(option, name, None)]
        if getattr(option, "maxfail", 0):
            deselects.append("maxfail")
        if any("::" in arg for arg in config.args):
            deselects.append("node ids")
        elif config.args and not any(_takes_all(config, arg) for arg in config.args):
            deselects.append("paths")
        return cls(
            device=option.conform_device,
            descriptor=Path(option.conform_descriptor) if option.conform_descriptor else None,
            plan=option.conform_plan,
            ops=_listed(option.conform_ops, "--ops"),
            dtypes=_listed(option.conform_dtypes, "--dtypes"),
            clauses=_listed(option.conform_clauses, "--clauses"),
            expectations=option.conform_expectations,
            results=Path(option.conform_results) if option.conform_results else None,
            max_seconds=_seconds(option.conform_max_time, "--max-time"),
            minimise=_count(option.conform_minimise, "--minimise"),
            explore_seconds=_seconds(option.conform_explore, "--explore"),
            explore_seed=_count(option.conform_explore_seed, "--explore-seed"),
            reference_cache=not option.conform_no_reference_cache,
            redact=option.conform_redact,
            collect_only=bool(getattr(option, "collectonly", False)),
            deselects=tuple(deselects),
            resume=option.conform_resume,
            cell_timeout=_seconds(option.conform_cell_timeout, "--cell-timeout"),
            shard=option.conform_shard,
            shard_times=Path(option.conform_shard_times) if option.conform_shard_times else None,
        )

    @property
    def selection(self) -> dict[str, str]:
        """What narrows the run, by option; empty for a whole one."""
        found = {
            f"--{name}": ",".join(values)
            for name, values in (
                ("ops", self.ops),
                ("dtypes", self.dtypes),
                ("clauses", self.clauses),
            )
            if values is not None
        }
        if self.max_seconds is not None:
            found["--max-time"] = f"{self.max_seconds:g}s"
        found |= {f"pytest {name}": "set" for name in self.deselects}
        return found


def _takes_all(config: pytest.Config, argument: str) -> bool:
    """Whether an argument is the whole package, or a folder around it."""
    package = Path(__file__).resolve().parent
    if getattr(config.option, "pyargs", False) and argument == package.name:
        return True
    path = Path(os.path.abspath(argument))
    return path == package or path in package.parents


def joined(arguments: Iterable[str]) -> tuple[str, ...]:
    """The command line with each option that takes a path in the form ``--option=PATH``.

    pytest looks for its root folder before it knows our options, and takes an existing path behind one
    for a test path; a worker, which starts when the results folder exists, would look there.
    """
    found: list[str] = []
    for argument in arguments:
        if found and found[-1] in (
            "--results",
            "--descriptor",
            "--expectations",
            "--junitxml",
            "--shard-times",
        ):
            found[-1] += f"={argument}"
        else:
            found.append(argument)
    return tuple(found)


def _seconds(text: str | None, option: str) -> float | None:
    return duration(text, option) if text else None


def _count(text: str, option: str) -> int:
    """A whole number from 0. Raises BadOption."""
    if not (text.isascii() and text.isdigit()):
        raise BadOption(f"{option} {text!r}: expected a whole number from 0")
    return int(text)


def duration(text: str, option: str = "--max-time") -> float:
    """Seconds of ``90``, ``90s``, ``20m``, ``1h``. Raises BadOption."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise BadOption(f"{option} {text!r}: expected a duration such as 90s, 20m or 1h")
    return seconds


def matching(option: str, globs: Iterable[str], names: Collection[str]) -> frozenset[str]:
    """The names that some glob matches. Raises BadOption for a glob that matches none."""
    found: set[str] = set()
    for glob in globs:
        # Brackets are not special: op names hold none, and `__getitem__` must match itself.
        hits = {n for n in names if n == glob or fnmatch.fnmatchcase(n, glob)}
        if not hits:
            near = get_close_matches(glob, names, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise BadOption(f"{option} {glob!r} matches nothing in this plan{hint}")
        found |= hits
    return frozenset(found)


def _listed(text: str | None, option: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    if not values:
        raise BadOption(f"{option} was given an empty list: leave it out to take everything")
    return values
