"""Minimised examples and groups of failures are shown where a run tells of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reports.dashboard.build import Options, build
from reports.dashboard.examples import example_of, groups_in
from reports.model import CellResult
from reports.plan import RunError
from tests.dashboard import fleet
from tests.dashboard.conftest import NOW
from tests.dashboard.looking import opened


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    values: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    call: str
    layout: str
    message: str
    tensors: tuple[Tensor, ...] = ()
    tried: int = 0
    whole: bool = True


@dataclass(frozen=True)
class Told(CellResult):
    """A result as the minimiser tells it."""

    example: Example | None = None


def test_a_result_without_an_example_has_none() -> None:
    assert example_of(fleet.passed(fleet.cell("layout.values", "add"))) is None


def test_an_example_says_where_its_tensors_lie() -> None:
    plain = fleet.failing(fleet.cell("layout.values", "add"))
    example = Example(
        "add(t[0], 1)", "transposed", "2 is 3", (Tensor("float32", (2, 3), (1, 2), 17),), 9
    )
    values = {name: getattr(plain, name) for name in CellResult.__slots__ if name != "example"}
    told = example_of(Told(**values, example=example))
    assert told is not None
    assert (told["call"], told["tried"], told["whole"]) == ("add(t[0], 1)", 9, True)
    assert told["tensors"][0]["extent"] == 17 + 1 * 1 + 2 * 2 + 1


def groups(*cells: str, **changed: Any) -> dict[str, Any]:
    group = {"verdict": "regression", "clause": "layout.values", "kind": "values", "place": "",
             "family": "pointwise", "count": len(cells), "example": None, "cells": list(cells)}  # fmt: skip
    return {"format": 1, "cells": len(cells), "groups": [{**group, **changed}]}


def test_groups_name_the_cells_like_one(tmp_path: Path) -> None:
    (tmp_path / "failures.json").write_text(json.dumps(groups("a::b[c]", "a::d[e]")))
    found = groups_in(tmp_path)
    assert found["a::b[c]"] == found["a::d[e]"]
    assert found["a::b[c]"]["count"] == 2


def test_a_run_without_groups_has_none(tmp_path: Path) -> None:
    assert groups_in(tmp_path) == {}


@pytest.mark.parametrize(
    "text", ["[", "{}", '{"format": 2, "groups": []}', '{"format": 1, "groups": 3}']
)
def test_a_damaged_list_of_groups_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "failures.json").write_text(text)
    with pytest.raises(RunError, match=r"failures\.json"):
        groups_in(tmp_path)


def test_the_page_of_a_cell_shows_its_group(browser: Any, tmp_path: Path) -> None:
    run = fleet.alpha(tmp_path / "run", 1)
    named = ("layout.values::mul[float32]", "layout.bounds::add[int64]")
    (run / "failures.json").write_text(json.dumps(groups(*named)))
    build([run], tmp_path / "site", Options(now=NOW, jobs=1))
    address = "cell.html#device=alpha-quick&clause=layout.values&op=mul&dtype=float32"
    with opened(browser, tmp_path / "site", address) as page:
        assert "2 cells in one group: values, pointwise." in page.inner_text("main")
        page.click("text=layout.bounds · add · int64")
        page.wait_for_selector("text=add[int64]")
