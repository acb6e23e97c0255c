"""SVG that is drawn when the site is built: charts of runs, badges of devices, and the shapes of statuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote
from xml.sax.saxutils import escape as xml_escape
from xml.sax.saxutils import quoteattr

from markupsafe import Markup, escape

from reports.dashboard import documents
from reports.dashboard.documents import DeviceDocument
from reports.gate import Tally
from reports.junit import clean

# -- charts


def bar(counts: Tally) -> Markup:
    """A thin bar: passed, failing as expected, and the rest, of the judged cells."""
    judged = counts.judged
    if not judged:
        return Markup("")
    good = 100 * counts.passed / judged
    expected = 100 * counts.expected / judged
    # What is there is seen: never less than a hundredth of the bar.
    bad = counts.judged - counts.passed
    width = max(100 - good, 1.0) if bad else 0.0
    split = expected / (100 - good) * width if bad else 0.0
    return Markup(
        '<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="b-pass" width="{:.3f}" height="4"/>'
        '<rect class="b-expected" x="{:.3f}" width="{:.3f}" height="4"/>'
        '<rect class="b-fail" x="{:.3f}" width="{:.3f}" height="4"/></svg>'
    ).format(100 - width, 100 - width, split, 100 - width + split, max(width - split, 0))


@dataclass(frozen=True, slots=True)
class Point:
    """A run on a line. ``x`` is its time in seconds, ``note`` its description, ``mark`` whether
    torch or driver are others than before."""

    x: float
    counts: Tally
    note: str
    mark: str
    href: str


WIDE = (1160, 190)
SMALL = (240, 84)


def line(points: Sequence[Point], size: tuple[int, int], label: str) -> Markup:
    """Cells that do not pass, over time; the axis starts at 0."""
    width, height = size
    wide = size is WIDE
    left, right, top, bottom = (46, 14, 14, 26) if wide else (8, 40, 10, 8)
    values = [point.counts.judged - point.counts.passed for point in points]
    highest = _ceiling(max(values, default=0))
    first, last = points[0].x, points[-1].x

    def at(index: int) -> tuple[float, float]:
        share = (points[index].x - first) / (last - first) if last > first else 0.5
        return (
            left + share * (width - left - right),
            top + (1 - values[index] / highest) * (height - top - bottom),
        )

    parts = [
        Markup('<svg class="{}" viewBox="0 0 {} {}" role="{}" aria-label="{}">').format(
            "chart" if wide else "chart small", width, height, "group" if wide else "img", label
        )
    ]
    base = height - bottom
    parts.append(
        Markup('<line class="c-axis" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            left, base, width - right, base
        )
    )
    if wide:
        parts += _wide_axis(points, highest, at, (left, width - right, top, base))
    path = " ".join(
        f"{'L' if index else 'M'}{at(index)[0]:.1f} {at(index)[1]:.1f}"
        for index in range(len(points))
    )
    parts.append(Markup('<path class="c-line" d="{}"/>').format(path))
    for index, point in enumerate(points):
        x, y = at(index)
        if wide:
            parts.append(
                Markup(
                    '<a href="{}" aria-label="{}"><circle class="c-hit" cx="{:.1f}" cy="{:.1f}" '
                    'r="9"/><circle class="c-point" cx="{:.1f}" cy="{:.1f}" r="3"/>'
                    "<title>{}</title></a>"
                ).format(point.href, point.note, x, y, x, y, point.note)
            )
    if not wide:
        x, y = at(len(points) - 1)
        parts.append(
            Markup(
                '<circle class="c-point" cx="{:.1f}" cy="{:.1f}" r="2.5"/>'
                '<text class="c-text" x="{:.1f}" y="{:.1f}">{}</text>'
            ).format(x, y, x + 6, y + 4, _number(values[-1]))
        )
    return Markup("").join(parts) + Markup("</svg>")


def _wide_axis(
    points: Sequence[Point],
    highest: int,
    at: Callable[[int], tuple[float, float]],
    box: tuple[int, int, int, int],
) -> list[Markup]:
    left, right, top, base = box
    parts = []
    for value, y in ((highest, top), (highest // 2, (top + base) / 2), (0, base)):
        if highest >= 2 or value in (0, highest):
            parts.append(
                Markup(
                    '<line class="c-grid" x1="{}" y1="{}" x2="{}" y2="{}"/>'
                    '<text class="c-text end" x="{}" y="{}">{}</text>'
                ).format(left, y, right, y, left - 6, y + 4, _number(value))
            )
    last_label = -1e9
    for index, point in enumerate(points):
        x = at(index)[0]
        if point.mark:
            parts.append(
                Markup('<line class="c-mark" x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}"/>').format(
                    x, top, x, base
                )
            )
            if x - last_label > 90 and x < right - 60:
                parts.append(
                    Markup('<text class="c-text" x="{:.1f}" y="{}">{}</text>').format(
                        x + 4, base + 16, escape(point.mark[:24])
                    )
                )
                last_label = x
    return parts


def _number(value: int) -> str:
    return f"{value:,}"


def _ceiling(value: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, … at or above a value."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if value <= factor * step:
                return factor * step
        step *= 10


# -- badges: a device's numbers, and each level's, under names that stay

# Widths of a character at 11 px in Verdana and what replaces it, on the safe side.
_NARROW, _WIDE, _USUAL = 4.2, 9.5, 6.9
_GOOD, _SOME, _NONE = "#1a7f5a", "#7a6a1c", "#6b6f76"


def write_badges(folder: Path, devices: Sequence[DeviceDocument]) -> None:
    """Write ``v1/badges/<slug>.svg`` and ``v1/badges/<slug>-level<N>.svg``."""
    place = folder / "v1" / "badges"
    wanted: dict[str, str] = {}
    for device in devices:
        total = device.total
        colour = _GOOD if total.passed == total.judged else _SOME
        text = f"{total.passed:,} of {total.judged:,} cells"
        wanted[f"{device.slug}.svg"] = badge(f"conformance: {device.device}", text, colour)
        for level in device.levels:
            label = f"{device.device}: level {level.level} {level.title} ({level.version})"
            text = f"{level.passed:,} of {level.listed:,}"
            if level.reached:
                text, colour = f"reached, {text}", _GOOD
            elif level.open:
                text = f"{text}; {level.open} of {level.clauses} clauses not checked yet"
                colour = _NONE
            else:
                colour = _SOME
            wanted[f"{device.slug}-level{level.level}.svg"] = badge(label, text, colour)
    for path in place.glob("*.svg"):
        if path.name not in wanted:
            path.unlink()
    for name, svg in wanted.items():
        documents.write(place / name, svg.encode())


def badge(label: str, text: str, colour: str) -> str:
    """A flat badge. Label and text may be any text; ``colour`` is one of ours."""
    label, text = clean(label)[:80], clean(text)[:80]
    left, right = (round(_width(part) + 12) for part in (label, text))
    title = xml_escape(f"{label}: {text}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f"aria-label={quoteattr(f'{label}: {text}')}><title>{title}</title>"
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="4"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#2b2f36"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        f'text-anchor="middle"><text x="{left / 2:g}" y="14">{xml_escape(label)}</text>'
        f'<text x="{left + right / 2:g}" y="14">{xml_escape(text)}</text></g></svg>\n'
    )


def _width(text: str) -> float:
    return sum(
        _NARROW
        if char in "il.,:;' |j!"
        else _WIDE
        if char in "mwMW@%" or ord(char) > 0x2000
        else _USUAL
        for char in text
    )


# -- the shape and colour of each kind of status, as the style sheet that the pages load
#
# Pictures with their colour in them, one set for light and one for dark: cutting a shape out of a
# colour (CSS masks) costs a browser thirty times as much, which a grid of thousands feels.

# The data of an SVG path on a field of 16 x 16, to be filled by the even-odd rule.
SHAPES: Final[dict[str, str]] = {
    "crash": "M8 0l1.6 4.3 4.1-2-2 4.1L16 8l-4.3 1.6 2 4.1-4.1-2L8 16l-1.6-4.3-4.1 2 2-4.1L0 8"
    "l4.3-1.6-2-4.1 4.1 2z",
    "hang": "M2.5 1h11v2.4L9.6 8l3.9 4.6V15h-11v-2.4L6.4 8 2.5 3.4z",
    "fail": "M2 4.3 4.3 2 8 5.7 11.7 2 14 4.3 10.3 8 14 11.7 11.7 14 8 10.3 4.3 14 2 11.7 5.7 8z",
    "error": "M8 1l7.5 13.5H.5zM7.1 5.5h1.8v4.6H7.1zM7.1 11.2h1.8v1.8H7.1z",
    "unsupported": "M2.5 6.6h11v2.8h-11z",
    "improvement": "M8 1.5 14 8h-3.6v6.5H5.6V8H2z",
    "flaky": "M1 9.5C2.6 4 5.6 3.6 8.2 7.2c2 2.8 3.6 2.6 4.6-.9l2.2.7c-1.7 6-5.6 6.2-8.4 2.2"
    "C4.9 6.8 4 7 3.2 10z",
    "expected": "M8 1.5 14.5 8 8 14.5 1.5 8zM8 4.6 4.6 8 8 11.4 11.4 8z",
    "ambiguous": "M8 2a6 6 0 1 0 0 12A6 6 0 1 0 8 2zM8 4a4 4 0 0 1 0 8z",
    "not-run": "M8 2a6 6 0 1 0 0 12A6 6 0 1 0 8 2zm0 1.8a4.2 4.2 0 1 1 0 8.4 4.2 4.2 0 1 1 0-8.4z",
    "undeclared": "M3.5 14 2 12.5 12.5 2 14 3.5z",
    "pass": "M8 5a3 3 0 1 0 0 6 3 3 0 1 0 0-6z",
}

# Light, dark. Distinguishable with red-green colour blindness too; the shapes differ as well.
COLOURS: Final[dict[str, tuple[str, str]]] = {
    "crash": ("#8d1668", "#ff7fd0"),
    "hang": ("#6237b0", "#b9a0ff"),
    "fail": ("#c5341a", "#ff7d61"),
    "error": ("#a8500a", "#ffa95a"),
    "unsupported": ("#606a77", "#a0aab7"),
    "improvement": ("#087f8c", "#52cbd4"),
    "flaky": ("#8a5a3c", "#d6a184"),
    "expected": ("#8f6a00", "#dcb04a"),
    "ambiguous": ("#2a68ad", "#7fb6f5"),
    "not-run": ("#77808c", "#8f98a4"),
    "undeclared": ("#77808c", "#8f98a4"),
    "pass": ("#2c8a66", "#4fb98f"),
}

_NO_TINT: Final = ("pass", "not-run", "undeclared")


def style_sheet() -> str:
    """``assets/statuses.css``: a picture, a colour and a tint for each kind, light and dark."""
    light, dark = _variables(0), _variables(1)
    rules = [
        "/* Made by reports/dashboard/svg.py: the picture of each status. */",
        f":root {{\n{light}}}",
        f':root[data-theme="dark"] {{\n{dark}}}',
        "@media (prefers-color-scheme: dark) {",
        f':root:not([data-theme="light"]) {{\n{dark}}}',
        "}",
    ]
    for kind in SHAPES:
        tint = "" if kind in _NO_TINT else f" --tint: var(--tint-{kind});"
        rules.append(f".k-{kind} {{ --shape: var(--shape-{kind});{tint} }}")
    return "\n".join(rules) + "\n"


def _variables(theme: int) -> str:
    lines = []
    for kind, shape in SHAPES.items():
        colour = COLOURS[kind][theme]
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" width="16" height="16">'
            f'<path fill="{colour}" fill-rule="evenodd" d="{shape}"/></svg>'
        )
        picture = quote(svg, safe=" =:/\"'<>.-,")
        picture = picture.replace('"', "'").replace("<", "%3C").replace(">", "%3E")
        lines.append(f"  --{kind}: {colour};\n")
        lines.append(f"  --tint-{kind}: {colour}1c;\n")
        lines.append(f'  --shape-{kind}: url("data:image/svg+xml,{picture}");\n')
    return "".join(lines)
