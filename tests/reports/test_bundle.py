"""Bundles: what a third party gets of a run, and what its check finds."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import conform
from devices.cell import Verdict
from reports.bundle import SUFFIX, BundleError, check_bundle, make_bundle
from reports.failures import write_failures
from reports.gate import gate
from reports.run import load_run, write_run
from tests.reports.builders import ADD, CONV, PROVENANCE, failed, passed, plan_document, results

MANIFEST = b"""[[expect]]
clause = "layout.values"
op = "add"
dtype = "float32"
layouts = ["transposed"]
outcome = "fail"
kind = "device-bug"
reason = "add reads a transposed input as if it were contiguous"
issue = "https://example.org/1"
expires = 2030-01-01
"""
ORIGIN = replace(
    PROVENANCE,
    manifest_hash=hashlib.blake2b(MANIFEST, digest_size=8).hexdigest(),
    expectations="expected.toml",
    suite_commit="a" * 40 + "-dirty",
)
VERSION = ORIGIN.suite_version


def write(folder: Path, **origin: str) -> Path:
    """A run with an expected failure and a regression."""
    made = [
        failed(ADD, Verdict.EXPECTED, raises=None, repro=None),
        failed(CONV, repro="repro/0002.py"),
    ]
    write_run(
        folder,
        plan_document(),
        results(*made),
        replace(ORIGIN, **origin),  # type: ignore[arg-type]
        manifest=MANIFEST,
    )
    write_failures(gate(load_run(folder)))
    (folder / "repro").mkdir(exist_ok=True)
    (folder / "repro" / "0002.py").write_text("print('FAIL: ')\n", encoding="utf-8")
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run")


@pytest.fixture
def bundle(run: Path) -> Path:
    path = run.parent / f"cpu{SUFFIX}"
    path.write_bytes(make_bundle(load_run(run), VERSION))
    return path


def call(*arguments: object) -> Result:
    made = CliRunner().invoke(conform, [*map(str, arguments)])
    assert "Traceback" not in made.output
    return made


def content(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(path: Path, files: dict[str, bytes], *, honest: bool = False) -> Path:
    """The bundle with other files; ``honest`` means that the index fits, as a forger would make it."""
    if honest:
        index = json.loads(files["bundle.json"])
        index["files"] = {
            name: {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
            for name, raw in files.items()
            if name != "bundle.json"
        }
        files = {**files, "bundle.json": json.dumps(index).encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    return path


def test_a_bundle_has_everything_that_a_third_party_needs(bundle: Path) -> None:
    names = set(content(bundle))
    assert {
        *("bundle.json", "run.conform", "junit-layout.xml", "junit-streams.xml"),
        *("expected.toml", "environment.json", "plan.json", "waivers.json"),
        *("failures.json", "failures.md", "repro/0002.py"),
    } <= names
    assert "notes.txt" not in names


def test_the_index_states_the_run_and_the_state_of_the_suite(bundle: Path) -> None:
    index = json.loads(content(bundle)["bundle.json"])
    assert index["suite"] == VERSION and index["commit"].endswith("-dirty")
    assert index["verdict"].startswith("red (exit 1): 1 regression")


def test_waivers_have_their_reasons_and_cells(bundle: Path) -> None:
    (waiver,) = json.loads(content(bundle)["waivers.json"])
    assert waiver == {
        "reason": "add reads a transposed input as if it were contiguous",
        "outcome": "fail",
        "kind": "device-bug",
        "issue": "https://example.org/1",
        "expires": "2030-01-01",
        "cells": [str(ADD)],
    }


def test_equal_runs_give_equal_bundles(run: Path) -> None:
    loaded = load_run(run)
    assert make_bundle(loaded, VERSION) == make_bundle(loaded, VERSION)


def test_a_bundle_as_it_was_made_is_valid(bundle: Path) -> None:
    found = check_bundle(bundle, VERSION)
    assert found.problems == () and found.notes == ()
    assert found.sha256 == hashlib.sha256(bundle.read_bytes()).hexdigest()


Change = Callable[[dict[str, bytes]], dict[str, bytes]]
CHANGES: dict[str, tuple[Change, str]] = {
    "a manifest": (
        lambda files: {**files, "expected.toml": MANIFEST.replace(b"add reads", b"add writes")},
        "another manifest than the one by which the run was judged",
    ),
    "no manifest": (
        lambda files: {n: raw for n, raw in files.items() if n != "expected.toml"},
        "no manifest, but the one",
    ),
    "a waiver": (
        lambda files: {**files, "waivers.json": b"[]\n"},
        "waivers.json does not follow from the record and the manifest",
    ),
    "the environment": (
        lambda files: {**files, "environment.json": files["environment.json"].replace(b"2.13", b"2.14")},
        "environment.json does not follow",
    ),
    "the plan": (
        lambda files: {**files, "plan.json": files["plan.json"].replace(b'"cells": 5', b'"cells": 4')},
        "plan.json does not follow",
    ),
    "a JUnit file": (
        lambda files: {**files, "junit-layout.xml": files["junit-layout.xml"].replace(b"conv2d", b"conv3d")},
        "junit-layout.xml does not follow from the record",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_is_found_even_if_the_checksums_were_made_again(
    bundle: Path, what: str
) -> None:
    change, says = CHANGES[what]
    changed = rewritten(bundle, change(content(bundle)), honest=True)
    found = check_bundle(changed, VERSION).problems
    assert any(says in each for each in found), found


@pytest.mark.parametrize("name", ["repro/0002.py", "failures.md", "run.conform"])
def test_a_changed_file_is_named(bundle: Path, name: str) -> None:
    files = content(bundle)
    rewritten(bundle, {**files, name: files[name] + b" "})
    made = call("bundle", "verify", bundle)
    assert made.exit_code == 4
    assert name in made.output and ("changed" in made.output)


def test_files_that_were_added_and_removed_are_named(bundle: Path) -> None:
    files = content(bundle)
    del files["failures.md"]
    rewritten(bundle, {**files, "extra.md": b"x"})
    assert set(check_bundle(bundle, VERSION).problems) == {
        "failures.md is missing",
        "extra.md is not in the index: it was added later",
    }


def test_a_verdict_that_the_manifest_does_not_give_is_found(run: Path) -> None:
    """A record that says "expected" for a failure that no block lists, with a checksum that fits."""
    made = [failed(ADD, Verdict.EXPECTED, raises=None), failed(CONV, Verdict.EXPECTED)]
    write_run(run, plan_document(), results(*made), ORIGIN, manifest=MANIFEST)
    made_of = call("bundle", run, "-o", run.parent / "b.conform.zip")
    assert made_of.exit_code == 4
    assert f"not follow from the manifest; the first is {CONV} (expected)" in made_of.output


def test_a_folder_that_was_edited_is_not_packed(run: Path) -> None:
    path = run / "junit-layout.xml"
    path.write_bytes(path.read_bytes().replace(b"conv2d", b"conv3d"))
    with pytest.raises(BundleError, match="junit-layout.xml does not follow from the record"):
        make_bundle(load_run(run), VERSION)


HOSTILE: dict[str, tuple[Change, str]] = {
    "climbs": (lambda files: {**files, "../evil.py": b"x"}, "outside of its folder ('../evil.py')"),
    "absolute": (lambda files: {**files, "/evil.py": b"x"}, "outside of its folder"),
    "no index": (lambda files: {"run.conform": files["run.conform"]}, "has no bundle.json"),
    "no record": (lambda files: {"bundle.json": files["bundle.json"]}, "the bundle has no run.conform"),
    "bad index": (lambda files: {**files, "bundle.json": b"{}"}, "bundle.json: Object missing required field"),
    "newer": (lambda files: {**files, "bundle.json": files["bundle.json"].replace(b'"format": 1', b'"format": 9')}, "found 9: update torch-conformance"),
    "twice": (lambda files: {**files, "RUN.conform": b"x"}, "the bundle has a file twice"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_bundle_is_one_message(bundle: Path, what: str) -> None:
    change, says = HOSTILE[what]
    rewritten(bundle, change(content(bundle)))
    made = call("bundle", "verify", bundle)
    assert made.exit_code == 4 and made.stderr.startswith(f"error: {bundle}: ") and says in made.stderr  # fmt: skip
    assert not (bundle.parent / "evil.py").exists()


@pytest.mark.parametrize("cut", [0, 10, 200, -40])
def test_a_truncated_bundle_is_one_message(bundle: Path, cut: int) -> None:
    bundle.write_bytes(bundle.read_bytes()[:cut])
    made = call("bundle", "verify", bundle)
    assert made.exit_code == 4 and made.stderr.startswith(f"error: {bundle}: ")


def test_damaged_data_is_one_message(bundle: Path) -> None:
    raw = bytearray(bundle.read_bytes())
    for place in range(200, 400):
        raw[place] ^= 0x5A
    bundle.write_bytes(raw)
    made = call("bundle", "verify", bundle)
    assert made.exit_code == 4 and made.stderr.startswith(f"error: {bundle}: ")


def test_no_bundle_is_one_message(run: Path) -> None:
    for path in (run / "run.conform", run / "nosuch", run):
        made = call("bundle", "verify", path)
        assert made.exit_code == 4 and len(made.stderr.splitlines()) == 1


def test_the_commands_say_what_they_did(run: Path, tmp_path: Path) -> None:
    made = call("bundle", run, "-o", tmp_path / "a.conform.zip")
    assert made.exit_code == 0 and made.stdout.startswith(f"{tmp_path / 'a.conform.zip'}: 5 cells")
    checked = call("bundle", "verify", tmp_path / "a.conform.zip")
    assert checked.exit_code == 0 and "red (exit 1): 1 regression" in checked.stdout
    assert "commit " + "a" * 40 + "-dirty" in checked.stdout and "valid: " in checked.stdout
    document = json.loads(call("bundle", "verify", "--json", tmp_path / "a.conform.zip").stdout)
    assert document["problems"] == [] and len(document["sha256"]) == 64


def test_options_may_come_before_the_run(run: Path, tmp_path: Path) -> None:
    assert call("bundle", "-o", tmp_path / "a.conform.zip", run).exit_code == 0


def test_a_redacted_bundle_names_neither_host_nor_device(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.conform.zip"
    assert call("bundle", run, "-o", path, "--redact").exit_code == 0
    for raw in content(path).values():
        assert PROVENANCE.host.encode() not in raw and PROVENANCE.device_uuid.encode() not in raw
    assert call("bundle", "verify", path).exit_code == 0
    assert "repro/0002.py" in content(path)


@pytest.mark.parametrize(
    "wrong", ["bundle nosuch -o x.zip", "bundle run", "bundle", "bundle verify"]
)
def test_a_wrong_use_is_one_message(run: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.chdir(run.parent)
    made = call(*wrong.split())
    assert made.exit_code != 0 and not (run.parent / "x.zip").exists()


@pytest.mark.slow
def test_the_dashboard_is_built_from_bundles_as_from_runs(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write_run(whole, plan_document(), {c: passed(c) for c in results()}, PROVENANCE)
    bundle = tmp_path / "bundles" / "cpu.conform.zip"
    assert call("bundle", whole, "-o", bundle).exit_code == 0
    sites = []
    for name, given in (("a", whole), ("b", bundle), ("c", bundle.parent)):
        made = call("dashboard", given, "-o", tmp_path / name)
        assert made.exit_code == 0, made.output
        sites.append(
            {
                path.relative_to(tmp_path / name).as_posix(): path.read_bytes()
                for path in sorted((tmp_path / name / "v1" / "runs").rglob("*.json"))
            }
        )
    assert sites[0] and sites[0] == sites[1] == sites[2]


def test_the_dashboard_refuses_a_changed_bundle(bundle: Path, tmp_path: Path) -> None:
    rewritten(bundle, {**content(bundle), "failures.md": b"x"})
    made = call("dashboard", bundle, "-o", tmp_path / "site")
    assert made.exit_code == 4 and "failures.md was changed" in made.stderr
    assert not (tmp_path / "site").exists()
