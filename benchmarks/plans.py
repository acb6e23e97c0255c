"""Measures whole runs and writes their figures into the pages: ``python -m benchmarks.plans``.

The figures are kept in ``docs/figures/plans.json``, a row for each device and plan; ``benchmarks/pages.py`` makes the tables
of the pages from them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median

import click
import msgspec

from benchmarks.figures import circumstances
from benchmarks.pages import PLANS, FamilyFigures, PlanFigures, Seconds, read_plans, write_pages
from benchmarks.running import wall_and_processor
from reports.gate import gate
from reports.model import Run
from reports.run import load_run


@click.command()
@click.option("--device", default="cpu", show_default=True)
@click.option("--plan", default="quick", show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Warm runs; the medians are kept.")
@click.option("--cold/--no-cold", default=True, help="Measure a run with an empty cache first.")
def main(device: str, plan: str, rounds: int, cold: bool) -> None:
    """Run PLAN on DEVICE, keep what it took and found, and write the pages' tables anew.

    The first run has an empty cache: stride references are computed and the simulated device is built. With --no-cold
    the user's own cache serves the warm runs.
    """
    with tempfile.TemporaryDirectory() as scratch:
        cache = {"TORCH_CONFORMANCE_CACHE": f"{scratch}/cache"} if cold else {}
        results = Path(scratch) / "run"
        first = [_run(device, plan, results, cache)] if cold else []
        warm = [_run(device, plan, results, cache) for _ in range(rounds)]
        row = _figures(load_run(results), first, warm)
    kept = [each for each in read_plans() if (each.device, each.plan) != (device, plan)]
    PLANS.write_bytes(msgspec.json.format(msgspec.json.encode([*kept, row]), indent=1) + b"\n")
    for page in write_pages():
        print(f"written: {page}")


def _run(device: str, plan: str, results: Path, cache: dict[str, str]) -> Seconds:
    """Wall and processor seconds of one run, imports included."""
    command = ["-m", "pytest", "-q", "-n", "auto", f"--device={device}", f"--plan={plan}"]
    command.append(f"--results={results}")
    wall, processor = wall_and_processor(command, cache)
    print(f"{device}, {plan}: {wall:.0f} s, processor time {processor:.0f} s", flush=True)
    return Seconds(round(wall, 1), round(processor, 1))


def _figures(run: Run, cold: list[Seconds], warm: list[Seconds]) -> PlanFigures:
    counts = gate(run).counts
    families: dict[str, FamilyFigures] = {}
    for key, result in run.results.items():
        family = run.parsed.clauses[key.clause].family
        sofar = families.get(family, FamilyFigures(0.0, 0))
        families[family] = FamilyFigures(
            sofar.seconds + result.seconds, sofar.checks + result.checks
        )
    around = circumstances()
    return PlanFigures(
        device=run.provenance.device,
        plan=run.provenance.plan,
        judged=counts.judged,
        passed=counts.passed,
        expected=counts.expected,
        checks=sum(result.checks for result in run.results.values()),
        cold=cold[0] if cold else None,
        warm=Seconds(
            wall=round(median(each.wall for each in warm), 1),
            processor=round(median(each.processor for each in warm), 1),
        ),
        rounds=len(warm),
        families={
            name: FamilyFigures(round(each.seconds, 1), each.checks)
            for name, each in sorted(families.items(), key=lambda item: -item[1].seconds)
        },
        date=around["date"][:10],
        cores=os.cpu_count() or 1,
        torch=around["torch"],
    )


if __name__ == "__main__":
    main()
