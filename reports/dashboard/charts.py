"""Charts drawn when the site is built: bars of one run, lines over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from reports.judgement import Tally


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
    """A run on a line. ``x`` is its time in seconds, ``note`` what is told of it, ``mark`` whether
    torch or driver are others than before."""

    x: float
    counts: Tally
    note: str
    mark: str
    href: str


WIDE = (1160, 190)
SMALL = (240, 84)


def line(points: Sequence[Point], size: tuple[int, int], label: str) -> Markup:
    """Cells that do not pass, over time; the axis begins at nought."""
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
