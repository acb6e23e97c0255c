"""Keeps the results of mutation runs and writes their table: ``python -m tests.mutation.figures kernels=FILE …``.

The rows are in ``docs/figures/mutants.json``; ``benchmarks/pages.py`` makes the table of ``docs/mutation.md`` from them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.pages import MUTANTS, MutantFigures, read_mutants, write_pages
from tests.mutation.report import LIVE


def row_of(family: str, seed: int, results: Iterable[str]) -> MutantFigures:
    """The row of a run: how many of its live mutants had each result."""
    counts = Counter(results)
    return MutantFigures(
        family=family,
        seed=seed,
        live=sum(counts[each] for each in LIVE),
        gate_red=counts["noticed"],
        cells_only=counts["not_gated"],
        reached=counts["survived"],
        not_reached=counts["not_reached"],
    )


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FAMILY=FILE …")
def main(files: tuple[str, ...]) -> None:
    """Keep the results that `python -m tests.mutation --family FAMILY --json FILE` wrote, and write the pages' table."""
    rows = {(row.family, row.seed): row for row in read_mutants()}
    for given in files:
        family, _, name = given.partition("=")
        try:
            found: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8"))
            row = row_of(family, found["seed"], [each["result"] for each in found["mutants"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
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
