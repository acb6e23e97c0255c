"""What can be wrong with a command line, found before torch is imported, and where its results go."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from conformance.contract import Contract, load
from conformance.contract.levels import levels
from conformance.plan.options import Request, matching
from conformance.plan.selection import Shard, find_descriptor
from devices import registry
from devices.descriptor import DTYPES, Descriptor
from devices.errors import ConformError
from devices.files import cache_root, write_whole
from devices.manifest import Manifest
from devices.pinned import read_pinned
from opinfo.layouts import covering_set
from opinfo.plan import plan_spec
from reports.run import times_of

#: The folder of results, in the current folder.
_RESULTS: Final = Path("conform-results")


def check(request: Request) -> Descriptor | None:
    """Raises ConformError if an option has a wrong value. Returns the device, if the command line names it.

    Nothing is imported that takes long. What depends on torch is checked later: operators that only this torch has, and
    whether the device can be used.
    """
    plan_spec(request.plan)
    contract = load()
    if request.clauses is not None:
        contract.select(request.clauses)
    if request.dtypes is not None:
        matching("--dtypes", request.dtypes, DTYPES)
    if request.shard is not None:
        Shard.parse(request.shard)
    elif request.shard_times is not None:
        raise ConformError("--shard-times needs --shard I/N")
    if request.shard_times is not None:
        times_of(request.shard_times)
    descriptor = None
    if request.device is not None or request.descriptor is not None:
        descriptor = find_descriptor(request.device, request.descriptor)
        if request.expectations is not None:
            load_manifest(request, descriptor, contract)
    if request.ops is not None and (names := known_ops()):
        pins = () if descriptor is None else (pin.op for pin in read_pinned(descriptor.folder))
        matching("--ops", request.ops, names.union(pins))
    return descriptor


def meant(argument: str) -> str:
    """What a user may have meant by an argument that is no path, as the end of a sentence."""
    names = known_ops() or frozenset(cell.op for level in levels() for cell in level.cells)
    if argument in names:
        return f"; did you mean --ops {argument}?"
    if argument in registry.installed().devices:
        return f"; did you mean --device {argument}?"
    if argument in load().clauses:
        return f"; did you mean --clauses {argument}?"
    near = get_close_matches(argument, sorted(names), n=1, cutoff=0.7)
    return f"; did you mean --ops {near[0]}?" if near else ""


def known_layouts(descriptor: Descriptor) -> frozenset[str]:
    """Every name that a manifest of this device may use for a layout."""
    return covering_set().ids | {pin.layout for pin in read_pinned(descriptor.folder)}


def load_manifest(
    request: Request, descriptor: Descriptor, contract: Contract
) -> tuple[Manifest, Path | None]:
    """The expected failures that apply, with their file: the one that was given, the device's own, or none. Raises
    ManifestError."""
    path = Path(request.expectations) if request.expectations else descriptor.expectations
    if path is None or request.expectations == "none":
        return Manifest(), None
    known = {"clause": contract.clauses, "layouts": known_layouts(descriptor)}
    return Manifest.load(path, known), path.absolute()


# -- where the results go


def results_folder(request: Request, device: str) -> Path:
    """The results folder of a run. That of a partial run is not that of a whole run, whose results stay."""
    if request.results is not None:
        return request.results
    whole = whole_folder(request, device)
    return whole.with_name(f"{whole.name}-partial") if request.selection else whole


def whole_folder(request: Request, device: str) -> Path:
    """The default folder of the whole run of the same plan, or of the same shard of it."""
    shard = f"-shard-{request.shard.replace('/', '-of-')}" if request.shard else ""
    return _RESULTS / f"{device}-{request.plan}{shard}"


# -- the operators of the torch that is installed
#
# Their names are kept when a plan is made, so that a misspelt one is found before torch is imported.


def known_ops() -> frozenset[str]:
    """The operators of torch's database, from an earlier plan with this torch; empty if there was none."""
    try:
        kept = msgspec.json.decode(_kept_ops().read_bytes(), type=list[str])
    except (OSError, msgspec.DecodeError, metadata.PackageNotFoundError):
        return frozenset()
    return frozenset(kept).union(cell.op for level in levels() for cell in level.cells)


def keep_ops(names: Iterable[str]) -> None:
    """Keep the operators' names. If the folder cannot be written, a misspelt name is only found later."""
    try:
        if not (path := _kept_ops()).exists():
            write_whole(path, msgspec.json.encode(sorted(names)))
    except (OSError, metadata.PackageNotFoundError):
        return


def _kept_ops() -> Path:
    """The file of the names. Raises PackageNotFoundError where torch is no installed distribution."""
    return cache_root() / "ops" / f"torch-{metadata.version('torch')}.json"
