"""Twenty-odd everyday tasks on a terminal: each is answered on one screen, with the documented exit status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugin.running import environment
from tests.transcripts.scenario import TASKS, Task, play
from tests.transcripts.terminal import Screen


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, Screen]:
    """What each task showed: one session, played once."""
    folder = tmp_path_factory.mktemp("everyday")
    return {task.title: screen for task, screen in play(folder, environment(cache))}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
def test_a_task_is_answered_on_one_screen(task: Task, screens: dict[str, Screen]) -> None:
    screen = screens[task.title]
    answer = task.answer(screen)
    assert screen.status == task.status, f"{screen}"
    missing = [each for each in task.shows if not re.search(each, answer, re.MULTILINE)]
    shown = [each for each in task.hides if re.search(each, answer, re.MULTILINE)]
    assert (missing, shown) == ([], []), f"{screen}"
    assert not task.at_most or len(screen.lines) <= task.at_most, f"{screen}"
    assert "Traceback (most recent call last)" not in "\n".join(screen.lines)
