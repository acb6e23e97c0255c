"""Exit codes, and one clear message for each error: 0 green, 1 regression, 2 incomplete,
3 infrastructure, 4 usage, 5 nothing selected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.running import ForkServer

DATA = Path(__file__).with_name("data").relative_to(Path(__file__).resolve().parents[2])
CPU = ("--device", "cpu", "--ops", "neg")
VIEW_COPY = (
    *("--device", "cpu", "--ops", "view_copy", "--clauses", "autograd.forward_ad"),
    *("--expectations", "none"),
)
GREEN = (*CPU, "--expectations", "none")

BLOCK = """
[[expect]]
clause = "layout.values"
op = "neg"
dtype = "float32"
outcome = "fail"
kind = "device-bug"
reason = "made up"
"""
CONTRADICTION = BLOCK + BLOCK.replace('"fail"', '"blocked"')


def test_a_clean_op_exits_0(fork: ForkServer, tmp_path: Path) -> None:
    # An item of the layout suite, of graphs, of dispatch, of autograd, and one of precision for each of three dtypes.
    clauses = "layout.*,graphs.*,dispatch.*,autograd.*,precision.*"
    ran = fork.pytest(*GREEN, "--clauses", clauses, f"--results={tmp_path / 'run'}")
    assert ran.code == 0 and "green (exit 0)" in ran.text
    assert "7 passed" in ran.text


def test_an_unexpected_failure_exits_1(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *("--device", "cpu", "--ops", "tril", "--expectations", "none", "--clauses", "layout.*"),
        f"--results={tmp_path / 'run'}",
    )
    assert ran.code == 1 and "red (exit 1)" in ran.text and "1 failed" in ran.text


def test_a_failure_of_a_provisional_clause_is_reported_and_fails_nothing(
    fork: ForkServer, tmp_path: Path
) -> None:
    ran = fork.pytest(
        *("-p", "tests.plugin.provisional", *VIEW_COPY, "-x"), f"--results={tmp_path / 'run'}"
    )
    assert ran.code == 0 and "1 passed" in ran.text and "failed" not in ran.text, ran.text
    assert "; 1 unexpected result in clauses that do not gate yet" in ran.text
    assert "not gating (provisional clause): 1 cell: " in ran.text
    assert "autograd.forward_ad::view_copy[float32]" in ran.text


def test_the_same_failure_turns_the_gate_red_where_the_clause_gates(
    fork: ForkServer, tmp_path: Path
) -> None:
    ran = fork.pytest(*VIEW_COPY, f"--results={tmp_path / 'run'}")
    assert ran.code == 1 and "1 failed" in ran.text, ran.text


@pytest.mark.parametrize(
    ("device", "variable", "name", "meant"),
    [
        (("--device", "simulated"), "SIMULATED_FAULTS", "out.restrid", "out.restride"),
        (
            ("--descriptor", "tests/wrapped/descriptor.py"),
            "WRAPPED_FAULTS",
            "stride.swap_last",
            "stride.swap_last_two",
        ),
    ],
)
def test_an_unknown_planted_fault_exits_4_and_names_the_nearest(
    fork: ForkServer, tmp_path: Path, device: tuple[str, str], variable: str, name: str, meant: str
) -> None:
    ran = fork.pytest(*device, "--ops", "add", f"--results={tmp_path / 'run'}", **{variable: name})
    assert ran.code == 4 and f"'{name}'; did you mean '{meant}'" in ran.text, ran.text
    assert "Traceback" not in ran.text and len(ran.text.splitlines()) < 5


def test_a_dead_device_exits_3_and_is_one_error(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(f"--descriptor={DATA / 'dead.py'}", f"--results={tmp_path / 'run'}")
    assert ran.code == 3 and "Traceback" not in ran.text
    assert ran.text.count("driver not responding (code 999)") == 1
    assert "device 'dead' failed to run a tiny op: RuntimeError: " in ran.text
    assert "Nothing was tested." in ran.text and not (tmp_path / "run").exists()


USAGE = {
    "unknown device": (("--device", "gpu"), "there is no device 'gpu'"),
    "unknown plan": (("--plan", "fast"), "unknown plan 'fast': expected one of quick, core, full"),
    "unknown op": (
        (*GREEN[:2], "--ops", "negg", *GREEN[4:]),
        "--ops 'negg' matches nothing in this plan; did you mean 'neg'",
    ),
    "unknown dtype": ((*GREEN, "--dtypes", "float23"), "--dtypes 'float23' matches nothing"),
    "dtype outside the plan": ((*GREEN, "--dtypes", "int16"), "--dtypes 'int16' matches nothing"),
    "unknown clause": ((*GREEN, "--clauses", "laout.*"), "no clause matches 'laout.*'"),
    "empty list": (
        (*GREEN[:2], "--ops", ","),
        "--ops is empty: expected names separated by commas",
    ),
    "bad duration": ((*GREEN, "--max-time", "soon"), "--max-time 'soon': expected a duration"),
    "no descriptor file": (("--descriptor=no/such/descriptor.py",), "no such file"),
    "descriptor without one": ((f"--descriptor={DATA / 'clash.py'}",), "there is no DESCRIPTOR"),
    "device and descriptor": (
        ("--device", "cpu", f"--descriptor={DATA / 'dead.py'}"),
        "--device cpu and --descriptor",
    ),
    "no manifest file": ((*CPU, "--expectations=no/such.toml"), "no/such.toml"),
}

MANIFESTS = {
    "no TOML": ("[[expect", "not TOML"),
    "unknown key": (BLOCK + 'because = "x"\n', "unknown key 'because'"),
    "unknown clause": (BLOCK.replace("layout.values", "layout.value"), "layout.value"),
    "unknown layout": (BLOCK + 'layouts = ["sideways"]\n', "sideways"),
    "unknown fact": (BLOCK + 'when = { colour = "red" }\n', "colour"),
    "fact that this machine lacks": (BLOCK + 'when = { driver = ">=1" }\n', "driver"),
    "bad version range": (BLOCK + 'when = { torch = "2.x" }\n', "2.x"),
    "no reason": (BLOCK.replace('reason = "made up"', ""), "reason"),
    "contradicting blocks": (CONTRADICTION, "layout.values::neg[float32]"),
}


def is_one_message(text: str, says: str) -> bool:
    """Whether the text is an error told once: no traceback, no test, no summary of a run."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return (
        len(errors) == 1
        and says in text
        and lines[0] == errors[0]
        and "Traceback" not in text
        and "INTERNALERROR" not in text
        and len(lines) <= 6
    )


@pytest.mark.parametrize("case", USAGE)
def test_a_usage_error_exits_4_with_one_message(
    fork: ForkServer, tmp_path: Path, case: str
) -> None:
    arguments, says = USAGE[case]
    ran = fork.pytest(*arguments, f"--results={tmp_path / 'run'}")
    assert ran.code == 4 and is_one_message(ran.text, says), ran.text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_bad_manifest_exits_4_with_one_message_that_names_the_file(
    fork: ForkServer, tmp_path: Path, case: str
) -> None:
    manifest, says = MANIFESTS[case]
    path = tmp_path / "bad.toml"
    path.write_text(manifest)
    ran = fork.pytest(*CPU, f"--expectations={path}", f"--results={tmp_path / 'run'}")
    assert ran.code == 4 and is_one_message(ran.text, says), ran.text
    assert str(path) in ran.text and not (tmp_path / "run").exists()


def test_a_selection_that_leaves_nothing_exits_5(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(*(*GREEN, "--clauses", "layout.as_strided"), f"--results={tmp_path / 'run'}")
    assert ran.code == 5 and "Traceback" not in ran.text, ran.text
    assert "nothing selected: --ops neg, --clauses layout.as_strided matches no cell" in ran.text


def test_an_option_that_another_plugin_has_is_told_as_a_usage_error(fork: ForkServer) -> None:
    ran = fork.pytest("-p", "tests.plugin.data.clash", *GREEN)
    assert ran.code == 4 and is_one_message(ran.text, "needs the option --device"), ran.text


def test_a_results_folder_that_cannot_be_written_exits_4(fork: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = fork.pytest(*GREEN, f"--results={tmp_path / 'file' / 'run'}")
    assert ran.code == 4 and is_one_message(ran.text, "cannot be written"), ran.text
