"""The commands ``conform devices``, which lists the known devices, and ``conform init``, which describes a new
device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.commands import options, print_json
from conformance.onboarding.questions import Answers, Question, Reply, ask_all
from devices import registry
from devices.descriptor import CAPABILITIES, Descriptor

_SIGNS = {True: "yes", False: "no", None: "-"}


class Probed(Answers, frozen=True, kw_only=True):
    """The results of a probe, and the capabilities for which the probe and the device's declaration differ."""

    declared_and_absent: list[str]
    present_and_undeclared: list[str]

    @classmethod
    def of(cls, reply: Reply, declared: list[str]) -> Probed:
        """Returns the results of a probe, with the capabilities that only the probe or only the declaration lists."""
        given = reply.capabilities
        absent = sorted(name for name in declared if given.get(name) is False)
        undeclared = sorted(name for name, works in given.items() if works and name not in declared)
        answers = (getattr(reply, name) for name in Answers.__struct_fields__)
        return cls(*answers, declared_and_absent=absent, present_and_undeclared=undeclared)


class Row(msgspec.Struct):
    """A device in the list: its declaration in the descriptor, and the results of probing the device."""

    name: str
    title: str
    torch_type: str
    module: str | None
    unavailable: str | None
    capabilities: list[str]
    dtypes: list[str]
    folder: str | None
    expectations: str | None
    probed: Probed | None = None
    probe_error: str | None = None

    @classmethod
    def of(cls, device: Descriptor) -> Row:
        """Returns the row of a device. The fields for the results of a probe are not set."""
        try:
            why = device.unavailable()
        except Exception as error:  # a vendor's code: whatever it raises, the device cannot be used
            why = f"the function that checks whether the device is available raised {type(error).__name__}: {error}"
        capabilities, dtypes = sorted(device.capabilities), sorted(device.dtypes)
        folder, manifest = (str(p) if p else None for p in (device.folder, device.expectations))
        about = (device.name, device.title, device.torch_type, device.module)
        return cls(*about, why, capabilities, dtypes, folder, manifest)


class Listing(msgspec.Struct):
    """The JSON document that ``--json`` prints."""

    devices: list[Row]
    broken: list[str]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options("devices")
def devices(names: tuple[str, ...], as_json: bool, no_probe: bool) -> None:
    """Show the known devices and what they support.

    Lists how many capabilities each device declares and how many of them a probe found. If a device is not available,
    shows the reason. With NAMES, shows each capability of the named devices. An available device is probed in a
    subprocess, which takes some seconds to import torch.
    """
    known = registry.installed()
    chosen = [registry.get(name) for name in names] or list(known.devices.values())
    listing = Listing([*map(Row.of, chosen)], [str(problem) for problem in known.broken.values()])
    here = [row for row in listing.devices if row.unavailable is None]
    replies = ask_all([Question(name=row.name) for row in here]) if not no_probe else []
    for row, reply in zip(here, replies, strict=False):
        if reply.error:
            row.probe_error = reply.error
        else:
            row.probed = Probed.of(reply, row.capabilities)
    if as_json:
        print_json(listing)
        return
    console = Console(file=sys.stdout, highlight=False)
    console.print(_overview(listing.devices))
    console.print()
    for row in listing.devices:
        for remark in _remarks(row):
            console.print(remark)
    if not names:
        console.print(
            "The table counts capabilities and dtypes; `conform devices NAME` shows which, and the facts. A probe is "
            "only a short test of the API; a run tests the capabilities in detail."
        )
    for row in listing.devices if names else ():
        console.print()
        console.print(_details(row))
        for name, value in _more(row):
            console.print(Text(f"{name}: ", style="bold") + Text(value))
    for problem in listing.broken:
        click.echo(f"a device cannot be loaded: {problem}", err=True)


def _overview(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("device", "torch type", "declared", "probed", "here"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        declared = f"{len(row.capabilities)} of {len(CAPABILITIES)}, {len(row.dtypes)} dtypes"
        name = Text(row.name, style="bold")
        table.add_row(name, Text(row.torch_type), declared, *_state(row))
    return table


def _state(row: Row) -> tuple[str, Text]:
    if (row.unavailable or row.probe_error) is not None:
        return "", Text("no", style="red" if row.unavailable is None else "")
    if row.probed is None:
        return "not probed", Text("yes", style="green")
    answers = [each for each in row.probed.capabilities.values() if each is not None]
    text = f"found {sum(answers)} of {len(answers)}, {len(row.probed.dtypes)} dtypes"
    return text, Text("yes", style="green")


def _remarks(row: Row) -> Iterator[Text]:
    """Yields remarks about a device: the reason why it is not available, and differences between declaration and
    probe."""
    if (why := row.unavailable or row.probe_error) is not None:
        yield Text(f"{row.name} is not available here: {why}")
    if row.probed is None:
        return
    raised = row.probed.raised | row.probed.wrong
    if found := row.probed.declared_and_absent:
        absent = (f"{each} ({raised[each]})" if each in raised else each for each in found)
        yield Text(
            f"{row.name} declares these capabilities, but the probe did not find them: {', '.join(absent)}",
            style="red",
        )
    if found := row.probed.present_and_undeclared:
        yield Text(
            f"{row.name} has these capabilities, but does not declare them: {', '.join(found)}",
            style="yellow",
        )


def _details(row: Row) -> Table:
    table = Table(title=f"{row.name}: {row.title}", box=None, pad_edge=False)
    table.title_style, table.header_style, table.title_justify = "bold", "bold", "left"
    for column in ("capability", "declared", "probed"):
        table.add_column(column, no_wrap=True)
    table.add_column("meaning", overflow="fold")
    for name, capability in CAPABILITIES.items():
        declared = name in row.capabilities
        answer = row.probed.capabilities.get(name) if row.probed else None
        differs = answer is not None and answer is not declared
        probed = Text(_SIGNS[answer], style="yellow" if differs else "")
        table.add_row(name, _SIGNS[declared], probed, capability.statement)
    return table


def _more(row: Row) -> Iterator[tuple[str, str]]:
    yield "declared dtypes", ", ".join(row.dtypes)
    if row.probed:
        yield "probed dtypes", ", ".join(row.probed.dtypes)
        for name, value in sorted(row.probed.facts.items()):
            yield f"fact {name}", value
        yield "devices", str(row.probed.device_count)
        for line in row.probed.left_behind:
            yield "side effect of importing the device's module", line
    yield "folder", row.folder or "-"
    yield "manifest", row.expectations or "none"


@click.command()
@click.argument("name")
@options("init")
def init(fast: bool, quick: bool, **given: Any) -> int:
    """Describe a new device in a folder of its own.

    Probes the capabilities, dtypes and facts of the device and writes descriptor.py. Then runs plan quick (twice, to
    find flaky cells) and writes the failing cells to expected.toml, in blocks by clause and failing layouts. Each
    block is marked `triage:`; replace that with the cause. To continue after an interruption, run the same command
    again.
    """
    from conformance.onboarding.init import InitOptions, begin

    return begin(InitOptions(runs=1 if fast or quick else 2, quick=quick, **given), click.echo)
