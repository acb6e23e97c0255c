"""Probes that find out which capabilities and dtypes of a device work.

A probe calls the API of a capability and examines the result. Constructing an object is not enough: on a CPU-only build
``torch.Stream()`` succeeds. An API is absent if it says that it is not available, or raises NotImplementedError or one of
torch's own errors for missing features. It is broken if it raises any other error or ends the process. An API with an
impossible result counts as present, and the probe raises Wrong. A probe is not a check: only the suite
decides whether the device fulfils a clause.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from conformance.checks.autocast.asking import differing
from conformance.checks.autocast.offered import is_offered
from conformance.checks.clock import Clock
from conformance.onboarding.occupying import has_streams, try_candidate
from conformance.onboarding.primitives import CANDIDATES
from conformance.onboarding.questions import (
    AUTOCAST,
    FIRST_USE,
    GRANULARITY,
    HOST_MEMORY,
    SUBNORMALS,
    Question,
    Said,
)
from devices import registry
from devices.descriptor import CAPABILITIES, DTYPES, Descriptor, common_facts
from devices.errors import in_a_line
from opinfo.device import Device, has_pointers, has_storage, has_strides
from opinfo.torch_private import kineto_events, quiet_kineto

#: The messages of torch's own errors for features that a backend lacks, where they are not NotImplementedError.
_NOT_REGISTERED: Final = (
    r"^Backend doesn[`'´]t support ",  # c10/core/impl/DeviceGuardImplInterface.h, ATen/detail/AcceleratorHooksInterface.h
    r"^device_allocator INTERNAL ASSERT FAILED",  # c10/core/CachingDeviceAllocator.h
    r"^Allocator for \w+ is not a DeviceAllocator",  # the same
    r"^Graph is not supported on device type",  # torch.accelerator.Graph
    r"device type not an accelerator",  # torch.Generator
    r"^Device '\w+' does not have a corresponding module registered",  # torch.get_device_module
    r"^Unknown device type \w+ for Dlpack",  # torch.Tensor.__dlpack_device__
    r"^Tried to use AMP with the `\w+` backend, but the backend has not registered",  # torch.autocast
    r"^Attempted to access the data pointer on an invalid python storage",  # tensors without a storage
)


def is_absent(error: Exception) -> bool:
    """Returns True if an exception says that a feature does not exist on the device; False if the feature exists and
    failed."""
    if isinstance(error, (NotImplementedError, AttributeError, ImportError)):
        return True
    return any(re.search(each, str(error)) for each in _NOT_REGISTERED)


class Wrong(Exception):
    """The exception that a probe raises if an API exists but returned a wrong result. The text of the exception
    describes the result."""


def described(question: Question) -> Descriptor:
    """Returns the descriptor of the device that a Question names; a minimal one if the device has no descriptor. Raises
    ConformError if the descriptor cannot be loaded."""
    if question.path:
        return registry.load_file(Path(question.path))
    if not question.torch_type:
        return registry.get(question.name)
    return Descriptor(  # for a device about which nothing is known
        name=question.name,
        torch_type=question.torch_type,
        title="A device without a descriptor",
        module=question.module or None,
        init=question.init or None,
        capabilities=frozenset(),
        dtypes=frozenset({"float32"}),
        facts=partial(_facts_of, question.torch_type),
        device_count=partial(_count_of, question.torch_type),
    )


def _facts_of(torch_type: str) -> dict[str, str]:
    """Returns the facts that are available on every machine (such as torch's version), and the result of
    ``torch.<type>.get_device_name`` if that function exists."""
    name = None
    with suppress(Exception):  # no module, no such function, or another signature: it is not known
        name = str(torch.get_device_module(torch_type).get_device_name(0)).strip()
    return common_facts(device_name=name)


def _count_of(torch_type: str) -> int:
    """Returns the result of ``torch.<type>.device_count``; 1 if the function does not exist."""
    with suppress(Exception):  # as above
        return max(1, int(torch.get_device_module(torch_type).device_count()))
    return 1


def questions(device: Device) -> Iterator[tuple[str, Callable[[Device], Any]]]:
    """Yields the name and the function of each probe of a device: for facts, capabilities, dtypes and measurements."""
    yield FIRST_USE, first_use
    yield "facts", lambda device: dict(device.descriptor.facts())
    yield "device_count", lambda device: int(device.descriptor.device_count())
    yield from _QUESTIONS.items()
    yield GRANULARITY, granularity
    yield HOST_MEMORY, in_host_memory
    yield SUBNORMALS, flushes_subnormals
    yield AUTOCAST, autocast_lists
    for name in DTYPES:
        yield name, partial(_holds, dtype=name)


def probe(device: Device, answered: Container[str], say: Callable[[Said], None]) -> None:
    """Runs the probes of an open device that have no answer yet, and sends each answer by calling ``say``. The name of
    each probe is sent before the probe runs, because the probe may end the process."""
    for name, question in questions(device):
        if name in answered:
            continue
        say(Said(name))
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                said = Said(name, over=True, answer=question(device))
        except Wrong as error:
            said = Said(name, over=True, wrong=str(error))
        except Exception as error:  # a vendor's code: it does not work, whatever it raises
            broken = name in CAPABILITIES and not is_absent(error)
            said = Said(name, over=True, raised=in_a_line(error), broken=broken)
        say(said)


def try_primitives(device: Device, answered: Container[str], say: Callable[[Said], None]) -> None:
    """Tries the drafts of ``busy`` until one works, and sends what was found by calling ``say``. Tries none that has been
    tried before, and none on a device without streams."""
    if not has_streams(device):
        return
    for name in CANDIDATES:
        if name in answered:
            continue
        say(Said(name))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = try_candidate(device, name)
        except Exception as error:  # a vendor's code: it does not work, whatever it raises
            say(Said(name, over=True, raised=in_a_line(error)))
        else:
            say(Said(name, over=True, answer=found and msgspec.to_builtins(found)))
            if found and found.works:
                return


def first_use(device: Device, now: Callable[[], float] | None = None) -> float:
    """Returns the number of seconds by which the first call of an op takes longer than the second call: the maximum
    over four ops."""
    now = now or Clock().now
    given = device.to_device(torch.full((4, 4), 0.5))
    longer = 0.0
    for op in (torch.mul, torch.matmul, torch.atan2, torch.hypot):
        began = now()
        with suppress(Exception):  # as above
            device.from_device(op(given, given))
            first = now()
            device.from_device(op(given, given))
            longer = max(longer, (first - began) - (now() - first))
    return longer


def granularity(device: Device) -> int:
    """Returns the number of bytes by which ``memory_allocated()`` rises when a tensor of one byte is allocated; 0 if
    the device has no such statistics."""
    with suppress(Exception):  # as above: it is no capability of its own
        before = torch.accelerator.memory.memory_allocated(device.torch_device)
        held = device.to_device(torch.zeros(1, dtype=torch.uint8))
        rise = torch.accelerator.memory.memory_allocated(device.torch_device) - before
        return max(0, int(rise)) if held.numel() else 0
    return 0


def flushes_subnormals(device: Device) -> list[str]:
    """Returns the names of the dtypes in which a subnormal number times 1 is 0 on the device."""
    found = []
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        kind = getattr(torch, dtype)
        small, one = (
            torch.full((8,), torch.finfo(kind).tiny / 4, dtype=kind),
            torch.ones(8, dtype=kind),
        )
        with suppress(Exception):  # as above: a dtype that it lacks, or no multiplication
            product = device.to_device(small) * device.to_device(one)
            if product.dtype == kind and not device.from_device(product).any():
                found.append(dtype)
    return found


def autocast_lists(device: Device) -> dict[str, list[str]]:
    """Returns the ops that autocast treats in another way than torch's common lists say, grouped by the policy that was
    observed (see conformance/checks/autocast/lists.py). The result is empty if the device has no autocast."""
    if not torch.amp.is_autocast_available(device.torch_device.type):
        return {}
    holds = [name for name in ("bfloat16", "float16") if _holds_without_error(device, name)]
    lowers = (getattr(torch, name) for name in holds)
    return differing(device, [lower for lower in lowers if is_offered(device, lower)])


def _holds_without_error(device: Device, dtype: str) -> bool:
    with suppress(Exception):  # as above
        return _holds(device, dtype)
    return False


def _holds(device: Device, dtype: str) -> bool:
    """Returns True if the device can allocate tensors of a dtype and convert them to and from float32. Raises Wrong if
    a conversion gives wrong values."""
    kind = getattr(torch, dtype)
    values = torch.tensor([0.0, 1.0, 1.0])
    want = values.to(kind).to(torch.float32)  # not 0, 1, 1 where the dtype has no zero
    there = device.to_device(values.to(kind))
    back = device.from_device(there.to(torch.float32))
    again = device.from_device(device.to_device(values).to(kind)).to(torch.float32)
    if there.dtype != kind:  # another dtype takes its place
        return False
    for way, got in (("to", back), ("from", again)):
        what = f"conversion {way} float32 gave {got.tolist()}; expected {want.tolist()}"
        _require(torch.equal(got, want), what)
    return True


def _module(device: Device) -> Any:
    """Returns the torch module of the device's type, such as ``torch.cuda`` for "cuda"."""
    return torch.get_device_module(device.torch_device.type)


def _of_accelerator(question: Callable[[Device], bool]) -> Callable[[Device], bool]:
    """Decorates a probe that uses torch.accelerator. The probe then returns False if the device is not the current
    accelerator, because torch.accelerator has functions for the current accelerator only."""

    def on_accelerator(device: Device) -> bool:
        current = torch.accelerator.current_accelerator()
        return current is not None and current.type == device.torch_device.type and question(device)

    return on_accelerator


@_of_accelerator
def _streams(device: Device) -> bool:
    made = [torch.Stream(device=device.torch_device) for _ in range(2)]
    return made[0].stream_id != made[1].stream_id


@_of_accelerator
def _events(device: Device) -> bool:
    event = torch.Event(device=device.torch_device)
    event.record(torch.accelerator.current_stream(device.torch_device))
    event.synchronize()
    return _require(event.query() is True, "event.query() was not True after event.synchronize()")


@_of_accelerator
def _timed_events(device: Device) -> bool:
    start, end = (torch.Event(device=device.torch_device, enable_timing=True) for _ in range(2))
    stream = torch.accelerator.current_stream(device.torch_device)
    start.record(stream)
    end.record(stream)
    end.synchronize()
    took = start.elapsed_time(end)
    return _require(
        took >= 0, f"expected elapsed_time() between two events to be at least 0, found {took}"
    )


@_of_accelerator
def _allocator_statistics(device: Device) -> bool:
    allocated = partial(torch.accelerator.memory.memory_allocated, device.torch_device)
    before, held = allocated(), device.to_device(torch.zeros(2**20))
    after = allocated()
    return _require(
        after > before and held.numel() > 0,
        f"memory_allocated() was {before} before and {after} after an allocation of 4 MiB",
    )


@_of_accelerator
def _memory_info(device: Device) -> bool:
    free, total = torch.accelerator.memory.get_memory_info(device.torch_device)
    return _require(0 <= free <= total > 0, f"get_memory_info() returned {(free, total)}")


def _generator(device: Device) -> bool:
    def draw() -> torch.Tensor:
        source = torch.Generator(device=device.torch_device).manual_seed(1)
        return device.from_device(
            torch.rand(8, generator=source, device=device.torch_device, dtype=torch.float32)
        )

    return _require(
        torch.equal(draw(), draw()), "two draws of random numbers with the same seed differed"
    )


def _dlpack(device: Device) -> bool:
    given = device.to_device(torch.arange(4.0))
    taken = torch.utils.dlpack.from_dlpack(given)
    given.fill_(7)
    return taken.device == given.device and bool((device.from_device(taken) == 7).all())


def _serialization(device: Device) -> bool:
    given, file = device.to_device(torch.arange(4.0)), io.BytesIO()
    torch.save(given, file)
    file.seek(0)
    read = torch.load(file, weights_only=True)
    if read.device.type != given.device.type:
        return _require(
            False, f"a tensor that was saved on {given.device} was loaded on {read.device}"
        )
    found = device.from_device(read)
    return _require(
        torch.equal(found, torch.arange(4.0)),
        f"a tensor that was saved as 0, 1, 2, 3 was loaded as {found.tolist()}",
    )


@_of_accelerator
def _graphs(device: Device) -> bool:
    given = device.to_device(torch.zeros(4))
    graph = torch.accelerator.Graph()
    with torch.Stream(device=device.torch_device), graph:  # some refuse the default stream
        given.add_(1)
    before = device.from_device(given).sum().item()
    graph.replay()
    torch.accelerator.synchronize(device.torch_device)
    after = device.from_device(given).sum().item()
    return _require(
        before == 0 and after == 4,
        f"the sum of a tensor of 4 zeros was {before} after add_(1) was captured and {after} after the replay; expected 0 and 4",
    )


@_of_accelerator
def _pinned_memory(device: Device) -> bool:
    pinned = torch.zeros(8).pin_memory()
    return _require(pinned.is_pinned(), "is_pinned() was False after pin_memory()")


def _several(device: Device) -> bool:
    count = _module(device).device_count()
    if not isinstance(count, int):
        raise TypeError(f"device_count() returned {count!r}")
    return count > 1


def _properties(device: Device) -> bool:
    found = _module(device).get_device_properties(device.torch_device)
    return _require(found is not None, "get_device_properties() returned None")


def _autocast(device: Device) -> bool:
    """Returns True if an autocast region can be entered. ``is_autocast_available`` alone is not enough: it is True for
    each device type with a dispatch key for autocast, and torch calls the backend's module only when the region is
    entered."""
    kind = device.torch_device.type
    if not torch.amp.is_autocast_available(kind):
        return False
    with torch.autocast(kind):
        return True


def _profiler(device: Device) -> bool:
    """Returns True if a profile lists something that ran on the device or, for the CPU, an op. If torch has an activity
    for the device type itself and a profile lists nothing, raises Wrong."""
    quiet_kineto()
    kind, known = device.torch_device.type, torch.profiler.ProfilerActivity
    own = getattr(known, kind.upper(), known.PrivateUse1)
    given = device.to_device(torch.zeros(8))
    supported = torch.profiler.supported_activities()
    with torch.profiler.profile(activities={known.CPU, own} & supported) as seen:
        device.from_device(given.add(1))
    events = kineto_events(seen)
    if kind == "cpu":
        return _require(any(e.name() == "aten::add" for e in events), "a profile lists no op")
    host = torch.profiler.DeviceType.CPU
    listed = any(e.device_type() != host and e.name() != "[memory]" for e in events)
    promised = own in supported and own != known.PrivateUse1
    return _require(listed, "a profile lists no activity of the device") if promised else listed


def in_host_memory(device: Device) -> bool:
    """Returns True if the device's tensors lie in the host's memory: if the resident memory of this process grows when
    a tensor is created on the device. On systems other than Linux, which do not report this size, returns False."""
    pages, size = Path("/proc/self/statm"), 2**26
    if not pages.exists():
        return False
    before = int(pages.read_text().split()[1])
    held = torch.empty(size, dtype=torch.uint8, device=device.torch_device).fill_(1)
    device.from_device(held[:1])
    rise = (int(pages.read_text().split()[1]) - before) * os.sysconf("SC_PAGE_SIZE")
    return rise >= 0.9 * size


def _require(right: bool, what: str) -> bool:
    """Returns ``right`` if it is True, and otherwise raises Wrong with ``what``, a description of the result."""
    if not right:
        raise Wrong(what)
    return True


def _sparse(device: Device) -> bool:
    at = device.torch_device
    parts = torch.zeros(2, 1, dtype=torch.int64, device=at), torch.ones(1, device=at)
    found = torch.sparse_coo_tensor(*parts, (2, 2), check_invariants=False)
    product = device.from_device(found @ torch.ones(2, 2, device=at))
    return _require(product.tolist() == [[1.0, 1.0], [0.0, 0.0]], "a sparse product is wrong")


def _quantized_products(device: Device) -> bool:
    ones = torch.ones(32, 32, dtype=torch.int8, device=device.torch_device)
    product = device.from_device(torch._int_mm(ones, ones))
    return _require(bool((product == 32).all()), "torch._int_mm gave a wrong product")


#: The probes by capability. There is none for capabilities that need a compiler or a second process, that can make the
#: device unusable, or for which torch has no function.
_QUESTIONS: dict[str, Callable[[Device], Any]] = {
    "strides": has_strides,
    "storage": has_storage,
    "pointers": has_pointers,
    "streams": _streams,
    "events": _events,
    "timed_events": _timed_events,
    "allocator_statistics": _allocator_statistics,
    "allocator_memory_info": _memory_info,
    "pinned_memory": _pinned_memory,
    "graphs": _graphs,
    "generator": _generator,
    "multi_device": _several,
    "properties": _properties,
    "dlpack": _dlpack,
    "serialization": _serialization,
    "autocast": _autocast,
    "profiler": _profiler,
    "distributed": lambda device: (
        torch.distributed.is_available()
        and device.torch_device.type in torch.distributed.Backend.default_device_backend_map
    ),
    "sparse": _sparse,
    "quantized_products": _quantized_products,
    "fork_detection": lambda device: callable(getattr(_module(device), "_is_in_bad_fork", None)),
}
