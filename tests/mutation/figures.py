"""Keeps the results of mutation runs and writes their table: ``python -m tests.mutation.figures kernels=FILE …``.

The rows are in ``docs/figures/mutants.json``; ``benchmarks/pages.py`` makes the table of ``docs/mutation.md`` from them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
import msgspec

from benchmarks.pages import MUTANTS, MutantFigures, read_mutants, write_pages
from conformance import contract
from tests.mutation.kernels import Result
from tests.mutation.report import LIVE


class Tried(msgspec.Struct):
    """What ``python -m tests.mutation --json`` wrote. ``not_gating`` is the value of that option."""

    seed: int
    mutants: list[Result]
    not_gating: str | None = None


def row_of(family: str, tried: Tried) -> MutantFigures:
    """The row of a run: how many of its live mutants had each result.

    A mutant that turned a gating clause red counts as noticed even if the run treated this clause as one that does not gate.
    """
    counts = Counter(each.result for each in tried.mutants)
    clauses = contract.load().clauses
    freed = sum(
        each.result == "not_gated" and not all(clauses[one].provisional for one in each.not_gating)
        for each in tried.mutants
    )
    return MutantFigures(
        family=family,
        seed=tried.seed,
        mutants=len(tried.mutants),
        live=sum(counts[each] for each in LIVE),
        gate_red=counts["noticed"] + freed,
        cells_only=counts["not_gated"] - freed,
        reached=counts["survived"],
        not_reached=counts["not_reached"],
    )


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FAMILY=FILE …")
def main(files: tuple[str, ...]) -> None:
    """Keep the results that `python -m tests.mutation --family FAMILY --json FILE` wrote, in place of all earlier ones of the
    same families, and write the pages' table. A family with several files has a row for each."""
    measured = {given.partition("=")[0] for given in files}
    rows = {(row.family, row.seed): row for row in read_mutants() if row.family not in measured}
    for given in files:
        family, _, name = given.partition("=")
        try:
            row = row_of(family, msgspec.json.decode(Path(name).read_bytes(), type=Tried))
        except (OSError, ValueError, KeyError) as error:
            raise click.ClickException(
                f"{given}: expected FAMILY=FILE with a file of `python -m tests.mutation --json`: {error!r}"
            ) from None
        rows[family, row.seed] = row
    ordered = [rows[key] for key in sorted(rows)]
    MUTANTS.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
    for page in write_pages():
        click.echo(f"written: {page}")


if __name__ == "__main__":
    main()
