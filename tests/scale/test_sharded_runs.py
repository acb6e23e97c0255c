"""Shards of a run, merged: the same as the run that was never divided. And the CI files that do it."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from conformance.cli import conform
from conformance.plan.options import OPTIONS
from devices.cell import CellKey, Outcome
from reports.model import CellResult
from reports.run import load_run
from tests.plugin.running import CHECKOUT, ForkServer, cells_of, run_conform

OPS = "abs,acos,add,clamp,cos,mm,neg,sin,sum,tril"
BASE = ("--device", "cpu", "--ops", OPS, "--clauses", "layout.*", "--expectations", "none")
COUNT = 3


def told(cells: dict[CellKey, CellResult]) -> dict[CellKey, tuple[Outcome, int, tuple[str, ...]]]:
    return {key: (r.outcome, r.checks, r.layouts) for key, r in cells.items()}


@pytest.fixture(scope="module")
def whole(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert fork.pytest(*BASE, f"--results={folder}").code == 1  # tril fails
    return folder


@pytest.fixture(scope="module")
def shards(fork: ForkServer, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("shards")
    found = [base / f"s{number}" for number in range(1, COUNT + 1)]
    for number, folder in enumerate(found, 1):
        ran = fork.pytest(
            *BASE,
            *("--shard", f"{number}/{COUNT}", f"--shard-times={whole}", f"--results={folder}"),
        )
        assert ran.code in (0, 1), ran.text
    return found


@pytest.mark.slow
def test_the_shards_merged_are_the_undivided_run(
    whole: Path, shards: list[Path], tmp_path: Path, cache: Path
) -> None:
    ran = run_conform("merge", *map(str, shards), "-o", str(tmp_path / "out"), cache=cache)
    assert ran.code == 0, ran.text
    assert told(cells_of(tmp_path / "out")) == told(cells_of(whole))
    assert load_run(tmp_path / "out").parsed.cells == load_run(whole).parsed.cells


@pytest.mark.slow
def test_repros_and_failures_come_along(
    whole: Path, shards: list[Path], tmp_path: Path, cache: Path
) -> None:
    run_conform("merge", *map(str, shards), "-o", str(tmp_path / "out"), cache=cache)
    repros = {path.relative_to(whole) for path in whole.glob("repro/*/*.py")}
    assert repros and repros == {
        path.relative_to(tmp_path / "out") for path in (tmp_path / "out").glob("repro/*/*.py")
    }
    assert "tril" in (tmp_path / "out" / "failures.md").read_text()


@pytest.mark.slow
def test_a_lone_shard_passes_no_gate(shards: list[Path], cache: Path) -> None:
    ran = run_conform("gate", str(shards[0]), cache=cache)
    assert ran.code == 2 and "only shard 1/3: join all shards with `conform merge`" in ran.text


@pytest.mark.slow
def test_every_shard_has_the_identity_cells(shards: list[Path]) -> None:
    for folder in shards:
        assert CellKey("layout.values", "add", "float32") in cells_of(folder)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--shard-times=.",), "--shard-times needs --shard I/N"),
        (("--shard", "1/2", "--shard-times=nowhere"), "nowhere: not found"),
    ],
)
def test_a_shard_that_does_not_fit_is_told_in_one_line(
    fork: ForkServer, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    ran = fork.pytest(*BASE, *arguments, f"--results={tmp_path / 'run'}")
    assert ran.code == 4 and says in ran.text and "Traceback" not in ran.text, ran.text
    assert not (tmp_path / "run").exists()


# -- the CI files

EXAMPLES = sorted((CHECKOUT / "examples" / "ci").glob("*.yml"))


def commands(path: Path) -> list[list[str]]:
    """The ``conform`` commands of a CI file, as words."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [
        match.split() for match in re.findall(r"conform ((?:run|merge|gate|crcr) [^\n#]*)", text)
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_options_that_ci_files_use_are_there(path: Path) -> None:
    found = commands(path)
    assert found
    ours = {option.name for option in OPTIONS} | {"--junitxml", "--lf"}  # the last two are pytest's
    for name, *words in found:
        command = conform.commands[name]
        known = {option for p in command.params if isinstance(p, click.Option) for option in p.opts}
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("-") and option != "-n":
                assert option in known or (name == "run" and option in ours), option


def test_the_ci_files_shard_merge_and_gate() -> None:
    for path in EXAMPLES:
        if "shards" in path.stem:
            said = [words[0] for words in commands(path)]
            assert said[0] == "run" and said[-2:] == ["merge", "gate"]
