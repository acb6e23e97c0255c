"""Which axes apply to which ops: the table of docs/depth.md. ``python -m opinfo.axes.table`` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from opinfo.axes import AXES, by_axis
from opinfo.axes.basis import asking
from opinfo.catalog import catalogue
from opinfo.device import limit_threads
from opinfo.exceptions import op_family
from opinfo.samples import Sample, draw

_DTYPES = ("float32", "int64")
#: Families of fewer ops are counted together.
_FEW = 8


def made() -> dict[tuple[str, str], list[Sample]]:
    """The samples of all axes, by op and dtype."""
    limit_threads()
    with asking():
        return {
            (op.id, dtype): list(by_axis(op, dtype, draw(op, dtype)))
            for op in catalogue().values()
            for dtype in _DTYPES
            if dtype in op.dtypes
        }


def rows(samples: Mapping[tuple[str, str], Iterable[Sample]]) -> list[str]:
    """The lines of the table: samples of each axis, and the ops that have one, by family."""
    families = {op: op_family(op, catalogue()[op].ufunc) for op, _ in samples}
    sizes = Counter(families.values())
    counts: dict[str, Counter[str]] = {}
    ops: dict[str, set[tuple[str, str]]] = {}
    for (op, _), each in samples.items():
        name = families[op] if sizes[families[op]] >= _FEW else "others"
        for sample in each:
            counts.setdefault(name, Counter())[sample.axis] += 1
            ops.setdefault(name, set()).add((op, sample.axis))
    names = sorted(counts, key=lambda name: (name == "others", -sum(counts[name].values()), name))
    found = [
        "| family | " + " | ".join(axis.name for axis in AXES) + " |",
        "|---|" + "---:|" * len(AXES),
    ]
    for name in names:
        cells = [
            f"{counts[name][axis.name]:,} ({sum(a == axis.name for _, a in ops[name])})"
            if counts[name][axis.name]
            else ""
            for axis in AXES
        ]
        found.append(f"| {name} | " + " | ".join(cells) + " |")
    return found


if __name__ == "__main__":
    print(*rows(made()), sep="\n")
