"""Branches that touch different causes merge with plain git, and the result is canonical."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from devices.cell import CellKey
from devices.lifecycle.evidence import Seen
from devices.lifecycle.text import canonical
from devices.lifecycle.update import Cause, update
from tests.devices.lifecycle.builders import PASS, TODAY, cell, fails, parse, run

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

CAUSES = ("atomics", "fft", "layout", "padding", "scan", "sort")
OPS = ("add", "mul", "sub")
Cells = Mapping[CellKey, Seen]


def of(cause: str, seen: Seen) -> dict[CellKey, Seen]:
    return {cell(f"layout.values::{cause}.{op}[float32]"): seen for op in OPS}


AS_EXPECTED = {
    key: seen for cause in CAUSES for key, seen in of(cause, fails("contiguous", "offset")).items()
}


def mended(cause: str) -> Cells:
    """The cause is gone: its block goes."""
    return of(cause, PASS)


def one_op_mended(cause: str) -> Cells:
    return {cell(f"layout.values::{cause}.mul[float32]"): PASS}


def one_layout_mended(cause: str) -> Cells:
    return of(cause, fails("offset"))


def recorded() -> str:
    """A manifest of all causes, each recorded from two runs."""
    text = ""
    for cause in CAUSES:
        ops = of(cause, fails("contiguous", "offset"))
        done = update(
            text,
            parse(text),
            [run(AS_EXPECTED, name) for name in "ab"],
            TODAY,
            cause=Cause(cause),
            wanted=lambda key, ops=ops: key in ops,  # type: ignore[misc]
        )
        text = done.text
    return text


BASE = recorded()
CHANGES = {"mended": mended, "one op": one_op_mended, "one layout": one_layout_mended}


def after(cells: Cells, cause: Cause | None = None) -> str:
    """The base manifest brought up to date with two runs in which these cells are different."""
    runs = [run({**AS_EXPECTED, **cells}, name) for name in "ab"]
    done = update(BASE, parse(BASE), runs, TODAY, cause=cause, dtypes=["float32"])
    assert done.text != BASE
    return done.text


class Repository:
    """A git repository with one file, and a branch for each text that is to be merged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "expected.toml"
        self.git("init", "-q", "-b", "main")
        self.commit(BASE)

    def git(self, *arguments: str, check: bool = True) -> int:
        who = {
            f"GIT_{role}_{what}": "a@b.c"
            for role in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        none = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env={**kept, **who, **none},
            capture_output=True,
            check=check,
        )
        return done.returncode

    def commit(self, text: str) -> None:
        self.file.write_text(text)
        self.git("add", ".")
        self.git("commit", "-q", "-m", "change")

    def merge(self, ours: str, theirs: str) -> bool:
        """Whether git merges two texts that both come from the base."""
        self.git("checkout", "-q", "-f", "-B", "ours", "main")
        self.commit(ours)
        self.git("checkout", "-q", "-B", "theirs", "main")
        self.commit(theirs)
        merged = self.git("merge", "-q", "-m", "merge", "ours", check=False) == 0
        if not merged:
            self.git("merge", "--abort")
        return merged


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("repository"))


def test_what_update_records_is_canonical_and_has_a_heading_for_each_cause() -> None:
    assert canonical(BASE, parse(BASE)) == BASE
    assert all(f"\n\n# {cause}\n\n[[expect]]\n" in BASE for cause in CAUSES)


def merged(repository: Repository, ours: str, theirs: str) -> str:
    assert repository.merge(ours, theirs)
    text = repository.file.read_text()
    assert canonical(text, parse(text)) == text
    return text


NEIGHBOURS = [
    (one, other)
    for one in CHANGES
    for other in CHANGES
    if (one, other) != ("mended", "mended")  # see below
]


@pytest.mark.parametrize(("one", "other"), NEIGHBOURS)
def test_changes_to_neighbouring_causes_merge(repository: Repository, one: str, other: str) -> None:
    ours, theirs = CHANGES[one]("layout"), CHANGES[other]("padding")
    text = merged(repository, after(ours), after(theirs))
    assert text == after({**ours, **theirs})


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_cause_added_in_one_branch_and_another_changed_in_the_other_merge(
    repository: Repository, change: Callable[[str], Cells]
) -> None:
    new = of("gather", fails("offset"))
    with_new = {**AS_EXPECTED, **new}
    added = update(
        BASE, parse(BASE), [run(with_new, n) for n in "ab"], TODAY, cause=Cause("gather")
    )
    text = merged(repository, added.text, after(change("scan")))
    assert 'reason = "gather"' in text and len(parse(text).blocks) in (6, 7)


def test_causes_added_in_both_branches_merge(repository: Repository) -> None:
    texts = []
    for cause in ("gather", "reduce"):
        runs = [run({**AS_EXPECTED, **of(cause, fails("offset"))}, name) for name in "ab"]
        texts.append(update(BASE, parse(BASE), runs, TODAY, cause=Cause(cause)).text)
    text = merged(repository, *texts)
    assert [each.reason for each in parse(text).blocks] == sorted([*CAUSES, "gather", "reduce"])


def test_causes_that_are_not_neighbours_can_both_go(repository: Repository) -> None:
    text = merged(repository, after(mended("fft")), after(mended("padding")))
    assert [each.reason for each in parse(text).blocks] == ["atomics", "layout", "scan", "sort"]


def test_where_git_gives_up_is_known(repository: Repository) -> None:
    # Nothing unchanged stands between the lines of two neighbours that both go, or of two that both
    # come in the same place: git asks, and never makes one block of two.
    assert not repository.merge(after(mended("layout")), after(mended("padding")))
    texts = []
    for cause in ("gather", "hash"):
        runs = [run({**AS_EXPECTED, **of(cause, fails("offset"))}, name) for name in "ab"]
        texts.append(update(BASE, parse(BASE), runs, TODAY, cause=Cause(cause)).text)
    assert not repository.merge(*texts)
