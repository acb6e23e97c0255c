"""The planted faults of the simulated device: the part that each fault breaks, the clauses that must fail, and the
switches.

    SIMULATED_FAULTS=values.ignore_strides,out.restride pytest --device simulated

switches two faults on for a run. ``with planted("values.ignore_strides"): ...`` switches one fault on for a block.
``faults.toml`` lists all faults. The C++ enumeration is generated from that file when the library is built:
``Fault::values_ignore_strides`` in C++ is "values.ignore_strides" here. The contract names each fault at the clauses
that fail while the fault is on. To check a switch that is off, the library loads one word from memory.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


class UnknownFault(ConformError):
    """The error for a fault name that the simulated device does not have. The text of the error suggests the nearest
    names."""


_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]+\.[a-z0-9_]+$")]
_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault that can be planted into the device. The comments at the head of ``faults.toml`` explain the fields."""

    name: _Name
    clauses: tuple[_Name, ...]
    statement: _Text
    ops: tuple[_Text, ...] = ()
    dtypes: tuple[_Text, ...] = ("float32",)
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


def read(path: Path) -> tuple[Mapping[str, Fault], Mapping[str, str]]:
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
FAULTS, UNPLANTED = read(Path(__file__).with_name("faults.toml"))

#: For each clause, the names of the faults that must make it fail.
BY_CLAUSE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        clause: tuple(fault.name for fault in FAULTS.values() if clause in fault.clauses)
        for clause in dict.fromkeys(c for fault in FAULTS.values() for c in fault.clauses)
    }
)


def header() -> str:
    """Returns the C++ header that lists the faults for the library."""
    rows = "".join(f' \\\n  F({name.replace(".", "_")}, "{name}")' for name in FAULTS)
    return (
        "// Generated from devices/simulated/faults.toml when the library is built.\n\n"
        f"#pragma once\n\n#define SIMULATED_FAULT_LIST(F){rows}\n"
    )


def _library() -> Any:
    return importlib.import_module("devices.simulated.backend").library


def _installing() -> Any:
    """Returns the module that installs faults in Python, after loading every module that declares such a fault."""
    for room in ("installed", "installed_training"):
        importlib.import_module(f"devices.simulated.backend.{room}")
    return importlib.import_module("devices.simulated.backend.installing")


def switch(name: str, on: bool) -> None:
    """Switches one fault on or off. Raises UnknownFault."""
    if name not in FAULTS:
        raise UnknownFault(
            f"{ENVIRONMENT}: the simulated device has no fault '{name}'{suggestion(name, FAULTS) or '.'}"
            " docs/contract.md lists the faults under 'Planted faults'"
        )
    _library().switch_fault(name, on)
    _installing().switch(name, on)


@contextmanager
def planted(*names: str) -> Iterator[None]:
    """Switches faults on for a ``with`` block. Raises UnknownFault."""
    before = set(_library().faults_that_are_on())
    try:
        for name in names:
            switch(name, True)
        yield
    finally:
        for name in before.symmetric_difference(_library().faults_that_are_on()):
            switch(name, name in before)


def switch_on_from_environment() -> None:
    """Switches on the faults that ``SIMULATED_FAULTS`` names, for the life of the process. Raises UnknownFault."""
    for name in os.environ.get(ENVIRONMENT, "").split(","):
        if name.strip():
            switch(name.strip(), True)


@contextmanager
def reached() -> Iterator[set[str]]:
    """Collects the faults that can change the result of code in a ``with`` block.

    A fault can do so only if the library checks its switch during the block, or if it replaces a kernel that is called.
    """
    library, installing = _library(), _installing()
    library.note_asked(True)
    library.note_ops(True)
    library.faults_asked()  # forget what was asked before the block
    library.ops_called()
    found: set[str] = set()
    try:
        yield found
    finally:
        found.update(library.faults_asked())
        found.update(installing.reached_by(set(library.ops_called())))
        library.note_asked(False)
        library.note_ops(False)
