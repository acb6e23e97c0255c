"""Finds the descriptors of devices: in the built-in folders, through entry points, and in a file that the user
names."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

from devices.descriptor import Descriptor, DescriptorError
from devices.errors import ConformError, listing, suggestion

GROUP: Final = "torch_conformance.devices"
"""The entry-point group in which other packages register their descriptors."""

_BUILT_IN: Final = Path(__file__).resolve().parent
_NAME: Final = "DESCRIPTOR"


class UnknownDevice(ConformError):
    """The error for a device name that no descriptor has. The text of the error lists the existing names."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The devices that were found: ``devices`` has the descriptors by name, ``broken`` the error for each device
    whose descriptor could not be loaded, by the name of the device."""

    devices: Mapping[str, Descriptor]
    broken: Mapping[str, DescriptorError]

    def get(self, name: str) -> Descriptor:
        """Returns the device with the given name. Raises UnknownDevice, or DescriptorError if its descriptor could not
        be loaded."""
        if name in self.devices:
            return self.devices[name]
        if name in self.broken:
            raise self.broken[name]
        known = [*self.devices, *self.broken]
        raise UnknownDevice(
            f"there is no device '{name}'{suggestion(name, known)} (known: {listing(known)});"
            " for your own descriptor give --descriptor PATH"
        )

    def default(self, accelerator: str | None) -> Descriptor:
        """Returns the device to use if the user names none.

        ``accelerator`` is the torch type of the machine's accelerator, or None. If several descriptors have this type
        (CUDA and ROCm are both "cuda"), the first that can be used on the current machine is chosen. If no descriptor
        has this type, the device that declares itself the ``default`` is chosen; if no device does, a device of torch
        type "cpu". Raises UnknownDevice if there is no such device either.
        """
        known = self.devices.values()
        fitting = [each for each in known if each.torch_type == accelerator != "cpu"]
        candidates = chain(
            (each for each in fitting if each.unavailable() is None),
            fitting,  # if none can be used, the first one's unavailable() says why
            (each for each in known if each.default),
            (each for each in known if each.torch_type == "cpu"),
        )
        return next(candidates, None) or self.get("cpu")


def discover(
    folder: Path = _BUILT_IN, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None
) -> Registry:
    """Loads the built-in devices and the devices of all entry points. A device that cannot be loaded does not affect
    the other devices."""
    devices: dict[str, Descriptor] = {}
    broken: dict[str, DescriptorError] = {}
    for path in folder.glob("*/descriptor.py"):
        name = path.parent.name
        try:
            devices[name] = _from_folder(path, folder)
        except DescriptorError as error:
            broken[name] = error
    if entry_points is None:
        entry_points = importlib.metadata.entry_points(group=GROUP)
    for entry in sorted(entry_points, key=lambda each: (each.name, each.value)):
        try:
            device = _from_entry_point(entry)
            if device.name in devices:
                raise DescriptorError(
                    f"{_source(entry)} provides a device named '{device.name}', which already exists in"
                    f" {devices[device.name].folder}: rename the device, or use it with --descriptor PATH"
                )
            devices[device.name] = device
        except DescriptorError as error:
            broken[entry.name] = error
    return Registry(
        MappingProxyType(dict(sorted(devices.items()))),
        MappingProxyType(dict(sorted(broken.items()))),
    )


@cache
def installed() -> Registry:
    """Returns the registry of installed devices, which is created once per process."""
    return discover()


def get(name: str) -> Descriptor:
    """Returns the installed device with the given name. Raises UnknownDevice, or DescriptorError if its descriptor
    could not be loaded."""
    return installed().get(name)


def find(name: str, path: str | Path | None) -> Descriptor:
    """Returns the device that the file ``path`` describes; without a path, the installed device of that name. Raises
    UnknownDevice and DescriptorError."""
    return load_file(Path(path)) if path else get(name)


def load_file(path: Path) -> Descriptor:
    """Loads a descriptor.py, given by its own path or by its folder. Raises DescriptorError."""
    path = Path(path).absolute()
    file = path / "descriptor.py" if path.is_dir() else path
    if not file.is_file():
        raise DescriptorError(f"{file}: no such file: give a descriptor.py, or a folder with one")
    name = f"_torch_conformance_descriptor_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise DescriptorError(f"{file}: not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # needed because dataclasses look up their module there
    with _loading(str(file)):
        spec.loader.exec_module(module)
    return _with_folder(_descriptor_in(module, str(file)), file.parent)


def _from_folder(path: Path, folder: Path) -> Descriptor:
    """Loads the descriptor in a folder, which must have the name of the device. A built-in device is imported as part
    of its package."""
    name = path.parent.name
    if folder == _BUILT_IN:
        with _loading(str(path)):
            module = importlib.import_module(f"{__package__}.{name}.descriptor")
        device = _with_folder(_descriptor_in(module, str(path)), path.parent)
    else:
        device = load_file(path)
    if device.name != name:
        raise DescriptorError(
            f"{path}: the descriptor is named '{device.name}' and its folder '{name}': give both the same name"
        )
    return device


def _from_entry_point(entry: importlib.metadata.EntryPoint) -> Descriptor:
    with _loading(_source(entry)):
        found = entry.load()
    if isinstance(found, ModuleType):
        found = _descriptor_in(found, _source(entry))
    if not isinstance(found, Descriptor):
        raise DescriptorError(
            f"{_source(entry)} provides {found!r}: expected a Descriptor, or a module that has one as {_NAME}"
        )
    file = getattr(sys.modules.get(entry.module), "__file__", None)
    return _with_folder(found, Path(file).resolve().parent) if file else found


def _descriptor_in(module: ModuleType, source: str) -> Descriptor:
    if not hasattr(module, _NAME):
        raise DescriptorError(f"{source}: there is no {_NAME}: add {_NAME} = Descriptor(...)")
    found = getattr(module, _NAME)
    if not isinstance(found, Descriptor):
        raise DescriptorError(f"{source}: {_NAME} must be a Descriptor, got {found!r}")
    return found


def _with_folder(device: Descriptor, folder: Path) -> Descriptor:
    """Returns a copy of a descriptor. If it has no folder, the folder is set to ``folder``. If it has no manifest, the
    manifest is set to the file ``expected.toml`` in the folder, if that file exists."""
    folder = device.folder or folder
    manifest = folder / "expected.toml"
    expectations = device.expectations or (manifest if manifest.is_file() else None)
    return replace(device, folder=folder, expectations=expectations)


def _source(entry: importlib.metadata.EntryPoint) -> str:
    of = f" of {entry.dist.name}" if entry.dist else ""
    return f"entry point '{entry.name}'{of} ({entry.value})"


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """Replaces every exception in the context by a DescriptorError with a text of one line. The line contains the type
    of the exception, unless the exception's text was written for users."""
    try:
        yield
    except (Exception, SystemExit) as error:
        what = f"loading the descriptor raised {type(error).__name__}: {error}"
        if isinstance(error, ConformError):
            what = str(error)
        elif isinstance(error, SyntaxError):
            what = f"line {error.lineno}: not valid Python: {error.msg}"
        raise DescriptorError(f"{source}: {what}") from error
