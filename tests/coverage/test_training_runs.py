"""Recording the weights: a listed model that cannot be recorded is counted and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from benchmarks import training_runs
from benchmarks.training_runs import MODELS, Package, Step
from reports.weights import Weight, Weights, weights


def test_the_table_has_each_listed_model_or_says_that_it_was_left_out() -> None:
    listed = {f"{package}:{name}" for package, each in MODELS.items() for name in each.models}
    table = weights()
    assert {*table.models} | {*table.left_out} == listed
    assert not {*table.models} & {*table.left_out}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="the observer is compiled at first use")
def test_a_model_that_cannot_be_recorded_is_named_and_the_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(name: str) -> Step:
        if name == "lost":
            raise ImportError("no model lost")
        x = torch.randn(4, 6, requires_grad=True)
        return lambda: x[:, ::2].reshape(2, 2, 3).sin().sum()

    monkeypatch.setattr(training_runs, "MODELS", {"zoo": Package("MIT", ["lost", "net"])})
    monkeypatch.setattr(training_runs, "MAKERS", {"zoo": make})
    path = tmp_path / "weights.json"
    assert training_runs.main(["-o", str(path)]) == 1
    table = msgspec.json.decode(path.read_bytes(), type=Weights)
    assert (table.models, table.left_out) == (("zoo:net",), ("zoo:lost",))
    assert table.of_overload("aten::_reshape_alias") == Weight(1, 1)
    assert table.of_op("sin") == Weight(1, 1)
    error = capsys.readouterr().err
    assert "left out: zoo:lost: ImportError: no model lost" in error
    assert "1 of 2 models recorded, 1 left out" in error


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="the observer is compiled at first use")
def test_a_table_of_all_models_is_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(2, requires_grad=True)
    monkeypatch.setattr(training_runs, "MODELS", {"zoo": Package("MIT", ["net"])})
    monkeypatch.setattr(training_runs, "MAKERS", {"zoo": lambda name: lambda: x.sum()})
    assert training_runs.main(["-o", str(tmp_path / "weights.json")]) == 0
