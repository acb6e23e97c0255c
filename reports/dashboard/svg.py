"""Draws the SVG images of a site when the site is built: charts of runs, badges of devices, and the shapes of
statuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from reports.dashboard import documents
from reports.dashboard.documents import DeviceDocument
from reports.dashboard.markup import render
from reports.gate import Tally
from reports.junit import clean
from reports.status_letters import KINDS, Status

# -- charts


def bar(counts: Tally) -> Markup:
    """Returns a thin bar with three parts for the judged cells: those that passed, those that fail as the manifest
    expects, and all other ones."""
    if not counts.judged:
        return Markup("")
    failing = 100 - 100 * counts.passed / counts.judged
    # A single failing cell must be visible, so the failing part is at least a hundredth of the bar.
    width = max(failing, 1.0) if counts.judged > counts.passed else 0.0
    split = 100 * counts.expected / counts.judged / failing * width if width else 0.0
    start = 100 - width
    parts = (
        ("pass", 0, start),
        ("expected", start, split),
        ("fail", start + split, max(width - split, 0)),
    )
    return render("bar.svg", parts=parts)


@dataclass(frozen=True, slots=True)
class Point:
    """A run on a line chart. ``x`` is the time of the run in seconds, ``date`` the text for the axis, and ``note``
    describes the run. ``mark`` names the version of torch or of the driver if that version differs from the version in
    the previous run."""

    x: float
    date: str
    counts: Tally
    note: str
    mark: str
    href: str


#: For a window, for a phone, and for one family of several.
WIDE = (1160, 190)
NARROW = (360, 150)
SMALL = (240, 84)


def line(points: Sequence[Point], size: tuple[int, int], label: str) -> Markup:
    """Returns a line chart of the number of cells that do not pass in each run. The vertical axis starts at 0."""
    width, height = size
    plain = size is SMALL  # without axes
    left, right, top, bottom = (8, 40, 10, 8) if plain else (46, 14, 14, 26)
    right, base = width - right, height - bottom
    values = [point.counts.judged - point.counts.passed for point in points]
    highest = _ceiling(max(values, default=0))
    first, span = points[0].x, points[-1].x - points[0].x
    places = [
        (
            left + ((point.x - first) / span if span > 0 else 0.5) * (right - left),
            top + (1 - value / highest) * (base - top),
        )
        for point, value in zip(points, values)
    ]
    grid = [(highest, top), (highest // 2, (top + base) / 2), (0, base)]
    if highest < 2:
        del grid[1]
    dates = [] if plain else _dates(points, places, left, right)
    marks: list[tuple[float, str, str]] = []
    last_label = -1e9
    for (x, _), point in zip(places, points):
        if point.mark:
            fits = x - last_label > 90
            anchor = "end" if x > right - 90 else "start"
            marks.append((x, anchor, point.mark[:24] if fits else ""))
            last_label = x if fits else last_label
    return render(
        "line.svg", plain=plain, narrow=size is NARROW, width=width, height=height, label=label,
        left=left, right=right, top=top, base=base, grid=() if plain else grid,
        marks=() if plain else marks, dates=dates, places=places, points=points, last=values[-1],
        zip=zip,
    )  # fmt: skip


# Upper bound for the width of a character of a date on the axis, and the room between two dates, in pixels.
_OF_CHARACTER = 7
_BETWEEN = 26


def _room(text: str) -> int:
    """The width of a date on the axis with the room before the next one, in pixels."""
    return _OF_CHARACTER * len(text) + _BETWEEN


def _dates(
    points: Sequence[Point], places: Sequence[tuple[float, float]], left: int, right: int
) -> list[tuple[float, str, str]]:
    """Returns the dates on the axis: those of the last and the first run, and of as many others as have room. Each is
    a place, an anchor and a text."""
    found: list[tuple[float, str, str]] = []
    order = [len(points) - 1, 0, *range(1, len(points) - 1)]
    for number in order:
        x, date = places[number][0], points[number].date
        if any(abs(x - other) < max(_room(date), _room(beside)) for other, _, beside in found):
            continue
        half = _room(date) / 2
        anchor = "start" if x - left < half else "end" if right - x < half else "middle"
        found.append((x, anchor, date))
    return found


def _ceiling(value: int) -> int:
    """Returns the smallest of the numbers 1, 2, 5, 10, 20, 50, … that is at least as large as the value."""
    power: int = 10 ** (len(str(value)) - 1)
    return next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power)


# -- badges with the numbers of a device and of each level; their file names never change

# Upper bounds for the width of a character at 11 px in Verdana and in the fonts that replace it.
_WIDTHS = dict.fromkeys("il.,:;' |j!", 4.2) | dict.fromkeys("mwMW@%", 9.5)
_GOOD, _SOME, _NONE = "#1a7f5a", "#7a6a1c", "#6b6f76"


def write_badges(folder: Path, devices: Sequence[DeviceDocument]) -> None:
    """Writes ``v1/badges/<slug>.svg`` for each device and ``v1/badges/<slug>-level<N>.svg`` for each of its levels."""
    wanted: dict[str, str] = {}
    for device in devices:
        total = device.total
        colour = _GOOD if total.passed == total.judged else _SOME
        text = f"{total.passed:,} of {total.judged:,} cells"
        wanted[f"{device.slug}.svg"] = badge(f"conformance: {device.device}", text, colour)
        for level in device.levels:
            label = f"{device.device}: level {level.level} {level.title} ({level.version})"
            text, colour = f"{level.passed:,} of {level.listed:,}", _SOME
            if level.reached:
                text, colour = f"reached, {text}", _GOOD
            elif level.open:
                text = f"{text}; not checked yet: {level.open} of {level.clauses} clauses"
                colour = _NONE
            wanted[f"{device.slug}-level{level.level}.svg"] = badge(label, text, colour)
    place = folder / "v1" / "badges"
    documents.prune(place, "*.svg", wanted)
    for name, svg in wanted.items():
        documents.write(place / name, svg.encode())


def badge(label: str, text: str, colour: str) -> str:
    """Returns a flat badge as SVG. Label and text may come from a run and are escaped; ``colour`` must be a constant of
    ``svg.py``."""
    label, text = clean(label)[:80], clean(text)[:80]
    left, right = (round(_width(part) + 12) for part in (label, text))
    return render("badge.svg", label=label, text=text, left=left, right=right, colour=colour)


def _width(text: str) -> float:
    return sum(_WIDTHS.get(char, 9.5 if ord(char) > 0x2000 else 6.9) for char in text)


def style_sheet() -> str:
    """Returns the content of ``assets/statuses.css``: for each kind of status a picture, a colour and a tint, in a
    light and a dark version.

    Each picture contains its colour. Colouring one shape by a CSS mask would take a browser thirty times as long, which
    is noticeable in a grid of thousands of squares.
    """
    return render("statuses.css", drawn=[kind for kind in KINDS if kind.path], picture=_picture)


def _picture(kind: Status, colour: str) -> Markup:
    """Returns the shape of a status in a colour, encoded for a data URL."""
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16' width='16' height='16'>"
        f"<path fill='{colour}' fill-rule='evenodd' d='{kind.path}'/></svg>"
    )
    return Markup(quote(svg, safe=" =:/'.-,"))
