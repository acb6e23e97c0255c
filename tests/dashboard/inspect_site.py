"""What must hold of every page of a site, whatever it shows: ``python -m tests.dashboard.inspect_site SITE``.

Opens the pages of a site in Chromium at four widths, light and dark, and prints what is wrong: a page that is wider than the
screen, one that is longer than 8,000 px on a phone, a serious finding of axe, a device that is not on the first screen of
1,280 x 800, a thing that the search box does not find, and a page of which a part cannot be reached with the keyboard. Exits 1 if it prints
anything but the last line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.chromium import running_chromium
from tests.dashboard.looking import visiting

AXE = Path(__file__).with_name("vendor") / "axe.min.js"
SIZES = ((390, 844), (768, 1024), (1280, 800), (1920, 1080))
SCHEMES = ("light", "dark")
#: The longest page on a phone, in CSS pixels.
LONGEST = 8000
#: How many things are looked up, and the kinds of them in the index of the search box.
LOOKED_UP = 20

_SERIOUS = """
async () => (await axe.run({resultTypes: ['violations'], preload: false})).violations
  .filter((each) => ['serious', 'critical'].includes(each.impact))
  .map((each) => `${each.id}: ${each.help}: ${each.nodes[0].html.slice(0, 160)}`)
"""
#: The links and controls that can be seen and that the key Tab must reach: all but those in a grid, which is one stop, and
#: whose squares and rows are reached with the arrows.
_REACHABLE = """
() => [...document.querySelectorAll("main a[href], main button, main input, main select, main summary")]
  .filter((each) => each.checkVisibility() && each.tabIndex < 0 && !each.closest('.vgrid'))
  .map((each) => (each.getAttribute("aria-label") || each.textContent || each.id).trim().slice(0, 60))
"""


def addresses(browser: Any, site: Path) -> list[str]:
    """One page of each kind: those of fixed names, and the first cause, bug, cell and operator that the site links."""
    found = [
        *("index.html", "grid.html", "grid.html#show=cases", "grid.html#group=family", "explore.html", "compare.html"),
        *("trends.html", "causes.html", "bugs.html", "manifest.html", "ops.html", "contract.html", "methodology.html"),
    ]  # fmt: skip
    with visiting(browser, site) as (page, visit):
        for start, selector in (
            ("causes.html", "li[data-cause] a"),
            ("causes.html", "li[data-cause] .meta a"),
            ("bugs.html", "li[data-bug] a"),
            ("ops.html", "tr[data-row] a"),
        ):
            visit(start)
            link = page.query_selector(selector)
            found += [str(link.get_attribute("href"))] if link is not None else []
    return found


def of_pages(browser: Any, site: Path, pages: list[str]) -> Iterator[str]:
    """What is wrong with single pages, at each width, light and dark."""
    for width, height in SIZES:
        for scheme in SCHEMES:
            look = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
            with visiting(browser, site, bypass_csp=True, **look) as (page, visit):
                for address in pages:
                    visit(address)
                    where = f"{address} at {width} px, {scheme}"
                    wide, high = page.evaluate(
                        "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
                    )
                    if wide > width:
                        yield f"{where}: {wide} px wide"
                    if width == SIZES[0][0] and high >= LONGEST:
                        yield f"{where}: {high} px long"
                    page.add_script_tag(path=str(AXE))
                    yield from (f"{where}: {each}" for each in page.evaluate(_SERIOUS))


def of_first_screen(browser: Any, site: Path) -> Iterator[str]:
    """The devices that are not wholly on the first screen of 1,280 x 800, or lack what it must say of them."""
    with visiting(browser, site, viewport={"width": 1280, "height": 800}) as (page, visit):
        visit("index.html")
        devices = page.locator(".device").all()
        if not devices:
            yield "index.html shows no device"
        for device in devices:
            name, box = device.get_attribute("data-device"), device.bounding_box()
            if box["y"] + box["height"] > 800:
                yield f"index.html: {name} ends at {box['y'] + box['height']:.0f} px, below the first screen"
            yield from (
                f"index.html: {name} has no {what}"
                for what in (".verdict", ".passed", "time", ".since", ".why")
                if not device.locator(what).first.inner_text().strip()
            )


def of_search(browser: Any, site: Path) -> Iterator[str]:
    """The things that "/", their name and Enter do not lead to: twenty, of every kind that the index has."""
    with visiting(browser, site) as (page, visit):
        visit("index.html")
        for text, begins in things(site):
            visit("trends.html")
            page.keyboard.press("/")
            page.keyboard.type(text)
            page.keyboard.press("Enter")
            for _ in range(100):
                if begins in page.url:
                    break
                page.wait_for_timeout(50)
            else:
                yield f"search: {text!r} leads to {page.url.rpartition('/')[2]}, not to {begins}"


def things(site: Path) -> list[tuple[str, str]]:
    """Names that a reader knows, evenly taken from the index, and what is in the address of the page of each."""
    script = (site / "data" / "search.js").read_text(encoding="utf-8")
    text = script.partition(",'")[2].rpartition("')")[0]
    index = json.loads(text.replace("\\'", "'").replace("\\\\", "\\"))
    ops, cases = list(index["ops"]), list(index["cases"])
    kinds = [
        ([(each[1], f"device={each[0]}") for each in index["devices"]], 3),
        ([(name, "/op/") for name in ops], 6),
        ([(name, f"contract.html#{name}") for name in index["clauses"]], 4),
        ([(name, "/op/") for name in cases], 3),
        ([(each["text"], "bug.html#url=") for each in index["bugs"]], 2),
        ([(each["text"], "cause.html#id=") for each in index["causes"]], 2),
    ]
    chosen = [
        each for names, count in kinds for each in names[:: max(len(names) // count, 1)][:count]
    ]
    return [*chosen, *((name, "/op/") for name in ops[1::7])][:LOOKED_UP]


def of_keyboard(browser: Any, site: Path, pages: list[str]) -> Iterator[str]:
    """What the key Tab does not reach. The squares of a grid are reached with the arrows, from the grid."""
    with visiting(browser, site) as (page, visit):
        for address in pages:
            visit(address)
            yield from (
                f"{address}: Tab does not reach {each!r}" for each in page.evaluate(_REACHABLE)
            )
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.className") != "skip":
                yield f"{address}: the first Tab does not reach the link to the content"
        visit("grid.html")
        page.focus(".vgrid")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(200)
        if not page.locator(".vcell.on").count():
            yield "grid.html: the arrows do not reach a square"


def problems(browser: Any, site: Path) -> Iterator[str]:
    """Everything that is wrong with a site, one sentence each."""
    pages = addresses(browser, site)
    yield from of_first_screen(browser, site)
    yield from of_search(browser, site)
    yield from of_keyboard(browser, site, pages)
    yield from of_pages(browser, site, pages)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m tests.dashboard.inspect_site SITE")
        return 4
    site = Path(arguments[0]).resolve()
    with running_chromium() as chromium:
        found = 0
        for problem in problems(chromium, site):
            print(problem, flush=True)
            found += 1
        pages = len(addresses(chromium, site))
    print(
        f"{site}: {pages} pages at {len(SIZES)} widths, light and dark: {found or 'nothing'} wrong"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
