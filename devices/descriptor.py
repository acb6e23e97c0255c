"""What a device declares about itself."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from devices.vocabulary import (
    CAPABILITIES,
    DTYPES,
    FACTS,
    FUNCTIONS,
    SETTINGS,
    STATISTICS,
    Capability,
    DescriptorError,
    Fact,
    check_names,
)

__all__ = [
    "CAPABILITIES",
    "DTYPES",
    "FACTS",
    "FUNCTIONS",
    "SETTINGS",
    "STATISTICS",
    "Capability",
    "Descriptor",
    "DescriptorError",
    "Fact",
    "Tolerance",
    "common_facts",
]

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")  # names become folders, file names and URLs


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a result may be from its reference: ``|got - want| <= atol + rtol * |want|``."""

    rtol: float
    atol: float

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise DescriptorError(f"{name} must be a number, got {value!r}")
            if not math.isfinite(value) or value < 0:
                raise DescriptorError(f"{name} must be finite and not negative, got {value!r}")


def common_facts() -> dict[str, str]:
    """The facts that every machine knows: torch (left out where not installed), os, arch, python.

    Values are as the machine gives them ("2.13.0+cpu"), in lower case for os and arch; torch's
    version is read from the metadata of its distribution, so torch is not imported.
    """
    facts = {
        "os": platform.system().lower(),
        "arch": platform.machine().lower().replace("amd64", "x86_64"),
        "python": platform.python_version(),
    }
    # A machine that only reads reports has no torch, and does not know this fact.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        facts["torch"] = importlib.metadata.version("torch")
    return {name: value for name, value in facts.items() if value}


@dataclass(frozen=True, slots=True)
class _CheckedFacts:
    """Reads facts and holds them to the vocabulary. Raises DescriptorError."""

    device: str
    read: Callable[[], Mapping[str, str]]

    def __call__(self) -> Mapping[str, str]:
        try:
            facts = self.read()
        except Exception as error:
            raise DescriptorError(
                f"device '{self.device}': reading its facts raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(facts, Mapping):
            raise DescriptorError(
                f"device '{self.device}': facts() must return a mapping, got {facts!r}"
            )
        try:
            checked = [Fact(name, value) for name, value in facts.items()]
        except DescriptorError as error:
            raise DescriptorError(f"device '{self.device}': facts(): {error}") from error
        return MappingProxyType({fact.name: fact.value for fact in checked})


def _usable() -> str | None:
    return None


def _one_device() -> int:
    return 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Descriptor:
    """What a device is, and what it declares. Raises DescriptorError where that cannot be.

    Two descriptors are equal only if they are the same object: they hold functions.
    """

    name: str  # the name users give to --device, and the name of the folder
    torch_type: str  # as in torch.device(torch_type)
    title: str  # for people
    sources: tuple[str, ...] = ()  # where its statements come from: headers, pages, issues
    module: str | None = None  # to import before the device can be used
    init: str | None = None  # a function of that module, without arguments, to call then
    capabilities: frozenset[str] = field()
    dtypes: frozenset[str] = field()  # that allocate, and convert to and from float32
    dtypes_by_op: Mapping[str, frozenset[str]] = field(default_factory=dict)  # narrower than dtypes
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)  # by dtype
    alignment: int = 64  # bytes, of an allocation's base
    granularity: int | None = None  # bytes that the allocator rounds a request up to
    # Where it is coarser: by request, those above so many bytes may be given so many more.
    granularity_above: Mapping[int, int] = field(default_factory=dict)
    stream_pool_size: int | None = None  # distinct streams before they repeat
    priorities: tuple[int, int] | None = None  # of streams, as numbers: the least, the greatest
    concurrent_launches: int | None = None  # small ones that another stream's work does not hold up
    busy: Callable[[float], None] | None = None  # keeps the current stream busy for milliseconds
    # Makes an object: close() holds the current stream, open() lets it go. More exact than busy.
    gate: Callable[[], Any] | None = None
    fail: Callable[[], None] | None = None  # queues work that fails, and spoils nothing else
    autoload: str | None = None  # the entry point of "torch.backends": "package.module:function"
    statistics: frozenset[str] = STATISTICS  # counters that are kept, of allocator_statistics
    settings: frozenset[str] = frozenset()  # keys that take effect, of allocator_settings
    functions: Mapping[str, str] = field(default_factory=dict)  # role -> "memory._snapshot"
    workers_per_device: int = 1  # processes that may share one device
    time_scale: float = (
        1.0  # how many times longer than usual a cell may take before it counts as hung
    )
    permitted_fallbacks: frozenset[str] = frozenset()  # ops that may run on the CPU
    not_captured: frozenset[str] = frozenset()  # globs of ops that graphs cannot hold
    captures_default_stream: bool = True  # False: a graph is captured on another stream alone
    facts: Callable[[], Mapping[str, str]] = common_facts  # checked against FACTS when called
    unavailable: Callable[[], str | None] = _usable  # None, or one line on why not usable here
    device_count: Callable[[], int] = _one_device
    # Waits until these tensors are computed, and raises what failed late; None: ops raise at once.
    settle: Callable[[Sequence[Any]], None] | None = None
    to_device: Callable[[Any], Any] | None = None  # a CPU tensor to the device; None: .to()
    from_device: Callable[[Any], Any] | None = None  # the way back; None: .cpu()
    expectations: Path | None = None  # filled by the registry: expected.toml, where there is one
    folder: Path | None = None  # filled by the registry

    def __post_init__(self) -> None:
        _check_name(self.name)
        try:
            self._check_texts()
            self._check_vocabulary()
            self._check_numbers()
            self._check_functions()
        except DescriptorError as error:
            raise DescriptorError(f"device '{self.name}': {error}") from None
        freeze = object.__setattr__
        freeze(self, "sources", tuple(self.sources))
        freeze(self, "capabilities", frozenset(self.capabilities))
        freeze(self, "dtypes", frozenset(self.dtypes))
        narrowed = {op: frozenset(dtypes) for op, dtypes in self.dtypes_by_op.items()}
        freeze(self, "dtypes_by_op", MappingProxyType(narrowed))
        freeze(self, "tolerances", MappingProxyType(dict(self.tolerances)))
        freeze(self, "permitted_fallbacks", frozenset(self.permitted_fallbacks))
        freeze(self, "not_captured", frozenset(self.not_captured))
        freeze(self, "statistics", frozenset(self.statistics))
        freeze(self, "settings", frozenset(self.settings))
        freeze(self, "granularity_above", MappingProxyType(dict(self.granularity_above)))
        freeze(self, "functions", MappingProxyType(dict(self.functions)))
        if not isinstance(self.facts, _CheckedFacts):  # it is one already after replace()
            freeze(self, "facts", _CheckedFacts(self.name, self.facts))

    def dtypes_of(self, op: str) -> frozenset[str]:
        """The dtypes that the device declares for one op."""
        return self.dtypes_by_op.get(op, self.dtypes)

    def function(self, role: str) -> str:
        """The name, in the device's own module, of the function for a role. Raises DescriptorError."""
        check_names("function", (role,), FUNCTIONS)
        if role not in self.functions:
            raise DescriptorError(
                f"device '{self.name}' names no function for '{role}' ({FUNCTIONS[role]}):"
                " give it in `functions`"
            )
        return self.functions[role]

    def _check_texts(self) -> None:
        for name in ("torch_type", "title"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise DescriptorError(f"{name} must be a text that is not blank, got {value!r}")
        if ":" in self.torch_type:
            raise DescriptorError(
                f"torch_type must be a device type without an index, got {self.torch_type!r}"
            )
        if self.module is not None and (not isinstance(self.module, str) or not self.module):
            raise DescriptorError(f"module must be the name of a module, got {self.module!r}")
        if self.init is not None and not (isinstance(self.init, str) and self.init.isidentifier()):
            raise DescriptorError(f"init must be the name of a function, got {self.init!r}")
        if self.init is not None and self.module is None:
            raise DescriptorError(
                f"init names {self.init!r}, and no module has it: give module too"
            )
        if self.autoload is not None and not (
            isinstance(self.autoload, str) and re.fullmatch(r"[\w.]+:\w+", self.autoload)
        ):
            raise DescriptorError(
                f"autoload must be 'package.module:function' or None, got {self.autoload!r}"
            )
        for name in ("sources", "permitted_fallbacks", "not_captured"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(item, str) for item in value):
                raise DescriptorError(f"{name} must be a collection of texts, got {value!r}")

    def _check_vocabulary(self) -> None:
        check_names("capability", self.capabilities, CAPABILITIES)
        check_names("dtype", self.dtypes, DTYPES)
        if not self.dtypes:
            raise DescriptorError("dtypes is empty: name the dtypes that the device supports")
        for op, dtypes in self.dtypes_by_op.items():
            check_names("dtype", dtypes, DTYPES)
            if not frozenset(dtypes) <= frozenset(self.dtypes):
                more = ", ".join(sorted(frozenset(dtypes) - frozenset(self.dtypes)))
                raise DescriptorError(
                    f"dtypes_by_op['{op}'] names {more}, which dtypes does not: it may only narrow"
                )
        check_names("statistic", self.statistics, STATISTICS)
        check_names("setting", self.settings, SETTINGS)
        check_names("function", self.functions, FUNCTIONS)
        for role, path in self.functions.items():
            if not isinstance(path, str) or not all(map(str.isidentifier, path.split("."))):
                raise DescriptorError(
                    f"functions['{role}'] must be a name inside the device's module, such as"
                    f" 'memory._snapshot', got {path!r}"
                )
        check_names("dtype", self.tolerances, DTYPES)
        for dtype, tolerance in self.tolerances.items():
            if not isinstance(tolerance, Tolerance):
                raise DescriptorError(
                    f"tolerances['{dtype}'] must be a Tolerance(rtol, atol), got {tolerance!r}"
                )

    def _check_numbers(self) -> None:
        may_be_unknown = ("granularity", "stream_pool_size", "concurrent_launches")
        for name in ("alignment", "workers_per_device", *may_be_unknown):
            value = getattr(self, name)
            if value is None and name in may_be_unknown:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DescriptorError(f"{name} must be a whole number from 1 up, got {value!r}")
        scale = self.time_scale
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < 1e6:
            raise DescriptorError(f"time_scale must be a number above 0, got {scale!r}")
        if self.alignment & (self.alignment - 1):
            raise DescriptorError(
                f"alignment must be a power of two, in bytes, got {self.alignment}"
            )
        for bound, step in self.granularity_above.items():
            if type(bound) is not int or type(step) is not int or bound < 0 or step < 1:
                raise DescriptorError(
                    "granularity_above must give whole numbers of bytes by whole numbers of bytes, got"
                    f" {bound!r}: {step!r}"
                )
        if self.priorities is not None and not (
            isinstance(self.priorities, tuple)
            and [type(number) for number in self.priorities] == [int, int]
        ):
            raise DescriptorError(
                f"priorities must be two whole numbers, the least and the greatest priority of"
                f" streams, or None, got {self.priorities!r}"
            )

    def _check_functions(self) -> None:
        for name in ("facts", "unavailable", "device_count"):
            if not callable(getattr(self, name)):
                raise DescriptorError(f"{name} must be a function, got {getattr(self, name)!r}")
        for name in ("busy", "gate", "fail", "settle", "to_device", "from_device"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise DescriptorError(f"{name} must be a function or None, got {value!r}")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DescriptorError(
            f"a device's name must be lower-case letters, digits, '-' and '_', got {name!r}"
        )
