"""Where descriptors come from: built-in folders, entry points, and a path that the user gives."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

from devices._text import listing, suggestion
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.vocabulary import DescriptorError

GROUP: Final = "torch_conformance.devices"
"""The entry-point group in which other packages offer their descriptors."""

_BUILT_IN: Final = Path(__file__).resolve().parent
_VARIABLE: Final = "DESCRIPTOR"


class UnknownDevice(ConformError):
    """No descriptor has this name. The text names those that there are."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The devices by name, and what could not be loaded, by the name that it would have had."""

    devices: Mapping[str, Descriptor]
    broken: Mapping[str, DescriptorError]

    def get(self, name: str) -> Descriptor:
        """The device of a name. Raises UnknownDevice, or DescriptorError where it is broken."""
        found = self.devices.get(name)
        if found is not None:
            return found
        if name in self.broken:
            raise self.broken[name]
        known = [*self.devices, *self.broken]
        raise UnknownDevice(
            f"there is no device '{name}'{suggestion(name, known)} (known: {listing(known)});"
            " for a descriptor of your own give --descriptor PATH"
        )

    def default(self, accelerator: str | None) -> Descriptor:
        """The device to take where none is named.

        ``accelerator`` is the torch type of the machine's accelerator, None without one. Of several
        descriptors for it (CUDA and ROCm are both "cuda") one that is usable here is taken, and
        one of that very name before others. Without a descriptor for it: `simulated`, else `cpu`.
        """
        if accelerator not in (None, "cpu"):
            fitting = [each for each in self.devices.values() if each.torch_type == accelerator]
            fitting.sort(key=lambda each: (each.name != accelerator, each.name))
            for device in fitting:
                if device.unavailable() is None:
                    return device
            if fitting:
                return fitting[0]  # its unavailable() tells the user why not
        return self.devices["simulated"] if "simulated" in self.devices else self.get("cpu")


def discover(
    folder: Path = _BUILT_IN, entry_points: Iterable[importlib.metadata.EntryPoint] | None = None
) -> Registry:
    """Load every built-in device and every entry point; what is broken does not hide the others."""
    devices: dict[str, Descriptor] = {}
    broken: dict[str, DescriptorError] = {}
    for path in sorted(folder.glob("*/descriptor.py")):
        name = path.parent.name
        try:
            built_in = _from_folder(path, folder)
            if built_in.name != name:
                raise DescriptorError(
                    f"{path}: the descriptor is named '{built_in.name}' and its folder '{name}':"
                    " give both the same name"
                )
            devices[name] = built_in
        except DescriptorError as error:
            broken[name] = error
    if entry_points is None:
        entry_points = importlib.metadata.entry_points(group=GROUP)
    for entry in sorted(entry_points, key=lambda each: (each.name, each.value)):
        try:
            device = _from_entry_point(entry)
            if device.name in devices:
                raise DescriptorError(
                    f"{_source(entry)} gives a device named '{device.name}', and there is one from"
                    f" {devices[device.name].folder}: rename it, or use it by --descriptor PATH"
                )
            devices[device.name] = device
        except DescriptorError as error:
            broken[entry.name] = error
    return Registry(
        MappingProxyType(dict(sorted(devices.items()))),
        MappingProxyType(dict(sorted(broken.items()))),
    )


@cache
def registry() -> Registry:
    """What is installed, looked up once per process."""
    return discover()


def all_devices() -> Mapping[str, Descriptor]:
    """Every device that can be loaded, by name."""
    return registry().devices


def problems() -> tuple[DescriptorError, ...]:
    """Why the others cannot be loaded: to be shown to the user beside the devices."""
    return tuple(registry().broken.values())


def get(name: str) -> Descriptor:
    """The device of a name. Raises UnknownDevice, or DescriptorError where it is broken."""
    return registry().get(name)


def default_device(accelerator: str | None) -> Descriptor:
    """The device to take where none is named; see ``Registry.default``."""
    return registry().default(accelerator)


def load_file(path: Path) -> Descriptor:
    """Load a descriptor.py, or the one in a folder. Raises DescriptorError."""
    path = Path(path).absolute()
    file = path / "descriptor.py" if path.is_dir() else path
    if not file.is_file():
        raise DescriptorError(
            f"{file}: no such file: give a descriptor.py, or a folder that holds one"
        )
    name = f"_torch_conformance_descriptor_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise DescriptorError(f"{file}: not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in it look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise DescriptorError(f"{file}: {_cause(error)}") from error
    return _placed(_descriptor_in(module, str(file)), file.parent)


def _from_folder(path: Path, folder: Path) -> Descriptor:
    """A built-in device, imported as part of its package."""
    if folder != _BUILT_IN:
        return load_file(path)
    name = f"{__package__}.{path.parent.name}.descriptor"
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise DescriptorError(f"{path}: {_cause(error)}") from error
    return _placed(_descriptor_in(module, str(path)), path.parent)


def _from_entry_point(entry: importlib.metadata.EntryPoint) -> Descriptor:
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:
        raise DescriptorError(f"{_source(entry)}: {_cause(error)}") from error
    if not isinstance(found, Descriptor):
        if not isinstance(found, ModuleType):
            raise DescriptorError(
                f"{_source(entry)} gives {found!r}: expected a Descriptor, or a module that holds"
                f" one as {_VARIABLE}"
            )
        found = _descriptor_in(found, _source(entry))
    file = getattr(sys.modules.get(entry.module), "__file__", None)
    return _placed(found, Path(file).resolve().parent) if file else found


def _descriptor_in(module: ModuleType, source: str) -> Descriptor:
    missing = object()
    found = getattr(module, _VARIABLE, missing)
    if found is missing:
        raise DescriptorError(f"{source}: it has no {_VARIABLE}: add {_VARIABLE} = Descriptor(...)")
    if not isinstance(found, Descriptor):
        raise DescriptorError(f"{source}: {_VARIABLE} must be a Descriptor, got {found!r}")
    return found


def _placed(device: Descriptor, folder: Path) -> Descriptor:
    """The descriptor with its folder and manifest, where it does not name others itself."""
    folder = device.folder or folder
    manifest = folder / "expected.toml"
    expectations = device.expectations or (manifest if manifest.is_file() else None)
    return replace(device, folder=folder, expectations=expectations)


def _source(entry: importlib.metadata.EntryPoint) -> str:
    of = f" of {entry.dist.name}" if entry.dist else ""
    return f"entry point '{entry.name}'{of} ({entry.value})"


def _cause(error: BaseException) -> str:
    """What went wrong, in one line: the type is left out where the text is written for people."""
    if isinstance(error, DescriptorError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: not Python that can be read: {error.msg}"
    return f"loading it raised {type(error).__name__}: {error}"
