"""The table of what torch documents of a device is full, and the cells that it names are those of the suite."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from conformance import contract, suites
from conformance.cli import conform
from conformance.contract.promises import promises, read_promises
from devices.errors import ConformError
from opinfo.catalog import catalogue

CLASSES: dict[str, Any] = {
    "torch.accelerator.Graph": torch.accelerator.Graph,
    "torch.Stream": torch.Stream,
    "torch.Event": torch.Event,
    "torch.Generator": torch.Generator,
    "torch.UntypedStorage": torch.UntypedStorage,
}
MODULES = (torch.cuda, torch.xpu, torch.mtia, torch.mps, torch.cpu)


def _public(cls: Any) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_of_a_class_is_in_the_table(name: str) -> None:
    assert _public(CLASSES[name]) == promises().names_of(name)


def test_every_function_of_torch_accelerator_is_in_the_table() -> None:
    assert set(torch.accelerator.__all__) == promises().names_of("torch.accelerator")


def test_every_function_that_two_devices_of_torch_document_is_in_the_table() -> None:
    counts = Counter(name for module in MODULES for name in set(module.__all__))
    common = {name for name, count in counts.items() if count > 1}
    assert common == promises().names_of("torch.<device>")


def test_every_method_of_tensor_is_an_operator_or_in_the_table() -> None:
    operators: set[str] = set()
    for op in catalogue().values():
        operators.add(op.id.partition(".")[0])
        operators |= {alias.name for alias in op.info.aliases}
        operators |= {packet.partition("::")[2].partition(".")[0] for packet in op.packets}
    methods = {name for name in _public(torch.Tensor) if name.rstrip("_") not in operators}
    methods -= {name for name in methods if name in operators}
    # A device's module may give Tensor methods of its name.
    own = {"simulated", "is_simulated", "lazy", "is_lazy"}
    assert methods - own == promises().names_of("torch.Tensor")


def test_there_are_no_other_objects() -> None:
    others = {"torch.accelerator", "torch.<device>", "torch.Tensor"}
    assert set(promises().objects) == {*CLASSES, *others}


def test_each_glob_names_cells_of_the_suite() -> None:
    cases = {f"{case.clause}::{case.name}" for suite in suites.suites() for case in suite.cases}
    ops = {f"{check.clause}::op" for check in suites.planned_op_checks(contract.load())}
    for promise in promises():
        for glob in promise.cells:
            assert any(fnmatchcase(cell, glob) for cell in cases | ops), glob


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('of = "torch.Stream"\nnames = ["query"]', "expected either 'cells'"),
        ('of = "torch.Stream"\nnames = ["query"]\ncells = ["streams.query"]', "cells"),
        (
            'of = "torch.Stream"\nnames = ["query"]\ncells = ["stream.query::*"]',
            "no clause matches",
        ),
        ('of = "torch.Stream"\nnames = ["query", "query"]\nreason = "x"', "is listed twice"),
    ],
)
def test_a_mistake_in_the_table_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "promises.toml"
    path.write_text(f"[[promise]]\n{text}\n", encoding="utf-8")
    with pytest.raises(ConformError, match=message):
        read_promises(path, contract.load())


@pytest.mark.parametrize("word", ["", "Stream", "torch.Stream", "memory_*"])
def test_the_command_shows_which_cells_check_a_promise(word: str) -> None:
    option = f"--promises={word}" if word else "--promises"
    told = CliRunner().invoke(conform, ["contract", option])
    assert told.exit_code == 0, told.output
    lines = told.output.splitlines()
    assert len(lines) == len(promises().select(word) if word else promises().by_name) + 1
    if word.endswith("Stream"):
        assert "torch.Stream.query: streams.query::*" in lines


def test_an_unknown_object_is_told() -> None:
    told = CliRunner().invoke(conform, ["contract", "--promises=Straem"])
    assert told.exit_code != 0 and "Stream" in told.output
