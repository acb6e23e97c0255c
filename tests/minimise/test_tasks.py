"""A subprocess that crashes, hangs or does not start costs the run only the task that it was at."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from conformance.checks.child import ChildDied, Ended
from conformance.search import repros
from conformance.search.minimise import tasks as module
from conformance.search.minimise.tasks import Answer, Bench, Task, minimised
from conformance.search.repros import tasks_of, with_examples
from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Failure, Kind
from reports.model import CellResult, Example
from tests.reports.builders import failed

BENCH = Bench("wrapped", None, 3)
TARGET = "tests.minimise.children:serve"


def key(op: str, dtype: str = "float32") -> CellKey:
    return CellKey("layout.values", op, dtype)


def tasks(*ops: str) -> list[Task]:
    return [Task(key(op)) for op in ops]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers from a process without torch."""
    monkeypatch.setattr(module, "_TARGET", TARGET)
    monkeypatch.setattr(module, "_SILENCE", 4.0)


def answers(*ops: str) -> dict[str, Answer]:
    return {a.task.cell.unit: a for a in minimised(BENCH, tasks(*ops))}


@pytest.mark.usefixtures("stand_in")
def test_one_process_answers_every_task_in_order() -> None:
    found = answers("a", "print", "b")
    assert list(found) == ["a", "print", "b"]
    assert {a.script for a in found.values()} == {"# a", "# print", "# b"}
    assert len({a.example.message for a in found.values() if a.example}) == 1


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("crash", "killed by SIGSEGV"),
        ("exit", "exited with status 7"),
        ("hang", "was silent for 4 s"),
    ],
)
def test_a_task_that_ends_the_process_costs_itself_alone(op: str, why: str) -> None:
    found = answers("a", op, "b")
    assert [a.example is not None for a in found.values()] == [True, False, True]
    assert why in found[op].why


@pytest.mark.usefixtures("stand_in")
def test_a_process_that_dies_again_and_again_is_given_up() -> None:
    got = []
    with pytest.raises(ChildDied, match="killed by SIGSEGV"):
        for answer in minimised(BENCH, tasks(*["crash"] * 30)):
            got.append(answer)
    assert len(got) == 10


@pytest.mark.usefixtures("stand_in")
def test_a_process_that_does_not_start_says_why() -> None:
    with pytest.raises(ChildDied, match=r"exited with status 1: RuntimeError: no such device"):
        list(minimised(Bench("raise", None, 3), tasks("a")))


@pytest.mark.usefixtures("stand_in")
def test_a_device_that_cannot_be_opened_after_a_crash_is_tried_once_more(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.touch()
    bench, given = Bench(str(device), None, 3), tasks("a", "unwell!", "b", "unwell!!", "c")
    got = []
    with pytest.raises(ChildDied, match="killed by SIGSEGV"):
        for answer in minimised(bench, given):
            got.append((answer.task.cell.unit, answer.example is not None))
    assert got == [("a", True), ("unwell!", False), ("b", True), ("unwell!!", False)]


# -- at the end of a run


def regression(
    op: str, dtype: str = "float32", kind: str = "elements differ", layout: str = "transposed"
) -> CellResult:
    message = f"[{layout}] 1 of 2 {kind}"
    return failed(key(op, dtype), raises=None, message=message, layouts=(layout,))


def test_every_cause_gets_one_before_any_gets_two() -> None:
    families = dict.fromkeys(("a", "b", "c"), "letters")
    alone = [regression("x", layout="channels_last"), regression("y", layout="reversed")]
    results = [*(regression(op) for op in ("a", "b", "c")), *alone]
    assert [t.cell.unit for t in tasks_of(results, families, 4)] == ["a", "x", "y", "b"]
    assert len(tasks_of(results, families, 200)) == 5
    assert tasks_of(results, families, 0) == []


def test_regressions_that_failed_are_minimised_and_nothing_else() -> None:
    other = [
        failed(key("a"), Verdict.EXPECTED),
        failed(key("b"), outcome=Outcome.CRASH, layouts=()),
        failed(key("c"), Verdict.IMPROVEMENT),
    ]
    assert tasks_of(other, {}, 200) == []
    failure = Failure(kind=Kind.VALUES, layout="transposed")
    (task,) = tasks_of([replace(regression("d"), failure=failure)], {}, 200)
    assert task == Task(key("d"), failure)


@pytest.mark.usefixtures("stand_in")
def test_examples_and_scripts_land_in_the_results(tmp_path: Path) -> None:
    said: list[str] = []
    results = {r.key: r for r in (regression("a"), regression("crash"), regression("b"))}
    found = with_examples(results, BENCH, {}, tmp_path, 200, said.append)
    assert list(found) == list(results)
    example = found[key("a")].example
    assert isinstance(example, Example) and example.call == "a"
    assert found[key("a")].repro == "repro/layout.values/a-float32.py"
    assert (tmp_path / "repro/layout.values/a-float32.py").read_text() == "# a"
    assert found[key("crash")] == results[key("crash")]
    assert (
        said[0] == "minimising 3 new failures …" and "minimised 2 of 3 new failures in " in said[1]
    )


def test_a_machine_without_the_device_leaves_the_results_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> object:
        raise ChildDied(Ended(1, printed="no device"))

    monkeypatch.setattr(repros, "minimised", dies)
    said: list[str] = []
    results = {key("a"): regression("a")}
    assert with_examples(results, BENCH, {}, tmp_path, 200, said.append) == results
    assert "minimising ended early: the subprocess exited with status 1: no device" in said
