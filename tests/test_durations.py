"""The table of seconds by file at the end of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.durations import by_file, table


def report(nodeid: str, duration: float) -> Any:
    return SimpleNamespace(nodeid=nodeid, duration=duration)


REPORTS = [
    report("tests/a.py::one", 1.0),
    report("tests/b.py::two[x::y]", 5.0),
    report("tests/a.py::one", 0.5),
    report("tests/c.py::three", 0.25),
]


def test_seconds_of_all_phases_of_a_file_s_tests_are_added_up() -> None:
    assert by_file(REPORTS) == {"tests/a.py": 1.5, "tests/b.py": 5.0, "tests/c.py": 0.25}


def test_the_table_has_the_slowest_files_first_and_leaves_no_second_out() -> None:
    assert table(by_file(REPORTS), 1) == [
        "     5.0 s  tests/b.py",
        "     1.8 s  in 2 other files",
        "     6.8 s  in all",
    ]
    assert table(by_file(REPORTS), 3)[-2:] == ["     0.2 s  tests/c.py", "     6.8 s  in all"]
