"""The tasks of tasks.toml, and playing them in order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.transcripts.terminal import ROWS, Screen, run_on_terminal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: A manifest that expects a failure of a cell which passes.
_LISTED = """\
[[expect]]
clause = "layout.values"
op = "median"
dtype = "float32"
outcome = "fail"
kind = "device-bug"
reason = "a bug that has been fixed"
issue = "https://example.org/1"
"""


@dataclass(frozen=True, slots=True)
class Task:
    """What a user types, and what the answer must and must not show."""

    title: str
    run: str
    status: int
    shows: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    at_most: int = 0
    first: bool = False

    def answer(self, screen: Screen) -> str:
        return "\n".join(screen.lines[:ROWS]) if self.first else screen.last


def _read() -> Iterator[Task]:
    text = Path(__file__).with_name("tasks.toml").read_text(encoding="utf-8")
    for row in tomllib.loads(text)["task"]:
        lists = {name: tuple(row.pop(name, ())) for name in ("shows", "hides")}
        yield Task(**row, **lists)


TASKS = list(_read())


def play(folder: Path, environment: dict[str, str]) -> Iterator[tuple[Task, Screen]]:
    """Run all tasks in an empty folder, one after the other."""
    (folder / "listed.toml").write_text(_LISTED, encoding="utf-8")
    for task in TASKS:
        yield task, run_on_terminal(task.run, folder, environment)
