"""Measures how fast the pages of a large site are in Chromium: first paint, filtering and scrolling.

Wall times depend on what else the machine does, so the time that the page's main thread was busy, from Chromium's
counters, is printed as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.chromium import running_chromium
from benchmarks.figures import Figure
from reports.model import RunError

QUERIES = (
    "status:bad",
    "alpha:fail and not beta:fail",
    "clause:layout.* dtype:bfloat16",
    "alpha:fail and not beta:fail clause:layout.* dtype:bfloat16 op:op1*",
    "",
)

# Type a query, and wait until its result has been painted.
_FILTER = """
(query) => new Promise((done) => {
  const input = document.querySelector("#query"), began = performance.now();
  input.value = query;
  input.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})
"""

# Scroll from top to bottom and back, 90 pixels a frame; the time of each frame in ms.
_SCROLL = """
() => new Promise((done) => {
  const grid = document.querySelector(".vgrid"), times = [];
  let last = performance.now(), step = 90;
  function frame(now) {
    times.push(now - last);
    last = now;
    if (grid.scrollTop + grid.clientHeight >= grid.scrollHeight - 1) step = -90;
    grid.scrollTop += step;
    if (times.length < 400) requestAnimationFrame(frame);
    else done(times.slice(1));
  }
  requestAnimationFrame(frame);
})
"""


def busy(session: Any) -> float:
    """The processor seconds of the page's main thread so far."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def measured(site: Path) -> Iterator[Figure]:
    """Open the overview, the grid and the page "Explore" of a site, and yield the figures."""
    with ExitStack() as stack:
        try:
            chromium = stack.enter_context(running_chromium())
        except (ModuleNotFoundError, RunError) as absent:
            print(f"browser: not measured: {absent}")
            return
        for name, columns in (("index", ""), ("grid", "#by=clause"), ("explore", "")):
            page = chromium.new_page()
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.goto(f"file://{site}/{name}.html{columns}")
            if name != "index":
                page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
            paint = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            yield Figure(f"{name}: first paint, ms", paint, 1000)
            if name != "index":
                print(f"{name}: ready after {page.evaluate('performance.now()'):.0f} ms, "
                      f"{1000 * busy(session):.0f} ms busy")  # fmt: skip
                yield _filters(page, session, name)
            if name == "grid":
                yield _scrolls(page, session)
            page.close()


def _filters(page: Any, session: Any, name: str) -> Figure:
    times, work = [], []
    for query in QUERIES * 2:
        before = busy(session)
        times.append(float(page.evaluate(_FILTER, query)))
        work.append(1000 * (busy(session) - before))
    print(f"{name}: filtering busy for {statistics.median(work):.0f} ms, at most {max(work):.0f}")
    return Figure(f"{name}: filtering, median ms", statistics.median(times), 100)


def _scrolls(page: Any, session: Any) -> Figure:
    before = busy(session)
    times = sorted(page.evaluate(_SCROLL))
    work = 1000 * (busy(session) - before) / len(times)
    print(f"grid: frames of {statistics.median(times):.1f} ms in the median, "
          f"{times[int(0.95 * len(times))]:.1f} at the 95th percentile")  # fmt: skip
    return Figure("grid: main thread busy in a frame of scrolling, ms", work, 16.6)
