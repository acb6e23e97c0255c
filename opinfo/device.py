"""The device under test, as the matrix uses it: moving tensors there and back."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch

from devices.descriptor import Descriptor
from devices.errors import ConformError
from opinfo.guarded import Move, identity


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


def open_device(descriptor: Descriptor) -> Device:
    """Import the device's module, limit torch to one thread, and run a tiny op on it.

    Raises DeviceUnusable with what went wrong.
    """
    if descriptor.module is not None:
        try:
            importlib.import_module(descriptor.module)
        except Exception as exc:  # a vendor's import may raise anything
            raise DeviceUnusable(
                f"device {descriptor.name!r}: importing {descriptor.module!r} failed: "
                f"{type(exc).__name__}: {exc}"
            ) from exc
    torch.set_num_threads(1)
    kind = descriptor.torch_type
    torch_device = torch.device("cpu") if kind == "cpu" else torch.device(kind, 0)
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
    preflight(device)
    return device


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
