"""The planted faults of the simulated device as data: the part that each fault breaks, and the clauses that must fail.
The module does not import torch.

``faults.toml`` lists all faults. The C++ enumeration is generated from that file when the library is built:
``Fault::values_ignore_strides`` in C++ is "values.ignore_strides" here. For each clause, the contract names the faults
that make the clause fail. ``backend/fault_switches.py`` switches faults on and off.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from devices.errors import ConformError, listing, suggestion
from devices.files import converted, read_toml

ENVIRONMENT: Final = "SIMULATED_FAULTS"


class FaultsError(ConformError):
    """The error for a malformed ``faults.toml``. The text of the error names the file and the fault, and says what to
    do."""


_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+\.[a-z0-9_]+$")]
_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault that can be planted into the device. The comments at the head of ``faults.toml`` explain the fields."""

    name: _Name
    clauses: tuple[_Name, ...]
    statement: _Text
    ops: tuple[_Text, ...] = ()
    dtypes: tuple[_Text, ...] = ("float32",)
    cells: tuple[_Text, ...] = ()
    memory_mib: int = 0
    radius: tuple[_Text, ...] = ()

    def allows(self, clause: str, op: str) -> bool:
        """Returns True if the result of a cell of the given clause and op may change while the fault is on."""
        if clause in self.clauses and op in self.ops:
            return True
        return any(fnmatchcase(f"{clause}::{op}", pattern) for pattern in self.radius)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of ``faults.toml``. Faults are converted one by one, so that an error can name the fault."""

    radius: dict[str, tuple[_Text, ...]]
    unplanted: dict[_Name, _Text]
    fault: list[dict[str, Any]]


def read_faults(path: Path) -> tuple[Mapping[str, Fault], Mapping[str, str]]:
    """Returns the faults by name, and the reasons why some clauses have no fault. Raises FaultsError."""
    file = read_toml(path, _File, FaultsError)
    faults: dict[str, Fault] = {}
    for number, table in enumerate(file.fault, start=1):
        where = f"{path}: [[fault]] {table.get('name', number)!r}"
        fault = converted(table, Fault, where, FaultsError)
        if fault.name in faults:
            raise FaultsError(f"{where}: the name is used twice; rename one of the two faults")
        globs: list[str] = []
        for each in fault.radius:
            if "." not in each and each not in file.radius:
                raise FaultsError(
                    f"{where}: expected 'radius' to list globs that match clause::op, or names from the table [radius], "
                    f"got {each!r}{suggestion(each, file.radius)} (known: {listing(file.radius)})"
                )
            globs += file.radius.get(each, (each,))
        faults[fault.name] = msgspec.structs.replace(fault, radius=tuple(globs))
    return MappingProxyType(faults), MappingProxyType(file.unplanted)


#: Every fault by name; and, for each clause that no fault of this device can break, the reason. A test fails for a
#: clause that has neither a fault nor a reason.
FAULTS, UNPLANTED = read_faults(Path(__file__).with_name("faults.toml"))


def header() -> str:
    """Returns the C++ header that lists the faults for the library."""
    rows = "".join(f' \\\n  F({name.replace(".", "_")}, "{name}")' for name in FAULTS)
    return (
        "// Generated from devices/simulated/faults.toml when the library is built.\n\n"
        f"#pragma once\n\n#define SIMULATED_FAULT_LIST(F){rows}\n"
    )
