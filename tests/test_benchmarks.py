"""The table, the history and the comparison of benchmarks. What they measure is measured by ``python -m benchmarks``."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.figures import BadHistory, Figure, circumstances, compared, keep, read, table_of
from tests.plugin.running import CHECKOUT, ForkServer

SLOWER = Figure("ours / bare", 1.5, 1.4, ratio=True)
FASTER = Figure("upstream / ours", 9, 8, at_least=True, ratio=True)
SECONDS = Figure("plan quick, s", 55, 60)


def text_of(table: Table) -> list[str]:
    console = Console(width=110)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def test_a_budget_holds_from_its_own_side() -> None:
    assert [each.held for each in (SLOWER, FASTER, SECONDS)] == [False, True, True]
    rows = [line.split() for line in text_of(table_of([SLOWER, FASTER]))[1:]]
    assert rows == [
        ["ours", "/", "bare", "1.50", "≤", "1.4", "MISSED"],
        ["upstream", "/", "ours", "9.00", "≥", "8", "met"],
    ]


def test_a_history_keeps_each_run_and_is_read_as_its_last(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.jsonl"
    around = circumstances()
    assert around["torch"] and around["machine"] and around["date"]
    keep(path, [SLOWER, SECONDS], around)
    better = Figure("ours / bare", 1.25, 1.4, ratio=True)
    keep(path, [better], around)
    assert read(path) == {"ours / bare": better, "plan quick, s": SECONDS}
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize(
    ("before", "after", "good"), [(1.0, 1.09, True), (1.0, 1.2, False), (2, 1, True)]
)
def test_a_ratio_may_be_worse_by_the_slack(before: float, after: float, good: bool) -> None:
    was, now = ({"a": Figure("a", value, 3, ratio=True)} for value in (before, after))
    table, held = compared(was, now, 0.1)
    assert held == good and ("WORSE" in "".join(text_of(table))) == (not good)


@pytest.mark.parametrize(("after", "good"), [(7.0, False), (8.5, True), (12.0, True)])
def test_of_a_ratio_that_should_be_large_less_is_worse(after: float, good: bool) -> None:
    now = Figure(FASTER.name, after, 8, at_least=True, ratio=True)
    assert compared({FASTER.name: FASTER}, {now.name: now}, 0.1)[1] == good


def test_seconds_are_not_compared() -> None:
    slow = Figure(SECONDS.name, 500, 60)
    with pytest.raises(BadHistory, match="no ratio in common"):
        compared({slow.name: SECONDS}, {slow.name: slow}, 0.1)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"name": "a"}', '{"name": "a", "value": "much"}', "\x00"]
)
def test_a_damaged_history_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    keep(path, [SLOWER], {})
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    with pytest.raises(BadHistory, match=r"history\.jsonl, line 2: expected a figure"):
        read(path)
    with pytest.raises(BadHistory, match="cannot be read"):
        read(tmp_path / "absent")


def test_the_ways_of_equal_work_make_their_calls(fork: ForkServer) -> None:
    few = {"BENCH_SAMPLES": "1", "BENCH_OPS": "exp,mul"}
    for way in ("upstream_way.py", "our_way.py"):
        ran = fork.pytest("-q", f"benchmarks/{way}", **few)
        assert ran.code == 0 and "2 passed" in ran.text, ran.text
    ran = fork.script(CHECKOUT / "benchmarks" / "bare_way.py", **few)
    assert ran.code == 0, ran.text
