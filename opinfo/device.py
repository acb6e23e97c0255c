"""The device under test, as the matrix uses it: moving tensors there and back."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from devices.descriptor import Descriptor
from devices.errors import ConformError
from opinfo.guarded import Move, identity
from opinfo.structure import tensors_of

#: What a device must declare before tensors can be laid out on it in more than one way, and guarded.
LAYOUT_CAPABILITIES = frozenset({"strides", "storage"})


class DeviceUnusable(ConformError):
    """The device's module does not import, or a tiny op fails: one error, not sixty thousand."""

    exit_code = 3


@dataclass(frozen=True)
class Device:
    """A descriptor made operational in this process."""

    descriptor: Descriptor
    torch_device: torch.device
    to_device: Move
    from_device: Move

    @property
    def name(self) -> str:
        return self.descriptor.name

    @property
    def fake_only(self) -> bool:
        """On ``cpu`` itself eager CPU is no second opinion: only FakeTensor counts."""
        return self.descriptor.name == "cpu"

    @property
    def lays_out(self) -> bool:
        """Whether it declares what every layout but contiguous needs, and guarded buffers do."""
        return self.descriptor.capabilities >= LAYOUT_CAPABILITIES

    def settle(self, result: Any) -> None:
        """Wait until the tensors of a result can be read. Raises what failed late, where the
        descriptor knows how.

        A result on the host (``to("cpu", non_blocking=True)``) is complete only after a synchronise; one
        on the device is waited for by whatever reads it.
        """
        if self.descriptor.settle is not None:
            self.descriptor.settle(tensors_of(result))
        kind = self.torch_device.type
        if kind != "cpu" and any(t.device.type != kind for t in tensors_of(result)):
            self.synchronise()

    def synchronise(self) -> None:
        """Wait for all work on the device, by the function that modules of asynchronous devices have
        (``torch.cuda.synchronize`` and its likes). A module without one has nothing to wait for."""
        module = getattr(torch, self.torch_device.type, None)
        wait = getattr(module, "synchronize", None)
        if self.torch_device.type != "cpu" and wait is not None:
            wait()


def open_device(descriptor: Descriptor, index: int = 0, *, unused: bool = False) -> Device:
    """Import and start the device's module, limit torch to one thread, make the device of this index
    current, and run a tiny op on it (not where it is to be left ``unused``).

    Raises DeviceUnusable with what went wrong.
    """
    if descriptor.module is not None:
        doing = f"importing {descriptor.module!r}"
        try:
            module = importlib.import_module(descriptor.module)
            doing = f"{descriptor.module}.{descriptor.init}()"
            if descriptor.init is not None:
                getattr(module, descriptor.init)()
        except Exception as exc:  # a vendor's import may raise anything
            raise DeviceUnusable(
                f"device {descriptor.name!r}: {doing} failed: {type(exc).__name__}: {exc}"
            ) from exc
    torch.set_num_threads(1)
    kind = descriptor.torch_type
    try:
        torch_device = torch.device("cpu") if kind == "cpu" else torch.device(kind, index)
    except RuntimeError as exc:
        after = f", after importing {descriptor.module!r}" if descriptor.module else ""
        raise DeviceUnusable(
            f"device {descriptor.name!r}: torch knows no device type {kind!r}{after}: "
            f"{(str(exc).splitlines() or [''])[0]}"
        ) from exc
    if index:
        _make_current(descriptor, torch_device)
    on_cpu = torch_device.type == "cpu"

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch_device)

    def back(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu()

    device = Device(
        descriptor,
        torch_device,
        descriptor.to_device or (identity if on_cpu else move),
        descriptor.from_device or (identity if on_cpu else back),
    )
    if not unused:
        preflight(device)
    return device


@contextmanager
def first_index(device: Device) -> Iterator[Device]:
    """The device of index 0, current for a block: for what names indices itself. Raises DeviceUnusable."""
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
    """What is asked of the device type without an index is asked of this one. Raises DeviceUnusable."""
    choose = getattr(getattr(torch, device.type, None), "set_device", None)
    if choose is None:
        return
    try:
        choose(device.index)
    except Exception as exc:  # a vendor's module may raise anything
        raise DeviceUnusable(
            f"device {descriptor.name!r}: {device} cannot be made current: {type(exc).__name__}: {exc}"
        ) from exc


def preflight(device: Device) -> None:
    """A tiny op there and back. Raises DeviceUnusable."""
    try:
        there = device.to_device(torch.arange(4, dtype=torch.uint8))
        answer = device.from_device(there + there)
    except Exception as exc:  # a dead driver may raise anything
        raise DeviceUnusable(
            f"device {device.name!r} does not run a tiny op: {type(exc).__name__}: {exc}. "
            "Nothing was tested."
        ) from exc
    if answer.tolist() != [0, 2, 4, 6]:
        raise DeviceUnusable(
            f"device {device.name!r}: arange(4) + arange(4) gave {answer.tolist()}, not [0, 2, 4, 6]. "
            "Nothing was tested."
        )
