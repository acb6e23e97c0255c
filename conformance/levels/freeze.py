"""``python -m conformance.levels.freeze VERSION``: write the levels' files anew.

From plan ``core`` of the simulated device, which declares all that is checked. Level 1 to 3 take of the
ops those in ``must_pass.toml``, in its dtypes, and the cases of plan ``quick``; level 4 takes all else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from conformance.contract import LEVELS, load
from conformance.levels import FOLDER, blocks
from conformance.planner import make_plan
from devices import registry
from devices._toml import tomllib
from devices.cell import CellKey
from opinfo.device import open_device
from opinfo.plan import plan_spec

_HEAD = """\
# The cells of level {number}, {title}: {count:,}, beside those of the levels below it. Written by
# python -m conformance.levels.freeze, and frozen: a change to it is a new version.
version = {version}
"""


def level_of(cell: CellKey, level: int, must: frozenset[str], dtypes: frozenset[str]) -> int:
    """Which level a cell belongs to whose clause is of ``level``."""
    return level if not cell.dtype or (cell.op in must and cell.dtype in dtypes) else 4


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 4
    contract, device = load(), open_device(registry.get("simulated"))
    wanted = tomllib.loads((FOLDER / "must_pass.toml").read_text(encoding="utf-8"))
    must, dtypes = frozenset(wanted["ops"]), frozenset(wanted["dtypes"])
    plan = make_plan(plan_spec("core"), device, contract)
    if missing := must - {cell.op for cell in plan.cells}:
        print(f"must_pass.toml names ops that are not planned: {', '.join(sorted(missing))}")
        return 1
    more = {c for c in plan.cells if not c.dtype} - set(
        make_plan(plan_spec("quick"), device, contract).cells
    )
    of_level: dict[int, list[CellKey]] = {1: [], 2: [], 3: [], 4: []}
    for cell in plan.cells:
        level = 4 if cell in more else contract.clauses[cell.clause].level
        of_level[level_of(cell, level, must, dtypes)].append(cell)
    for number, cells in of_level.items():
        write(FOLDER / f"{number}.toml", number, arguments[0], cells)
        print(f"level {number}: {len(cells):,} cells of its own")
    return 0


def write(path: Path, number: int, version: str, cells: list[CellKey]) -> None:
    head = _HEAD.format(
        number=number, title=LEVELS[number], count=len(cells), version=json.dumps(version)
    )
    text = [head]
    for block in blocks(cells):
        text.append("\n[[cells]]\n")
        for name, listed in block.items():
            lines = json.dumps(listed) if len(listed) < 4 else _wrapped(listed)
            text.append(f"{name} = {lines}\n")
    path.write_text("".join(text), encoding="utf-8")


def _wrapped(names: list[str]) -> str:
    lines, line = [], " "
    for name in names:
        if len(line) + len(name) + 4 > 100:
            lines.append(line)
            line = " "
        line += f" {json.dumps(name)},"
    return "[\n" + "\n".join([*lines, line]) + "\n]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
