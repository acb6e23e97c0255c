"""``python -m tests.precision [OP …]``: the wrong answers that pass, for every op and dtype, and why.

Exits 1 where one passes without a reason in ``right.toml``, where a reason is not needed, or where the CPU's own answer
fails and its manifest does not expect that.
Prints the table of ``docs/precision.md``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

from conformance.suites.precision.ulps import FORMATS
from devices import registry
from devices.cell import CellKey
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.catalog import catalogue
from opinfo.exceptions import names
from tests.precision.right import Pass, table, unneeded, without_reason
from tests.precision.wrong import told_of


def passing(patterns: Iterable[str]) -> tuple[list[Pass], list[CellKey]]:
    """What passes for the ops of these names (or patterns that end in ``*``); and the cells that fail with the CPU's own
    answers."""
    found: list[Pass] = []
    red: list[CellKey] = []
    for op in sorted(catalogue()):
        for dtype in FORMATS if any(names(each, op) for each in patterns) else ():
            if dtype in catalogue()[op].dtypes and (told := told_of(op, dtype)) is not None:
                found += [Pass(answer, op, dtype) for answer in told.passing()]
                red += [CellKey(clause, op, dtype) for clause in told.honest]
    return found, red


def main() -> int:
    warnings.simplefilter("ignore")
    patterns = sys.argv[1:]
    found, red = passing(patterns or ["*"])
    wrong = without_reason(found)
    print(*table(), sep="\n")
    for each in wrong:
        print(f"no reason: {each.answer} for {each.op}[{each.dtype}]")
    spare = [] if patterns else unneeded(found)
    for text in spare:
        print(f"not needed: {text}")
    cpu = registry.get("cpu")
    assert cpu.expectations is not None
    expected = Matcher(Manifest.load(cpu.expectations).active(cpu.facts()))
    unexpected = [cell for cell in red if expected.expect(cell) is None]
    for cell in unexpected:
        print(f"red with the CPU's own answers, and not in its manifest: {cell}")
    print(f"{len(red)} cells are red with the CPU's own answers, {len(unexpected)} unexpected")
    return int(bool(wrong or spare or unexpected))


if __name__ == "__main__":
    sys.exit(main())
