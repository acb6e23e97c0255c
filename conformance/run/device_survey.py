"""Collects the facts about a device that planning needs, in a fork of the fork server. The controller process thus
never imports the device's module."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from conformance.checks.child import Child, ChildLimits, Tell, ask
from conformance.run.fork_client import ForkServer
from devices import registry
from devices.errors import ConformError
from opinfo.device import DeviceUnusable, Survey, open_device

#: Seconds for importing the device's module and a first addition. Some compile as they are imported.
_PATIENCE: Final = 600.0


@cache
def surveyed(server: ForkServer, name: str, path: Path | None) -> Survey:
    """Returns the facts about the device with this name, or about the device whose descriptor is at ``path``. The
    device is opened in a separate process, once for each fork server. Raises ConformError if the device cannot be
    opened."""
    orders = [name, path and str(path)]
    said, ended = ask(Child(f"{__name__}:answer", orders, ChildLimits(_PATIENCE), copied=True))
    if said is None:
        raise DeviceUnusable(f"device {name!r}: the process that opened the device {ended}")
    found = msgspec.convert(said, Survey)
    if found.error:
        error = DeviceUnusable(found.error)
        error.exit_code = found.exit_code
        raise error
    return found


def answer(orders: list[Any], tell: Tell) -> None:
    """Opens a device and sends the facts about the device to the caller. The function runs in a fork of the fork
    server."""
    name, path = orders
    try:
        found = Survey.of(open_device(registry.find(name, path)))
    except ConformError as error:
        found = Survey({}, error=str(error), exit_code=error.exit_code)
    tell(msgspec.to_builtins(found))
