"""What the CPU said of changed calls is kept, and never believed blindly."""

from __future__ import annotations

from pathlib import Path

import pytest

from opinfo import spot_check
from opinfo.axes import acceptance_cache, samples_of
from opinfo.axes.acceptance_cache import Changed, Decisions, kept_in
from opinfo.catalog import catalogue
from tests.opinfo.test_samples import described


def drawn(op: str, kept: Decisions | None = None) -> list[str]:
    return [*map(described, samples_of(catalogue()[op], "float32", 16, decisions=kept))]


@pytest.fixture
def no_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kept answer is asked for again."""
    monkeypatch.setattr(spot_check, "ONE_IN", 10**12)


@pytest.mark.parametrize("op", ["sum", "bmm", "nn.functional.conv2d"])
def test_kept_answers_give_the_same_samples(op: str, tmp_path: Path, no_asking: None) -> None:
    asked = drawn(op)
    assert drawn(op, kept_in(tmp_path, op, "float32")) == asked  # written
    assert drawn(op, kept_in(tmp_path, op, "float32")) == asked  # read


def test_a_kept_question_is_not_asked(tmp_path: Path, no_asking: None) -> None:
    said = iter([True, False, True])
    for _ in range(2):  # there is nothing left to say the second time
        answers = Decisions(tmp_path / "answers")
        assert [answers.decide(lambda: next(said)) for _ in range(3)] == [True, False, True]
        answers.save()


def test_an_answer_that_the_cpu_no_longer_gives_costs_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, asked = kept_in(tmp_path, "sum", "float32"), drawn("sum")
    lies = Decisions(kept.path)
    for _ in range(60):
        lies.decide(lambda: False)
    lies.save()
    monkeypatch.setattr(spot_check, "ONE_IN", 1)  # ask for each again
    assert drawn("sum", kept_in(tmp_path, "sum", "float32")) == asked
    monkeypatch.setattr(spot_check, "ONE_IN", 10**12)
    assert drawn("sum", kept_in(tmp_path, "sum", "float32")) == asked  # it holds the truth now


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_another_number_of_questions_is_noticed(kept: int, tmp_path: Path, no_asking: None) -> None:
    before = Decisions(tmp_path / "answers")
    for _ in range(kept):
        before.decide(lambda: True)
    before.save()
    now = Decisions(tmp_path / "answers")
    with pytest.raises(Changed):
        for _ in range(2):
            now.decide(lambda: True)
        now.save()


@pytest.mark.parametrize("content", [b"", b"11", b"0110 00000000", b"\xff\x00 1", b"101 "])
def test_a_damaged_file_is_asked_for_again_and_replaced(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "answers"
    path.write_bytes(content)
    answers = Decisions(path)
    assert [answers.decide(lambda: True), answers.decide(lambda: False)] == [True, False]
    answers.save()
    assert path.read_text(encoding="ascii").startswith("10 ")


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("not a folder", encoding="ascii")
    assert drawn("sum", kept_in(tmp_path, "sum", "float32")) == drawn("sum")


def test_only_the_latest_states_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [tmp_path / "samples" / f"state-{n}" for n in range(5)]
    for folder in old:
        folder.mkdir(parents=True)
    acceptance_cache.present_folder.cache_clear()
    path = kept_in(tmp_path, "sum", "float32").path
    assert path is not None
    left = list((tmp_path / "samples").iterdir())
    assert len(left) == 3 and path.parent in left
