"""What is known about single ops: every entry of exceptions.toml is in use, and says why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import contract
from conformance.suites import planned_op_checks
from opinfo.database import DATABASE
from opinfo.exceptions import Exceptions, ExceptionsError, Exclusion, exceptions, names
from opinfo.samples import Traits, choose, draw, probe
from opinfo.torch_private import all_overloads

OP_CHECKS = planned_op_checks(contract.load())
CHECKOUT = Path(__file__).resolve().parents[2]
#: One dtype of each kind; those that an exclusion names come on top. All of them would take a minute.
DTYPES = ("float32", "int64", "bool", "complex64")
GOOD = """
[[family]]
name = "views"
ops = ["T", "linalg.*"]
reason = "views"

[[exclude]]
clauses = ["layout.values"]
ops = ["T"]
dtypes = ["float32"]
reason = "free"
"""


def read(tmp_path: Path, text: str) -> Exceptions:
    path = tmp_path / "exceptions.toml"
    path.write_text(text)
    return exceptions(path)


@pytest.fixture(scope="module")
def applying() -> set[tuple[str, str, str]]:
    """(clause, op, dtype) of every cell that applies, ignoring exclusions."""
    named = {dtype for exclusion in exceptions().exclusions for dtype in exclusion.dtypes}

    def traits() -> Iterator[Traits]:
        for op in DATABASE.subjects().values():
            # Of some ops the database lists dtypes of accelerators alone, though the CPU computes them.
            for dtype in sorted({*DTYPES, *named} & (op.dtypes or op.dtypes_anywhere)):
                yield probe(op, dtype, choose(draw(op, dtype), 4), exceptions())

    return {(c, t.op, t.dtype) for t in traits() if t.returns for c in clauses_of(t)}


def clauses_of(traits: Traits) -> Iterator[str]:
    yield from (check.clause for check in OP_CHECKS if check.applies(traits))


def test_every_pattern_names_an_op_of_the_database_or_of_aten() -> None:
    """A recorded call is known by the name of its aten op."""
    ops = {*DATABASE.subjects(), *(f"aten.{packet[6:]}" for packet in all_overloads())}
    entries = (*exceptions().families, *exceptions().exclusions)
    unused = [p for e in entries for p in e.ops if not any(names(p, op) for op in ops)]
    assert unused == []


@pytest.mark.slow
def test_every_exclusion_is_used_with_each_of_its_clauses_and_ops(
    applying: set[tuple[str, str, str]],
) -> None:
    unused = []
    for number, entry in enumerate(exceptions().exclusions, 1):
        taken = {cell for cell in applying if entry.covers(*cell, fake_only=True)}
        for clause in entry.clauses:
            if not any(names(clause, c) for c, _, _ in taken):
                unused.append((number, clause))
        for pattern in entry.ops:
            if not any(names(pattern, op) for _, op, _ in taken):
                unused.append((number, pattern))
        for dtype in entry.dtypes:
            if not any(dtype == d for _, _, d in taken):
                unused.append((number, dtype))
    assert unused == []


@pytest.mark.slow
def test_no_exclusion_repeats_an_earlier_one(applying: set[tuple[str, str, str]]) -> None:
    for number, entry in enumerate(exceptions().exclusions):
        alone = Exceptions((), exceptions().exclusions[:number])
        new = [
            cell
            for cell in applying
            if entry.covers(*cell, fake_only=True) and alone.excluded(*cell, fake_only=True) is None
        ]
        assert new, f"[[exclude]] number {number + 1} takes out nothing of its own"


def test_exclusions_name_clauses_that_the_suite_checks() -> None:
    named = {clause for entry in exceptions().exclusions for clause in entry.clauses}
    checked = tuple(check.clause for check in OP_CHECKS)
    assert [c for c in named if not any(names(c, known) for known in checked)] == []


def test_every_family_is_asked_for_somewhere() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for package in ("opinfo", "conformance")
        for path in (CHECKOUT / package).rglob("*.py")
    )
    unused = [f.name for f in exceptions().families if f'"{f.name}"' not in source]
    by_prefix = [name for name in unused if f'"{name.partition(".")[0]}.' in source]
    assert unused == by_prefix


def test_family_names_and_the_ops_within_one_are_unique() -> None:
    families = exceptions().families
    assert len({f.name for f in families}) == len(families)
    for ops in (*(f.ops for f in families), *(e.ops for e in exceptions().exclusions)):
        assert len(set(ops)) == len(ops)


def test_every_entry_says_why_in_a_sentence() -> None:
    reasons = [f.reason for f in exceptions().families]
    for reason in (*reasons, *(e.reason for e in exceptions().exclusions)):
        assert len(reason.split()) > 4 and reason.endswith(".")


def op_decisions(source: str) -> Iterator[str]:
    """Comparisons of an op's name with a text."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
        about_op = any(side.split(".")[-2:] in (["op", "id"], ["op", "name"]) for side in sides)
        about_op |= any(side == "op" or side.endswith(".op") for side in sides)
        if about_op and any(isinstance(n, ast.Constant) and n.value for n in ast.walk(node)):
            yield ast.unparse(node)


@pytest.mark.parametrize("package", ["conformance", "devices", "opinfo", "reports"])
def test_no_other_file_decides_by_the_name_of_an_op(package: str) -> None:
    found = {
        path.name: decisions
        for path in (CHECKOUT / package).rglob("*.py")
        if (decisions := list(op_decisions(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


def test_families_of_an_op_are_those_that_name_it(tmp_path: Path) -> None:
    known = read(tmp_path, GOOD)
    assert known.families_of("linalg.svd") == known.families_of("T") == {"views"}
    assert known.families_of("linalg") == frozenset()


def test_an_exclusion_covers_its_clauses_ops_and_dtypes_alone(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, GOOD).exclusions
    assert entry == Exclusion(("layout.values",), ("T",), "free", ("float32",), False)
    assert entry.covers("layout.values", "T", "float32", fake_only=False)
    assert not entry.covers("layout.values", "T", "int64", fake_only=False)
    assert not entry.covers("layout.values", "t", "float32", fake_only=False)
    assert not entry.covers("layout.bounds", "T", "float32", fake_only=False)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('reason = "views"', "", r"required field `reason` - at `\$\.family\[0\]`"),
        ('reason = "views"', 'reason = " "', r"matching regex .* - at `\$\.family\[0\]\.reason`"),
        (
            'reason = "free"',
            "reason = 3",
            r"Expected `str`, got `int` - at `\$\.exclude\[0\]\.reason`",
        ),
        ('ops = ["T"]', "ops = []", r"of length >= 1 - at `\$\.exclude\[0\]\.ops`"),
        ('ops = ["T"]', 'ops = "T"', r"Expected `array`, got `str` - at `\$\.exclude\[0\]\.ops`"),
        ('clauses = ["layout.values"]', "", r"required field `clauses` - at `\$\.exclude\[0\]`"),
        ("dtypes = ", "dtype = ", r"unknown field `dtype` - at `\$\.exclude\[0\]`"),
        ('name = "views"', 'title = "views"', r"unknown field `title` - at `\$\.family\[0\]`"),
        (
            "[[exclude]]",
            "[[excluded]]",
            "exceptions.toml: Object contains unknown field `excluded`",
        ),
        ("[[exclude]]", "[exclude", "exceptions.toml: expected a file of valid TOML"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(ExceptionsError, match=says):
        read(tmp_path, GOOD.replace(old, new))
