"""The commands of ``conform``, which ``conformance/cli.py`` combines into one program, and the functions that the
commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from devices.cell import CellKey
from devices.descriptor import DTYPES
from devices.errors import ConformError, suggestion
from devices.manifest import CauseKind
from devices.torch_version import has_torch

PATH: Final = click.Path(path_type=Path)
RUN: Final = click.argument("run", type=PATH)

_SHOWN: Final = 20

Command = TypeVar("Command", bound=Callable[..., Any])


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An option of a command, as ``options.toml`` describes it."""

    kind: str = "text"
    help: str | None = None
    metavar: str | None = None
    default: str | int | float | None = None
    required: bool = False
    multiple: bool = False


_KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "text": {},
    "flag": {"is_flag": True},
    "optional": {"is_flag": False, "flag_value": ""},  # given without a value, it is empty
    "path": {"type": PATH},
    "folder": {"type": click.Path(path_type=Path, file_okay=False)},
    "count": {"type": click.IntRange(1)},
    "port": {"type": click.IntRange(0, 65535)},
    "seconds": {"type": click.FloatRange(min=0.1)},
    "jobs": {"type": click.IntRange(1, 64)},
    "state": {"type": click.Choice(["judged", "reached", "never-called", "missing"])},
    "skip-list": {"type": click.Choice(["python", "yaml", "json", "plain"])},
    "share": {"type": click.FloatRange(0, 1)},
    "event": {"type": click.Choice(["nightly", "periodic"])},
    "cause": {"type": click.Choice([each.value for each in CauseKind])},
}
_OPTIONS: Final = msgspec.toml.decode(
    Path(__file__).with_name("options.toml").read_bytes(), type=dict[str, dict[str, Option]]
)


def options(table: str) -> Callable[[Command], Command]:
    """Returns a decorator that adds the options in a table of ``options.toml`` to a command."""

    def decorate(command: Command) -> Command:
        for names, option in reversed(_OPTIONS[table].items()):
            given = msgspec.to_builtins(option)
            kind = _KINDS[given.pop("kind", "text")]
            shown = option.default is not None
            command = click.option(*names.split(), show_default=shown, **kind, **given)(command)
        return command

    return decorate


def print_json(document: object) -> None:
    """Prints a document as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def print_first(lines: Iterable[str], indent: str = "    ") -> None:
    """Prints the first 20 lines, and the number of further lines."""
    lines = list(lines)
    for line in lines[:_SHOWN]:
        click.echo(f"{indent}{line}")
    if len(lines) > _SHOWN:
        click.echo(f"{indent}and {len(lines) - _SHOWN:,} more")


def globs_of(option: str, text: str | None) -> list[str]:
    """Returns the names and globs in the value of an option, which are separated by commas; an empty list if the option
    was not given. Raises UsageError if the value is empty."""
    globs = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and not globs:
        raise click.UsageError(
            f"{option} was given an empty list: give globs separated by commas, or leave it out"
        )
    return globs


def known_cell(text: str, planned: Iterable[CellKey] = ()) -> CellKey:
    """Returns the cell that a text names in the notation of reports: ``clause::op[dtype]`` or ``clause::case``, with
    ``@variant`` at the end if the cell has a variant.

    Raises ConformError with the most similar names if the clause, op, dtype or case is unknown. The name is first
    looked up among the ``planned`` cells and the cells of the contract's levels. torch is imported only if the name is
    in neither of these lists.
    """
    from conformance.contract import load
    from conformance.contract.levels import levels

    try:
        cell = CellKey.parse(text)
    except ValueError as error:
        raise ConformError(str(error)) from None
    known = {*planned}
    if cell in known:
        return cell
    clauses = load().clauses
    if cell.clause not in clauses:
        near = suggestion(cell.clause, clauses)
        raise ConformError(f"unknown clause '{cell.clause}'{near}; see `conform contract`")
    known = known.union(*(level.cells for level in levels()))
    if not cell.dtype:
        names, what = (
            {c.unit for c in known if c.clause == cell.clause},
            f"{cell.clause} has no case",
        )
    else:
        if cell.dtype not in DTYPES:
            near = suggestion(cell.dtype, DTYPES)
            raise ConformError(f"{cell}: unknown dtype '{cell.dtype}'{near}")
        names, what = {c.unit for c in known if c.dtype}, "unknown op"
    if cell.unit not in names and not _in_torch(cell):
        raise ConformError(f"{cell}: {what} '{cell.unit}'{suggestion(cell.unit, names)}")
    return cell


def _in_torch(cell: CellKey) -> bool:
    """Returns True if the installed torch has the op of a cell, or if this suite has the case of a cell."""
    if not has_torch():  # only the names of the contract's levels, and of the run, are known
        return False
    if not cell.dtype:
        from conformance.suites import find_case

        return find_case(cell) is not None
    from conformance.plan.usage import known_ops

    if names := known_ops():
        return cell.unit in names
    from opinfo.database import DATABASE

    return cell.unit in DATABASE.subjects()
