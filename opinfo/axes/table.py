"""Prints the table of docs/depth.md (``python -m opinfo.axes.table``). The table shows which axes apply to which
ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from devices.files import cache_root
from opinfo.axes import AXES, samples_of
from opinfo.axes.acceptance_cache import kept_in
from opinfo.database import DATABASE
from opinfo.device import limit_threads
from opinfo.exceptions import op_family
from opinfo.samples import Sample

_DTYPES = ("float32", "int64")
#: Families with fewer ops than this are counted together.
_FEW = 8


def axis_samples(root: Path) -> dict[tuple[str, str], list[Sample]]:
    """Returns the samples of all axes by op and dtype. Cached answers to questions about the CPU are stored in a folder
    below ``root``."""
    limit_threads()
    found = {}
    for op in DATABASE.subjects().values():
        for dtype in (each for each in _DTYPES if each in op.dtypes):
            every = samples_of(op, dtype, 1, decisions=kept_in(root, op.id, dtype))
            found[op.id, dtype] = [sample for sample in every if sample.axis]
    return found


def rows(samples: Mapping[tuple[str, str], Iterable[Sample]]) -> list[str]:
    """Returns the lines of the table. For each op family and axis, a cell of the table has the number of samples and
    the number of ops with a sample."""
    families = {op: op_family(op, DATABASE.subjects()[op].ufunc) for op, _ in samples}
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
    print(*rows(axis_samples(cache_root())), sep="\n")
