"""Writes and reads the folder of a run: the record, and the files that are made from the record.

The record (``run.conform``) is one line of text and a msgpack body. The line has the version number of the format, the
suite version that wrote the record, and the SHA-256 of the body. The body has the plan, the provenance and the results.
The record is written last, so a folder without a record is not a complete run. If a record cannot be used, RunError
(exit 4) is raised, whose text names the file. If a run can be read but has cells without an outcome, no error is raised
here; the gate reports such a run.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
from junitparser import TestSuite

from devices.cell import CellKey, OtherChecks
from devices.failure import Failure
from devices.files import MOST_RECORD, explained, read_regular
from reports.advice import sentences
from reports.causes import causes_of, unexpected
from reports.folder import MANIFEST_FILE, RECORD_FILE, without_end
from reports.junit import clean, junit_file, junit_of, seconds_in, suites_as_xml
from reports.model import (
    CellResult,
    Folded,
    Plan,
    PlanDocument,
    Provenance,
    Run,
    RunError,
    check_provenance,
    checked_plan,
    write_file,
)

__all__ = [
    "MANIFEST_FILE",
    "RECORD_FILE",
    "CellResult",
    "Provenance",
    "Run",
    "RunError",
    "load_run",
    "write_run",
]

FORMAT: Final = 1
_MAGIC: Final = b"torch-conformance-run "
_HEADER: Final = re.compile(_MAGIC + rb"(\d{1,9}) (\S{1,80})(?: ([0-9a-f]{64})\n)?")
_REDACTED: Final = "[redacted]"


# -- the record


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """The body of the record file.

    ``plan`` is the encoded plan without the parts that differ from shard to shard (``facts`` and ``selected``), so that
    ``plan`` has the same bytes in all shards. The provenance says whether the plan is partial. ``cells`` has the
    positions of the cells that have a result; it is empty if all cells have one.

    The results are stored by field: the distinct values of the field, and for each cell the position of its value. The
    positions are left out if all values are distinct. A field is left out if all results have its default value.
    """

    plan: bytes
    facts: dict[str, str | int | float | bool | None]
    selected: Folded | None
    provenance: Provenance
    count: int
    cells: bytes
    fields: dict[str, tuple[msgspec.Raw, bytes]]


_FIELDS: Final = msgspec.structs.fields(CellResult)[1:]  # all but the key
_DECODERS: Final[dict[str, msgspec.msgpack.Decoder[list[Any]]]] = {
    name: msgspec.msgpack.Decoder(list.__class_getitem__(kind))
    for name, kind in get_type_hints(CellResult).items()
}
_encode: Final = msgspec.msgpack.Encoder().encode


def _encoded(plan: Plan, provenance: Provenance, results: Mapping[CellKey, CellResult]) -> bytes:
    """Returns the encoded body of a record. Raises UnicodeEncodeError if a text contains a lone surrogate."""
    document = plan.document
    places = [place for place, cell in enumerate(plan.cells) if cell in results]
    columns = dict(_columns([results[plan.cells[place]] for place in places]))
    shared = _encode(msgspec.structs.replace(document, facts={}, selected=None, partial=False))
    which = b"" if len(places) == len(plan.cells) else _little(array("I", places))
    return _encode(
        _Record(shared, document.facts, document.selected, provenance, len(places), which, columns)
    )


def _columns(results: list[CellResult]) -> Iterator[tuple[str, tuple[msgspec.Raw, bytes]]]:
    for field in _FIELDS:
        given = [getattr(result, field.name) for result in results]
        values = {value: place for place, value in enumerate(dict.fromkeys(given))}
        if not field.required and list(values) == [field.default]:
            continue
        which = array(_width(len(values)))
        if len(values) != len(given):
            which.extend(map(values.__getitem__, given))
        yield field.name, (msgspec.Raw(_encode(list(values))), _little(which))


def _width(values: int) -> str:
    return "B" if values <= 1 << 8 else "H" if values <= 1 << 16 else "I"


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(kind: str, raw: bytes) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


@lru_cache(maxsize=1)  # the shards of a run have the same plan, byte for byte
def _shared_plan(raw: bytes) -> Plan:
    return checked_plan(msgspec.msgpack.decode(raw, type=PlanDocument), "its plan")


def _decoded(body: bytes) -> tuple[Plan, Provenance, dict[CellKey, CellResult]]:
    """Decodes the body of a record. Raises RunError, msgspec.DecodeError or ValueError if the body is malformed."""
    record = msgspec.msgpack.decode(body, type=_Record)
    plan = _shared_plan(record.plan)
    document = msgspec.structs.replace(
        plan.document,
        facts=record.facts,
        selected=record.selected,
        partial=record.provenance.partial,
    )
    plan = checked_plan(document, "its plan", plan)
    cells: Iterable[CellKey] = plan.cells
    if record.cells:
        places = _numbers("I", record.cells)
        if any(one >= other for one, other in pairwise(places)):
            raise ValueError("the cells are out of order")
        if len(places) != record.count or places[-1] >= len(plan.cells):
            raise ValueError("the record has a result for a cell that is not planned")
        cells = [plan.cells[place] for place in places]
    elif record.count not in (0, len(plan.cells)):
        raise ValueError(f"the record has {record.count:,} results for {len(plan.cells):,} cells")
    if unknown := record.fields.keys() - _DECODERS.keys():
        raise ValueError(
            f"the results have the field {min(unknown)!r}, which this version does not know: "
            "the record was written by a newer version"
        )
    columns: dict[
        str, Iterable[Any]
    ] = {}  # in fields without a column, every result has the default
    for field in _FIELDS:
        if field.name in record.fields:
            columns[field.name] = _column(record, field.name)
        elif field.required and record.count:
            raise ValueError(f"the results lack the field {field.name!r}")
    rows = zip(*columns.values()) if record.count else ()
    names = tuple(columns)
    made = {cell: CellResult(cell, **dict(zip(names, row))) for cell, row in zip(cells, rows)}
    return plan, record.provenance, made


def _column(record: _Record, field: str) -> Iterable[Any]:
    """Returns the values of one field of the results, cell by cell."""
    raw, which = record.fields[field]
    values = _DECODERS[field].decode(raw)
    index = _numbers(_width(len(values)), which)
    if len(index if which else values) != record.count:
        raise ValueError(
            f"the field {field!r} does not have {record.count:,} values, one for each result"
        )
    if which and max(index) >= len(values):
        raise ValueError(f"the field {field!r} refers to a value that is not in its list of values")
    return map(values.__getitem__, index) if which else values


# -- writing


def write_run(
    folder: Path,
    plan: PlanDocument,
    results: Mapping[CellKey, CellResult],
    provenance: Provenance,
    junitxml: Path | None = None,
    redact: bool = False,
    manifest: bytes = b"",
    like: Plan | None = None,
) -> Run:
    """Writes the files of a run into ``folder``. If ``junitxml`` is given, all JUnit suites are also written into that
    file.

    A selected cell without a result is written as missing. Each file is replaced atomically; the files of an earlier
    run in the same folder are removed. ``redact`` removes the device's uuid and the host's name, also from free text.
    ``manifest`` is the text of the manifest by which the run was judged; a copy is written as ``expected.toml``. If the
    plan ``like`` has the same cells, the two plans share them in memory. Returns the run as written. Raises RunError if
    the plan, the results and the provenance do not belong together, or if a file cannot be written.
    """
    origin: dict[str, Any] = dataclasses.asdict(provenance)
    texts = {name: clean(text) for name, text in origin.items() if isinstance(text, str)}
    provenance = Provenance(**{**origin, **texts})
    if redact:
        plan, results, provenance = redacted(plan, results, provenance)
    parsed = checked_plan(plan, like=like)
    # In the plan's order, as they are read; Run refuses cells that are not planned.
    ordered = {cell: results[cell] for cell in parsed.cells if cell in results} | dict(results)
    run = Run(folder, plan, provenance, ordered, parsed)
    try:
        body = _encoded(parsed, provenance, run.results)
    except UnicodeEncodeError:
        kept = {cell: _with_texts(result, clean) for cell, result in run.results.items()}
        run = dataclasses.replace(run, results=kept, given=parsed)
        body = _encoded(parsed, provenance, kept)
    sha256 = hashlib.sha256(body).hexdigest()
    path = folder / RECORD_FILE
    with explained(RunError, path, "cannot be written"):
        path.unlink(missing_ok=True)
    written = _write_junit(run, junitxml, sha256)
    for family in {clause.family for clause in parsed.clauses.values()}:
        if (stale := folder.absolute() / junit_file(family)) not in written:
            stale.unlink(missing_ok=True)
    if manifest:
        write_file(folder / MANIFEST_FILE, manifest)
    else:
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
    writer = clean(plan.suite).replace(" ", "_")[:80] or "unknown"
    write_file(path, f"{_MAGIC.decode()}{FORMAT} {writer} {sha256}\n".encode() + body)
    return run


def _write_junit(run: Run, junitxml: Path | None, sha256: str) -> set[Path]:
    """Writes one JUnit file per clause family, and one with all families if ``junitxml`` is given. Returns the absolute
    paths of the files."""
    made = _junit_suites(run, sha256)
    folder = run.folder.absolute()
    files = {folder / junit_file(family): [suite] for family, suite in made.items()}
    if junitxml is not None:
        if junitxml.absolute() in files:
            raise RunError(
                f"{junitxml}: the run writes the JUnit file of one clause family to this path; give another path"
            )
        files[junitxml.absolute()] = list(made.values())
    for path, suites in files.items():
        write_file(path, suites_as_xml(suites))
    return set(files)


def _junit_suites(run: Run, sha256: str) -> dict[str, TestSuite]:
    said = sentences(cause for cause in causes_of(run, unexpected(run)) if cause.gates)
    return junit_of(run, RECORD_FILE, sha256, said)


def junit_files(run: Run) -> dict[str, bytes]:
    """Returns the JUnit files of a run that was read from its folder, by their names, as they follow from the record.
    Raises RunError if the record cannot be read."""
    sha256 = hashlib.sha256(_body(record_file(run.folder))).hexdigest()
    made = _junit_suites(run, sha256)
    return {junit_file(family): suites_as_xml([suite]) for family, suite in made.items()}


def redacted(
    plan: PlanDocument, results: Mapping[CellKey, CellResult], provenance: Provenance
) -> tuple[PlanDocument, Mapping[CellKey, CellResult], Provenance]:
    """Returns a plan, results and a provenance without the host's name and the device's uuid, which are also removed
    from facts and free text."""
    hosts = provenance.host.split(", ")  # of the controller and of workers on other machines
    secrets = [secret for secret in (*hosts, provenance.device_uuid) if secret]
    plain = dataclasses.replace(provenance, host="", device_uuid="")
    if not secrets:
        return plan, results, plain
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(secret)}(?!\w)" for secret in secrets))

    def hide(text: str) -> str:
        return pattern.sub(_REDACTED, text)

    facts = {
        name: hide(value) if isinstance(value, str) else value for name, value in plan.facts.items()
    }
    return (
        msgspec.structs.replace(plan, facts=facts),
        {cell: _with_texts(result, hide) for cell, result in results.items()},
        dataclasses.replace(plain, expectations=hide(plain.expectations)),
    )


def _with_texts(result: CellResult, change: Callable[[str], str]) -> CellResult:
    """Returns a result in which the function ``change`` was applied to every free text. Names of layouts, files and
    types are not free texts."""
    changed: dict[str, Any] = _changed(result, ("why", "note", "said", "worker"), change)
    changed |= _changed_failures(result, change)
    if result.rest is not None:
        rest = _changed(result.rest, ("note", "said"), change)
        rest |= _changed_failures(result.rest, change)
        changed["rest"] = msgspec.structs.replace(result.rest, **rest)
    if result.example is not None:
        example = _changed(result.example, ("message", "call"), change)
        changed["example"] = dataclasses.replace(result.example, **example)
    if all(getattr(result, name) == value for name, value in changed.items()):
        return result
    return msgspec.structs.replace(result, **changed)


def _changed_failures(
    found: CellResult | OtherChecks, change: Callable[[str], str]
) -> dict[str, Any]:
    names = ("subject", "expected", "found", "detail", "said", "call")

    def changed(failure: Failure) -> Failure:
        return msgspec.structs.replace(failure, **_changed(failure, names, change))

    shown = changed(found.failure) if found.failure is not None else None
    return {"failure": shown, "also": tuple(map(changed, found.also))}


def _changed(found: object, names: Iterable[str], change: Callable[[str], str]) -> dict[str, Any]:
    return {name: change(text) for name in names if (text := getattr(found, name)) is not None}


# -- reading


def record_file(path: Path) -> Path:
    """Returns the path of a run's record, for the run's folder or for the path of the record itself."""
    return path / RECORD_FILE if path.is_dir() else path


def load_run(path: Path) -> Run:
    """Reads a run from its results folder, or from the path of its record. Raises RunError if the record is absent,
    truncated, changed since it was written, malformed, or of a newer format."""
    source = record_file(path)
    body = _body(source)
    try:
        with collector_paused():
            plan, provenance, results = _decoded(body)
            check_provenance(plan.document, provenance, str(source))
            return Run(source.parent, plan.document, provenance, results, given=plan)
    except RunError as error:
        said = str(error).removeprefix(f"{source}: ")
        raise RunError(f"{source}: {said}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RunError(f"{source}: malformed: {error}") from None


def _body(source: Path) -> bytes:
    """Reads a record file and returns the bytes of its body. Raises RunError if the header or the checksum is wrong."""
    try:
        raw = read_regular(source, MOST_RECORD)
    except FileNotFoundError:
        if (interrupted := without_end(source.parent)) is not None:
            raise interrupted from None
        raise RunError(f"{source}: not found; {_instead(source.parent)}") from None
    except OSError as error:
        raise RunError(f"{source}: cannot be read: {error.strerror or error}") from None
    header = _HEADER.match(raw)
    if header is None:
        if raw.startswith(_MAGIC):
            raise RunError(f"{source}: its first line is damaged or truncated")
        raise RunError(f"{source}: this file is not the record of a run; {_instead(source.parent)}")
    written, writer = int(header[1]), header[2].decode("ascii", "replace")
    if written != FORMAT:
        newer = "update torch-conformance" if written > FORMAT else "run the suite again"
        raise RunError(
            f"{source}: expected format {FORMAT}, found {written}, written by torch-conformance "
            f"{writer}: {newer}"
        )
    if header[3] is None:
        raise RunError(f"{source}: its first line is damaged or truncated")
    body = raw[header.end() :]
    if hashlib.sha256(body).hexdigest() != header[3].decode():
        raise RunError(
            f"{source}: truncated or changed since the run wrote it (its SHA-256 differs)"
        )
    return body


def _instead(folder: Path) -> str:
    """Returns advice for a folder that has no record."""
    if any(folder.glob("junit*.xml")):
        return (
            f"the folder has JUnit files only, which contain neither the plan nor the failures. Copy {RECORD_FILE} "
            "as well; only --shard-times works without that file"
        )
    return f"expected the folder of a run (--results), which contains {RECORD_FILE}"


def as_json(run: Run) -> bytes:
    """Returns the whole record of a run as JSON, for programs that cannot read msgpack."""
    cells = [
        {**msgspec.to_builtins(result), "key": result.key.as_data()}
        for result in run.results.values()
    ]
    whole = {"format": FORMAT, "plan": run.plan, "provenance": run.provenance, "results": cells}
    return msgspec.json.encode(whole)


def times_of(path: Path) -> dict[CellKey, float]:
    """Returns the time of each cell in an earlier run, in seconds, from its record, or from its JUnit files if
    it has no record. Raises RunError."""
    junit = [path] if path.suffix == ".xml" else sorted(path.glob("junit*.xml"))
    if junit and not record_file(path if path.is_dir() else path.parent).is_file():
        return {cell: time for file in junit for cell, time in seconds_in(file).items()}
    return {cell: result.seconds for cell, result in load_run(path).results.items()}


def manifest_of(run: Run, path: Path) -> bytes | None:
    """Returns the text of the manifest by which a run was judged, read from the file ``path``; None if the file is
    missing or has changed since the run."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    hashed = hashlib.blake2b(raw, digest_size=8).hexdigest()
    return raw if hashed == run.provenance.manifest_hash else None


def manifest_in(run: Run) -> bytes:
    """Returns the copy of the manifest in the folder of a run; an empty text if the run had no manifest. Raises RunError
    if the copy is missing or was changed."""
    if run.provenance.manifest_hash in ("", "none"):
        return b""
    path = run.folder / MANIFEST_FILE
    if (raw := manifest_of(run, path)) is None:
        raise RunError(f"{path}: the copy of the manifest is missing, or was changed since the run")
    return raw


def repro_script(folder: Path, result: CellResult) -> Path | None:
    """Returns the path of a result's repro script; None if the script does not exist or a link leads out of the run's
    folder."""
    path = folder / (result.repro or "")
    inside = path.is_file() and path.resolve().is_relative_to(folder.resolve())
    return path if inside else None


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the garbage collector while a run is read. Reading makes a million objects without reference cycles, and
    the collector would take a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
