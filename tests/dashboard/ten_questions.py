"""Ten questions about the example site, which are answered by clicking and searching in Chromium.

``python -m tests.dashboard.ten_questions SITE [PAGE]`` opens the overview for each question, uses only what is visible there,
prints the way and the answer, and writes them to PAGE (docs/questions.md). A use of the search box counts as a click. Exits 1 if a question
takes more than three clicks or 30 seconds. The site is that of ``tests.dashboard.real_site``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.chromium import running_chromium
from reports.gate import number
from tests.dashboard.looking import visiting

CLICKS: Final = 3
SECONDS: Final = 30
#: The longest part of an answer that is quoted.
_QUOTED: Final = 300


@dataclass(slots=True)
class Reader:
    """Somebody in front of the site, who clicks, searches and types. ``way`` is what was done."""

    page: Any
    way: list[str] = field(default_factory=list)
    clicks: int = 0

    def click(self, what: Any, name: str) -> None:
        """Clicks something visible."""
        what.first.wait_for(state="visible")
        self.way.append(f"click “{name}”")
        self.clicks += 1
        before, link = self.page.url, what.first.get_attribute("href")
        what.first.click()
        self.settle(before if link else None)

    def search(self, text: str) -> None:
        """Presses "/", types a text, and presses Enter."""
        self.way.append(f"search “{text}”")
        self.clicks += 1
        before = self.page.url
        self.page.keyboard.press("/")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        self.settle(before)

    def type(self, selector: str, text: str) -> None:
        """Types into a field of the page."""
        self.way.append(f"type “{text}”")
        self.page.fill(selector, text)
        self.page.wait_for_timeout(300)

    def settle(self, before: str | None) -> None:
        """Waits until the page is there; until it is another one than ``before``, if that is given."""
        if before is not None:
            self.page.wait_for_url(lambda url: url != before)
        self.page.wait_for_load_state()
        if self.page.query_selector("#app"):
            self.page.wait_for_selector("html[data-ready]", state="attached")

    def menu(self, name: str) -> None:
        """Clicks an entry of the menu."""
        self.click(self.page.locator("nav[aria-label=Pages] a", has_text=name), name)

    def seen(self, selector: str) -> list[str]:
        """The texts of the visible elements, each on one line."""
        return [
            " ".join(each.inner_text().split())
            for each in self.page.locator(selector).all()
            if each.is_visible()
        ]


def regressed(reader: Reader) -> str:
    card = ".device[data-device='simulated-quick']"
    reader.click(reader.page.locator(f"{card} .since a"), "Since …")
    reader.page.wait_for_selector("dd[data-change]")
    counts = {
        each.get_attribute("data-change"): each.inner_text()
        for each in reader.page.locator("dd[data-change]").all()
    }
    worse = [
        f"{counts[name]} {name.replace('-', ' ')}" for name in ("newly-crashing", "newly-failing")
    ]
    cells = reader.seen(".compared a, details[open] li a")[:3]
    return f"{' and '.join(worse)} cells; the first are {', '.join(cells)}"


def keeps_nan(reader: Reader) -> str:
    reader.search("topk")
    link = "section:has(p[data-device='torchax-quick']) tr:has-text('layout.values') td a"
    reader.click(reader.page.locator(link), "layout.values of torchax")
    status, message = reader.seen("main .tag")[0], reader.seen("pre.box")
    if not message:
        return f"{status}: every executed check passed, those of samples with NaN too"
    if "NaN" in message[0] or "nan" in message[0]:
        return f"{status}: {message[0]}"
    # A check ends at the first difference, so what comes after it was not judged.
    return (
        f"This run cannot tell, because the check finds another fault first. {status}: {message[0]}"
    )


def causes_of_lazy(reader: Reader) -> str:
    reader.click(
        reader.page.locator(".device[data-device='lazy-quick'] .why .more a"), "causes of lazy"
    )
    section = "section[data-device='lazy-quick']"
    folded = reader.page.locator(f"{section} details:not([open]) > summary")
    if folded.count() and not reader.seen(f"{section} li[data-cause]"):
        reader.click(folded, "Listed in the manifest")
    rows = reader.page.locator(f"{section} li[data-cause]:visible").all()[:3]
    return "; ".join(
        f"{' '.join(row.locator('.n').inner_text().split())}: {row.locator('a').first.inner_text()}"
        for row in rows
    )


def bugs_of_cpu(reader: Reader) -> str:
    reader.menu("Bugs")
    reader.type("#filter", "cpu")
    names = reader.seen("li[data-bug] > div > a:first-child")
    return f"{len(names)}, first those that its manifest names: {', '.join(names[:7])}"


def meaning(reader: Reader) -> str:
    reader.search("layout.out_kept")
    return reader.seen("details[open].clause > p")[0]


def add_everywhere(reader: Reader) -> str:
    reader.search("add")
    return "; ".join(
        f"{title}: {count}"
        for title, count in zip(
            reader.seen(".side-by-side h2"), reader.seen(".side-by-side .figure"), strict=True
        )
    )


def last_run(reader: Reader) -> str:
    return "; ".join(reader.seen(".device[data-device='simulated-quick'] .run p")[:2])


def only_torchax(reader: Reader) -> str:
    reader.menu("Explore")
    reader.type("#query", "torchax:bad cpu:pass")
    found = reader.page.get_attribute("[data-found]", "data-found")
    return f"{found} cells; the first are {', '.join(reader.seen('.vrow .vname')[:3])}"


def reproduced(reader: Reader) -> str:
    reader.search("digamma")
    crash = "section:has(p[data-device='simulated-quick']) td.k-crash a"
    reader.click(reader.page.locator(crash), "the crash on simulated")
    reader.page.wait_for_selector("text=Reproduce")
    return reader.seen(".copyable pre")[-1]


def outdated(reader: Reader) -> str:
    reader.menu("Manifests")
    section = "section[data-device='cpu-quick']"
    figures = [" ".join(each.split()) for each in reader.seen(f"{section} dl.facts > div")]
    reader.click(
        reader.page.locator(f"{section} summary", has_text="expired, or without"),
        "expired, or without a cell in this plan",
    )
    return f"{'; '.join(figures[:4])}. The first: {reader.seen(f'{section} details[open] li')[0]}"


#: Written before the answers were looked at.
QUESTIONS: Final[tuple[tuple[str, Callable[[Reader], str]], ...]] = (
    ("What regressed on the simulated device since the run before?", regressed),
    ("Does `topk` keep NaN on torchax?", keeps_nan),
    ("Which causes explain most of what is red on lazy?", causes_of_lazy),
    ("Which public bugs does the CPU have?", bugs_of_cpu),
    ("What does `layout.out_kept` mean?", meaning),
    ("Is `add` fine on every device?", add_everywhere),
    ("When did the simulated device run last, and with which torch?", last_run),
    ("What fails on torchax and passes on the CPU?", only_torchax),
    ("How do I reproduce the crash of `digamma` on the simulated device?", reproduced),
    ("Which blocks of the CPU's manifest are out of date?", outdated),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, the way to its answer, and the answer."""

    question: str
    way: list[str]
    clicks: int
    seconds: float
    text: str

    @property
    def spent(self) -> str:
        """The clicks and seconds, in words."""
        return f"{number(self.clicks, 'click')}, {self.seconds:.1f} s"

    @property
    def late(self) -> bool:
        """True if the answer took too many clicks or too long."""
        return self.clicks > CLICKS or self.seconds > SECONDS


def answers(browser: Any, site: Path) -> list[Answer]:
    """Asks every question, each from the overview."""
    found = []
    with visiting(browser, site, viewport={"width": 1280, "height": 800}) as (page, visit):
        for question, find in QUESTIONS:
            visit("index.html")
            reader = Reader(page)
            started = time.monotonic()
            text = find(reader)
            seconds = time.monotonic() - started
            text = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
            found.append(Answer(question, reader.way, reader.clicks, seconds, text))
    return found


def page_of(found: list[Answer], devices: str) -> str:
    """The transcript as a page of Markdown."""
    lines = [
        "# Ten questions to the dashboard",
        "",
        "The questions were written before anyone looked at the answers. Each begins on the overview of the",
        "[example site](dashboard.md#the-example-site) and uses only what is visible: links, the search box, and fields of the page. A use of the",
        "search box counts as a click.",
        "",
        "`python -m tests.dashboard.ten_questions SITE docs/questions.md` asks the questions again, in Chromium, and writes this page. It fails if an",
        f"answer takes more than {CLICKS} clicks or {SECONDS} seconds, which are those of loading and finding, without reading.",
        "",
        f"{devices}",
    ]
    for place, each in enumerate(found, 1):
        way = ", ".join(each.way) or "read the overview"
        lines += ["", f"## {place}. {each.question}", ""]
        lines += [f"{way[0].upper()}{way[1:]} ({each.spent}).", "", f"> {_escaped(each.text)}"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A text of the site for Markdown."""
    for mark in "\\`*_[]<>":
        text = text.replace(mark, f"\\{mark}")
    return text


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m tests.dashboard.ten_questions SITE [PAGE]")
        return 4
    site = Path(arguments[0]).resolve()
    with running_chromium() as chromium:
        found = answers(chromium, site)
        with visiting(chromium, site) as (page, visit):
            visit("index.html")
            cards = [
                f"{each.get_attribute('data-device')} ({each.locator('time').first.inner_text()})"
                for each in page.locator(".device").all()
            ]
    for each in found:
        way = ", ".join(each.way) or "read the overview"
        print(each.question)
        print(f"  {way} ({each.spent}){': TOO LATE' if each.late else ''}")
        print(f"  {each.text}")
    if len(arguments) > 1:
        devices = f"The site's newest runs: {', '.join(cards)}."
        Path(arguments[1]).write_text(page_of(found, devices), encoding="utf-8")
    return 1 if any(each.late for each in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
