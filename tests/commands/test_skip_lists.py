"""``conform manifest import``: the skip lists of other suites become blocks of a manifest, which lints clean and gates."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome, Verdict
from devices.lifecycle.evidence import judge_observation
from devices.lifecycle.skip_lists import SkipEntry, cells_of, read_skip_list
from devices.manifest import Manifest
from devices.verdicts import Matcher
from reports.model import evidence_of
from reports.run import load_run, write_run
from tests.commands.test_manifest_commands import call
from tests.reports.builders import PROVENANCE, failed, plan_document, results

XPU = """# Copyright
PYTORCH_TEST_DIR = "../../../../test"

skip_dict = {
    "test_autograd_xpu.py": None,
    PYTORCH_TEST_DIR + "/test_ops.py": (
        "_jiterator_",
        # RuntimeError: not implemented
        # https://github.com/intel/torch-xpu-ops/issues/2531
        "test_out_mean_xpu_float32",
        "test_dtypes_nn_functional_conv2d_xpu",
        "histogramdd",  # crash
        # Tensor-likes are not close!
        "test_compare_cpu_std_mean_xpu_int",
    ),
}
"""

SPYRE = """
test_suite_config:
  labels: [regression]
  files:
    - path: ${TORCH_ROOT}/test/test_ops.py
      unlisted_test_mode: skip
      tests:
        - names:
            - TestCommonSPYRE::test_out_mean_spyre_float32
          mode: xfail
        - names: [TestCommonSPYRE::test_out_std_mean_spyre_float32]
          mode: mandatory_success
        - names: [TestBinaryUfuncs::test_scalar_support]
  global:
    supported_dtypes:
      - name: float32
      - name: int32
        force_xfail: true
    supported_ops:
      - name: histogramdd
        force_xfail: true
      - name: nn.functional.conv2d
        dtypes:
          - {name: float32, force_xfail: true}
          - {name: int32}
"""

NPU = """{
  "test_out_mean_npu_float32 (__main__.TestCommonPRIVATEUSE1)": ["RuntimeError", ["aclnnMean"]],
  "test_schedule (__main__.LoggingTests)": ["", [""]],
  "test_dtypes_nn_functional_conv2d_npu (__main__.TestCommonPRIVATEUSE1)": ["", [""]]
}
"""

PLAIN = """
# not close
layout.values::mean[float32]
test/test_ops.py::TestCommonXPU::test_out_std_mean_xpu_int32

histogramdd[float32]
nn.functional.conv2d  # slow
nosuchop
"""

OPS = ("mean", "std_mean", "histogramdd", "nn.functional.conv2d", "jiterator_unary")
CELLS = (
    *(CellKey("layout.values", op, dtype) for op in OPS for dtype in ("float32", "int32")),
    CellKey("streams.query", "query is false while busy", ""),
)


def cell(op: str, dtype: str = "float32") -> CellKey:
    return CellKey("layout.values", op, dtype)


def entries(tmp_path: Path, name: str, text: str) -> list[SkipEntry]:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_skip_list(tmp_path / name)


def cells(found: list[SkipEntry]) -> dict[CellKey, str]:
    """The cells that the entries are about, each with the name in the skip list."""
    return {key: entry.name for key, entry in cells_of(found, CELLS).cells.items()}


def test_the_dictionary_of_torch_xpu_ops(tmp_path: Path) -> None:
    found = entries(tmp_path, "skip_list_common.py", XPU)
    assert [(each.name, each.why) for each in found] == [
        ("_jiterator_", ""),
        ("test_out_mean_xpu_float32", "RuntimeError: not implemented https://github.com/intel/torch-xpu-ops/issues/2531"),
        ("test_dtypes_nn_functional_conv2d_xpu", "RuntimeError: not implemented https://github.com/intel/torch-xpu-ops/issues/2531"),
        ("histogramdd", "crash"),
        ("test_compare_cpu_std_mean_xpu_int", "Tensor-likes are not close!"),
    ]  # fmt: skip
    both = ("float32", "int32")
    assert set(cells(found)) == {
        *(cell("jiterator_unary", dtype) for dtype in both),
        cell("mean"),
        *(cell("nn.functional.conv2d", dtype) for dtype in both),
        *(cell("histogramdd", dtype) for dtype in both),
        cell("std_mean", "int32"),
    }


def test_no_code_of_a_skip_list_is_executed(tmp_path: Path) -> None:
    text = f'open({str(tmp_path / "made")!r}, "w")\nskips = ["mean"]\n'
    assert [each.name for each in entries(tmp_path, "list.py", text)] == ["mean"]
    assert not (tmp_path / "made").exists()


def test_the_configuration_of_torch_spyre(tmp_path: Path) -> None:
    found = entries(tmp_path, "config.yaml", SPYRE)
    named = cells(found)
    assert named[cell("mean")] == "TestCommonSPYRE::test_out_mean_spyre_float32"
    assert cell("std_mean") not in named and cell("mean", "int32") in named
    assert named[cell("histogramdd")] == "histogramdd"
    assert named[cell("nn.functional.conv2d")] == "nn.functional.conv2d"
    (left,) = cells_of(found, CELLS).unmatched
    assert left.name == "TestBinaryUfuncs::test_scalar_support" and left.why == "mode skip"


def test_the_disabled_tests_of_torch_npu(tmp_path: Path) -> None:
    found = entries(tmp_path, "disabled.json", NPU)
    assert set(cells(found)) == {
        cell("mean"),
        cell("nn.functional.conv2d"),
        cell("nn.functional.conv2d", "int32"),
    }
    assert found[0].why == "RuntimeError: aclnnMean"


def test_a_plain_list(tmp_path: Path) -> None:
    found = entries(tmp_path, "skips.txt", PLAIN)
    assert set(cells(found)) == {
        cell("mean"),
        cell("std_mean", "int32"),
        cell("histogramdd"),
        cell("nn.functional.conv2d"),
        cell("nn.functional.conv2d", "int32"),
    }
    assert [each.why for each in found] == ["not close", "not close", "", "slow", ""]
    assert [each.name for each in cells_of(found, CELLS).unmatched] == ["nosuchop"]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        # an operator whose name ends another operator's name
        ("test_out_std_mean_xpu_float32", "std_mean"),
        ("test_compare_cpu_mean_xpu_float32", "mean"),
        ("TEST_OUT_MEAN_XPU_FLOAT32".lower(), "mean"),
        ("test_noncontiguous_samples_nn_functional_conv2d_privateuse1_float32", "nn.functional.conv2d"),
    ],
)  # fmt: skip
def test_a_test_is_about_the_longest_operator_at_its_end(name: str, op: str) -> None:
    assert set(cells([SkipEntry(name)])) == {cell(op)}


@pytest.mark.parametrize("name", ["_", "", "test_mean", "test_something_else_xpu", "mean_of_means"])
def test_other_names_are_about_no_cell(name: str) -> None:
    assert cells([SkipEntry(name)]) == {}


def runs(folder: Path) -> list[Path]:
    """Two runs in which some cells fail that the lists name, and one that no list names."""
    made = [
        failed(cell("mean"), layouts=("transposed",)),
        failed(cell("nn.functional.conv2d"), raises="RuntimeError"),
        failed(cell("nn.functional.conv2d", "int32"), raises="RuntimeError"),
        failed(cell("std_mean", "int32")),
        failed(cell("histogramdd"), outcome=Outcome.CRASH, failure=None, raises=None, layouts=()),
    ]
    for name in ("a", "b"):
        origin = replace(PROVENANCE, start=f"2026-01-31T12:00:00+00:00 {name}")
        write_run(folder / name, plan_document(CELLS), results(*made, cells=CELLS), origin)
    return [folder / "a", folder / "b"]


@pytest.mark.parametrize(
    ("name", "text", "left"),
    [
        ("skips.py", XPU, []),
        ("skips.yaml", SPYRE, []),
        ("skips.json", NPU, [cell("std_mean", "int32"), cell("histogramdd")]),
        ("skips.txt", PLAIN, []),
    ],
)
def test_the_imported_manifest_lints_clean_and_gates(
    tmp_path: Path, name: str, text: str, left: list[CellKey]
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    one, two = runs(tmp_path)
    file = tmp_path / "expected.toml"
    made = call("import", tmp_path / name, one, two, "--manifest", file)
    assert made.exit_code == 0, made.output
    linted = call("lint", "--manifest", file, "--run", one)
    assert (linted.exit_code, "no problems" in linted.stdout) == (0, True), linted.output
    manifest = Manifest.load(file)
    assert all(block.reason.startswith(f"triage: {name} skips it") for block in manifest.blocks)
    matcher, seen = Matcher(manifest), evidence_of(load_run(two), "b")
    judged = {
        key: judge_observation(matcher.match(key).expectation, each, date(2026, 1, 1)).verdict
        for key, each in seen.cells.items()
    }
    red = [key for key, verdict in judged.items() if verdict not in (Verdict.OK, Verdict.EXPECTED)]
    assert sorted(red) == sorted(left)


def test_the_command_says_what_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "skips.txt").write_text(PLAIN.replace("nosuchop", "histogramd"), encoding="utf-8")
    said = call("import", tmp_path / "skips.txt", *runs(tmp_path), "--dry-run", "--manifest", tmp_path / "m.toml").stdout  # fmt: skip
    assert "5 entries, about 5 planned cells; 0 of these do not fail unexpectedly" in said
    assert "1 entry is about no planned cell:\n    histogramd; did you mean 'histogramdd'?" in said
    assert "nothing was written" in said and not (tmp_path / "m.toml").exists()


def test_an_imported_manifest_is_left_alone_by_a_second_import(tmp_path: Path) -> None:
    (tmp_path / "skips.txt").write_text(PLAIN, encoding="utf-8")
    command = ("import", tmp_path / "skips.txt", *runs(tmp_path), "--manifest", tmp_path / "m.toml")
    call(*command)
    before = (tmp_path / "m.toml").read_text(encoding="utf-8")
    assert call(*command).exit_code == 0
    assert (tmp_path / "m.toml").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.py", "skip_dict = {", "not Python"),
        ("a.py", "x = 1\n", "no entry was found; expected a dictionary of tuples"),
        ("a.json", "{", "not JSON"),
        ("a.json", "3", "expected an object whose keys are names of tests"),
        ("a.yaml", "a: [", "not YAML"),
        ("a.yaml", "- 1", "expected a configuration of torch-spyre"),
        ("a.txt", "# nothing\n", "no entry was found; expected one name per line"),
    ],
)
def test_a_list_that_cannot_be_read_is_one_message(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    made = call("import", tmp_path / name, *runs(tmp_path), "--manifest", tmp_path / "m.toml")
    assert made.exit_code == 4 and made.stderr.startswith(f"error: {tmp_path / name}: ")
    assert says in made.stderr


def test_a_binary_file_and_a_missing_one_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    pair = runs(tmp_path)
    assert "is not UTF-8" in call("import", tmp_path / "a.txt", *pair).stderr
    assert "cannot be read" in call("import", tmp_path / "nosuch.txt", *pair).stderr


def test_one_run_is_not_enough(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mean\n", encoding="utf-8")
    made = call("import", tmp_path / "a.txt", runs(tmp_path)[0], "--manifest", tmp_path / "m.toml")
    assert made.exit_code == 4 and "only from two runs that agree" in made.stderr
