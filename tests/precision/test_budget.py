"""A device's own maxima: they fall, and rise only with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from conformance.checks.ops.standalone_checks import Check
from conformance.cli import conform
from conformance.suites.precision.bounds import limit_of
from conformance.suites.precision.budget import as_on_record
from devices.precision import Record, record_of, text_of, updated, write
from opinfo.compare import Measured
from tests.plugin.running import run_pytest

KEPT = Record(float32={"exp": 0.6, "special.i0e": 2.0})


def test_a_smaller_error_replaces_the_one_on_record_rounded_up() -> None:
    record, refused = updated(KEPT, {("exp", "float32"): 0.54321, ("exp", "float16"): 0.5}, None)
    assert (record.of("exp", "float32"), record.of("exp", "float16")) == (0.5433, 0.5)
    assert refused == [] and record.of("special.i0e", "float32") == 2.0


def test_a_larger_error_needs_a_reason() -> None:
    record, refused = updated(KEPT, {("exp", "float32"): 0.9}, None)
    assert record == KEPT and refused == [
        "exp[float32]: the recorded maximum is 0.6 units in the last place, the run measured 0.9"
    ]
    record, refused = updated(KEPT, {("exp", "float32"): 0.9}, "a faster kernel")
    assert refused == [] and record.of("exp", "float32") == 0.9
    assert [(each.before, each.after, each.reason) for each in record.raised] == [
        (0.6, 0.9, "a faster kernel")
    ]


def test_a_record_reads_as_it_was_written(tmp_path: Path) -> None:
    record, _ = updated(KEPT, {("exp", "float32"): 0.9}, 'said "so"')
    assert record_of(write(tmp_path, record).parent) == record
    assert "raised" not in text_of(KEPT)


def test_a_folder_without_a_record_has_no_budget(tmp_path: Path) -> None:
    assert record_of(tmp_path) == Record() == record_of(None)


def measured(kept: float) -> Measured:
    found = as_on_record(
        torch.exp,
        torch.clone,
        torch.clone,
        kept=kept,
        dtype="float32",
        args=(),
        kwargs={},
        operands=1,
        limit=limit_of("exp", "float32"),
    )
    assert isinstance(found, Measured)
    return found


def test_an_error_within_the_bound_and_beyond_the_record_fails() -> None:
    assert measured(4.0).wrong is None
    assert "the recorded maximum" in str(measured(0.2).wrong)


def test_an_error_beyond_the_bound_is_not_reported_twice() -> None:
    check: Check = as_on_record
    found = check(
        torch.exp,
        torch.clone,
        lambda value: value * 2,
        kept=0.6,
        dtype="float32",
        args=(),
        kwargs={},
        operands=1,
        limit=limit_of("exp", "float32"),
    )
    assert isinstance(found, Measured) and found.wrong is None


@pytest.mark.slow
def test_a_run_s_errors_are_kept_and_shown(tmp_path: Path, cache: Path) -> None:
    folder, results = tmp_path / "device", tmp_path / "run"
    folder.mkdir()
    source = Path(__file__).parents[2] / "devices" / "cpu" / "descriptor.py"
    (folder / "descriptor.py").write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    run_pytest(
        *("--device", "cpu", "--ops", "exp2,floor", "--clauses", "precision.*"),
        *("-q", "-n", "0", f"--results={results}"),
        cache=cache,
    )
    runner, about = CliRunner(), ["--descriptor", str(folder)]
    done = runner.invoke(conform, ["precision", "update", str(results), *about])
    assert done.exit_code == 0, done.output
    kept = record_of(folder).of("exp2", "float32")
    assert kept is not None and 0.5 < kept < 4 and record_of(folder).of("exp2", "bfloat16")
    shown = runner.invoke(conform, ["precision", "table", str(results)]).output
    assert "| `exp2` | " in shown and "Exact: `floor`." in shown

    write(folder, Record(float32={"exp2": 0.5}))
    done = runner.invoke(conform, ["precision", "update", str(results), *about])
    assert done.exit_code == 1 and "exp2[float32]: the recorded maximum is 0.5 units" in done.output
