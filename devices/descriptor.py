"""What a device declares about itself, and the vocabulary of these declarations."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import math
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from devices.errors import ConformError, listing, suggestion


class DescriptorError(ConformError):
    """A descriptor cannot be loaded, or declares something impossible. The text says what to do."""


def names(text: str) -> frozenset[str]:
    """The names in a text, separated by white space: how descriptors write long sets of them."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Capability:
    """A feature that a device can declare. The clauses that require it then apply to the device."""

    name: str
    statement: str


_STATEMENTS: Final = {
    "strides": "Tensors keep the strides that they are asked for.",
    "storage": "Tensors are views of a storage with an address, an offset and a size in bytes.",
    "streams": "Streams queue work that runs asynchronously to the host.",
    "events": "Events mark a point in a stream's work, to be waited for and queried.",
    "timed_events": "Events measure the time between two points.",
    "event_ipc": "Event handles work in other processes.",
    "stream_priority": "Streams can be given a priority.",
    "native_handle": "A stream gives the driver's own handle.",
    "external_streams": "A stream can be made from a native handle that others own.",
    "allocator_statistics": "The caching allocator counts bytes and blocks, and their peaks.",
    "allocator_memory_info": "The device's free and total memory can be read.",
    "allocator_fraction": "A process can be held to a fraction of the device's memory.",
    "allocator_settings": "The allocator's settings can be changed by a string.",
    "allocator_pools": "Allocations can be kept in private pools.",
    "allocator_history": "Allocations and frees are recorded, and snapshots can be taken.",
    "allocator_pluggable": "The allocator can be replaced by the user's own.",
    "pinned_memory": "Host memory can be pinned, for copies that do not block.",
    "host_statistics": "The cache of pinned host memory has public statistics.",
    "graphs": "Work can be captured into a graph and replayed.",
    "graph_pools": "Graphs can share a memory pool.",
    "graph_modes": "Captures have error modes: global, thread_local and relaxed.",
    "graph_callables": "Callables can be made into graphed ones, forward and backward.",
    "generator": "The device has its own random number generators.",
    "multi_device": "The backend drives more than one device, told apart by index.",
    "peer_access": "A device can read another's memory, and says whether it can.",
    "properties": "The device's name, total memory and uuid can be read.",
    "device_assert": "Kernels assert their preconditions on the device.",
    "dlpack": "Tensors are exchanged through DLPack without a copy.",
    "serialization": "Tensors on the device can be saved and loaded.",
    "autocast": "Autocast has lists of ops for the device.",
    "compile": "torch.compile traces programs on the device.",
    "inductor": "Inductor generates code for the device.",
    "profiler": "The profiler records the device's activity.",
    "distributed": "A process-group backend serves the device.",
    "fork_detection": "Use after fork raises a clear error.",
    "deterministic_algorithms": "torch.use_deterministic_algorithms holds on the device.",
}

CAPABILITIES: Final[Mapping[str, Capability]] = MappingProxyType(
    {name: Capability(name, statement) for name, statement in _STATEMENTS.items()}
)

FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "record_history": "record(enabled='all' or None): begin or end the history of allocations",
        "snapshot": "snapshot(): segments, blocks and history, as the memory visualiser reads them",
        "set_fraction": "set(fraction, index): hold the process to a fraction of the memory",
        "get_fraction": "get(index): that fraction",
        "allocator_settings": "set(text): change settings as PYTORCH_ALLOC_CONF does",
        "pool": "pool(): a private memory pool that lives as long as the object",
        "use_pool": "with use(pool, index): allocations of this thread come from the pool",
        "pluggable": "pluggable(alloc, free): an allocator of the user's own, from its functions",
        "change_allocator": "change(pluggable): use it instead of the device's own",
        "driver_alloc": "alloc(size, index): the address of `size` bytes, from the driver itself",
        "driver_free": "free(address, size): return them to the driver",
        "host_statistics": "stats(): the counters of pinned host memory",
        "empty_host_cache": "empty(): release cached pinned memory",
        "stream": "stream(device=device, priority=number): a stream with an attribute `priority`",
        "event": "event(enable_timing=..., interprocess=...): the device's own class of events",
        "external_stream": "stream(handle, index): a stream around a native handle",
        "properties": "properties(index): an object with name, total_memory and uuid",
        "can_access_peer": "can(index, other index): whether one reads the other's memory",
        "manual_seed_all": "seed(number): seed the generator of every index",
        "get_rng_state": "get(index): the state of an index's default generator, on the CPU",
        "set_rng_state": "set(state, index): give it a state",
        "graph": "graph(): a graph, where torch.accelerator.Graph does not support the device",
        "graph_callables": "make(callables, sample arguments): graphed callables",
    }
)
"""Functions of a device's own module by role: those that torch.accelerator does not offer.

Each is called like its counterpart in torch.cuda, as the text says."""

STATISTICS: Final[frozenset[str]] = names(
    "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes "
    "inactive_split_bytes requested_bytes oversize_allocations oversize_segments "
    "num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free "
    "max_split_size"
)
"""The counters of torch.accelerator.memory.memory_stats: the part of each name before ``.all.current`` and the like."""

SETTINGS: Final[frozenset[str]] = names(
    "max_split_size_mb max_non_split_rounding_mb garbage_collection_threshold "
    "roundup_power2_divisions expandable_segments large_segment_size_mb "
    "pinned_use_background_threads pinned_max_round_threshold_mb "
    "pinned_max_cached_size_mb"
)
"""Keys of allocator settings that torch itself knows (c10/core/AllocatorConfig.h)."""

DTYPES: Final[frozenset[str]] = names(
    "bool float16 bfloat16 float32 float64 complex32 complex64 complex128 "
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
    "bits8 bits16 bits1x8 bits2x4 bits4x2 qint8 qint32 quint8 quint4x2 quint2x4"
) | {f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)}
"""Every dtype of torch 2.13 under its canonical name (float32, not float)."""

FACTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch": "the version of torch",
        "driver": "the version of the device's kernel or user-mode driver",
        "runtime": "the version of the device's runtime library, such as CUDA, ROCm or CANN",
        "os": "the operating system, in lower case: linux, darwin, windows",
        "arch": "the host's architecture, in lower case: x86_64, aarch64, arm64",
        "device_name": "the device's name as its driver gives it",
        "python": "the version of Python",
    }
)

VERSION_FACTS: Final[frozenset[str]] = frozenset({"torch", "driver", "runtime", "python"})
"""Facts that are versions, compared by PEP 440 specifiers. The others are compared by globs."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value of the machine at run time. Raises DescriptorError for a name not in FACTS."""

    name: str
    value: str

    def __post_init__(self) -> None:
        check_names("fact", (self.name,), FACTS)
        if not isinstance(self.value, str) or not self.value.strip():
            raise DescriptorError(
                f"the fact '{self.name}' is {self.value!r}: give a non-empty string,"
                " or leave the fact out if the machine does not know it"
            )


def check_names(what: str, names: object, known: Mapping[str, object] | frozenset[str]) -> None:
    """Raise DescriptorError unless ``names`` is a collection of known names."""
    if isinstance(names, str) or not isinstance(names, (frozenset, set, tuple, list, Mapping)):
        raise DescriptorError(f"expected a set of {what} names, got {names!r}")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise DescriptorError(
                f"unknown {what} {name!r}{suggestion(str(name), known)} (known: {listing(known)})"
            )


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


def common_facts(**more: str | None) -> dict[str, str]:
    """The facts that every machine knows: torch (left out where not installed), os, arch, python; and ``more``.

    Values are as the machine gives them ("2.13.0+cpu"), in lower case for os and arch; torch's
    version is read from the metadata of its distribution, so torch is not imported. What the machine
    does not know (None, or an empty text) is left out, never guessed.
    """
    facts = {
        "os": platform.system().lower(),
        "arch": platform.machine().lower().replace("amd64", "x86_64"),
        "python": platform.python_version(),
        **more,
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
    """What a device is, and what it declares. Raises DescriptorError where a field is impossible.

    Two descriptors are equal only if they are the same object: they hold functions.
    """

    name: str  # the name users give to --device, and the name of the folder
    torch_type: str  # as in torch.device(torch_type)
    title: str  # for people
    default: bool = False  # used where no device is named and there is no accelerator
    sources: tuple[str, ...] = ()  # of what it declares: headers, pages, issues
    module: str | None = None  # to import before the device is used
    init: str | None = None  # a function of that module, called after the import
    capabilities: frozenset[str] = field()
    dtypes: frozenset[str] = field()  # that can be allocated and converted to and from float32
    dtypes_by_op: Mapping[str, frozenset[str]] = field(default_factory=dict)  # narrower than dtypes
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)  # by dtype
    alignment: int = 64  # bytes, of an allocation's base
    granularity: int | None = None  # bytes: requests are rounded up to a multiple of it
    # Where it is coarser: requests above so many bytes may get so many bytes more.
    granularity_above: Mapping[int, int] = field(default_factory=dict)
    stream_pool_size: int | None = None  # distinct streams before they repeat
    priorities: tuple[int, int] | None = None  # of streams, as numbers: the least, the greatest
    concurrent_launches: int | None = None  # that one stream's work does not hold up
    busy: Callable[[float], None] | None = None  # keeps the current stream busy for milliseconds
    # Makes an object: close() holds up the current stream, open() releases it. More exact than busy.
    gate: Callable[[], Any] | None = None
    fail: Callable[[], None] | None = None  # queues work that fails and does no other harm
    autoload: str | None = None  # the entry point of "torch.backends": "package.module:function"
    statistics: frozenset[str] = STATISTICS  # the counters it keeps (allocator_statistics)
    settings: frozenset[str] = frozenset()  # the keys that take effect (allocator_settings)
    functions: Mapping[str, str] = field(default_factory=dict)  # role -> "memory._snapshot"
    workers_per_device: int = 1  # processes that may share one device
    time_scale: float = (
        1.0  # how many times longer than usual a cell may take before it counts as hung
    )
    permitted_fallbacks: frozenset[str] = frozenset()  # ops that may run on the CPU
    not_captured: frozenset[str] = frozenset()  # globs of ops that cannot be captured in graphs
    captures_default_stream: bool = True  # False: graphs are captured on other streams only
    facts: Callable[[], Mapping[str, str]] = common_facts  # checked against FACTS when called
    unavailable: Callable[[], str | None] = _usable  # None, or one line on why not usable here
    device_count: Callable[[], int] = _one_device
    # Waits for these tensors and raises late errors; None: ops raise at once.
    settle: Callable[[Sequence[Any]], None] | None = None
    to_device: Callable[[Any], Any] | None = None  # a CPU tensor to the device; None: .to()
    from_device: Callable[[Any], Any] | None = None  # the way back; None: .cpu()
    expectations: Path | None = None  # filled in by the registry: expected.toml, if there is one
    folder: Path | None = None  # filled in by the registry

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
        sets = ("capabilities", "dtypes", "permitted_fallbacks", "not_captured")
        for name in (*sets, "statistics", "settings"):
            freeze(self, name, frozenset(getattr(self, name)))
        narrowed = {op: frozenset(dtypes) for op, dtypes in self.dtypes_by_op.items()}
        freeze(self, "dtypes_by_op", MappingProxyType(narrowed))
        for name in ("tolerances", "granularity_above", "functions"):
            freeze(self, name, MappingProxyType(dict(getattr(self, name))))
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
                f"device '{self.name}' declares no function for '{role}' ({FUNCTIONS[role]}):"
                " add it to `functions`"
            )
        return self.functions[role]

    def _check_texts(self) -> None:
        for name in ("torch_type", "title"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise DescriptorError(f"{name} must be a non-empty string, got {value!r}")
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
                f"init names the function {self.init!r}, but module is None: name its module"
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
                raise DescriptorError(f"{name} must be a collection of strings, got {value!r}")

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
                    f"dtypes_by_op['{op}'] names {more}, but dtypes does not: it may only narrow dtypes"
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
                raise DescriptorError(f"{name} must be an integer of at least 1, got {value!r}")
        scale = self.time_scale
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < 1e6:
            raise DescriptorError(f"time_scale must be a number greater than 0, got {scale!r}")
        if self.alignment & (self.alignment - 1):
            raise DescriptorError(
                f"alignment must be a power of two, in bytes, got {self.alignment}"
            )
        for bound, step in self.granularity_above.items():
            if type(bound) is not int or type(step) is not int or bound < 0 or step < 1:
                raise DescriptorError(
                    "granularity_above must map sizes to sizes, both integers in bytes, got"
                    f" {bound!r}: {step!r}"
                )
        if self.priorities is not None and not (
            isinstance(self.priorities, tuple)
            and [type(number) for number in self.priorities] == [int, int]
        ):
            raise DescriptorError(
                "priorities must be two integers, the lowest and the highest priority of"
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


def lent(name: str) -> Any:
    """Import a module when it is needed. Only for functions that run on the device."""
    return importlib.import_module(name)


def is_installed(name: str) -> bool:
    """Whether a top-level module can be found, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a stub in sys.modules without a spec
        return False


def torch_lacks(library: str) -> str | None:
    """Why the installed torch cannot drive a device; None if its ``lib`` folder holds ``library``.

    ``library`` is a name without prefix and suffix, such as ``torch_cuda``.
    """
    spec = importlib.util.find_spec("torch") if is_installed("torch") else None
    if spec is None:
        return "torch is not installed"
    for folder in spec.submodule_search_locations or ():
        lib = Path(folder) / "lib"
        if any((lib / name).exists() for name in _file_names(library)):
            return None
    return (
        f"the installed torch is built without it (there is no torch/lib/{_file_names(library)[0]})"
    )


def _file_names(library: str) -> tuple[str, ...]:
    return (f"lib{library}.so", f"{library}.dll", f"lib{library}.dylib")


def first_that_loads(libraries: Iterable[str]) -> str | None:
    """The first of a driver's shared libraries that can be loaded; None if none can."""
    for name in libraries:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def version_in(path: str | Path, pattern: str = r"\d+(?:\.\d+)+") -> str:
    """The first version in a text file; empty if there is none, or no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(pattern, text)
    return found.group() if found else ""


def plain_version(text: str | None) -> str:
    """The leading numbers of a version that is not valid under PEP 440 ("6.2.41-dd7f" is "6.2.41")."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return found.group() if found else ""
