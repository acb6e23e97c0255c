"""Packs a run into one file that a third party can check, and checks such files.

A bundle is a zip file. It has the record and the JUnit files of a run, the manifest by which the run was judged, the
expected failures with their reasons (waivers), the environment, the plan, the repro scripts, and an index with the
SHA-256 of every file. The checks need neither torch nor the device: everything that is derived from the record is made
again, and every verdict is derived again from the manifest. Checksums find damage and careless edits; they do not prove
who made a bundle. The SHA-256 of the whole bundle can be published or signed for that.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import ParseError, canonicalize

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from devices.errors import ConformError
from devices.files import explained, read_regular, stays_inside
from devices.lifecycle.evidence import judge_observation
from devices.manifest import ExpectedOutcome, Manifest
from devices.verdicts import Matcher
from reports.failures import JSON_FILE, MARKDOWN_FILE
from reports.folder import CALLS_FILE, MANIFEST_FILE, RECORD_FILE
from reports.gate import gate, number
from reports.model import Run, RunError, evidence_of, problem_with
from reports.run import junit_files, load_run, repro_script
from reports.summary import verdict_line

FORMAT: Final = 1
INDEX_FILE: Final = "bundle.json"
ENVIRONMENT_FILE: Final = "environment.json"
PLAN_FILE: Final = "plan.json"
WAIVERS_FILE: Final = "waivers.json"
#: The end of the name of a bundle, by which bundles are found in a folder.
SUFFIX: Final = ".conform.zip"

_DERIVED: Final = (ENVIRONMENT_FILE, PLAN_FILE, WAIVERS_FILE)
#: What is accepted from a bundle of a stranger, in files and bytes.
_MOST_FILES: Final = 200_000
_MOST_BYTES: Final = 2 << 30
_SHOWN: Final = 5


class BundleError(RunError):
    """The error for a file that is not a bundle or cannot be used. The text of the error names the file."""


class _File(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class BundleIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The file ``bundle.json``: which run the bundle has, and the checksum of every other file. ``suite`` and ``commit``
    are the version of the suite that made the run and the state of its source tree, ``packed_by`` is the version that
    made the bundle."""

    format: int
    suite: str
    commit: str
    packed_by: str
    device: str
    plan: str
    torch: str
    verdict: str
    files: dict[str, _File]


class Waiver(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A block of the manifest that excuses failures: its reason, and the cells of the run that fail as it says."""

    reason: str
    outcome: str
    kind: str = ""
    issue: str = ""
    expires: str = ""
    cells: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking a bundle: its run and index, the sentences about what is wrong, remarks, and the SHA-256 of
    the file."""

    run: Run
    index: BundleIndex
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    sha256: str


# -- making


def make_bundle(run: Run, writer: str) -> bytes:
    """Returns the bundle of a run, whose folder has the files of the run. ``writer`` is the version of the suite that
    packs it. Raises BundleError if the files of the folder do not belong to the record."""
    names = [RECORD_FILE, *sorted(path.name for path in run.folder.glob("junit-*.xml"))]
    names += [MANIFEST_FILE, JSON_FILE, MARKDOWN_FILE, CALLS_FILE]
    content: dict[str, bytes] = {}
    for name in names:
        path = run.folder / name
        if path.is_file():
            with explained(BundleError, path, "cannot be read"):
                content[name] = read_regular(path, _MOST_BYTES)
    for result in run.results.values():
        script = repro_script(run.folder, result) if result.repro else None
        if script is not None and result.repro is not None:
            content[Path(result.repro).as_posix()] = script.read_bytes()
    manifest = content.get(MANIFEST_FILE, b"")
    content |= _derived(run, manifest)
    problems, _ = _check_content(run, content, writer)
    if problems:
        raise BundleError(f"{run.folder}: the folder is not as the run wrote it: {problems[0]}")
    origin = run.provenance
    index = BundleIndex(
        format=FORMAT,
        suite=origin.suite_version,
        commit=origin.suite_commit,
        packed_by=writer,
        device=origin.device,
        plan=origin.plan,
        torch=origin.torch,
        verdict=verdict_line(gate(run)),
        files={name: _File(_sha256(raw), len(raw)) for name, raw in sorted(content.items())},
    )
    return _zipped({INDEX_FILE: _as_json(index), **content})


def _zipped(content: Mapping[str, bytes]) -> bytes:
    """Returns a zip file. Equal contents give equal bytes: names are sorted, and times are left out."""
    with tempfile.TemporaryFile() as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            for name in sorted(content, key=lambda each: (each != INDEX_FILE, each)):
                info = zipfile.ZipInfo(name)  # of 1980
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, content[name])
        stream.seek(0)
        return stream.read()


def _derived(run: Run, manifest: bytes) -> dict[str, bytes]:
    """Returns the files of a bundle that are made from the record and the manifest."""
    environment = {"provenance": asdict(run.provenance), "facts": run.plan.facts}
    plan = {
        "document": msgspec.structs.replace(run.plan, cells=[], selected=None),
        "cells": len(run.parsed.cells),
        "selected": len(run.parsed.selected),
    }
    return {
        ENVIRONMENT_FILE: _as_json(environment),
        PLAN_FILE: _as_json(plan),
        WAIVERS_FILE: _as_json(waivers(run, manifest)),
    }


def waivers(run: Run, manifest: bytes) -> list[Waiver]:
    """Returns the blocks of a manifest that apply to a run, each with the cells that it excuses, in the order of the
    manifest. Blocks that excuse nothing are left out."""
    active = _active(run, manifest)
    matcher = Matcher(active)
    cells: dict[int, list[str]] = {}
    for key, result in run.results.items():
        if result.verdict in (Verdict.EXPECTED, Verdict.FLAKY):
            expectation = matcher.match(key).expectation
            for part in expectation.parts if expectation is not None else ():
                for block in part.deciding:
                    cells.setdefault(block.line, []).append(str(key))
    return [
        Waiver(
            reason=block.reason,
            outcome=block.outcome.value,
            kind=block.kind.value if block.kind is not None else "",
            issue=block.issue or "",
            expires=block.expires.isoformat() if block.expires is not None else "",
            cells=tuple(cells[block.line]),
        )
        for block in active.blocks
        if block.line in cells
    ]


def _active(run: Run, manifest: bytes) -> Manifest:
    facts = {name: str(value) for name, value in run.plan.facts.items() if value is not None}
    try:
        return Manifest.parse(manifest.decode("utf-8-sig")).active(facts)
    except UnicodeDecodeError:
        raise BundleError(f"{MANIFEST_FILE}: the manifest is not UTF-8") from None


def _as_json(document: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=1) + b"\n"


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


# -- checking


def check_bundle(path: Path, reader: str) -> Checked:
    """Checks a bundle and returns what was found. ``reader`` is the version of the suite that checks it. Raises
    BundleError if the file is no bundle, or so damaged that it has no readable run."""
    with unpacked(path) as (folder, index, problems):
        run = load_run(folder)
        content = {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        found, notes = _check_content(run, content, reader)
        stated = (index.suite, index.commit, index.device, index.plan, index.torch)
        origin = run.provenance
        suite = (origin.suite_version, origin.suite_commit)
        if stated != (*suite, origin.device, origin.plan, origin.torch):
            found.append(f"{INDEX_FILE} states another run than the record: {', '.join(stated)}")
        if index.verdict != verdict_line(gate(run)) and index.packed_by == reader:
            found.append(
                f"{INDEX_FILE} states the verdict '{index.verdict}', which is not that of the run"
            )
    return Checked(
        run, index, (*problems, *found), tuple(notes), _sha256(read_regular(path, _MOST_BYTES))
    )


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[Path, BundleIndex, list[str]]]:
    """Unpacks a bundle into a temporary folder. Provides the folder, the index, and the sentences about files that are
    not as the index says. Raises BundleError if the file is no bundle."""
    with tempfile.TemporaryDirectory(prefix="conform-bundle-") as temporary:
        # Messages about the run name its folder.
        folder = Path(temporary) / (path.name.removesuffix(SUFFIX) or "bundle")
        folder.mkdir()
        try:
            with explained(BundleError, path, "cannot be read"):
                raw = io.BytesIO(read_regular(path, _MOST_BYTES))
                with zipfile.ZipFile(raw) as archive:
                    index, problems = _unpack(archive, folder, path)
        except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError) as error:
            raise BundleError(
                f"{path}: expected a bundle, found a file that is no zip file or is damaged: {error}"
            ) from None
        except (RuntimeError, ValueError, zlib.error) as error:
            raise BundleError(f"{path}: the bundle is damaged: {error}") from None
        yield folder, index, problems


def _unpack(archive: zipfile.ZipFile, folder: Path, path: Path) -> tuple[BundleIndex, list[str]]:
    members = archive.infolist()
    names = [member.filename for member in members]
    if INDEX_FILE not in names:
        raise BundleError(f"{path}: expected a bundle; the zip file has no {INDEX_FILE}")
    if len(members) > _MOST_FILES or sum(member.file_size for member in members) > _MOST_BYTES:
        raise BundleError(
            f"{path}: the bundle has {len(members):,} files; expected at most {_MOST_FILES:,} files and "
            f"{_MOST_BYTES >> 30} GiB"
        )
    for name in names:
        if not stays_inside(name) or name.endswith("/"):
            raise BundleError(f"{path}: the bundle has a file outside of its folder ({name!r})")
    if len(set(map(str.casefold, names))) != len(names):
        raise BundleError(f"{path}: the bundle has a file twice")
    try:
        index = msgspec.json.decode(archive.read(INDEX_FILE), type=BundleIndex)
    except msgspec.DecodeError as error:
        raise BundleError(f"{path}: {INDEX_FILE}: {error}") from None
    if index.format != FORMAT:
        raise BundleError(
            f"{path}: expected a bundle of format {FORMAT}, found {index.format}: "
            f"{'update torch-conformance' if index.format > FORMAT else 'make the bundle again'}"
        )
    problems = [f"{name} is missing" for name in index.files if name not in names]
    for name in names:
        if name == INDEX_FILE:
            continue
        raw = archive.read(name)
        if name not in index.files:
            problems.append(f"{name} is not in the index: it was added later")
        elif (_sha256(raw), len(raw)) != (index.files[name].sha256, index.files[name].size):
            problems.append(f"{name} was changed: its SHA-256 differs from the index")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(raw)
    if RECORD_FILE not in names:
        raise BundleError(f"{path}: the bundle has no {RECORD_FILE}")
    return index, problems


def _check_content(
    run: Run, content: Mapping[str, bytes], reader: str
) -> tuple[list[str], list[str]]:
    """Returns sentences about what contradicts the record, and remarks about what could not be checked."""
    problems: list[str] = []
    notes: list[str] = []
    manifest = content.get(MANIFEST_FILE, b"")
    hashed = hashlib.blake2b(manifest, digest_size=8).hexdigest() if manifest else ""
    stated = run.provenance.manifest_hash
    if hashed != stated and not (not manifest and stated in ("", "none")):
        what = "another manifest than" if manifest else "no manifest, but"
        problems.append(
            f"{MANIFEST_FILE}: the bundle has {what} the one by which the run was judged"
        )
    else:
        problems += _wrong_verdicts(run, manifest)
    for name, raw in _derived(run, manifest).items() if not problems else ():
        if content.get(name) != raw:
            problems.append(f"{name} does not follow from the record and the manifest")
    if run.provenance.suite_version == reader:
        for name, raw in junit_files(run).items():
            if not _same_xml(content.get(name, b""), raw):
                problems.append(f"{name} does not follow from the record")
    else:
        notes.append(
            f"the JUnit files were not compared with the record: version {run.provenance.suite_version} of the suite "
            f"wrote them, and this is {reader}"
        )
    scripts = {result.repro for result in run.results.values() if result.repro}
    if absent := [name for name in scripts if Path(name).as_posix() not in content]:
        notes.append(
            f"{number(len(absent), 'repro script is', 'repro scripts are')} not in the bundle"
        )
    return problems, notes


def _same_xml(one: bytes, other: bytes) -> bool:
    """Returns True if two XML files say the same. Two parsers may write it in different ways."""
    if one == other:
        return True
    try:
        return canonicalize(one.decode()) == canonicalize(other.decode())
    except (ParseError, ValueError):
        return False


def _wrong_verdicts(run: Run, manifest: bytes) -> list[str]:
    """Returns a sentence about the cells whose verdict does not follow from the manifest, if there are any. Verdicts on
    flaky cells, which follow from several runs, are not derived again."""
    try:
        matcher = Matcher(_active(run, manifest))
    except ConformError as error:
        return [f"{MANIFEST_FILE}: {error}"]
    today = date.fromisoformat(run.provenance.start[:10])
    seen = evidence_of(run, "")
    wrong: list[CellKey] = []
    for key, result in run.results.items():
        if result.outcome is Outcome.NOT_RUN or problem_with(result) is not None:
            continue
        expectation = matcher.match(key).expectation
        if expectation is None and result.outcome is Outcome.PASS and result.verdict is Verdict.OK:
            continue  # most cells
        if expectation is not None and expectation.outcome is ExpectedOutcome.FLAKY:
            continue
        if judge_observation(expectation, seen.cells[key], today).verdict is not result.verdict:
            wrong.append(key)
    if not wrong:
        return []
    has = "has a verdict that does" if len(wrong) == 1 else "have verdicts that do"
    return [
        f"{number(len(wrong), 'cell')} {has} not follow from the manifest; the first is {wrong[0]} "
        f"({run.results[wrong[0]].verdict})"
    ]


# -- as runs


@contextmanager
def as_folders(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Provides the given paths with each bundle among them replaced by a temporary folder that has its run. Bundles are
    also found in folders, up to two levels deep. Raises BundleError if a bundle was changed."""
    with ExitStack() as stack:
        folders: list[Path] = []
        for path in paths:
            inside = _bundles_in(path) if path.is_dir() else []
            for bundle in inside or ([path] if is_bundle(path) else []):
                folder, _, problems = stack.enter_context(unpacked(bundle))
                if problems:
                    raise BundleError(
                        f"{bundle}: {problems[0]} (see `conform bundle verify {bundle}`)"
                    )
                folders.append(folder)
            if not is_bundle(path) and (not inside or _has_runs(path)):
                folders.append(path)
        yield folders


def is_bundle(path: Path) -> bool:
    """Returns True if a path is that of a bundle: a regular file that is a zip file."""
    return path.is_file() and zipfile.is_zipfile(path)


def _bundles_in(folder: Path) -> list[Path]:
    if (folder / RECORD_FILE).is_file():
        return []
    found: Iterable[Path] = (
        each for deep in ("*", "*/*") for each in folder.glob(f"{deep}{SUFFIX}")
    )
    return sorted(each for each in found if is_bundle(each))


def _has_runs(folder: Path) -> bool:
    return any(any(folder.glob(f"{deep}/{RECORD_FILE}")) for deep in ("*", "*/*"))


def checked_as_data(found: Checked) -> dict[str, Any]:
    """Returns the result of a check for programs."""
    return {
        "sha256": found.sha256,
        "problems": list(found.problems),
        "notes": list(found.notes),
        "index": json.loads(msgspec.json.encode(found.index)),
    }
