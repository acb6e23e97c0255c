"""The adapter over private names of torch: FakeTensor, the dispatcher's tables, the legacy profiler, lazy negation, and
the identity of storages. torch's databases have adapters of their own. A test pins each name that is used."""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

# FakeTensor logs a traceback for each call that it rejects. A rejection is a normal answer here, so logging is off.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

#: The exceptions by which FakeTensor says that it cannot answer. They do not mean that the call is wrong.
NO_FAKE_ANSWER = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)


def storage_id(tensor: torch.Tensor) -> int:
    """Returns a number that is the same for all tensors that share a storage, as long as one of the tensors is
    alive."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


class StorageReference:
    """A weak reference to a storage. While it exists, no other storage has the same ``key``."""

    __slots__ = ("_weak", "key")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.key: int = storage._cdata
        self._weak = StorageWeakRef(storage)

    @property
    def expired(self) -> bool:
        """True if the storage was freed."""
        return bool(self._weak.expired())


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of a tensor with the neg bit set, which reads as the negative of the tensor."""
    return torch._neg_view(tensor)


def version_of(tensor: torch.Tensor) -> int:
    """Returns the version counter of a tensor, which counts the writes to it."""
    return tensor._version


def key_of(torch_type: str) -> str:
    """Returns the dispatch key of a device type: ``PrivateUse1`` for a vendor's type, even before its module is
    imported."""
    try:
        return str(torch._C._dispatch_key_for_device(torch_type))
    except (
        RuntimeError
    ):  # torch does not know the type yet; a vendor's module will register it for PrivateUse1
        return "PrivateUse1"


def kernels(name: str, key: str) -> list[str]:
    """Returns a list with the line of an op's dispatch table (such as that of ``aten::add.Tensor``) for a dispatch key;
    an empty list if the table has no such line. The line ends with ``[backend fallback]`` if the op has no kernel of
    its own for the key."""
    table = torch._C._dispatch_dump_table(name).splitlines()
    return [line for line in table if line.startswith(f"{key}: ")]


def has_kernel(name: str, key: str) -> bool:
    """Returns True if an overload such as ``aten::add.Tensor`` has a kernel of its own for a dispatch key."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def op_names(space: str) -> list[str]:
    """Returns the names of the ops of a library, such as ``aten::softmax``."""
    names = {each.partition(".")[0] for each in torch._C._dispatch_get_all_op_names()}
    return sorted(each for each in names if each.startswith(f"{space}::"))


def composite_kernel(overload: Any, torch_type: str) -> str:
    """Returns the key of torch's composite kernel, which calls other ops, if it runs because a device type has no kernel of
    its own for an overload: ``CompositeImplicitAutograd`` or ``CompositeExplicitAutograd``; otherwise an empty text."""
    name = overload.name()
    if has_kernel(name, key_of(torch_type)):
        return ""
    keys = "CompositeImplicitAutograd", "CompositeExplicitAutograd"
    return next((key for key in keys if has_kernel(name, key)), "")


def call_kernel(overload: Any, key: str, args: Any, kwargs: Any) -> Any:
    """Calls the kernel that an overload has for a dispatch key."""
    return overload._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)


def with_tensors(overload: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the positional arguments of an overload; where the schema has a tensor and the argument is a number,
    the number is replaced by a tensor. A dispatch mode receives such numbers from composite kernels, and most
    overloads do not accept them."""
    arguments = overload._schema.arguments
    numbers = [n for n, given in enumerate(args) if isinstance(given, (bool, int, float, complex))]
    wrapped = [n for n in numbers if str(arguments[n].type) == "Tensor"]
    packet = overload._schema.name.partition("::")[2]
    first = next((each for each in args if isinstance(each, torch.Tensor)), None)
    if not wrapped or first is None or torch._C._should_allow_numbers_as_tensors(packet):
        return args
    found = list(args)
    for n in wrapped:
        found[n] = torch.tensor(args[n], dtype=torch.result_type(first, args[n]))
    return tuple(found)


@cache
def all_overloads() -> dict[str, tuple[str, ...]]:
    """Returns the full names of the overloads of every op, such as ``aten::add.Tensor`` and ``aten::add.out`` for
    ``aten::add``."""
    found: dict[str, list[str]] = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        found.setdefault(name.partition(".")[0], []).append(name)
    return {packet: tuple(names) for packet, names in found.items()}


def profiled(call: Callable[[], Any]) -> tuple[list[Any], Exception | None]:
    """Profiles a call. Returns the events of each thread and the exception that the call raised. NotImplementedError is
    not caught."""
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    config = ProfilerConfig(
        ProfilerState.CPU, False, False, False, False, False, _ExperimentalConfig()
    )
    error = None
    torch._C._autograd._enable_profiler_legacy(config)
    try:
        call()
    except NotImplementedError:
        raise
    except Exception as exc:
        error = exc
    finally:
        threads = torch._C._autograd._disable_profiler_legacy()
    return list(threads), error


class OpRecord:
    """A record of the ops that all threads call between ``start`` and ``stop``, as torch's profiler makes it. Unlike a
    dispatch mode, it does not change what torch does."""

    #: the name of an event at the beginning of the record
    _MARK = "conform: start of the record"

    def start(self) -> None:
        """Begins the record."""
        from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState

        config = ProfilerConfig(
            ProfilerState.KINETO, False, False, False, False, False, every_thread_config()
        )
        activities = {ProfilerActivity.CPU}
        self._stop = torch._C._autograd._disable_profiler
        torch._C._autograd._prepare_profiler(config, activities)
        torch._C._autograd._enable_profiler(config, activities)
        with torch._C._profiler._RecordFunctionFast(self._MARK):
            pass

    def stop(self) -> list[Any] | None:
        """Ends the record. Returns its events: each has a ``name`` and, as ``children``, the events within it. Returns None
        if the profiler was switched off since ``start``."""
        found = self._stop().experimental_event_tree()
        rest = [each for each in found if each.name != self._MARK]
        return rest if len(rest) < len(found) else None


def quiet_kineto() -> None:
    """Keeps Kineto from writing lines to stderr for each profile. Call it before the first profile of the process."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def kineto_events(profile: Any) -> list[Any]:
    """Returns the events of a torch.profiler.profile that has ended, as Kineto lists them."""
    return list(profile.profiler.kineto_results.events())


def every_thread_config() -> Any:
    """Returns the experimental configuration with which a profile records the ops of all threads, or, before torch 2.10,
    of the thread that starts it."""
    from torch._C._profiler import _ExperimentalConfig

    return every_thread() or _ExperimentalConfig()


def every_thread() -> Any:
    """Returns the value of the profiler's experimental configuration with which a profile records the ops of all
    threads; None if torch has no such setting (before 2.10)."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


def schema_of(overload: Any) -> Any:
    """Returns the schema of an overload in ``torch.ops``."""
    return overload._schema


def schema_named(overload: str) -> Any:
    """Returns the schema of an overload by its full name, such as ``aten::add.Tensor``."""
    name, _, suffix = overload.partition(".")
    return torch._C._get_schema(name, suffix)


def import_backends() -> None:
    """Imports the backends that are installed as entry points ``torch.backends``, as ``import torch`` does. Raises
    RuntimeError."""
    torch._import_device_backends()


def function_modes() -> list[Any]:
    """Returns the torch-function modes of the current thread. The innermost mode, which sees calls first, is last."""
    modes: list[Any] = torch.overrides._get_current_function_mode_stack()
    return modes


def dispatch_modes() -> list[Any]:
    """Returns the torch-dispatch modes of the current thread. The innermost mode, which sees calls first, is last."""
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def take_modes() -> tuple[list[Any], list[Any]]:
    """Removes all modes from the current thread. Returns the torch-function modes and the torch-dispatch modes."""
    taken = function_modes(), dispatch_modes()
    for _ in taken[0]:
        torch.overrides._pop_mode()
    for _ in taken[1]:
        torch.utils._python_dispatch._pop_mode()
    return taken


def put_modes(functions: Iterable[Any], dispatches: Iterable[Any]) -> None:
    """Pushes modes onto the current thread without calling their ``__enter__``."""
    for mode in functions:
        torch.overrides._push_mode(mode)
    for mode in dispatches:
        torch.utils._python_dispatch._push_mode(mode)


@contextmanager
def without_modes() -> Iterator[None]:
    """Removes all modes within the context, so that the modes of a device's module do not see the suite's own work."""
    taken = take_modes()
    try:
        yield
    finally:
        put_modes(*taken)


def fake_mode_without_cache() -> FakeTensorMode:
    """Returns a FakeTensorMode that computes each result anew. A cache of results costs more time than it saves where calls
    hardly repeat."""
    mode = FakeTensorMode()
    mode.cache_enabled = False
    return mode


def is_faking() -> bool:
    """Returns True if a FakeTensorMode is active, under which tensors have metadata but no data."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def default_device(mode: Any) -> torch.device | None:
    """Returns the device of a mode that ``torch.set_default_device`` or ``with torch.device(…)`` has entered; None for
    other modes."""
    from torch.utils._device import DeviceContext

    return mode.device if isinstance(mode, DeviceContext) else None


def optimised_on(way: str, torch_type: str) -> bool:
    """Returns True if torch supports an optimizer implementation (``foreach``, ``fused`` or ``capturable``) on a device
    type."""
    from torch.optim.optimizer import _get_capturable_supported_devices
    from torch.utils._foreach_utils import (
        _get_foreach_kernels_supported_devices,
        _get_fused_kernels_supported_devices,
    )

    lists = {
        "foreach": _get_foreach_kernels_supported_devices,
        "fused": _get_fused_kernels_supported_devices,
        "capturable": _get_capturable_supported_devices,
    }
    # On the CPU, foreach is a loop over the tensors. It works, although torch does not list it.
    return torch_type in lists[way]() or (way, torch_type) == ("foreach", "cpu")


def load_forward_ad() -> None:
    """Imports the modules that torch needs for forward-mode differentiation. Without this call, the first use in a
    process would import them, which takes about 0.2 s."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # torch itself calls torch.jit.script, which is deprecated
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def load_compiler() -> None:
    """Imports the modules that torch needs for compiling with the backend ``aot_eager``. They take seconds, which forks
    of this process do not need to spend again."""
    for name in ("torch._dynamo", "torch._dynamo.backends.debugging", "functorch.compile"):
        importlib.import_module(name)


def next_sequence_number() -> int:
    """Returns the number that autograd gives to the next node of this thread. The nodes of forward calls exist before
    the calls reach a dispatch mode."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number


def running_sequence_number() -> int | None:
    """Returns the number of the node that backward runs in this thread; None outside backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def parse_schema(text: str) -> Any:
    """Returns the schema that a text such as ``aten::relu(Tensor self) -> Tensor`` describes. Raises RuntimeError if the
    text is not a schema."""
    return torch._C.parse_schema(text)


def type_of_argument(argument: Any) -> str:
    """Returns the type of an argument of a schema as the schema writes it, such as ``Optional[ScalarType]``: the
    attribute ``type`` has ``Optional[int]`` instead."""
    return str(argument.real_type)


def is_composite(name: str) -> bool:
    """Returns True if autograd replaces calls of an op, such as ``aten::linear``, by calls of other ops. The op itself
    then reaches no kernel of a device and no dispatch mode. False for an op that torch does not know."""
    try:
        if not has_kernel(name, "CompositeImplicitAutograd"):
            return False
    except RuntimeError:
        return False
    # the kernel of a device, or one for autograd on a device, comes first
    return not any(has_kernel(name, key) for key in ("CPU", "AutogradCPU"))
