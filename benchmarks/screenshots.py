"""Takes the pictures of a site for README.md: ``python -m benchmarks.screenshots SITE [FOLDER [CELL]]``.

Needs Playwright and an installed Chromium (or ``$CONFORM_CHROMIUM``). Writes the overview, the grid and a cell, light
and dark, into docs/images. CELL is the address of the cell to show, such as ``cell.html#clause=…&op=…&dtype=…``;
without it, the example of the first cause is shown. The grid is that of the most urgent device.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.chromium import running_chromium
from reports.model import RunError

# Name, address and height in CSS pixels of each picture; all have the same WIDTH.
WIDTH = 1280
PICTURES = (
    ("overview", "index.html", 800),
    ("grid", "", 800),
    ("cell", "", 1060),
)


def take(site: Path, folder: Path, cell: str) -> list[Path]:
    """Take every picture, light and dark. ``cell`` is the address of the cell to show; empty for the first cause."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with running_chromium() as chromium:
        addresses = {
            "cell": cell or _first_link(chromium, site, "causes.html", "[data-cause] .meta a"),
            "grid": _first_link(chromium, site, "index.html", ".device h2 a").partition("&q=")[0],
        }
        for scheme in ("light", "dark"):
            for name, address, height in PICTURES:
                page = chromium.new_page(
                    color_scheme=scheme, viewport={"width": WIDTH, "height": height}
                )
                page.goto(f"file://{site.resolve()}/{address or addresses[name]}")
                if page.query_selector("#app"):
                    page.wait_for_selector("html[data-ready]", state="attached")
                path = folder / f"{name}-{scheme}.png"
                page.screenshot(path=path)
                taken.append(path)
                page.close()
    return taken


def _first_link(chromium: Any, site: Path, address: str, selector: str) -> str:
    """The address of the first link of a kind on a page; that of the overview if there is none."""
    page = chromium.new_page()
    page.goto(f"file://{site.resolve()}/{address}")
    link = page.query_selector(selector)
    found = str(link.get_attribute("href")) if link is not None else "index.html"
    page.close()
    return found


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 3:
        print("usage: python -m benchmarks.screenshots SITE [FOLDER [CELL]]")
        return 4
    site = Path(arguments[0])
    if not (site / "index.html").is_file():
        print(
            f"error: {site} is not a dashboard. Give the folder that `conform dashboard -o` wrote"
        )
        return 4
    folder = Path(arguments[1]) if len(arguments) > 1 else Path("docs/images")
    cell = arguments[2] if len(arguments) > 2 else ""
    try:
        for path in take(site, folder, cell):
            print(path)
    except (ModuleNotFoundError, RunError) as absent:
        print(f"error: no pictures were taken: {absent}")
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
