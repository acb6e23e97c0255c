"""The device under test: opens the device, and copies tensors to it and back."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

import msgspec
import torch

from devices import autoload
from devices.descriptor import Descriptor
from devices.errors import ConformError, with_cause
from opinfo.compare import tensors_of
from opinfo.guarded import Move, identity, sliced_view
from opinfo.layouts import Layout
from opinfo.module_side_effects import LeftBehind
from opinfo.torch_private import import_backends

#: The name of the PrivateUse1 device type until a backend renames it.
_UNNAMED = "privateuseone"


#: The capabilities that a device must declare for tensors in all layouts. On other devices only values are compared, in the
#: layouts of BY_VALUES: a whole tensor, an expanded one, and a view with gaps.
LAYOUT_CAPABILITIES = frozenset({"strides"})
BY_VALUES = ("contiguous", "contiguous+expand_first", "transposed+step_outer+offset")


def is_fake_only(descriptor: Descriptor) -> bool:
    """Returns the value of ``Device.fake_only`` for a device that has not been opened."""
    return descriptor.torch_type == "cpu" and descriptor.to_device is None


class DeviceUnusable(ConformError):
    """The error for a device whose module cannot be imported, or on which a minimal op fails. The run then stops with a
    single error."""

    exit_code = 3


@dataclass(frozen=True)
class Device:
    """A device that is ready for use in the current process."""

    descriptor: Descriptor
    torch_device: torch.device
    to_device: Move
    from_device: Move
    # The function that waits for all work on the device, such as ``torch.cuda.synchronize``. None if the device has none, or
    # if it raises although the device was idle.
    wait: Callable[[], object] | None = None
    left: LeftBehind | None = None  # what importing the module changed in this process

    @property
    def name(self) -> str:
        return self.descriptor.name

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Texts for people, each of which says what importing the device's module changed in the current process."""
        return tuple(self.left.done) if self.left is not None else ()

    @property
    def fake_only(self) -> bool:
        """True for the CPU. Its only stride reference is FakeTensor, because eager CPU is the device under test. False
        for every other device, including a device of type "cpu" that has its own ``to_device``."""
        return is_fake_only(self.descriptor)

    @property
    def lays_out(self) -> bool:
        """True if the device declares the capabilities that all layouts need."""
        return self.descriptor.capabilities >= LAYOUT_CAPABILITIES

    def takes(self, layout: str) -> bool:
        """Returns True if tensors can be created on the device in the layout with the given name."""
        return self.lays_out or layout == BY_VALUES[0] or (layout in BY_VALUES and self.slices)

    @cached_property
    def draws(self) -> bool:
        """True if the device can draw a random number. The property is computed once."""
        try:
            self.draw()
        except Exception:  # vendor code may raise anything; other checks report it
            return False
        return True

    def draw(self) -> torch.Tensor:
        return self.from_device(torch.rand(1, device=self.torch_device))

    @cached_property
    def slices(self) -> bool:
        """True if the device can make views by slicing. If it cannot, the failure is reported by the cells of
        slicing ops only, and all other cells are checked without views."""
        geometry = Layout.parse(BY_VALUES[-1]).geometry((2, 3))
        try:
            sliced_view(self.to_device(torch.zeros(64)), geometry)
        except Exception:  # vendor code may raise anything
            return False
        return True

    def settle(self, result: Any) -> None:
        """Waits until the tensors of a result can be read. Raises errors that the device reports late, if the
        descriptor has a function for that.

        A result on the host (``to("cpu", non_blocking=True)``) is complete only after a synchronization. A result on
        the device needs none, because any operation that reads the result waits for it.
        """
        if self.descriptor.settle is not None:
            self.descriptor.settle(tensors_of(result))
        kind = self.torch_device.type
        if kind != "cpu" and any(t.device.type != kind for t in tensors_of(result)):
            self.synchronise()

    def let_go(self) -> None:
        """Waits for a failed call and discards its late error. A device may report the error twice, as torch's lazy
        backend does, and the second report would be blamed on the next call."""
        if self.descriptor.settle is not None:
            with suppress(Exception):
                self.settle(())

    def synchronise(self) -> None:
        """Waits for all work on the device, if the device has a function for that."""
        if self.wait is not None:
            self.wait()


@contextmanager
def _unusable_if_raised(what: str) -> Iterator[None]:
    """Replaces every exception in the context by DeviceUnusable, since vendor code or a broken driver may raise any
    exception."""
    try:
        yield
    except ConformError:  # of the simulated device: its text says what to do
        raise
    except Exception as exc:
        raise DeviceUnusable(f"{what}: {with_cause(exc)}") from exc


def seed_directly(torch_type: str, seed: int) -> torch.Generator:
    """Seeds only the CPU's generator and the generators of ``torch_type``. Returns the CPU's generator."""
    module = getattr(torch, torch_type, None) if torch_type != "cpu" else None
    # MPS has a single device and no manual_seed_all.
    for name in ("manual_seed_all", "manual_seed"):
        if (seed_device := getattr(module, name, None)) is not None:
            seed_device(int(seed))
            break
    return torch.default_generator.manual_seed(int(seed))


def limit_threads() -> None:
    """Limits torch to one thread in the process, so that outcomes do not depend on the number of workers."""
    torch.set_num_threads(1)


def open_device(
    descriptor: Descriptor,
    index: int = 0,
    *,
    unused: bool = False,
    say: Callable[[str], None] = lambda step: None,
) -> Device:
    """Prepares a device for use: imports and starts its module, limits torch to one thread, makes the device with the
    given index current, and runs a minimal op on it (unless ``unused`` is true). From then on, changes that the module
    made to the process are kept away from the suite's own work. ``say`` is called with the name of each step before the
    step, since the step may end the process.

    Raises DeviceUnusable, which says what failed.
    """
    limit_threads()
    name, kind = descriptor.name, descriptor.torch_type
    left = start_device(descriptor, say)
    first = left is not None and name not in _CALLED
    try:
        torch_device = torch.device("cpu") if kind == "cpu" else torch.device(kind, index)
    except RuntimeError as exc:
        raise DeviceUnusable(f"device {name!r}: {_unknown(descriptor)}") from exc
    if index:
        _make_current(descriptor, torch_device)
    on_cpu = torch_device.type == "cpu"
    wait = None if on_cpu else getattr(getattr(torch, kind, None), "synchronize", None)
    if left is not None and left.sorting is not None:
        functions = {each: getattr(descriptor, each) for each in _OF_THE_DEVICE}
        calls: dict[str, Any] = {
            k: left.on_device(v) for k, v in functions.items() if v is not None
        }
        descriptor, wait = replace(descriptor, **calls), wait and left.on_device(wait)
    device = Device(
        descriptor,
        torch_device,
        descriptor.to_device or (identity if on_cpu else lambda tensor: tensor.to(torch_device)),
        descriptor.from_device or (identity if on_cpu else torch.Tensor.cpu),
        wait,
        left,
    )
    if not unused:
        say(f"a first addition on {kind!r}")
        try:
            preflight(device)
        except DeviceUnusable as error:
            raise DeviceUnusable(f"{error}. Nothing was tested.") from error.__cause__
        try:
            device.synchronise()
        except Exception:  # the clause device.capability reports it
            device = replace(device, wait=None)
        _CALLED.add(name)
        if first and left is not None:
            kept = left.sorting
            left.look()
            if (
                left.sorting is not kept
            ):  # the first call entered a mode, so the device's functions have to be wrapped
                again = open_device(descriptor, index, unused=True)
                device = replace(again, wait=device.wait and again.wait)
    return device


def start_device(
    descriptor: Descriptor, say: Callable[[str], None] = lambda step: None
) -> LeftBehind | None:
    """Imports and starts the device's module without calling the device. In a process and its forks, a module is
    started only once.

    Returns the changes that the module made in the process, or None for a device that runs no foreign code. Raises
    DeviceUnusable.
    """
    name = descriptor.name
    if name not in _LEFT and is_foreign(descriptor):
        left = LeftBehind(descriptor.torch_type)
        _start(descriptor, say)
        left.look()
        _LEFT[name] = left
    return _LEFT.get(name)


def _unknown(descriptor: Descriptor) -> str:
    """Returns a message that says that torch does not know the device type, and that names the type that was registered
    instead."""
    kind, module = descriptor.torch_type, descriptor.module
    registered = torch._C._get_privateuse1_backend_name()
    text = f"torch does not know the device type {kind!r}"
    if registered != _UNNAMED:
        return f"{text}; the type that was registered is {registered!r}"
    if module is None:
        return f"{text}: name the module that registers the type (conform init: --module MODULE; descriptor: 'module')"
    if descriptor.init is not None:
        return f"{text}: neither importing {module!r} nor {descriptor.init}() registered a type"
    return f"{text}: importing {module!r} registered no device type. If the module needs a call after the import, name the function too (conform init: --module MODULE:FUNCTION; descriptor: 'init')"


#: By the name of a device: what its module changed in this process, when it was started and in the first call.
_LEFT: dict[str, LeftBehind] = {}
#: The names of the devices that were called in this process.
_CALLED: set[str] = set()

#: The names of the descriptor's functions that call the device.
_OF_THE_DEVICE = (
    *("busy", "gate", "fail", "settle", "to_device", "from_device"),
    *("facts", "device_count"),
)

#: The contexts that descriptors name. They are entered once and stay entered until the process ends.
_ENTERED = ExitStack()


def is_foreign(descriptor: Descriptor) -> bool:
    """Returns True if opening the device runs code from outside torch and this project."""
    named = descriptor.module is not None or descriptor.around is not None
    return named or (descriptor.torch_type != "cpu" and autoload.is_put_off())


def _is_known(kind: str) -> bool:
    try:
        return bool(torch.device(kind))
    except RuntimeError:
        return False


def _start(descriptor: Descriptor, say: Callable[[str], None]) -> None:
    """Imports the device's module, starts it, and enters its context. Raises DeviceUnusable."""
    name, module = descriptor.name, descriptor.module
    if module is not None:
        say(f"importing {module!r}")
        with _unusable_if_raised(f"device {name!r}: importing {module!r} failed"):
            imported = importlib.import_module(module)
        if descriptor.init is not None:
            say(f"calling {descriptor.init}()")
            with _unusable_if_raised(f"device {name!r}: {module}.{descriptor.init}() failed"):
                getattr(imported, descriptor.init)()
    if autoload.is_put_off() and (module is None or not _is_known(descriptor.torch_type)):
        say("importing the backends that torch loads")
        with _unusable_if_raised(
            f"device {name!r}: importing the backends that torch loads failed"
        ):
            import_backends()
    if descriptor.around is not None:
        where, _, made = descriptor.around.partition(":")
        say(f"entering {descriptor.around}")
        with _unusable_if_raised(f"device {name!r}: entering {descriptor.around} failed"):
            _ENTERED.enter_context(attrgetter(made)(importlib.import_module(where))())


@contextmanager
def first_index(device: Device) -> Iterator[Device]:
    """Makes the device with index 0 current within the context, for code that chooses device indices itself. Raises
    DeviceUnusable."""
    here = device.torch_device
    if not here.index:
        yield device
        return
    first = open_device(device.descriptor, unused=True)
    _make_current(device.descriptor, first.torch_device)
    try:
        yield first
    finally:
        _make_current(device.descriptor, here)


def _make_current(descriptor: Descriptor, device: torch.device) -> None:
    """Makes ``device`` the current device of its type: the device that calls use if they give no index. Raises
    DeviceUnusable."""
    choose = getattr(getattr(torch, device.type, None), "set_device", None)
    if choose is not None:
        what = f"device {descriptor.name!r}: {device} cannot be made the current device"
        with _unusable_if_raised(what):
            choose(device.index)


def has_strides(device: Device) -> bool:
    """Returns True if a view has the strides with which it was created. Tensors can then be laid out with known bytes
    around them."""
    base = device.to_device(torch.zeros(256, dtype=torch.uint8))
    view = base.view(torch.float32).as_strided((2, 3), (10, 2), 7)
    return view.stride() == (10, 2)


def has_storage(device: Device) -> bool:
    """Returns True if a view has the requested offset and shares the storage of its base, and the storage reports at
    least the size of the base."""
    base = device.to_device(torch.zeros(64))
    view, storage = base.as_strided((2, 3), (10, 2), 7), base.untyped_storage()
    shared = view.untyped_storage()._cdata == storage._cdata
    return view.storage_offset() == 7 and shared and storage.nbytes() >= base.nbytes


def has_pointers(device: Device) -> bool:
    """Returns True if ``data_ptr`` is an address: it increases with the storage offset, and the ranges of live tensors
    do not overlap. Large tensors are among them: where ``data_ptr`` is the address of an object on the host that stands
    for a buffer, the objects are some hundred bytes apart, and only ranges of large tensors overlap."""
    sizes = (*(64,) * 4, *(_LARGE,) * 4)
    live = [device.to_device(torch.zeros(size)) for size in sizes]
    small = live[0]
    ranges = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in live)
    moves = small[7:].data_ptr() == small.data_ptr() + 7 * small.itemsize
    apart = all(end <= start for (_, end), (start, _) in pairwise(ranges))
    return ranges[0][0] != 0 and moves and apart


#: The number of float32 elements of a large tensor: 2 MiB.
_LARGE: Final = 2**19


#: The dtypes in which an addition is tried, in this order, until one succeeds.
_TINY = (torch.uint8, torch.float32, torch.int32)


class Survey(msgspec.Struct, frozen=True):
    """The facts that were read from an opened device. If the device could not be opened, ``error`` has the reason and
    ``exit_code`` the exit code."""

    facts: dict[str, str]
    device_count: int = 1
    strides: bool = False
    storage: bool = False
    left_behind: tuple[str, ...] = ()
    error: str = ""
    exit_code: int = 0

    @classmethod
    def of(cls, device: Device) -> Survey:
        """Returns the facts of an opened device. Raises DescriptorError if a function of the descriptor fails."""
        about = device.descriptor
        try:
            strides, storage = has_strides(device), has_storage(device)
        except Exception:  # the device cannot make such views, so it has neither
            strides = storage = False
        count = about.device_count()
        return cls(dict(about.facts()), count, strides, storage, device.left_behind)


def preflight(device: Device) -> None:
    """Runs a minimal op on the device and reads its result: an addition in the first dtype in which the device can add,
    or a copy if the device implements no addition. If the device could draw a random number when it was opened, it must
    still be able to do so, because a failed capture can leave its generator unusable.

    Raises DeviceUnusable.
    """
    _compute(device)
    if device.draws:
        with _unusable_if_raised(f"device {device.name!r} failed to draw a random number"):
            device.draw()


def _compute(device: Device) -> None:
    failures = []
    for dtype in _TINY:
        try:
            _add(device, dtype)
        except DeviceUnusable as error:
            failures.append(error)
        else:
            return
    if not all(isinstance(error.__cause__, NotImplementedError) for error in failures):
        raise failures[0]
    with _unusable_if_raised(
        f"device {device.name!r} failed to copy a tensor to the device and back"
    ):
        answer = device.from_device(device.to_device(torch.arange(4.0)))
    _expect(device, "a copy of arange(4)", answer, 1)


def _add(device: Device, dtype: torch.dtype) -> None:
    with _unusable_if_raised(f"device {device.name!r} failed to run a tiny op"):
        there = device.to_device(torch.arange(4, dtype=dtype))
        answer = device.from_device(there + there)
    _expect(device, f"arange(4) + arange(4) in {str(dtype).removeprefix('torch.')}", answer, 2)


def _expect(device: Device, what: str, answer: torch.Tensor, times: int) -> None:
    want = [times * number for number in range(4)]
    if answer.tolist() != want:
        raise DeviceUnusable(
            f"device {device.name!r}: {what} returned {answer.tolist()}; expected {want}"
        )
