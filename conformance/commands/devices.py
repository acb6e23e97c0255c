"""``conform devices``: what each device declares, what it answers, and why it is not available here."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.asking import Question, Reply, ask_all
from devices import registry
from devices.descriptor import Descriptor
from devices.vocabulary import CAPABILITIES

_SIGNS = {True: "yes", False: "no", None: "-"}


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--no-probe", is_flag=True, help="Ask no device: what is declared alone, at once.")
def devices(names: tuple[str, ...], as_json: bool, no_probe: bool) -> None:
    """Show the devices that can be named: declared, probed, and why one is not available here.

    With NAMEs, each capability of those devices by itself. A device that is available is asked in a
    process of its own (some seconds for importing torch).
    """
    known = registry.all_devices()
    chosen = {name: registry.get(name) for name in names} if names else dict(known)
    broken = [str(problem) for problem in registry.problems()]
    rows = [_row(device) for device in chosen.values()]
    here = [row for row in rows if row["unavailable"] is None]
    if not no_probe:
        replies = ask_all([Question(name=row["name"]) for row in here])
        for row, reply in zip(here, replies, strict=True):
            _answered(row, reply)
    if as_json:
        click.echo(json.dumps({"devices": rows, "broken": broken}, indent=2))
        return
    console = Console(no_color=bool(os.environ.get("NO_COLOR")), file=sys.stdout, highlight=False)
    console.print(_overview(rows))
    console.print()
    for row in rows:
        for text, style in _remarks(row):
            console.print(Text(text, style=style))
    if names:
        for row in rows:
            console.print()
            console.print(_details(row))
            _print_rest(console, row)
    else:
        console.print(
            "Capabilities by name, dtypes and facts: conform devices NAME. "
            "Probed: the API answers; verified is what a run says."
        )
    for problem in broken:
        click.echo(f"cannot be loaded: {problem}", err=True)


def _row(device: Descriptor) -> dict[str, Any]:
    try:
        unavailable = device.unavailable()
    except Exception as error:  # a vendor's code: any error means unusable
        unavailable = f"asking whether it is available raised {type(error).__name__}: {error}"
    return {
        "name": device.name,
        "title": device.title,
        "torch_type": device.torch_type,
        "module": device.module,
        "unavailable": unavailable,
        "capabilities": sorted(device.capabilities),
        "dtypes": sorted(device.dtypes),
        "folder": str(device.folder) if device.folder else None,
        "expectations": str(device.expectations) if device.expectations else None,
        "probed": None,
        "probe_error": None,
    }


def _answered(row: dict[str, Any], reply: Reply) -> None:
    if reply.error:
        row["probe_error"] = reply.error
        return
    declared = set(row["capabilities"])
    row["probed"] = {
        "capabilities": reply.capabilities,
        "dtypes": reply.dtypes,
        "facts": reply.facts,
        "device_count": reply.device_count,
        "raised": reply.raised,
        "declared_and_absent": sorted(n for n in declared if reply.capabilities.get(n) is False),
        "present_and_undeclared": sorted(
            n for n, answer in reply.capabilities.items() if answer and n not in declared
        ),
    }


def _overview(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("device", "torch type", "declared", "probed", "here"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        declared = f"{len(row['capabilities'])} of {len(CAPABILITIES)}, {len(row['dtypes'])} dtypes"
        table.add_row(
            Text(row["name"], style="bold"), Text(row["torch_type"]), declared, *_state(row)
        )
    return table


def _state(row: dict[str, Any]) -> tuple[str, Text]:
    if row["unavailable"] is not None:
        return "", Text("no")
    if row["probe_error"] is not None:
        return "", Text("no", style="red")
    probed = row["probed"]
    if probed is None:
        return "not asked", Text("yes", style="green")
    answers = [each for each in probed["capabilities"].values() if each is not None]
    text = f"{sum(answers)} of {len(answers)} asked, {len(probed['dtypes'])} dtypes"
    return text, Text("yes", style="green")


def _remarks(row: dict[str, Any]) -> list[tuple[str, str]]:
    """What to know of a device beside the numbers, with a style."""
    name = row["name"]
    if (why := row["unavailable"] or row["probe_error"]) is not None:
        return [(f"{name} is not here: {why}", "")]
    if row["probed"] is None:
        return []
    remarks = []
    if found := row["probed"]["declared_and_absent"]:
        raised = row["probed"]["raised"]
        told = (f"{each} ({raised[each]})" if each in raised else each for each in found)
        remarks.append((f"{name} declares, and does not answer: {', '.join(told)}", "red"))
    if found := row["probed"]["present_and_undeclared"]:
        remarks.append((f"{name} answers, and does not declare: {', '.join(found)}", "yellow"))
    return remarks


def _details(row: dict[str, Any]) -> Table:
    table = Table(title=f"{row['name']}: {row['title']}", box=None, pad_edge=False)
    table.title_style, table.header_style, table.title_justify = "bold", "bold", "left"
    for column in ("capability", "declared", "probed"):
        table.add_column(column, no_wrap=True)
    table.add_column("which means", overflow="fold")
    probed = row["probed"]
    for name, capability in CAPABILITIES.items():
        declared = name in row["capabilities"]
        answer = probed["capabilities"].get(name) if probed else None
        differs = answer is not None and answer is not declared
        table.add_row(
            name,
            _SIGNS[declared],
            Text(_SIGNS[answer], style="yellow" if differs else ""),
            capability.statement,
        )
    return table


def _print_rest(console: Console, row: dict[str, Any]) -> None:
    probed = row["probed"]
    lines = [("declared dtypes", ", ".join(row["dtypes"]))]
    if probed:
        lines.append(("probed dtypes", ", ".join(probed["dtypes"])))
        lines += [(f"fact {name}", value) for name, value in sorted(probed["facts"].items())]
        lines.append(("devices", str(probed["device_count"])))
    lines += [("folder", row["folder"] or "-"), ("manifest", row["expectations"] or "none")]
    for name, value in lines:
        console.print(Text(f"{name}: ", style="bold") + Text(value))
