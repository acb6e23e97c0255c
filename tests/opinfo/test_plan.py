"""Plans: order, hash, exclusions, and the compact form in records. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from devices.cell import CellKey
from opinfo.exceptions import Exceptions, Exclusion
from opinfo.plan import (
    Plan,
    PlanSpec,
    UnknownPlan,
    build,
    plan_hash,
    plan_spec,
    plan_specs,
)

CELLS = [CellKey("layout.values", "add", "float32"), CellKey("layout.values", "mm", "int64")]
RECIPE: dict[str, str | int] = {"suite": "0.1", "samples": 4}
NOTHING = Exceptions((), ())


@dataclass(frozen=True)
class Subject:
    op: str
    dtype: str


SUBJECTS = [Subject("mm", "float32"), Subject("add", "float32"), Subject("add", "int64")]


def both(_: Subject) -> Iterable[str]:
    return ("layout.values", "layout.bounds")


def planned(
    known: Exceptions = NOTHING,
    *,
    subjects: Iterable[Subject] = SUBJECTS,
    fake_only: bool = False,
) -> Plan:
    return build(
        plan_spec("quick"), "cpu", subjects, both, known, {"layouts": 1}, fake_only=fake_only
    )


def leaving_out(**changed: object) -> Exceptions:
    fields: dict[str, object] = {
        "clauses": ("layout.values",),
        "ops": ("add",),
        "dtypes": (),
        "reason": "the answer is free",
    }
    return Exceptions((), (Exclusion(**{**fields, **changed}),))  # type: ignore[arg-type]


def test_the_hash_is_the_same_on_every_machine() -> None:
    assert plan_hash(CELLS, RECIPE) == "8c007ffd9d0778af"


def test_the_hash_does_not_depend_on_the_order_of_the_recipe() -> None:
    assert plan_hash(CELLS, dict(reversed(list(RECIPE.items())))) == plan_hash(CELLS, RECIPE)


def test_the_hash_depends_on_the_order_of_the_cells() -> None:
    assert plan_hash(CELLS[::-1], RECIPE) != plan_hash(CELLS, RECIPE)


@pytest.mark.parametrize("changed", [{"samples": 5}, {"suite": "0.2"}, {"pinned": "none"}], ids=str)
def test_the_hash_covers_the_recipe(changed: dict[str, str | int]) -> None:
    assert plan_hash(CELLS, {**RECIPE, **changed}) != plan_hash(CELLS, RECIPE)


def test_the_hash_covers_every_cell_and_part_of_it() -> None:
    others = [
        CELLS[:1],
        [CELLS[0], CellKey("layout.values", "mm", "int32")],
        [CELLS[0], CellKey("layout.bounds", "mm", "int64")],
        [CELLS[0], CellKey("layout.values", "mv", "int64")],
    ]
    hashes = {plan_hash(cells, RECIPE) for cells in [CELLS, *others]}
    assert len(hashes) == len(others) + 1


def test_cells_come_in_the_order_of_ops_then_clauses() -> None:
    assert [str(cell) for cell in planned().cells] == [
        "layout.values::mm[float32]",
        "layout.bounds::mm[float32]",
        "layout.values::add[float32]",
        "layout.bounds::add[float32]",
        "layout.values::add[int64]",
        "layout.bounds::add[int64]",
    ]


def test_an_exclusion_takes_cells_out_and_says_why() -> None:
    plan = planned(leaving_out())
    assert CellKey("layout.values", "add", "float32") not in plan.cells
    assert CellKey("layout.bounds", "add", "float32") in plan.cells
    (excluded,) = plan.excluded
    assert (excluded.clause, excluded.reason) == ("layout.values", "the answer is free")
    assert excluded.cells == (("add", "float32"), ("add", "int64"))


def test_an_exclusion_changes_the_hash() -> None:
    assert planned(leaving_out()).hash != planned().hash


def test_an_exclusion_of_one_dtype_leaves_the_others() -> None:
    plan = planned(leaving_out(dtypes=("int64",)))
    assert plan.excluded[0].cells == (("add", "int64"),)


@pytest.mark.parametrize(("pattern", "taken"), [("a*", 2), ("add*", 2), ("ad", 0), ("*", 3)])
def test_ops_of_an_exclusion_are_exact_or_end_in_a_star(pattern: str, taken: int) -> None:
    plan = planned(leaving_out(ops=(pattern,)))
    assert sum(len(excluded.cells) for excluded in plan.excluded) == taken


def test_an_exclusion_for_fake_only_devices_leaves_the_others_alone() -> None:
    known = leaving_out(fake_only=True)
    assert planned(known, fake_only=True).excluded and not planned(known).excluded


def test_the_plans_are_quick_core_and_full() -> None:
    assert list(plan_specs()) == ["quick", "core", "full"]
    assert plan_spec("quick").dtypes == ("float32",)
    assert plan_spec("core").dtypes == ("float32", "bool", "int64", "bfloat16", "complex64")
    assert plan_spec("full").takes("float8_e5m2") and not plan_spec("core").takes("int32")
    samples = [spec.samples for spec in plan_specs().values()]
    assert samples == sorted(samples) and samples[0] >= 3


def test_an_unknown_plan_is_told_with_those_that_there_are() -> None:
    with pytest.raises(UnknownPlan, match="unknown plan 'fast': expected one of quick, core, full"):
        plan_spec("fast")


def test_a_plan_of_any_dtype_takes_all() -> None:
    assert PlanSpec("x", ("*",), 1).takes("anything")
