"""``python -m tests.mutation``: breed mutants, run what should notice them, and print what did."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

import msgspec

from tests.mutation import kernels, report
from tests.mutation.kernels import Result
from tests.mutation.pool import Task, run


def seed_of_the_week() -> int:
    """A seed that is another one each week."""
    year, week, _ = datetime.datetime.now(datetime.timezone.utc).isocalendar()
    return 100 * year + week


def tasks_of(seed: int, count: int, family: str | None) -> list[Task]:
    ops = kernels.ops_of(seed, count, family)
    return [Task("kernel", seed, number, op) for number, op in enumerate(ops)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="the same mutants for the same seed (default: this week's)"
    )
    parser.add_argument(
        "--count", type=int, default=600, help="mutants to breed (default: %(default)s)"
    )
    parser.add_argument("--family", help="of one family of ops only")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument(
        "--resume",
        type=Path,
        help="keep what is done in this file, and take from it what an earlier run did",
    )
    parser.add_argument("-n", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument(
        "--at-least", type=float, default=0.0, help="exit 1 below this score, in percent"
    )
    given = parser.parse_args(arguments)
    seed = seed_of_the_week() if given.seed is None else given.seed
    tasks = tasks_of(seed, given.count, given.family)
    if not tasks:
        parser.error(f"--family {given.family!r} names no family of ops")
    results = run(tasks, given.n, given.resume, _told)
    print(f"Seed {seed}.", *report.lines(results), sep="\n")
    if given.json is not None:
        _write(given.json, seed, results)
    broken = any(each.result == "broken" for each in results)
    return int(broken or report.score(results) < given.at_least)


def _told(result: Result) -> None:
    by = ", ".join(result.by[:3])
    print(
        f"{result.id} {result.op}: {result.axis}: {result.kind}: {result.result} {by}",
        file=sys.stderr,
    )


def _write(path: Path, seed: int, results: list[Result]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"seed": seed, "mutants": results})))


if __name__ == "__main__":
    sys.exit(main())
