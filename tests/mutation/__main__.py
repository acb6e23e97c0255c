"""``python -m tests.mutation``: breed mutants, run the cells that should notice each, and report which the gate notices."""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

import msgspec

from conformance import contract
from tests.mutation import families, items, kernels, reach, report, runtime, sources
from tests.mutation.kernels import Result
from tests.mutation.pool import Task, run


def seed_of_the_week() -> int:
    """A seed that changes each week."""
    year, week, _ = datetime.datetime.now(datetime.timezone.utc).isocalendar()
    return 100 * year + week


#: How many of ten mutants are of the runtime, in a run of both kernels and runtime.
RUNTIME_SHARE = 3


def kernel_tasks(seed: int, count: int, family: str | None) -> list[Task]:
    ops = kernels.ops_of(seed, count, family)
    return [Task("kernel", seed, number, op) for number, op in enumerate(ops)]


def runtime_tasks(
    seed: int, count: int, family: str | None, only: Collection[str] = ()
) -> tuple[list[Task], dict[str, str]]:
    """The tasks, and the environment variables for the processes that run them. With ``only``, the tasks of these lines."""
    folder, sites = sources.prepared()
    lines = [site for site in sites if not only or runtime.name_of(site) in only]
    chosen = runtime.sample_of(seed, len(lines) if only else count, family, lines)
    if not chosen:
        return [], {}
    tasks = [Task("runtime", seed, number, str(site.number)) for number, site in enumerate(chosen)]
    # Unoptimised: it is built in half the time.
    environment = {"SIMULATED_SOURCES": str(folder), "SIMULATED_CXXFLAGS": "-O0"}
    table = Path(os.environ.get(reach.TABLE) or folder / f"reach-{os.getpid()}.json")
    if not table.exists():
        command = [sys.executable, "-m", "tests.mutation.reach", str(table)]
        subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=sys.stderr)
    return tasks, {**environment, reach.TABLE: str(table)}


def tried(
    seed: int,
    count: int,
    family: str | None,
    processes: int,
    kept: Path | None,
    only: Collection[str] = (),
) -> list[Result]:
    """Try ``count`` mutants of a family and return their results.

    ``family`` is ``kernels`` or ``runtime``, a family of ops or of the runtime, or a family with a module of its own
    (``families``); None stands for kernels and runtime. ``only`` names lines of the runtime's sources: all mutants of
    these lines are tried, and no other.
    """
    if only:
        tasks, environment = runtime_tasks(seed, count, None, only)
        return run(tasks, processes, kept, _told, environment)
    if family in families.MODULES:
        module = families.module_of(family)
        names = module.names(seed, count)
        tasks = [Task(family, seed, number, name) for number, name in enumerate(names)]
        with getattr(module, "prepared", nullcontext)():
            return run(tasks, processes, kept, _told)
    of_runtime = family == "runtime" or family in sources.FILES.values()
    both = family is None
    results: list[Result] = []
    if both or not of_runtime:
        share = count - count * RUNTIME_SHARE // 10 if both else count
        of_ops = (family or "").removeprefix("kernels").removeprefix(".")
        tasks = kernel_tasks(seed, share, of_ops or None)
        results += run(tasks, processes, kept, _told)
    if both or of_runtime:
        one = family if family != "runtime" else None
        tasks, environment = runtime_tasks(seed, count - len(results), one)
        results += run(tasks, processes, kept, _told, environment)
    return results


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="the same mutants for the same seed (default: this week's)"
    )
    parser.add_argument(
        "--count", type=int, default=700, help="number of mutants (default: %(default)s)"
    )
    parser.add_argument(
        "--family",
        help="breed mutants of one family only: kernels or one family of ops (norm, ...; kernels.random for the ops of "
        "that name), runtime or one of its families (allocator, streams, ...), or "
        + ", ".join(families.MODULES),
    )
    parser.add_argument(
        "--only",
        metavar="FILE:LINE,…",
        help="try all mutants of these lines of the runtime's sources, such as pinned.cpp:58, and no other",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="print all mutants of the runtime, a line each (file:line, change, code), and try none",
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument(
        "--resume",
        type=Path,
        help="write each result to this file at once, and skip the mutants that it contains already",
    )
    parser.add_argument(
        "-n",
        type=int,
        default=os.cpu_count() or 1,
        help="number of processes (default: one per core)",
    )
    parser.add_argument(
        "--not-gating",
        metavar="GLOBS",
        help="treat these clauses as if they did not gate: globs, separated by commas",
    )
    parser.add_argument(
        "--at-least",
        type=float,
        default=0.0,
        help="exit 1 if the gate notices less than this percentage of the live mutants",
    )
    given = parser.parse_args(arguments)
    if given.list:
        for site in filter(runtime.can_differ, sources.sites()):
            print(f"{runtime.name_of(site)}: {site.kind}: {site.text}")
        return 0
    only = given.only.split(",") if given.only else ()
    if strange := sorted({*only} - {runtime.name_of(site) for site in sources.sites()}):
        parser.error(f"--only: {strange[0]} has no mutant; --list prints all of them")
    if given.not_gating:
        contract.load().select(given.not_gating.split(","))  # a misspelt glob ends here
        os.environ[items.NOT_GATING] = given.not_gating
    seed = seed_of_the_week() if given.seed is None else given.seed
    results = tried(seed, given.count, given.family, given.n, given.resume, only)
    if not results:
        parser.error(
            f"--family: no mutant has the family {given.family!r}; docs/mutation.md lists the families"
        )
    print(f"Seed {seed}.", *report.lines(results), sep="\n")
    if given.json is not None:
        written = {"seed": seed, "not_gating": given.not_gating, "mutants": results}
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(written)))
    broken = any(each.result == "broken" for each in results)
    return int(broken or report.score(results) < given.at_least)


def _told(result: Result) -> None:
    by = ", ".join((result.by or result.not_gating)[:3])
    print(
        f"{result.id} {result.op}: {result.axis}: {result.kind}: {result.result} {by}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
