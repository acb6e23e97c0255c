"""The plugin stays out of the way of tests that are not the suite's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.running import run_pytest

WITNESS = ("-p", "tests.plugin.data.witness", "-p", "no:cacheprovider")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("tests/devices/test_verdicts.py",), id="a file"),
        pytest.param(
            ("tests/devices/test_verdicts.py", "-n", "1"), id="a worker", marks=pytest.mark.slow
        ),
        pytest.param(
            ("tests/layout", "tests/plugin", "--collect-only", "-q"),
            id="collecting",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_of_other_tests_prints_no_section_of_ours(
    cache: Path, arguments: tuple[str, ...]
) -> None:
    ran = run_pytest(*arguments, cache=cache)
    assert ran.code == 0 and "conformance:" not in ran.text and "= conformance =" not in ran.text


@pytest.mark.parametrize(
    "arguments",
    [
        ("tests/devices/test_verdicts.py",),
        ("tests/devices/test_registry.py", "tests/reports", "--collect-only", "-q"),
    ],
    ids=["running", "collecting"],
)
def test_a_run_of_other_tests_does_not_import_torch(
    cache: Path, arguments: tuple[str, ...]
) -> None:
    ran = run_pytest(*WITNESS, *arguments, cache=cache)
    assert ran.code == 0 and "torch imported: False" in ran.text


def test_the_witness_sees_torch_where_it_is_imported(cache: Path) -> None:
    ran = run_pytest(*WITNESS, "--collect-only", "-q", "tests/opinfo/test_compare.py", cache=cache)
    assert ran.code == 0 and "torch imported: True" in ran.text


def test_help_shows_the_options_and_does_not_import_torch(cache: Path) -> None:
    ran = run_pytest(*WITNESS, "--help", cache=cache)
    assert ran.code == 0 and "--descriptor=PATH" in ran.text
    assert "torch imported: True" not in ran.text


def test_other_tests_may_fail_without_us(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "test_other.py"
    path.write_text("def test_fails():\n    assert 1 == 2\n")
    ran = run_pytest(str(path), "-c", "/dev/null", cache=cache)
    assert ran.code == 1 and "assert 1 == 2" in ran.text and "conformance" not in ran.text
