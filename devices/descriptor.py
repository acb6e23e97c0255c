"""The descriptor of a device, in which the device declares its properties with the names in ``vocabulary.toml``."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from devices.errors import ConformError, listing, suggestion
from devices.files import read_toml


class DescriptorError(ConformError):
    """The error for a descriptor that cannot be loaded or that declares something impossible. The text of the error
    says how to fix the descriptor."""


def names(text: str) -> frozenset[str]:
    """Returns the names in a text that are separated by white space. Descriptors use the function to write long sets of
    names."""
    return frozenset(text.split())


class _Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``vocabulary.toml``. The comments in that file explain the fields."""

    capabilities: dict[str, str]
    functions: dict[str, str]
    facts: dict[str, str]
    version_facts: frozenset[str]
    statistics: frozenset[str]
    settings: frozenset[str]
    kept_whole: frozenset[str]
    dtypes: frozenset[str]
    reductions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Capability:
    """A feature that a device can declare. The clauses that require the feature then apply to the device."""

    name: str
    statement: str


_WORDS: Final = read_toml(Path(__file__).with_name("vocabulary.toml"), _Vocabulary, DescriptorError)
CAPABILITIES: Final[Mapping[str, Capability]] = MappingProxyType(
    {name: Capability(name, statement) for name, statement in _WORDS.capabilities.items()}
)
FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType(_WORDS.functions)
FACTS: Final[Mapping[str, str]] = MappingProxyType(_WORDS.facts)
VERSION_FACTS: Final = _WORDS.version_facts
STATISTICS: Final = _WORDS.statistics
SETTINGS: Final = _WORDS.settings
KEPT_WHOLE: Final = _WORDS.kept_whole
DTYPES: Final = _WORDS.dtypes
REDUCTIONS: Final = _WORDS.reductions


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value of the machine at run time. Raises DescriptorError for a name that is not in FACTS."""

    name: str
    value: str

    def __post_init__(self) -> None:
        check_names("fact", (self.name,), FACTS)
        if not isinstance(self.value, str) or not self.value.strip():
            raise DescriptorError(
                f"the fact '{self.name}' is {self.value!r}: give a non-empty string,"
                " or leave the fact out if its value is unknown on the machine"
            )


def check_names(what: str, names: object, known: Mapping[str, object] | frozenset[str]) -> None:
    """Raises DescriptorError unless ``names`` is a collection of known names. ``what`` says which kind of names is
    expected, for the text of the error."""
    if isinstance(names, str) or not isinstance(names, (frozenset, set, tuple, list, Mapping)):
        raise DescriptorError(f"expected a set of {what} names, got {names!r}")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise DescriptorError(
                f"unknown {what} {name!r}{suggestion(str(name), known)} (known: {listing(known)})"
            )


#: The additional seconds that the first use of an op may take, unless the descriptor sets ``first_use``.
FIRST_USE: Final = 30.0

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")  # names become folders, file names and URLs


def _matching(pattern: str) -> Any:
    return Annotated[str, msgspec.Meta(pattern=rf"^{pattern}\Z")]


_NameSet = frozenset[str]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Sizes = dict[Annotated[int, msgspec.Meta(ge=0)], _Positive]
_Name = _matching(r"[^\W\d]\w*")
_Path = _matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_EntryPoint = _matching(r"[\w.]+:\w+")
_TimeScale = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]
_Finite = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


def _in_form(name: str, given: object, form: Any, wanted: str) -> Any:
    """Returns the value ``given`` for the field ``name``, converted to the type ``form``. If it cannot be converted,
    raises DescriptorError, whose text says that ``wanted`` was expected."""
    try:
        return msgspec.convert(given, form)
    except msgspec.ValidationError:
        raise DescriptorError(f"{name} must be {wanted}, got {given!r}") from None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest permitted distance of a result from its reference: ``|result - reference| <= atol + rtol *
    |reference|``."""

    rtol: float
    atol: float

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            _in_form(name, value, _Finite, "a finite number of at least 0")


#: How autocast runs an op. "lower": in the lower precision. "float32": in float32. "float32_by_default": in float32 unless
#: the call names a dtype. "promote": in the widest dtype of its operands. "refused": raises. "unlisted": in the dtype of its
#: inputs. "composed": as the ops that it is composed of.
AUTOCAST_POLICIES: Final = names(
    "lower float32 float32_by_default promote refused unlisted composed"
)


@dataclass(frozen=True, slots=True)
class Autocast:
    """Ops (of torch.ops.aten) that the device's autocast treats differently from torch's common lists: the policy
    for these ops, and the reason."""

    policy: str
    ops: frozenset[str]
    reason: str

    def __post_init__(self) -> None:
        check_names("autocast policy", (self.policy,), AUTOCAST_POLICIES)
        _in_form(
            "ops", self.ops, Annotated[frozenset[str], msgspec.Meta(min_length=1)], "names of ops"
        )
        _in_form(
            "reason", self.reason, Annotated[str, msgspec.Meta(pattern=r"\S")], "a non-empty text"
        )


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The backend of torch.distributed that serves a device: its name, as init_process_group takes it, and the dtypes
    that each reduction (a name of torch.distributed.ReduceOp) takes. Two ranks may use one device index if
    ``shares_indices`` is True."""

    backend: str
    reductions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    shares_indices: bool = False

    def __post_init__(self) -> None:
        _in_form("backend", self.backend, _Name, "the name of a backend of torch.distributed")
        _in_form("shares_indices", self.shares_indices, bool, "True or False")
        check_names("reduction", self.reductions, REDUCTIONS)
        for name, dtypes in self.reductions.items():
            _in_form(f"reductions['{name}']", dtypes, _NameSet, "a set of names")
            check_names("dtype", dtypes, DTYPES)
        object.__setattr__(self, "reductions", MappingProxyType(dict(self.reductions)))


def common_facts(**more: str | None) -> dict[str, str]:
    """Returns the facts that are known on every machine (torch, os, arch and python), together with the facts in
    ``more``.

    Values are as the machine reports them ("2.13.0+cpu"), in lower case for os and arch. The version of torch comes
    from the metadata of its distribution, so torch is not imported. Facts that are unknown (None or empty) are left
    out.
    """
    facts = {
        "os": platform.system().lower(),
        "arch": platform.machine().lower().replace("amd64", "x86_64"),
        "python": platform.python_version(),
        **more,
    }
    # A machine that only reads reports may not have torch.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        facts["torch"] = importlib.metadata.version("torch")
    return {name: value for name, value in facts.items() if value}


def _version_of(module: str | None) -> str:
    """Returns the version of the distribution that has the name of a module; an empty text if there is none."""
    if module is None:
        return ""
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class _CheckedFacts:
    """A replacement for the ``facts`` function of a descriptor: calls that function and checks its result against
    the vocabulary. Raises DescriptorError."""

    device: str
    read: Callable[[], Mapping[str, str]]
    module: str | None

    def __call__(self) -> Mapping[str, str]:
        try:
            facts = self.read()
            if not isinstance(facts, Mapping):
                raise DescriptorError(f"expected a mapping, got {facts!r}")
            known = {name: Fact(name, facts[name]).value for name in facts}
            if "backend" not in known and (version := _version_of(self.module)):
                known["backend"] = version
            return MappingProxyType(known)
        except DescriptorError as error:
            raise DescriptorError(f"device '{self.device}': facts(): {error}") from error
        except Exception as error:
            raise DescriptorError(
                f"device '{self.device}': reading its facts raised {type(error).__name__}: {error}"
            ) from error


#: The form of each field's value, and its description in messages. Rules about two fields are in _check_together.
_FORMS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("torch_type title", Annotated[str, msgspec.Meta(pattern=r"\S")], "a non-empty string"),
    ("torch_type", _matching("[^:]*"), "a device type without an index"),
    ("sources", tuple[str, ...], "a collection of strings"),
    ("autocast", tuple[Any, ...], "a collection of Autocast(policy, ops, reason)"),
    ("permitted_fallbacks not_captured", _NameSet, "a collection of strings"),
    (
        "capabilities dtypes flushes_subnormals transformed_sums statistics settings kept_whole",
        _NameSet,
        "a set of names",
    ),
    ("module", Annotated[str, msgspec.Meta(min_length=1)] | None, "the name of a module"),
    ("compiler", _matching(r"\w+") | None, "the name of a backend of torch.compile, or None"),
    ("init", _Name | None, "the name of a function"),
    ("autoload", _EntryPoint | None, "'package.module:function' or None"),
    ("around", _EntryPoint | None, "'package.module:context_manager' or None"),
    ("dtypes_by_op", dict[str, _NameSet], "a mapping of ops to sets of dtypes"),
    ("tolerances functions", dict[str, Any], "a mapping"),
    ("alignment workers_per_device", _Positive, "an integer of at least 1"),
    ("cached_by_shape", Annotated[int, msgspec.Meta(ge=0)], "an integer of at least 0, in bytes"),
    ("granularity stream_pool_size", _Positive | None, "an integer of at least 1"),
    ("concurrent_launches", _Positive | None, "an integer of at least 1"),
    ("granularity_above", _Sizes, "a mapping of sizes to sizes, both integers in bytes"),
    (
        "priorities",
        tuple[int, int] | None,
        "two integers, the lowest and the highest priority, or None",
    ),
    ("time_scale", _TimeScale, "a number greater than 0"),
    ("first_use", _Seconds, "a number of seconds of at least 0"),
    ("pointers", bool | None, "True, False or None"),
    ("process_group", ProcessGroup | None, "a ProcessGroup(backend) or None"),
    ("host_memory", bool, "True or False"),
    ("facts unavailable device_count", Callable, "a function"),
    ("busy gate fail settle to_device from_device", Callable | None, "a function or None"),
)
_ENTRIES: Final[tuple[tuple[str, Any, str], ...]] = (
    ("tolerances", Tolerance, "a Tolerance(rtol, atol)"),
    ("functions", _Path, "a name inside the device's module, such as 'memory._snapshot'"),
)
"""The required forms of the values in fields that are mappings, and the words that describe each form."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Descriptor:
    """The description of a device and of the properties that it declares. Raises DescriptorError if a field has an
    impossible value.

    Descriptors are compared by identity, because they contain functions.
    """

    name: str  # the name users give to --device, and the name of the folder
    torch_type: str  # as in torch.device(torch_type)
    title: str  # the name that people read
    default: bool = False  # used if the user names no device and the machine has no accelerator
    sources: tuple[str, ...] = ()  # where its declarations come from: headers, pages, issues
    module: str | None = None  # to import before the device is used
    init: str | None = None  # a function of that module, called after the import
    # A context that calls on the device need: "package.module:context_manager", called without arguments.
    around: str | None = None
    capabilities: frozenset[str] = field()
    dtypes: frozenset[str] = (
        field()
    )  # dtypes that can be allocated, and converted to and from float32
    pointers: bool | None = (
        None  # declares the capability "pointers"; None: declared if "storage" is
    )
    dtypes_by_op: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # for ops that support fewer dtypes
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)  # by dtype
    flushes_subnormals: frozenset[str] = (
        frozenset()
    )  # dtypes whose subnormal numbers may be treated as zeros
    transformed_sums: frozenset[str] = (
        frozenset()
    )  # ops whose algorithm transforms operands (Winograd, FFT)
    host_memory: bool = False  # tensors lie in the memory of the host, as the CPU's do
    alignment: int = 64  # of the start of an allocation, in bytes
    granularity: int | None = None  # bytes: requests are rounded up to a multiple of it
    # For large requests: a request above the key's number of bytes may get up to the value's number of bytes more.
    granularity_above: Mapping[int, int] = field(default_factory=dict)
    cached_by_shape: int = (
        0  # bytes, of the device and of the host, that may be cached for each new shape
    )
    stream_pool_size: int | None = (
        None  # the number of distinct streams before torch hands out the first again
    )
    priorities: tuple[int, int] | None = None  # the lowest and the highest priority of a stream
    concurrent_launches: int | None = (
        None  # how many kernels can be queued while one stream is blocked
    )
    busy: Callable[[float], None] | None = (
        None  # keeps the current stream busy for this many milliseconds
    )
    # Returns an object whose close() blocks the current stream and whose open() releases it. More exact than busy.
    gate: Callable[[], Any] | None = None
    fail: Callable[[], None] | None = None  # queues work that fails without other effects
    # The backend of torch.compile that generates code for the device. None: graphs run op by op (aot_eager).
    compiler: str | None = None
    kept_whole: frozenset[str] = frozenset()  # aten ops that this compiler does not decompose
    autoload: str | None = None  # the entry point of "torch.backends": "package.module:function"
    statistics: frozenset[str] = (
        STATISTICS  # the counters that the allocator has (allocator_statistics)
    )
    settings: frozenset[str] = (
        frozenset()
    )  # the keys of settings that have an effect (allocator_settings)
    functions: Mapping[str, str] = field(default_factory=dict)  # role -> "memory._snapshot"
    workers_per_device: int = 1  # the number of processes that may share one device
    time_scale: float = 1.0  # factor on all time limits
    # Additional seconds for the first cell of an op and dtype in a process, when kernels are compiled.
    first_use: float = FIRST_USE
    permitted_fallbacks: frozenset[str] = frozenset()  # ops that may run on the CPU
    not_captured: frozenset[str] = frozenset()  # globs of ops that cannot be captured in graphs
    # Whether a failed assertion on the device ends the process or makes the device unusable (device_assert).
    assertions_are_fatal: bool = True
    autocast: tuple[Autocast, ...] = ()  # differences from torch's common autocast lists
    # The backend of torch.distributed that serves the device; None: torch's default for the device type.
    process_group: ProcessGroup | None = None
    captures_default_stream: bool = True  # False: graphs can be captured on other streams only
    facts: Callable[[], Mapping[str, str]] = common_facts  # checked against FACTS when called
    unavailable: Callable[[], str | None] = lambda: (
        None
    )  # one line that says why the device cannot be used on this machine, or None
    device_count: Callable[[], int] = lambda: 1
    # Waits for these tensors and raises late errors; None: ops raise immediately.
    settle: Callable[[Sequence[Any]], None] | None = None
    to_device: Callable[[Any], Any] | None = None  # copies a CPU tensor to the device; None: .to()
    from_device: Callable[[Any], Any] | None = None  # copies a tensor to the CPU; None: .cpu()
    expectations: Path | None = None  # filled in by the registry: expected.toml, if there is one
    folder: Path | None = None  # filled in by the registry

    def __post_init__(self) -> None:
        check(self)
        if self.pointers or (self.pointers is None and "storage" in self.capabilities):
            object.__setattr__(self, "capabilities", self.capabilities | {"pointers"})

    @property
    def ranks_share_indices(self) -> bool:
        """True if several ranks of a process group may use one device index."""
        return self.process_group is not None and self.process_group.shares_indices

    def dtypes_of(self, op: str) -> frozenset[str]:
        """Returns the dtypes for which the device declares that it supports an op."""
        return self.dtypes_by_op.get(op, self.dtypes)

    def first_time(self, seconds: float) -> float:
        """Returns the time limit in seconds for the first use of an op or function in a process. ``seconds`` is the
        limit for a later use on a device of usual speed."""
        return seconds * self.time_scale + self.first_use

    def function(self, role: str) -> str:
        """Returns the name of the function with a given role in the device's own module. Raises DescriptorError if the
        descriptor declares none."""
        check_names("function", (role,), FUNCTIONS)
        if role not in self.functions:
            raise DescriptorError(
                f"device '{self.name}' declares no function for '{role}' ({FUNCTIONS[role]}): add it to `functions`"
            )
        return self.functions[role]


def check(descriptor: Descriptor) -> None:
    """Checks the value of each field and replaces the value by an immutable copy. Raises DescriptorError. Repro
    scripts, which contain a copy of a descriptor, do not check it."""
    name = descriptor.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DescriptorError(
            f"a device's name must be lower-case letters, digits, '-' and '_', got {name!r}"
        )
    try:
        _check_vocabulary(descriptor)
        _freeze(descriptor)
        _check_together(descriptor)
    except DescriptorError as error:
        raise DescriptorError(f"device '{name}': {error}") from None


def _check_vocabulary(descriptor: Descriptor) -> None:
    check_names("capability", descriptor.capabilities, CAPABILITIES)
    check_names("statistic", descriptor.statistics, STATISTICS)
    check_names("setting", descriptor.settings, SETTINGS)
    check_names("op kept whole", descriptor.kept_whole, KEPT_WHOLE)
    check_names("function", descriptor.functions, FUNCTIONS)
    check_names("dtype", descriptor.dtypes, DTYPES)
    check_names("dtype", descriptor.tolerances, DTYPES)
    check_names("dtype", descriptor.flushes_subnormals, DTYPES)


def _freeze(descriptor: Descriptor) -> None:
    """Checks the form of each field's value and replaces the value by an immutable copy."""
    for fields, form, wanted in _FORMS:
        for name in fields.split():
            value = _in_form(name, getattr(descriptor, name), form, wanted)
            frozen = MappingProxyType(value) if isinstance(value, dict) else value
            object.__setattr__(descriptor, name, frozen)
    for name, form, wanted in _ENTRIES:
        for key, value in getattr(descriptor, name).items():
            _in_form(f"{name}['{key}']", value, form, wanted)
    if not isinstance(
        descriptor.facts, _CheckedFacts
    ):  # dataclasses.replace() passes one that is wrapped already
        object.__setattr__(
            descriptor, "facts", _CheckedFacts(descriptor.name, descriptor.facts, descriptor.module)
        )


def _check_together(descriptor: Descriptor) -> None:
    has = "pointers" in descriptor.capabilities
    if has and descriptor.pointers is False:
        raise DescriptorError(
            "pointers is False, but capabilities has 'pointers': remove one of the two"
        )
    if not descriptor.dtypes:
        raise DescriptorError("dtypes is empty: name the dtypes that the device supports")
    for op, dtypes in descriptor.dtypes_by_op.items():
        check_names("dtype", dtypes, DTYPES)
        if more := dtypes - descriptor.dtypes:
            raise DescriptorError(
                f"dtypes_by_op['{op}'] names {', '.join(sorted(more))}, but dtypes does not:"
                " dtypes_by_op may only narrow dtypes"
            )
    ranged = descriptor.priorities is not None or "stream" in descriptor.functions
    if "stream_priority" in descriptor.capabilities and not ranged:
        raise DescriptorError(
            "capabilities has 'stream_priority', but nothing says which priorities there are: set priorities=(lowest, highest), "
            "or functions={'stream': …} with the class that has priority_range()"
        )
    if descriptor.init is not None and descriptor.module is None:
        raise DescriptorError(
            f"init names the function {descriptor.init!r}, but module is None: name the module of that function"
        )
    if (size := descriptor.alignment) & (size - 1):
        raise DescriptorError(f"alignment must be a power of two, in bytes, got {size}")
