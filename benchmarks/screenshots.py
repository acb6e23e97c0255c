"""Pictures of a site for README.md: ``python -m benchmarks.screenshots SITE [FOLDER]``.

Needs Playwright and a Chromium of the system (or ``$CONFORM_CHROMIUM``). Writes the overview, the
grid and a cell, light and dark, into docs/images.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from reports.model import RunError

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Name, address and height of each picture, in CSS pixels; all are WIDTH wide.
WIDTH = 1280
PICTURES = (
    ("overview", "index.html", 880),
    ("grid", "grid.html#by=clause&sort=bad", 800),
    ("cell", "", 1060),
)


def find_chromium() -> str:
    """The system's Chromium. Raises RunError where there is none."""
    named = os.environ.get("CONFORM_CHROMIUM")
    found = named or next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        raise RunError("no Chromium: install one (Debian: chromium), or set CONFORM_CHROMIUM")
    return found


def take(site: Path, folder: Path, cell: str) -> list[Path]:
    """Take every picture, light and dark; ``cell`` is the address of the cell to show."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        for scheme in ("light", "dark"):
            for name, address, height in PICTURES:
                page = chromium.new_page(
                    color_scheme=scheme, viewport={"width": WIDTH, "height": height}
                )
                page.goto(f"file://{site.resolve()}/{address or cell}")
                if page.query_selector("#app"):
                    page.wait_for_selector("html[data-ready]", state="attached")
                path = folder / f"{name}-{scheme}.png"
                page.screenshot(path=path)
                taken.append(path)
                page.close()
        chromium.close()
    return taken


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 3:
        print("usage: python -m benchmarks.screenshots SITE [FOLDER [CELL]]")
        return 4
    site = Path(arguments[0])
    if not (site / "index.html").is_file():
        print(f"error: {site} is no site: expected the folder that `conform dashboard -o` wrote")
        return 4
    folder = Path(arguments[1]) if len(arguments) > 1 else Path("docs/images")
    cell = arguments[2] if len(arguments) > 2 else "cell.html"
    try:
        for path in take(site, folder, cell):
            print(path)
    except (ModuleNotFoundError, RunError) as absent:
        print(f"error: no pictures: {absent}")
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
