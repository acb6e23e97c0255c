"""What kind of failure a message tells of: the words that failures are grouped and minimised by.

The checks say in a sentence what they saw, with numbers that differ from call to call. A kind is what stays
the same of it. Pure: nothing here knows an op.
"""

from __future__ import annotations

import re
from typing import Final

from devices.cell import Outcome
from reports.model import CellResult

#: The first pattern that is found in the message names its kind. A test holds that every planted fault of
#: the harness' own tests falls under one of them.
_KINDS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"two equal calls|without the same state", "not deterministic"),
        (r"resized without a warning", "no warning"),
        (
            r"did not raise|returned (a result )?where|without an error|^accepted an? "
            r"|gave .* where the CPU raises|has no identity, gave",
            "no exception",
        ),
        (r"raised (?P<exception>[A-Za-z_][\w.]*)", "raised"),
        (r"relative error", "precision lost"),
        (r"(conj|neg) bit", "conj or neg bit"),
        (r"does not share the storage", "no aliasing"),
        (r"write (through|to) the (view|base) is not", "no aliasing"),
        (r"(shares its storage|overlaps the memory)", "aliasing"),
        (r"needs \d+ bytes", "storage too small"),
        (r"bytes outside", "bytes outside changed"),
        (r"changed: 0 bytes of its elements", "bytes between elements changed"),
        (r"changed: \d+ bytes of its elements", "input changed"),
        (r"moved or restrided", "moved or restrided"),
        (r"storage offset", "storage offset"),
        (r"strides", "strides"),
        (r"dtype .* (expected|came)|gives torch\.\w+, |^asked for torch\.", "dtype"),
        (r"shape .*(expected|came|asked|the result)|^asked for", "shape"),
        (r"tensors? expected, ", "number of outputs"),
        (r"did not build the layout", "layout not built"),
        (r"no check was executed", "nothing checked"),
        (r"NaN ", "NaN rule"),
        (
            r"differ|expected|came|got|does not hold|identity|changed the values|left .* in out"
            r"|the same value",
            "values",
        ),
    )
)
_HEAD: Final = re.compile(r"\[([^\]]*)\] ")
_COUNT: Final = re.compile(r" \(\d+ failing checks of \d+\)$")
_WORKER: Final = re.compile(r"^worker \S+ ")
_OTHER: Final = 60


def shown_layout(message: str) -> str:
    """The layout that a failing cell's message begins with; empty where it names none."""
    found = _HEAD.match(message)
    return found.group(1) if found else ""


def bare(message: str) -> str:
    """A failing cell's message without its layout and without the count behind it."""
    return _COUNT.sub("", _HEAD.sub("", message, count=1))


def deviation(message: str, raises: str | None = None) -> str:
    """The kind of one failure: ``raised RuntimeError``, ``values``, ``strides``, …

    A message that no pattern knows is its own kind, with its numbers left out.
    """
    text = bare(message).strip().partition("\n")[0]
    if raises is not None:
        return f"raised {raises}"
    for pattern, kind in _KINDS:
        if (found := pattern.search(text)) is not None:
            named: str | None = found.groupdict().get("exception")
            return kind if named is None else f"raised {named}"
    plain: str = re.sub(r"-?\d[\d.e+-]*", "#", text)
    return plain[:_OTHER] or "no message"


def kind_of(result: CellResult) -> str:
    """The kind of a cell's result: that of its failure, or its outcome and what is known of that."""
    if result.outcome is Outcome.FAIL:
        return deviation(result.message, result.raises)
    if result.outcome in (Outcome.CRASH, Outcome.HANG):
        said = _WORKER.sub("", result.message).partition("\n")[0]
        return f"{result.outcome}: {said}" if said else str(result.outcome)
    if result.outcome is Outcome.UNSUPPORTED:
        return f"unsupported: {result.raises}" if result.raises else "unsupported"
    if result.outcome is Outcome.ERROR:
        return f"error: {deviation(result.message)}"
    return str(result.outcome)


def place_of(layouts: tuple[str, ...]) -> str:
    """What the failing layouts have in common, from the simplest of them: its factors.

    ``contiguous`` where the plain layout fails, else ``offset``, ``step``, ``order`` (of the
    dimensions in memory), ``expand`` and their sums; ``out=…`` for targets; a directed check's own name.
    """
    return min((_factors(layout) for layout in layouts), key=_simplicity, default="")


def _simplicity(place: str) -> tuple[int, int, str]:
    if place in ("contiguous", "out=contiguous"):
        return (0, 0, place)
    return (1, place.count("+"), place)


def _factors(layout: str) -> str:
    """The factors of one layout id."""
    target = layout.startswith("out=")
    found: list[str] = []
    for single in layout.removeprefix("out=").split("/"):
        memory, *rest = single.split("+")
        if memory not in ("contiguous", "transposed", "reversed", "channels_last"):
            return layout  # a directed check, or a pinned example
        if memory != "contiguous":
            found.append("order")
        found += ["step" if r.startswith("step_") else r.partition("_")[0] for r in rest]
    text = "+".join(f for f in ("order", "step", "expand", "offset") if f in found) or "contiguous"
    return f"out={text}" if target else text
