"""The rounds of a judgement: what the CPU answered in one is not asked again, neither in the next round nor in the next
judgement of the same op, and no kernel can change it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.kernels.findings_cache import FindingsCache
from conformance.kernels.judge import _contents, _restore, judged
from conformance.kernels.request import Request, Source
from conformance.kernels.subjects import base_of, samples_for
from opinfo.axes.axis_context import Basis
from tests.kernels import right


def refuse_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> bool:
        raise AssertionError("the CPU was asked again")

    for name in ("_takes", "_settles", "_stays", "_tells"):
        monkeypatch.setattr(Basis, name, asked)
    monkeypatch.setattr("opinfo.axes.acceptance_cache.is_due", lambda: False)


def test_the_cpu_is_asked_once_about_the_calls_of_all_rounds_and_judgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CONFORMANCE_CACHE", str(tmp_path / "cache"))
    request = Request(kernel=Source("kernel.py", "kernel"), target="aten::_log_softmax")
    base = base_of(request)
    first = samples_for(base, request, "float32", tmp_path / "findings")
    refuse_questions(monkeypatch)
    again = samples_for(base, request, "float32", tmp_path / "findings")
    assert [each.index for each in again] == [each.index for each in first]
    assert {each.axis for each in first} >= {"special values", "magnitudes"}
    FindingsCache(request).save(tmp_path / "findings")
    FindingsCache(request).load(tmp_path / "later")
    later = samples_for(base, request, "float32", tmp_path / "later")
    assert [each.index for each in later] == [each.index for each in first]


def test_nothing_is_kept_of_a_reference_or_for_another_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CONFORMANCE_CACHE", str(tmp_path / "cache"))
    source = Source("kernel.py", "kernel")
    (tmp_path / "findings").mkdir()
    (tmp_path / "findings" / "float32-own").write_text("1101")
    FindingsCache(Request(kernel=source, reference=source)).save(tmp_path / "findings")
    assert not (tmp_path / "cache").exists()
    FindingsCache(Request(kernel=source, target="aten::relu")).save(tmp_path / "findings")
    for request in (
        Request(kernel=source, target="aten::relu", layouts=False),
        Request(kernel=source, target="aten::relu_"),
        Request(kernel=source, reference=source),
    ):
        FindingsCache(request).load(tmp_path / "later")
        assert not (tmp_path / "later").exists()


@pytest.mark.slow
def test_a_judgement_keeps_what_the_next_one_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CONFORMANCE_CACHE", str(tmp_path))
    request = Request(kernel=Source.of(right.relu), target="aten::relu", speed=False)
    assert judged(request).right
    kept = FindingsCache(request).folder
    assert kept is not None
    files = {p: p.stat().st_mtime_ns for p in kept.rglob("*") if p.is_file()}
    assert {path.name for path in files} >= {"float32-0", "float32-further", "float32.json"}
    assert judged(request).right
    # Verified answers were right and no other question was asked, so no file was written again.
    assert {p: p.stat().st_mtime_ns for p in kept.rglob("*") if p.is_file()} == files


def test_findings_that_a_kernel_changed_are_restored(tmp_path: Path) -> None:
    folder = tmp_path / "findings"
    (folder / "deep").mkdir(parents=True)
    (folder / "float32-own").write_text("1101")
    (folder / "deep" / "strides.json").write_text("{}")
    kept = _contents(folder)
    (folder / "float32-own").write_text("0000")
    (folder / "float32-further").write_text("0")
    (folder / "deep" / "strides.json").unlink()
    _restore(folder, kept)
    assert _contents(folder) == kept
    (folder / "deep" / "strides.json").unlink()
    (folder / "deep").rmdir()
    (folder / "float32-own").unlink()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    _restore(folder, kept)
    assert not folder.is_symlink() and _contents(folder) == kept
    assert [*(tmp_path / "elsewhere").iterdir()] == []
