"""`conform dashboard` as people and CI call it: what it says, and what it exits with."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cli import conform
from tests.dashboard import fleet


def call(*arguments: object) -> int:
    """The exit status of a call."""
    with pytest.raises(SystemExit) as ended:
        conform.main(["dashboard", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_a_site_is_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(fleet.beta(tmp_path / "run"), "-o", tmp_path / "site") == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/site/index.html: 1 device, 1 run (1 read, 0 already there)\n"
    assert said.err == ""


def test_a_title_of_ones_own(tmp_path: Path) -> None:
    call(fleet.beta(tmp_path / "run"), "-o", tmp_path / "site", "--title", "A <b> C")
    assert "<title>A &lt;b&gt; C</title>" in (tmp_path / "site" / "index.html").read_text()


def test_a_lone_shard_exits_2_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fleet.write(tmp_path / "run", "beta", fleet.BETA, shard="2/3")
    assert call(run, "-o", tmp_path / "site") == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert "only shard 2/3" in said[0]


def test_skipped_runs_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = fleet.write(tmp_path / "bad", "beta", fleet.BETA, shard="2/3")
    good = fleet.alpha(tmp_path / "good", 1)
    assert call(bad, good, "-o", tmp_path / "site", "--skip-refused") == 0
    assert "skipped: " in capsys.readouterr().err


def test_an_edited_run_exits_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fleet.beta(tmp_path / "run")
    record = run / "run.conform"
    record.write_bytes(record.read_bytes().replace(b"\xa4fail", b"\xa4hang"))
    assert call(run, "-o", tmp_path / "site") == 4
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["-o", "site"], ["nosuchfolder", "-o", "site"], ["."]])
def test_bad_arguments_exit_4(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 4
    assert not (tmp_path / "site").exists()
