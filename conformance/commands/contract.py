"""The commands ``conform contract``, which shows the contract, and ``conform freeze-levels``, which writes the files of
its levels for a new version."""

from __future__ import annotations

import json
from collections import Counter
from textwrap import TextWrapper
from typing import Final

import click

from conformance.commands import globs_of, options, print_json
from devices.errors import ConformError
from devices.torch_version import require_torch
from reports.gate import number

_LEVEL_HEAD = """\
# The cells of level {number}, {title}: {count:,}, in addition to those of the levels below. Written by
# `conform freeze-levels`. The list is frozen: a changed list needs a new version.
version = {version}
"""


@click.command()
@options("contract")
def contract(as_json: bool, clauses: str | None, bugs: str | None, promises: str | None) -> None:
    """Show the contract: every clause that a device must satisfy."""
    from conformance.contract import WRAPPED, load
    from conformance.contract.page import markdown
    from devices.simulated.faults import ENVIRONMENT, FAULTS

    if bugs is not None and promises is not None:
        raise click.UsageError("--bugs cannot be used with --promises: call the command twice")
    for option, word, show, example in (
        ("--bugs", bugs, _show_bugs, "'layout.*'"),
        ("--promises", promises, _show_promises, "Stream"),
    ):
        if word is None:
            continue
        if clauses is not None:
            raise click.UsageError(
                f"--clauses cannot be used with {option}: write {option} {example} instead"
            )
        show(word, as_json)
        return
    whole = load()
    globs = globs_of("--clauses", clauses)
    chosen = whole.select(globs) if globs else ()
    if as_json:
        snapshot = whole.snapshot()
        if globs:
            families = {clause.family for clause in chosen}
            snapshot["families"] = [f for f in snapshot["families"] if f["name"] in families]
            snapshot["clauses"] = [clause.snapshot() for clause in chosen]
        print_json(snapshot)
        return
    if not globs:
        click.echo(markdown(whole).rstrip("\n"))
    for clause in chosen:
        state = f"{clause.status}, provisional" if clause.provisional else str(clause.status)
        needs = f"; requires {', '.join(clause.requires)}" if clause.requires else ""
        click.echo(f"{clause.id} ({state}; level {clause.level}{needs})")
        click.echo(f"    {clause.statement}")
        click.echo(f"    source: {clause.source}")
        if clause.simulated_faults:
            click.echo(f"    faults of --device simulated, switched on by {ENVIRONMENT}=NAME,…:")
        for name in clause.simulated_faults:
            fault = FAULTS[name]
            ops = f" (--ops {','.join(fault.ops)})" if fault.ops else ""
            click.echo(f"        {name}: {fault.statement}{ops}")
        if clause.wrapped_faults:
            click.echo(
                f"    faults of --descriptor tests/wrapped/descriptor.py, switched on by {WRAPPED}=NAME"
                f" in a checkout: {', '.join(clause.wrapped_faults)}"
            )


def _show_bugs(word: str, as_json: bool) -> None:
    """Prints the known public bugs that belong to ``word``, which is a clause, a backend or a family; all known bugs if
    ``word`` is empty."""
    from conformance.contract.bugs import Noticed, bugs

    known = bugs()
    chosen = known.select(word) if word else tuple(known)
    if as_json:
        print_json({"bugs": [bug.snapshot() for bug in chosen]})
        return
    for bug in chosen:
        versions = f" {bug.versions}" if bug.versions else ""
        click.echo(f"{bug.reference} on {bug.backend}{versions} ({bug.family})")
        click.echo(f"    {bug.statement}")
        ops = f", of {', '.join(bug.ops)}" if bug.ops else ""
        click.echo(f"    noticed by: {', '.join(bug.clauses) or 'no clause'}{ops}")
        if bug.imitated:
            click.echo(f"    imitated by: {bug.imitated}")
        if bug.noticed is Noticed.EASIER:
            click.echo(f"    easier to notice than the report, which also needs {bug.lacks}")
        if bug.missed:
            click.echo(f"    the suite does not notice this imitation yet: {bug.missed}")
        if bug.why:
            click.echo(f"    {bug.why}")
        click.echo(f"    {bug.url}")
    counts = Counter(bug.noticed for bug in chosen)
    click.echo(
        f"{number(len(chosen), 'bug')}. The suite notices the imitation of {counts[Noticed.AS_REPORTED]} under the reported"
        f" condition, and of {counts[Noticed.EASIER]} only under an easier condition. It does not notice the imitation of"
        f" {counts[Noticed.MISSED]} yet. Nothing imitates {counts[Noticed.NOT_TRIED]}."
    )


def _show_promises(word: str, as_json: bool) -> None:
    """Prints which cells check what torch documents of an object, or of names that match a glob; of all objects if
    ``word`` is empty."""
    from conformance.contract.promises import promises

    known = promises()
    chosen = known.select(word) if word else dict(known.by_name)
    if as_json:
        entries = [
            {"of": of, "name": name, "cells": list(each.cells), "reason": each.reason}
            for (of, name), each in chosen.items()
        ]
        print_json({"promises": entries})
        return
    for (of, name), each in chosen.items():
        cells = ", ".join(each.cells) if each.cells else f"not checked: {each.reason}"
        click.echo(f"{of}.{name}: {cells}")
    others = sum(not each.cells for each in chosen.values())
    checked = f"{len(chosen) - others}, and the others have a reason" if others else "all"
    left_out = any(of == "torch.Tensor" for of, _ in chosen)
    click.echo(
        f"{number(len(chosen), 'name')}; cells check {checked}"
        + ("; the clauses of operators check the other methods of torch.Tensor" if left_out else "")
    )


#: The level that takes all cells of its clauses, and of those below.
_FULL: Final = 4


@click.command("freeze-levels", hidden=True)
@click.argument("version")
@click.option("--level", "only", type=int, multiple=True, help="Write only the file of this level.")
def freeze_levels(version: str, only: tuple[int, ...]) -> None:
    """Write the files of the contract's levels as VERSION. For maintainers, in a checkout.

    The cells are those of plan core of the simulated device, which declares all capabilities. Levels 1 to 3 contain the
    ops and dtypes of must_pass.toml and the cases of plan quick. Level 4 (full) contains all other cells of the clauses
    of levels 1 to 4, and level 5 contains the cells of its own clauses.
    """
    require_torch()
    from conformance.contract import LEVELS, load
    from conformance.contract.levels import FOLDER, blocks
    from conformance.plan.planner import make_plan
    from devices import registry
    from devices.cell import CellKey
    from devices.files import tomllib, write_whole
    from opinfo.plan import plan_spec

    whole, device = load(), registry.get("simulated")
    wanted = tomllib.loads((FOLDER / "must_pass.toml").read_text(encoding="utf-8"))
    must, dtypes = frozenset(wanted["ops"]), frozenset(wanted["dtypes"])
    core, quick = (make_plan(plan_spec(name), device, whole).cells for name in ("core", "quick"))
    if missing := must - {cell.unit for cell in core}:
        raise ConformError(
            f"must_pass.toml names ops that are not planned: {', '.join(sorted(missing))}"
        )
    in_quick = frozenset(quick)
    cells_of: dict[int, list[CellKey]] = {number: [] for number in LEVELS}
    for cell in core:
        listed = cell.unit in must and cell.dtype in dtypes if cell.dtype else cell in in_quick
        level = whole.clauses[cell.clause].level
        cells_of[level if listed else max(level, _FULL)].append(cell)
    for place, cells in cells_of.items():
        if only and place not in only:
            continue
        text = _LEVEL_HEAD.format(
            number=place, title=LEVELS[place], count=len(cells), version=json.dumps(version)
        )
        for block in blocks(cells):
            text += "\n[[cells]]\n"
            text += "".join(f"{name} = {_listed(names)}\n" for name, names in block.items())
        write_whole(FOLDER / f"{place}.toml", text)
        click.echo(f"level {place}: {len(cells):,} cells, in addition to those of the levels below")


def _listed(names: list[str]) -> str:
    """Returns the names as a TOML list, which is wrapped if it has four or more names."""
    if len(names) < 4:
        return json.dumps(names)
    # No line ends within a name, such as "@2^24 bytes, into columns".
    text = " ".join(f"{json.dumps(name)},".replace(" ", "\0") for name in names)
    lines = TextWrapper(100, "  ", "  ", break_long_words=False, break_on_hyphens=False)
    return f"[\n{lines.fill(text)}\n]".replace("\0", " ")
