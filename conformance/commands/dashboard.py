"""``conform dashboard``: a static site of runs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="SITE",
    help="The site's folder; runs that it holds already stay, and are not read again.",
)
@click.option("--title", default="Compatibility dashboard", show_default=True)
@click.option(
    "--skip-refused",
    is_flag=True,
    help="Leave out runs that must not be published, instead of stopping at them.",
)
@click.option("--fresh", is_flag=True, help="Forget the runs that the site holds already.")
@click.option(
    "--details",
    default=2,
    show_default=True,
    metavar="N",
    help="Keep messages and repros of each device's N newest runs (statuses: of all).",
)
@click.option("--jobs", default=None, type=click.IntRange(1, 64), help="Processes (default: CPUs).")
def dashboard(
    runs: tuple[Path, ...],
    output: Path,
    title: str,
    skip_refused: bool,
    fresh: bool,
    details: int,
    jobs: int | None,
) -> None:
    """Build a static site from results folders: overview, grids, cells, comparisons, trends.

    Each RUN is the folder that a run wrote with --results, or a folder of such folders. Partial,
    incomplete and empty runs are refused with the reason (exit 2), and the site stays as it was;
    4 if a run's files cannot be read or were edited.
    """
    from reports.dashboard.build import Options, build
    from reports.judgement import number

    made = build(
        runs,
        output,
        Options(title=title, skip_refused=skip_refused, fresh=fresh, details=details, jobs=jobs),
    )
    for refusal in made.refused:
        click.echo(f"left out: {refusal}", err=True)
    click.echo(
        f"{output / 'index.html'}: {number(made.devices, 'device')}, {number(made.runs, 'run')} "
        f"({made.read} read, {made.runs - made.read} seen before)"
    )
