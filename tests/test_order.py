"""Which items run first when time is short."""

from __future__ import annotations

from conformance.plan.selection import Item, informative_first
from devices.cell import CellKey

FAMILIES = {"sin": "unary", "cos": "unary", "tan": "unary", "mul": "binary", "add": "binary"}


def item(op: str, *clauses: str) -> Item:
    return Item(op, "float32", list(clauses or ("layout.values",)))


ITEMS = [item("sin"), item("cos"), item("tan"), item("mul"), item("add"), item("sort")]


def ops(items: list[Item]) -> list[str]:
    return [item.unit for item in items]


def key(op: str, clause: str = "layout.values") -> CellKey:
    return CellKey(clause, op, "float32")


def test_families_take_turns() -> None:
    found = informative_first(ITEMS, (), (), FAMILIES)
    assert ops(found) == ["sin", "mul", "sort", "cos", "add", "tan"]


def test_what_failed_last_time_goes_first_then_what_is_expected_to_fail() -> None:
    found = informative_first(ITEMS, {key("add")}, {key("tan"), key("add")}, FAMILIES)
    assert ops(found) == ["add", "tan", "sin", "mul", "sort", "cos"]


def test_within_a_family_the_op_with_the_most_clauses_goes_first() -> None:
    items = [item("sin"), item("cos", "layout.values", "layout.bounds"), item("mul")]
    assert ops(informative_first(items, (), (), FAMILIES)) == ["cos", "mul", "sin"]


def test_a_failure_counts_for_its_own_dtype_and_clause_alone() -> None:
    failed = {CellKey("layout.values", "add", "int64"), key("mul", "layout.bounds")}
    assert ops(informative_first(ITEMS, failed, (), FAMILIES))[0] == "sin"


def test_nothing_is_lost_and_nothing_is_made_up() -> None:
    found = informative_first(ITEMS, {key("cos")}, {key("mul")}, {})
    assert sorted(found) == sorted(ITEMS)
