"""Twenty-odd everyday tasks on a terminal: each is answered on one screen, with the documented exit status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.running import environment
from tests.transcripts.scenario import TASKS, Task, play
from tests.transcripts.terminal import Screen


class Session:
    """One session in which the tasks are run in order, as far as somebody has asked for their screens."""

    def __init__(self, played: Iterator[tuple[Task, Screen]]) -> None:
        self._played = played
        self._screens: dict[str, Screen] = {}

    def screen(self, task: Task) -> Screen:
        while task.title not in self._screens:
            done, screen = next(self._played)
            self._screens[done.title] = screen
        return self._screens[task.title]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Session:
    return Session(play(tmp_path_factory.mktemp("everyday"), environment(cache)))


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
def test_a_task_is_answered_on_one_screen(task: Task, session: Session) -> None:
    screen = session.screen(task)
    answer = task.answer(screen)
    assert screen.status == task.status, f"{screen}"
    missing = [each for each in task.shows if not re.search(each, answer, re.MULTILINE)]
    shown = [each for each in task.hides if re.search(each, answer, re.MULTILINE)]
    assert (missing, shown) == ([], []), f"{screen}"
    assert not task.at_most or len(screen.lines) <= task.at_most, f"{screen}"
    assert "Traceback (most recent call last)" not in "\n".join(screen.lines)
