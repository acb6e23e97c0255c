"""A manifest from the first red run to green, and through a fault fixed and a fault moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from conformance.cli import conform
from devices.cell import Verdict
from opinfo.device import open_device
from reports.gate import ExitCode
from reports.run import load_run
from tests.planting.calls import NOT_MET, KernelCall
from tests.wrapped.descriptor import DESCRIPTOR
from tests.wrapped.registry import REGISTRY
from tests.wrapped.runs import Station, gated

#: A dozen faults, in as many kernels.
FAULTS = (
    "bounds.write_past_end",
    "bounds.write_between_elements",
    "inplace.ignore_strides",
    "inplace.write_to_copy",
    "inputs.overwritten",
    "out.ignore_strides",
    "out.reallocate",
    "out.resize_silently",
    "stride.always_contiguous",
    "stride.swap_last_two",
    "values.ignore_strides",
    "values.refuse_offset",
)
OPS = ("maximum", "fmax", "copysign", "sub", "atan2", "exp", "mul", "where", "amax")
ITEMS = (*((op, "float32") for op in OPS), ("exp", "int64"), ("mul", "int64"))
FIXED, MOVED = "inputs.overwritten", "values.ignore_strides"


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(conform, ["manifest", *map(str, arguments)])
    assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Station:
    folder = tmp_path_factory.mktemp("station")
    return Station.of(ITEMS, folder / "cache", folder / "expected.toml", open_device(DESCRIPTOR))


@pytest.fixture(scope="module")
def two_runs(station: Station) -> tuple[Path, Path]:
    """Two runs with all faults on, before anything is expected."""
    folder = station.manifest.parent
    return station.run(folder / "a", *FAULTS), station.run(folder / "b", *FAULTS)


@pytest.fixture
def recorded(station: Station, two_runs: tuple[Path, Path]) -> Station:
    """The station with a manifest that records what the two runs agree on."""
    station.manifest.unlink(missing_ok=True)
    done = call(
        "update", *two_runs, "--manifest", station.manifest, "--reason", "planted", "--kind",
        "device-bug",
    )  # fmt: skip
    assert done.exit_code == 0
    return station


def verdicts(folder: Path) -> dict[str, Verdict]:
    return {
        str(key): result.verdict
        for key, result in load_run(folder).results.items()
        if result.verdict not in (Verdict.OK, Verdict.EXPECTED)
    }


def test_each_fault_fails_cells_before_anything_is_expected(two_runs: tuple[Path, Path]) -> None:
    assert gated(two_runs[0]).exit_code is ExitCode.REGRESSION
    failing = verdicts(two_runs[0])
    for name in FAULTS:
        fault = REGISTRY[name]
        assert any(f"{fault.clauses[0]}::{op}[" in cell for op in fault.ops for cell in failing)


def test_one_run_is_not_enough_to_record(station: Station, two_runs: tuple[Path, Path]) -> None:
    done = call("update", two_runs[0], "--manifest", station.manifest, "--reason", "planted")
    assert done.exit_code == 4
    assert "failures are added only from two runs that agree" in done.output


def test_recorded_from_two_runs_the_next_run_is_green(recorded: Station, tmp_path: Path) -> None:
    run = recorded.run(tmp_path / "c", *FAULTS)
    assert gated(run).exit_code is ExitCode.GREEN
    assert call("lint", "--run", run).exit_code == 0
    assert call("update", run, "--check").exit_code == 0


def test_a_fixed_fault_is_an_improvement_until_update_narrows(
    recorded: Station, tmp_path: Path
) -> None:
    rest = [name for name in FAULTS if name != FIXED]
    better = recorded.run(tmp_path / "better", *rest)
    result = gated(better)
    assert result.exit_code is ExitCode.REGRESSION
    assert set(verdicts(better).values()) == {Verdict.IMPROVEMENT}
    assert f"conform manifest update {better}" in " ".join(result.problems)

    before = recorded.manifest.read_text()
    shown = call("update", better, "--dry-run")
    assert "nothing was written" in shown.output and recorded.manifest.read_text() == before
    done = call("update", better)
    assert done.exit_code == 0 and "added" not in done.output
    assert "-" in done.output and "layout.inputs_intact" in done.output
    assert gated(recorded.run(tmp_path / "after", *rest)).exit_code is ExitCode.GREEN
    # And it was not a way to excuse the fault: back again, it is a regression.
    back = recorded.run(tmp_path / "back", *FAULTS)
    assert set(verdicts(back)) == set(verdicts(better))
    assert set(verdicts(back).values()) == {Verdict.REGRESSION}


def exp_ignores_offset(call: KernelCall) -> object:
    """Where the input has a storage offset, and is dense: other layouts than before."""
    met = call.first.storage_offset() and call.first.is_contiguous()
    return call.honest() + 1 if met else NOT_MET


@pytest.mark.slow
def test_a_fault_that_moved_to_other_layouts_is_a_regression(
    recorded: Station, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = replace(REGISTRY[MOVED], name="moved", effect=exp_ignores_offset)
    monkeypatch.setitem(REGISTRY, "moved", moved)
    rest = [name for name in FAULTS if name != MOVED]
    run = recorded.run(tmp_path / "moved", *rest, "moved")
    cell = "layout.values::exp[float32]"
    assert verdicts(run)[cell] is Verdict.REGRESSION
    assert gated(run).exit_code is ExitCode.REGRESSION

    done = call("update", run)
    # not recorded without a reason
    assert f"{cell}: the layouts " in done.output
    assert "have the outcome 'fail', but are not listed at" in done.output
    assert verdicts(recorded.run(tmp_path / "again", *rest, "moved"))[cell] is Verdict.REGRESSION

    why = call("explain", cell, "--run", run)
    assert "decides: " in why.output and "matched by clause 'layout.values', op 'exp'" in why.output
    assert f"{run}: fail in" in why.output and ": regression\n" in why.output
    assert "but are not listed at" in why.output

    other = recorded.run(tmp_path / "moved-too", *rest, "moved")
    assert call("update", run, other, "--reason", "moved to offsets").exit_code == 0
    assert gated(recorded.run(tmp_path / "then", *rest, "moved")).exit_code is ExitCode.GREEN


def test_explain_says_why_a_cell_is_expected_to_fail(recorded: Station, tmp_path: Path) -> None:
    run = recorded.run(tmp_path / "run", *FAULTS)
    said = call("explain", "layout.inputs_intact::atan2[float32]", "--run", run).output
    assert "expected: 'fail' in" in said
    assert "device-bug: planted" in said
    assert ": expected\n" in said


def test_explain_says_that_nothing_speaks_of_a_cell(recorded: Station, tmp_path: Path) -> None:
    run = recorded.run(tmp_path / "run", *FAULTS)
    said = call("explain", "layout.values::where[float32]", "--run", run).output
    assert "expected: pass (no block of the manifest applies here)" in said
    assert ": pass: ok\n" in said
