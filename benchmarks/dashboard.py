"""Measures building the site of a fleet of 6 devices with 252,000 cells each: first with one run of each, then with
thirty.

The runs of the first 29 dates are put into the site as a build would have left them, because their records would take 6
GB. The six runs of the thirtieth date are complete and are read. Times are wall seconds and processor seconds of the
build and its workers. benchmarks/browser.py measures browsers.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from benchmarks import browser
from benchmarks.figures import Figure
from benchmarks.running import ROOT
from benchmarks.synthetic_runs import CHANGING, cells_of, write
from reports.dashboard import axes as axes_of
from reports.dashboard.documents import RunDocument, write_json, write_script
from reports.dashboard.ingest import run_id

DEVICES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")
DATES = 30

_BUILD = """
import resource, sys, time
from pathlib import Path
from reports.dashboard.build import build
start = time.perf_counter()
made = build([Path(sys.argv[1])], Path(sys.argv[2]))
wall = time.perf_counter() - start
own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
print(wall, own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime,
      own.ru_maxrss / 1024, workers.ru_maxrss / 1024, made.runs, made.read)
"""


def timed(runs: Path, site: Path) -> tuple[float, float, float, int, int]:
    """Build in a new process. Returns wall seconds, processor seconds, peak memory in MiB, the runs on the site and the
    runs read.

    The peak is that of the main process and twice that of the largest worker, since there are two workers.
    """
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(runs), str(site)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wall, processor, own, worker, held, read = done.stdout.split()
    workers = float(worker) * min(os.cpu_count() or 1, len(DEVICES))
    return float(wall), float(processor), float(own) + workers, int(held), int(read)


def age(site: Path, dates: int) -> None:
    """Add runs of earlier dates to the site, as if they had been read on those dates."""
    runs = site / "v1" / "runs"
    for path in sorted(runs.glob("*.json")):
        document = msgspec.json.decode(path.read_bytes(), type=RunDocument)
        first = datetime.fromisoformat(document.start.replace("Z", "+00:00"))
        axis = msgspec.json.decode(
            (site / "v1" / "axes" / f"{document.axis}.json").read_bytes(), type=axes_of.Axis
        )
        for back in range(1, dates + 1):
            start = (first - timedelta(days=back)).astimezone(timezone.utc)
            sha256 = f"{back:02d}{document.sha256[2:]}"
            codes = "".join(_changed(document.codes, f"{path.stem}/{back}"))
            older = msgspec.structs.replace(
                document, sha256=sha256, id=run_id(start, sha256), codes=codes,
                start=start.strftime("%Y-%m-%dT%H:%M:%SZ"), counts=axes_of.count(axis, codes),
            )  # fmt: skip
            data = write_json(runs / f"{older.id}.json", older)
            write_script(site, f"runs/{older.id}", data)


def _changed(codes: str, seed: str) -> Iterator[str]:
    """Yields the letters of a run in which some cells fail on one date only."""
    chance = random.Random(seed)
    plain = codes.replace("F", ".")
    where = sorted(chance.sample(range(len(plain)), int(CHANGING * len(plain))))
    start = 0
    for place in where:
        yield plain[start:place]
        yield "F" if plain[place] == "." else plain[place]
        start = place + 1
    yield plain[start:]


def overview_bytes(site: Path) -> int:
    """The bytes that the overview loads, compressed as web hosts do it (gzip, level 6)."""
    names = ("index.html", "assets/site.css", "assets/theme.js", "assets/base.js",
             "assets/overview.js", "assets/icon.svg")  # fmt: skip
    return sum(len(gzip.compress((site / name).read_bytes(), 6)) for name in names)


def write_date(folder: Path, date: int) -> None:
    """Write the six runs of one date."""
    cells = cells_of()
    for number, device in enumerate(DEVICES):
        write(folder / device, device, number, date, cells)


def measured() -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="conform-dashboard-"))
    try:
        yield from _built(folder)
    finally:
        shutil.rmtree(folder)


def _built(folder: Path) -> Iterator[Figure]:
    """Build twice below ``folder``, measure both builds, and measure the pages."""
    site = folder / "site"
    write_date(folder / "first", DATES - 1)
    wall, processor, peak, held, read = timed(folder / "first", site)
    print(f"from nothing: {held} runs, {read} read; {processor:.1f} processor s, {peak:.0f} MiB")
    yield Figure("6 x 1 run from nothing, s", wall, 20)
    age(site, DATES - 2)
    write_date(folder / "last", DATES)
    wall, processor, peak, held, read = timed(folder / "last", site)
    print(f"incremental: {held} runs, {read} read; {processor:.1f} processor s")
    yield Figure("6 x 30 runs, 6 of them new, s", wall, 60)
    yield Figure("6 x 30 runs, peak MiB", peak, 2048)
    yield Figure("overview, kB compressed", overview_bytes(site) / 1000, 150)
    yield from browser.measured(site)
