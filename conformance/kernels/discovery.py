"""The process that imports a module to find the aten ops that it overrides."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from conformance.kernels.calls_file import REQUEST, VERDICT, write
from conformance.kernels.forms.overrides import overrides_captured
from conformance.kernels.request import Request
from devices.registry import find
from opinfo.device import open_device
from opinfo.torch_private import key_of


class Found(msgspec.Struct, frozen=True):
    """The overloads that a module overrides for the device, or the error if the module could not be imported."""

    targets: tuple[str, ...] = ()
    error: str = ""


def main(folder: str) -> None:
    """Imports the module that the request in a folder names, and writes the ops that the module overrides to a file in
    this folder."""
    path = Path(folder)
    tempfile.tempdir = folder  # removed afterwards
    request = msgspec.json.decode((path / REQUEST).read_bytes(), type=Request)
    device = open_device(find(request.device, request.descriptor))
    try:
        with overrides_captured() as captured:
            request.kernel.load_module()
    except BaseException as error:  # a module may raise anything
        write(path / VERDICT, Found(error=f"{type(error).__name__}: {error}"))
        return
    key = key_of(device.torch_device.type)
    ops = dict.fromkeys(each.op for each in captured if each.key == key)
    write(path / VERDICT, Found(tuple(f"aten::{op}" for op in ops)))
