"""SVG badges: a device's numbers, and each level's, under names that stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from reports.dashboard import documents
from reports.dashboard.documents import DeviceDocument
from reports.junit import clean

# Widths of a character at 11 px in Verdana and what replaces it, on the safe side.
_NARROW, _WIDE, _USUAL = 4.2, 9.5, 6.9
_GOOD, _SOME, _NONE = "#1a7f5a", "#7a6a1c", "#6b6f76"


def write(folder: Path, devices: Sequence[DeviceDocument]) -> None:
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
    title = escape(f"{label}: {text}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f"aria-label={quoteattr(f'{label}: {text}')}><title>{title}</title>"
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="4"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#2b2f36"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        f'text-anchor="middle"><text x="{left / 2:g}" y="14">{escape(label)}</text>'
        f'<text x="{left + right / 2:g}" y="14">{escape(text)}</text></g></svg>\n'
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
