"""What machines must have in common to take part in one run: a worker elsewhere is refused without it."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from conformance.version import VERSION
from devices.errors import ConformError

_FACTS = ("torch", "driver", "device_name")


class WrongMachine(ConformError):
    """A worker's machine is not like that of its controller. The text says what differs."""


def machine_of(facts: Mapping[str, str]) -> dict[str, str]:
    """What the facts of a device say of the machine, and the version of this suite there."""
    return {**{name: facts.get(name, "") for name in _FACTS}, "torch-conformance": VERSION}


def check_same(wanted: Mapping[str, str], facts: Mapping[str, str]) -> None:
    """Raises WrongMachine unless this machine is as the controller's."""
    found = machine_of(facts)
    for name, value in wanted.items():
        if found.get(name) != value:
            raise WrongMachine(
                f"the worker on {platform.node()!r} has {name} {found.get(name)!r}, and the run is of "
                f"{name} {value!r}: results of one run are of one machine's kind. Install the same there, "
                "or leave that machine out of --tx"
            )
