"""The rounds of a judgement: what the CPU answered in one is not asked again in the next, and no kernel can change it."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.kernels.judge import _contents, _restore
from conformance.kernels.request import Request, Source
from conformance.kernels.subjects import base_of, samples_for
from opinfo.axes.axis_context import Basis


def test_the_cpu_is_asked_once_about_the_calls_of_all_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(kernel=Source("kernel.py", "kernel"), target="aten::_log_softmax")
    base = base_of(request)
    first = samples_for(base, request, "float32", tmp_path / "findings")

    def asked(*_: object) -> bool:
        raise AssertionError("the CPU was asked again")

    for name in ("_takes", "_settles", "_stays", "_tells"):
        monkeypatch.setattr(Basis, name, asked)
    monkeypatch.setattr("opinfo.axes.acceptance_cache.is_due", lambda: False)
    again = samples_for(base, request, "float32", tmp_path / "findings")
    assert [each.index for each in again] == [each.index for each in first]
    assert {each.axis for each in first} >= {"special values", "magnitudes"}


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
