"""What tests of several rooms share: runs of the suite, and a process to fork runs from. And how the tests are run."""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devices.cell import CellKey
from devices.files import cache_root
from reports.model import CellResult
from tests import durations
from tests.plugin.running import ForkServer, Ran, cells_of, only_one, run_pytest


@dataclass(frozen=True, slots=True)
class WholeRun:
    """An unfiltered run of plan quick on cpu, without expectations."""

    folder: Path
    ran: Ran
    cells: dict[CellKey, CellResult]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slow: takes long; `tox` leaves it out, `tox -e slow` and CI run it"
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Seconds by file, where durations are asked for."""
    rows = config.getoption("--durations")
    if rows is not None:
        reports = [r for each in terminalreporter.stats.values() for r in each]
        seconds = durations.by_file(r for r in reports if isinstance(r, pytest.TestReport))
        terminalreporter.write_sep("=", "seconds by file")
        terminalreporter.write_line("\n".join(durations.table(seconds, rows or len(seconds))))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """As runs have it: workers whose torch has a thread for each core wait for each other's. Torch is loaded if a test
    that was collected needs it."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the whole test session, under xdist for all its workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def cache(shared: Path) -> Path:
    """The session's own cache of stride references. Builds of the simulated device and headers for the compiler, which take
    long to make, are the user's."""
    folder = shared / "reference-cache"
    with only_one(shared, "reference-cache"):
        folder.mkdir(exist_ok=True)
        for name in ("simulated", "compiler"):
            kept = cache_root() / name
            kept.mkdir(parents=True, exist_ok=True)
            if not (folder / name).exists():
                (folder / name).symlink_to(kept.absolute())
    return folder


#: Where gradients are computed in the process of the tests.
_BACKWARD = frozenset({"autocast", "autograd", "locate", "nn", "optim"})


#: Files that take longest. They come first: one that is begun when the others are done keeps one core alone.
_LONGEST = (
    "test_types.py",
    *("behaviour/test_faults.py", "strangers/test_first_day.py", "layout/test_whole_run.py"),
    *("isolation/test_runs.py", "autograd/test_gradients.py", "dashboard/test_pages.py"),
    *("frame/test_children.py", "frame/test_pools.py", "vendor/test_installed.py"),
    *("layout/test_repro.py", "plugin/test_runs.py", "dashboard/test_grid.py"),
    *("plugin/test_exit_codes.py", "behaviour/test_scripts.py", "faults/test_layout_faults.py"),
    *("opinfo/test_axes.py", "faults/test_simulated_faults.py", "mutation/test_mutation.py"),
    *("test_architecture.py", "isolation/test_resume.py", "explore/test_runs.py"),
    *("plugin/test_wrong_uses.py", "opinfo/test_specified.py", "devices/test_manifest_matching.py"),
    *("behaviour/test_programs.py", "kernels/test_kernels.py", "layout/test_lazy.py"),
    *("dashboard/test_first_screens.py", "plugin/test_inert.py", "behaviour/test_runs.py"),
    *(
        "kernels/test_unanswered_calls.py",
        "isolation/test_other_checks_in_runs.py",
        "bugs/test_bugs.py",
    ),
    *("transcripts/test_transcripts.py", "wording/test_wording.py", "coverage/test_data.py"),
    *("scale/test_hosts.py", "vendor/test_wheels.py", "minimise/test_repros.py"),
    *("mutation/test_survivors.py", "explore/test_found_programs.py", "forking/test_runs.py"),
    *("coverage/test_measuring.py",),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first, then those with most tests. And load the simulated device before any backward:
    the first one of a process starts autograd's threads, as many as there are devices by then."""
    tests, here = Counter(item.path for item in items), Path(__file__).parent
    longest = {here / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: (longest.get(item.path, len(longest)), -tests[item.path]))
    if any(_BACKWARD & {*item.path.parts} for item in items):
        importlib.import_module("devices.simulated.backend")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more workers than cores: some tests wait for limits, and for hosts. With them, no core idles."""
    return (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1) + 2


@pytest.fixture(scope="session")
def whole_run(shared: Path, cache: Path) -> WholeRun:
    """Every op in float32, by two workers, with a cold reference cache (about 60 s)."""
    folder, said = shared / "whole-run", shared / "whole-run.txt"
    with only_one(shared, "whole-run"):
        if not said.exists():
            ran = run_pytest(
                *("-n", "2", "-v", "--no-header", "--device", "cpu", "--expectations", "none"),
                *("--minimise", "40"),
                f"--results={folder}",
                cache=cache,
            )
            said.write_text(f"{ran.code}\n{ran.text}", encoding="utf-8")
    code, _, text = said.read_text(encoding="utf-8").partition("\n")
    return WholeRun(folder, Ran(int(code), text), cells_of(folder))


@pytest.fixture(scope="session")
def fork(cache: Path) -> Iterator[ForkServer]:
    """Runs pytest and scripts in forks of a process with torch loaded."""
    with ForkServer(cache) as server:
        yield server
