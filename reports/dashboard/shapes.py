"""The shape and colour of each kind of status, as the style sheet that the pages load.

Pictures with their colour in them, one set for light and one for dark: cutting a shape out of a
colour (CSS masks) costs a browser thirty times as much, which a grid of thousands feels.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

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

# Light, dark. Told apart by those who see red and green alike too, and the shapes by everybody.
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
        "/* Made by reports/dashboard/shapes.py: the picture of each status. */",
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
