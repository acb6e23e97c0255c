"""Tables of figures in README.md and docs/: made from ``docs/figures/*.json``, never typed by hand.

A page has a block ``<!-- figures NAME -->`` … ``<!-- end of figures -->``. ``python -m benchmarks.pages`` writes all
blocks anew; a test fails where a block is not what the data says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
PLANS, MUTANTS = FIGURES / "plans.json", FIGURES / "mutants.json"
_BLOCK = re.compile(r"(<!-- figures ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)

#: The dtypes of each plan, in words.
_DTYPES = {
    "quick": "float32 (`precision` also bfloat16 and float16)",
    "core": "also bool, int64, bfloat16, complex64",
    "full": "all that the device declares",
}


class Seconds(msgspec.Struct, frozen=True):
    """What a run took: by the clock, and of all processors together."""

    wall: float
    processor: float

    def __str__(self) -> str:
        return f"{self.wall:.0f} s; {self.processor:.0f} s"


class FamilyFigures(msgspec.Struct, frozen=True):
    """Seconds that workers spent in the cells of a clause family, and the checks made there."""

    seconds: float
    checks: int


class PlanFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A plan on a device: cells, checks, and seconds. ``warm`` is the median of ``rounds`` runs."""

    device: str
    plan: str
    judged: int
    passed: int
    expected: int
    checks: int
    cold: Seconds | None
    warm: Seconds
    rounds: int
    families: dict[str, FamilyFigures]
    date: str
    cores: int
    torch: str


class MutantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Mutants of one family and seed, as ``python -m tests.mutation --family FAMILY --seed SEED --count MUTANTS`` tried them.

    ``live`` are those that are not equivalent: the gate noticed them, or a call can observe them, or no call ran their code.
    """

    family: str
    seed: int
    mutants: int
    live: int
    gate_red: int
    cells_only: int
    reached: int
    not_reached: int


def read_plans() -> list[PlanFigures]:
    return msgspec.json.decode(PLANS.read_bytes(), type=list[PlanFigures]) if PLANS.exists() else []


def read_mutants() -> list[MutantFigures]:
    if not MUTANTS.exists():
        return []
    return msgspec.json.decode(MUTANTS.read_bytes(), type=list[MutantFigures])


def plans_table() -> Iterator[str]:
    yield "| plan | dtypes | device | judged cells | checks | first run: wall; processor | later runs |"
    yield "|---|---|---|---:|---:|---|---|"
    order = {"quick": 0, "core": 1, "full": 2}
    for row in sorted(read_plans(), key=lambda each: (order.get(each.plan, 9), each.device)):
        yield (
            f"| `{row.plan}` | {_DTYPES.get(row.plan, '')} | `{row.device}` | {row.judged:,} | {row.checks:,} "
            f"| {row.cold or '–'} | {row.warm} |"
        )


def families_table() -> Iterator[str]:
    """Where the time of ``quick`` on ``cpu`` goes."""
    rows = [each for each in read_plans() if (each.device, each.plan) == ("cpu", "quick")]
    yield "| family | seconds in cells | checks |"
    yield "|---|---:|---:|"
    for row in rows:
        for name, each in row.families.items():
            yield f"| {name} | {each.seconds:.1f} | {each.checks:,} |"


def conditions() -> Iterator[str]:
    """When and where the plans were measured; nothing before the first measurement."""
    rows = read_plans()
    if not rows:
        return
    dates = sorted({row.date for row in rows})
    cores, torch = ({getattr(row, name) for row in rows} for name in ("cores", "torch"))
    yield (
        f"Measured {' to '.join(dict.fromkeys([dates[0], dates[-1]]))} on {', '.join(map(str, sorted(cores)))} cores "
        f"of a shared virtual machine, torch {', '.join(sorted(torch))}; medians of later runs, imports included."
    )


def mutants_table() -> Iterator[str]:
    """A line for each family and seed, and one for all of them."""
    yield "| family | seed | mutants | live | gate red | only non-gating cells red | reached, not noticed | not reached | score |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    rows = read_mutants()
    for row in rows:
        yield f"| {row.family} | {row.seed} | {_mutant_counts([row])} |"
    if rows:
        yield f"| all | | {_mutant_counts(rows)} |"


def _mutant_counts(rows: Sequence[MutantFigures]) -> str:
    live, gate_red = sum(row.live for row in rows), sum(row.gate_red for row in rows)
    numbers = (
        sum(row.mutants for row in rows),
        live,
        gate_red,
        sum(row.cells_only for row in rows),
        sum(row.reached for row in rows),
        sum(row.not_reached for row in rows),
    )
    score = 100 * gate_red / live if live else 100.0
    return " | ".join(map(str, numbers)) + f" | {score:.0f} %"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "plans": plans_table,
    "families": families_table,
    "conditions": conditions,
    "mutants": mutants_table,
}


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rendered(text: str) -> str:
    """A page with each of its blocks made anew. Raises KeyError for a block of an unknown name."""

    def block(match: re.Match[str]) -> str:
        lines = "\n".join(TABLES[match[2]]())
        return f"{match[1]}{lines}\n{match[3]}"

    return _BLOCK.sub(block, text)


def write_pages() -> list[Path]:
    """Write the pages whose figures have changed, and return them."""
    changed = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := rendered(text)) != text:
            page.write_text(new, encoding="utf-8")
            changed.append(page.relative_to(ROOT))
    return changed


if __name__ == "__main__":
    for written in write_pages():
        print(f"written: {written}")
