"""Workers on other machines: over ssh on two hosts, and over socket servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome
from reports.model import CellResult
from reports.run import load_run
from tests.isolation.running import planted
from tests.plugin.running import CHECKOUT, ForkServer, Ran, cells_of, run_conform
from tests.scale.hosts import hosts, socket_servers, why_not

BASE = (
    *("-p", "tests.isolation.planting", "--device", "simulated", "--ops", "add,mm,neg,sin"),
    *("--clauses", "layout.*", "--expectations", "none", "--cell-timeout", "6"),
)
#: The run's first cell, one in its midst and its last one.
FIRST, MIDST, LAST = (
    "layout.values::add[float32]",
    "layout.values::neg[float32]",
    "layout.determinism::sin[float32]",
)


@pytest.fixture(scope="module")
def calm(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[CellKey, CellResult]:
    folder = tmp_path_factory.mktemp("calm") / "run"
    ran = fork.pytest(*BASE, f"--results={folder}")
    assert ran.code == 0, ran.text
    return cells_of(folder)


def _run(folder: Path, cache: Path, *over: str) -> Ran:
    """A run whose workers are elsewhere, from a folder without the suite, which xdist would copy."""
    results = f"--results={folder / 'run'}"
    return run_conform(
        *("run", *BASE, "--minimise", "0", "--dist", "load", *over, results),
        cache=cache, cwd=folder, PYTHONPATH=str(CHECKOUT),
    )  # fmt: skip


def _equal_but_for(
    ran: Ran, folder: Path, calm: dict[CellKey, CellResult], mishaps: dict[str, Outcome]
) -> dict[CellKey, CellResult]:
    found = cells_of(folder)
    assert found.keys() == calm.keys(), ran.text
    guilty = {CellKey.parse(cell): outcome for cell, outcome in mishaps.items()}
    wanted = {key: guilty.get(key, result.outcome) for key, result in calm.items()}
    assert {key: result.outcome for key, result in found.items()} == wanted, ran.text
    return found


@pytest.mark.slow
def test_two_hosts_over_ssh_lose_the_guilty_cells_alone(
    calm: dict[CellKey, CellResult], tmp_path: Path, cache: Path
) -> None:
    if (why := why_not()) is not None:
        pytest.skip(why)
    env = planted({FIRST: "segfault", LAST: "gil-sleep", MIDST: "poison"})
    with hosts(("lab1", "lab2"), tmp_path) as machines:
        over = [word for machine in machines for word in ("--tx", machine.tx(env))]
        ran = _run(tmp_path, cache, *over)
    found = _equal_but_for(
        ran,
        tmp_path / "run",
        calm,
        {FIRST: Outcome.CRASH, MIDST: Outcome.CRASH, LAST: Outcome.HANG},
    )
    assert ran.code == 1
    assert {result.worker for result in found.values()} >= {"gw0", "gw1"}
    named = load_run(tmp_path / "run").provenance.host.split(", ")
    assert named[1:] == ["lab1", "lab2"]
    assert "left the device unusable: " in found[CellKey.parse(MIDST)].message
    assert "was lost after 30 s" in found[CellKey.parse(LAST)].message


@pytest.mark.slow
def test_socket_servers_lose_the_guilty_cell_alone(
    calm: dict[CellKey, CellResult], tmp_path: Path, cache: Path
) -> None:
    env = planted({MIDST: "abort"})
    with socket_servers(2, tmp_path) as servers:
        told = "//".join(f"env:{name}={value}" for name, value in env.items())
        over = [word for server in servers for word in ("--tx", f"socket={server}//{told}")]
        ran = _run(tmp_path, cache, *over)
    _equal_but_for(ran, tmp_path / "run", calm, {MIDST: Outcome.CRASH})
    assert ran.code == 1


@pytest.mark.slow
def test_a_worker_of_another_version_ends_the_run(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *BASE,
        *("--dist", "load", "--tx", "popen", "--tx", "popen//env:PLANTED_VERSION=0.0.0"),
        f"--results={tmp_path / 'run'}",
        workers=None,
    )
    assert ran.code == 4
    said = [line for line in ran.text.splitlines() if "has torch-conformance '0.0.0'" in line]
    assert len(said) == 1 and "Install the same versions on that machine" in ran.text, ran.text


@pytest.mark.parametrize(
    "tx", ["socket=127.0.0.1:9", pytest.param("popen//python=/no/python", marks=pytest.mark.slow)]
)
def test_a_host_that_cannot_be_reached_is_named(fork: ForkServer, tmp_path: Path, tx: str) -> None:
    over = ("--dist", "load", "--tx", tx, f"--results={tmp_path / 'run'}")
    ran = fork.pytest(*BASE, *over, workers=None)
    assert ran.code == 4 and f"a worker of {tx} cannot be started: " in ran.text, ran.text
    assert "INTERNALERROR" not in ran.text and "Traceback" not in ran.text
