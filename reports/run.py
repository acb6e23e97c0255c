"""The folder of a run: ``plan.json`` and one JUnit file a clause family, written and read.

``plan.json`` goes last and holds the checksums of the others, so that a folder is either a whole
run or refused. Every refusal is a ``RunError`` (exit 4: unusable input) naming the file; a run
that reads well but lacks outcomes is left to the gate.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from devices.cell import CellKey
from reports.junit import PLAN_DIGEST, Sink, Suite, clean, write_suites
from reports.junit_read import provenance_of, read_suite
from reports.model import CellResult, Provenance, Run, check_provenance
from reports.plan import ADDED, Plan, RunError, digest, read_plan
from reports.scan import results_of
from reports.shared_plans import SharedPlans

__all__ = ["CellResult", "Provenance", "Run", "RunError", "load_run", "write_run"]

PLAN_FILE = "plan.json"
MANIFEST_FILE = "expected.toml"
_REDACTED = "[redacted]"


def junit_file(family: str) -> str:
    """The name of a family's file in the results folder."""
    return f"junit-{family}.xml"


def write_run(
    folder: Path,
    plan_document: Mapping[str, Any],
    results: Mapping[CellKey, CellResult],
    provenance: Provenance,
    junitxml: Path | None = None,
    redact: bool = False,
    manifest: bytes = b"",
    like: Plan | None = None,
) -> Run:
    """Write the run's files into ``folder``, and all suites into ``junitxml`` where it is given.

    A selected cell without a result is written as missing. Each file is replaced at once; those of
    an earlier run in the same folder are removed. ``redact`` leaves out the device's uuid and the
    host's name, in free text too. ``manifest`` is the text of the expected failures that the run was
    judged by, kept beside the rest as ``expected.toml``. ``like`` is a plan that was read already: where it has the same
    cells they are not unfolded again. Returns the run as it was written. Raises RunError where plan, results and
    provenance do not belong together, or a file cannot be written.
    """
    document = _plain(plan_document)
    provenance = _cleaned(provenance)
    if redact:
        document, results, provenance = redacted(document, results, provenance)
    plan = read_plan(document, like=like)
    run = Run(folder, document, provenance, dict(results), given=plan)
    bound = digest(document)
    suites = _suites(plan, run.results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, str] = {}
        for suite in suites:
            name = junit_file(suite.family)
            files[name] = _replace(folder / name, partial(_write, [suite], provenance, bound))
        if junitxml is not None:
            if junitxml.resolve().parent == folder.resolve() and junitxml.name in files:
                raise RunError(f"{junitxml}: is the file of one family; choose another name")
            junitxml.parent.mkdir(parents=True, exist_ok=True)
            _replace(junitxml, partial(_write, suites, provenance, bound))
        for family in {clause.family for clause in plan.clauses.values()}:
            if junit_file(family) not in files and junit_file(family) != _name_in(folder, junitxml):
                (folder / junit_file(family)).unlink(missing_ok=True)
        if manifest:
            _replace(folder / MANIFEST_FILE, lambda sink: sink.write(manifest))
        else:
            (folder / MANIFEST_FILE).unlink(missing_ok=True)
        whole = {**document, "provenance": dataclasses.asdict(provenance), "files": files}
        text = json.dumps(whole, separators=(",", ":"), allow_nan=False) + "\n"
        _replace(folder / PLAN_FILE, lambda sink: sink.write(text.encode()))
    except OSError as error:
        raise RunError(f"{error.filename or folder}: cannot be written: {error.strerror}") from None
    return run


def _write(suites: Sequence[Suite], provenance: Provenance, bound: str, sink: Sink) -> None:
    write_suites(sink, suites, provenance, bound)


def _name_in(folder: Path, path: Path | None) -> str | None:
    return path.name if path is not None and path.resolve().parent == folder.resolve() else None


def _suites(plan: Plan, results: Mapping[CellKey, CellResult]) -> list[Suite]:
    """The cells that belong into each family's file, in plan order."""
    selected = set(plan.selected)
    cells: dict[str, list[CellKey]] = {}
    for clause, of_clause in groupby(plan.cells, attrgetter("clause")):
        family = cells.setdefault(plan.clauses[clause].family, [])
        family += [cell for cell in of_clause if cell in selected or cell in results]
    cells = {family: of_family for family, of_family in cells.items() if of_family}
    return [Suite(family, of_family, results) for family, of_family in cells.items()]


def _replace(path: Path, write: Callable[[Sink], None]) -> str:
    """Write a file beside its place and move it there. Returns its SHA-256."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            sink = Sink(stream)
            write(sink)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return sink.sha256


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as it will be read back: tuples become lists, and so on."""
    if taken := [name for name in ADDED if name in document]:
        raise RunError(f"the plan must not hold {taken[0]!r}: it is added to plan.json")
    try:
        text = json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RunError(f"the plan is not JSON: {error}") from None
    plain: dict[str, Any] = json.loads(text)
    return plain


def _cleaned(provenance: Provenance) -> Provenance:
    """Text that XML can hold, so that it reads back as it was written."""
    values: dict[str, Any] = dataclasses.asdict(provenance)
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = clean(value)
    return Provenance(**values)


def redacted(
    document: Mapping[str, Any], results: Mapping[CellKey, CellResult], provenance: Provenance
) -> tuple[dict[str, Any], dict[CellKey, CellResult], Provenance]:
    """Leave out host and uuid: the fields, and where they appear in facts and free text."""
    hosts = provenance.host.split(", ")  # the controller's, and those of workers elsewhere
    secrets = [secret for secret in (*hosts, provenance.device_uuid) if secret]
    plain = dataclasses.replace(provenance, host="", device_uuid="")
    if not secrets:
        return dict(document), dict(results), plain
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(secret)}(?!\w)" for secret in secrets))

    def hide(text: str) -> str:
        return pattern.sub(_REDACTED, text)

    facts = {
        name: hide(value) if isinstance(value, str) else value
        for name, value in document.get("facts", {}).items()
    }
    kept: dict[CellKey, CellResult] = {}
    for cell, result in results.items():
        why, message, worker = (hide(result.why), hide(result.message), hide(result.worker))
        if (why, message, worker) != (result.why, result.message, result.worker):
            result = dataclasses.replace(result, why=why, message=message, worker=worker)
        if result.example is not None:
            told = dataclasses.replace(result.example, message=hide(result.example.message))
            result = dataclasses.replace(result, example=told)
        kept[cell] = result
    plain = dataclasses.replace(plain, expectations=hide(plain.expectations))
    return {**document, "facts": facts}, kept, plain


def load_run(path: Path, shared: SharedPlans | None = None) -> Run:
    """Read a results folder, or its ``plan.json``.

    ``shared`` remembers from one shard to the next what all have. Raises RunError where a file is absent, truncated, edited since, malformed, or of another run.
    """
    source = path / PLAN_FILE if path.is_dir() else path
    quickly, shared = shared is not None, shared or SharedPlans()
    try:
        document = shared.parse(source.read_bytes(), str(source))
    except FileNotFoundError:
        raise RunError(
            f"{source}: not found; expected the folder that a run wrote with --results"
        ) from None
    except OSError as error:
        raise RunError(f"{source}: cannot be read: {error.strerror or error}") from None
    provenance, files = _added(document, source)
    plan = shared.plan = read_plan(document, str(source), shared.plan)
    check_provenance(plan, provenance, str(source))
    with collector_paused():
        bound = shared.digest(document)
        results = _read_files(source.parent, plan, files, provenance, bound, quickly=quickly)
    return Run(source.parent, document, provenance, results, given=plan)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Reading makes a million live objects and no cycles: looking through them takes a third."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _added(document: dict[str, Any], source: Path) -> tuple[Provenance, dict[str, str]]:
    """Take off what the writer added to the plan's document."""
    parts = []
    for name in ADDED:
        if name not in document:
            raise RunError(f"{source}: has no {name!r}: a plan, but not that of a finished run")
        parts.append(document.pop(name))
    try:
        return (msgspec.convert(parts[0], Provenance), msgspec.convert(parts[1], dict[str, str]))
    except msgspec.ValidationError as error:
        raise RunError(f"{source}: malformed provenance or files: {error}") from None


def _read_files(
    folder: Path,
    plan: Plan,
    files: Mapping[str, str],
    provenance: Provenance,
    bound: str,
    *,
    quickly: bool,
) -> dict[CellKey, CellResult]:
    wanted: dict[str, list[CellKey]] = {}
    for cell in plan.selected:
        wanted.setdefault(plan.family(cell), []).append(cell)
    families = {junit_file(family): family for family in plan.families}
    _same_files(folder, files, families, [junit_file(family) for family in wanted])
    results: dict[CellKey, CellResult] = {}
    for name, sha256 in files.items():
        path, family = folder / name, families[name]
        if quickly:
            properties, found = results_of(path, family, wanted.get(family, []), plan, sha256)
        else:
            suite = read_suite(path, family, plan, sha256)
            properties, found = suite.properties, suite.results
        if properties.get(PLAN_DIGEST) != bound:
            raise RunError(f"{path}: belongs to another plan than {folder / PLAN_FILE}")
        if provenance_of(properties, path) != provenance:
            raise RunError(f"{path}: its properties are not those of {folder / PLAN_FILE}")
        lost = [cell for cell in wanted.get(family, ()) if cell not in found]
        if lost:
            raise RunError(f"{path}: lacks {len(lost)} cells of the plan, {lost[0]} first")
        for cell, result in found.items():
            if result is not None:
                results[cell] = result
    return results


def _same_files(
    folder: Path, files: Mapping[str, str], families: Mapping[str, str], wanted: Sequence[str]
) -> None:
    for name in wanted:
        if name not in files:
            raise RunError(f"{folder / PLAN_FILE}: lists no {name}, though the plan has its cells")
    for name in files:
        if name not in families:
            raise RunError(f"{folder / PLAN_FILE}: lists {name!r}, which no family of its plan has")
