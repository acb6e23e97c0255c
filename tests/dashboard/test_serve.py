"""`conform serve`: the pages of one run, complete or not, on this machine."""

from __future__ import annotations

import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import conform
from devices.cell import Outcome, Verdict
from reports.dashboard.serve import ServeError, serving
from reports.model import CellResult, RunError
from tests.dashboard import fleet


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_a_run_is_served_until_the_end(tmp_path: Path) -> None:
    run = fleet.beta(tmp_path / "run")
    with serving([run], 0, "Mine") as site:
        thread = threading.Thread(target=site.server.serve_forever)
        thread.start()
        try:
            page = fetched(f"{site.url}index.html")
            assert "<title>Mine</title>" in page
            assert "✕" in page
            assert 'class="notice"' not in page
            assert "conform.give" in fetched(f"{site.url}data/site.js")
        finally:
            site.server.shutdown()
            thread.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_interrupted_run_is_shown_with_what_it_has(tmp_path: Path) -> None:
    absent = [
        CellResult(fleet.cell(fleet.OUT, op, dtype), Outcome.NOT_RUN, Verdict.MISSING)
        for op in fleet.OPS for dtype in fleet.DTYPES
    ]  # fmt: skip
    run = fleet.write(tmp_path / "run", "alpha", fleet.ALPHA, *absent)
    with serving([run], 0, "Mine") as site:
        thread = threading.Thread(target=site.server.serve_forever)
        thread.start()
        try:
            page = fetched(f"{site.url}index.html")
            assert "do not publish these pages" in fetched(f"{site.url}op/add.html")
        finally:
            site.server.shutdown()
            thread.join()
    assert "32 of 97 planned cells have no outcome. Only" in page
    assert "do not publish these pages" in page
    assert "<b>65</b> of 65 cells pass" in page
    assert "0 complete runs and 1 incomplete" in page
    assert "no: 65 shown" in page


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    run = fleet.beta(tmp_path / "run")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServeError, match=f"port {port}: .* Choose another"),
            serving([run], port, ""),
        ):
            pass


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run\.conform"), serving([tmp_path], 0, ""):
        pass


@pytest.mark.parametrize("text", ["main", "=x", "Branch=x", "branch="])
def test_a_label_has_a_name_and_a_value(text: str, tmp_path: Path) -> None:
    run = fleet.beta(tmp_path / "run")
    arguments = ["dashboard", str(run), "-o", str(tmp_path / "site"), "--label", text]
    result = CliRunner().invoke(conform, arguments, standalone_mode=False)
    assert "expected NAME=VALUE" in str(result.exception)
    assert not (tmp_path / "site").exists()
