"""Checks a command line before torch is imported, and determines the results folder of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from conformance.contract import Contract, load
from conformance.contract.levels import listed_units
from conformance.plan.options import Request, matching
from conformance.plan.selection import Shard, find_descriptor
from conformance.recordings.formats import check_format
from devices import registry
from devices.descriptor import DTYPES, Descriptor
from devices.errors import ConformError
from devices.files import cache_root, file_name, write_whole
from devices.manifest import Manifest
from devices.pinned import read_pinned
from opinfo.layouts import covering_set
from opinfo.plan import plan_spec
from reports.run import times_of

#: The folder of results, in the current folder.
_RESULTS: Final = Path("conform-results")
#: The files with the ops that torch's database lacks.
_OWN_CALLS: Final = sorted((Path(__file__).parents[2] / "opinfo").glob("overload*.py"))


def check(request: Request) -> Descriptor | None:
    """Raises ConformError if an option has a wrong value. Returns the descriptor of the device if the command line
    names a device, otherwise None.

    The function imports no module whose import is slow. Checks that need torch, such as the check that the device can
    be used, are made later.
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
    if request.recording is not None:
        check_format(request.recording, request.recording_format)
    elif request.ops is not None and (names := known_ops()):
        pins = () if descriptor is None else (pin.op for pin in read_pinned(descriptor.folder))
        matching("--ops", request.ops, names.union(pins))
    return descriptor


def meant(argument: str) -> str:
    """Returns a question about the option that the user may have meant by an argument that is not a path, such as ";
    did you mean --ops add?"; an empty text if no name is similar."""
    names = known_ops() or listed_units()
    if argument in names:
        return f"; did you mean --ops {argument}?"
    if argument in registry.installed().devices:
        return f"; did you mean --device {argument}?"
    if argument in load().clauses:
        return f"; did you mean --clauses {argument}?"
    near = get_close_matches(argument, sorted(names), n=1, cutoff=0.7)
    return f"; did you mean --ops {near[0]}?" if near else ""


def known_layouts(descriptor: Descriptor) -> frozenset[str]:
    """Returns the names of the layouts that a manifest of the device may use."""
    return covering_set().ids | {pin.layout for pin in read_pinned(descriptor.folder)}


def load_manifest(
    request: Request, descriptor: Descriptor, contract: Contract
) -> tuple[Manifest, Path | None]:
    """Returns the manifest, which lists the expected failures, and its path. The manifest is the file that the command
    line names, otherwise the device's own file. If there is neither, or with ``--expectations none``, returns an empty
    manifest without a path. Raises ManifestError."""
    own = descriptor.expectations
    if request.recording is not None:
        own = replay_manifest(descriptor)
        own = own if own is not None and own.is_file() else None
    path = Path(request.expectations) if request.expectations else own
    if path is None or request.expectations == "none":
        return Manifest(), None
    known = {"clause": contract.clauses, "layouts": known_layouts(descriptor)}
    return Manifest.load(path, known), path.absolute()


def replay_manifest(descriptor: Descriptor) -> Path | None:
    """Returns the path of the manifest of a device for replayed recordings, which need not exist; None if the device has
    no folder. The cells of a recording are named by its calls, so the manifest of the plans has no blocks for them."""
    return descriptor.folder / "replay.toml" if descriptor.folder is not None else None


# -- where the results go


def results_folder(request: Request, device: str) -> Path:
    """Returns the results folder of a run. By default a partial run and a whole run have different folders, so that
    the results of the whole run are kept."""
    if request.results is not None:
        return request.results
    whole = whole_folder(request, device)
    return whole.with_name(f"{whole.name}-partial") if request.selection else whole


def whole_folder(request: Request, device: str) -> Path:
    """Returns the default results folder for a whole run of the plan, or of the shard, that the command line names."""
    shard = f"-shard-{request.shard.replace('/', '-of-')}" if request.shard else ""
    played = f"-{file_name(request.recording.stem)}" if request.recording is not None else ""
    return _RESULTS / f"{device}-{request.plan}{played}{shard}"


# -- the operators of the torch that is installed
#
# Their names are kept when a plan is made, so that a misspelt one is found before torch is imported.


def known_ops() -> frozenset[str]:
    """Returns the names of the ops in torch's op database, as stored by an earlier run with the same torch; an empty
    set if nothing is stored."""
    try:
        kept = msgspec.json.decode(_kept_ops().read_bytes(), type=list[str])
    except (OSError, msgspec.DecodeError, metadata.PackageNotFoundError):
        return frozenset()
    return listed_units().union(kept)


def keep_ops(names: Iterable[str]) -> None:
    """Stores the names of the ops in the cache folder. Errors are ignored: without the file, a misspelt name is still
    found, but later."""
    try:
        if not (path := _kept_ops()).exists():
            write_whole(path, msgspec.json.encode(sorted(names)))
    except (OSError, metadata.PackageNotFoundError):
        return


def _kept_ops() -> Path:
    """Returns the path of the file with the names of the ops. Raises PackageNotFoundError if torch is not an installed
    distribution."""
    own = hashlib.blake2b(b"".join(each.read_bytes() for each in _OWN_CALLS), digest_size=4)
    return cache_root() / "ops" / f"torch-{metadata.version('torch')}-{own.hexdigest()}.json"
