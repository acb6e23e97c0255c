"""Cells with a variant are planned, run, expected, reported and compared as all others are, and the others are as they were."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml

from conformance.checks.cases.cases import Cases, OpCheck, collect_cases
from conformance.contract.levels import blocks, read_level
from devices.cell import CellKey, Outcome, Verdict
from opinfo.plan import plan_hash
from reports.run import load_run
from tests.frame.variant_suite import CASE_CLAUSE, CLAUSE, FAULT
from tests.plugin.running import ForkServer, Ran, run_conform

_NAMES = st.text("abz_.019", min_size=1)
KEYS = st.builds(
    CellKey,
    st.sampled_from(["layout.values", "streams.query"]),
    _NAMES,
    st.sampled_from(["", "float32", "int64"]),
    st.sampled_from(["", "compiled", "4 ranks"]),
)


@given(KEYS)
def test_the_text_of_a_cell_names_it_and_no_other(cell: CellKey) -> None:
    assert CellKey.parse(str(cell)) == cell
    assert CellKey.of_kind(cell.clause, cell.unit, cell.kind) == cell


@given(KEYS, KEYS)
def test_two_cells_have_two_texts(one: CellKey, other: CellKey) -> None:
    assert (str(one) == str(other)) is (one == other)


@pytest.mark.parametrize(
    "text", ["layout.values::add[float32]@", "layout.values", "::add", "a.b::"]
)
def test_a_text_that_names_no_cell_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a cell such as"):
        CellKey.parse(text)


def test_the_hash_of_a_plan_without_variants_is_made_of_three_names() -> None:
    cells = [CellKey("layout.values", "add", "float32"), CellKey("streams.query", "busy", "")]
    lines = "samples=6\nlayout.values\tadd\tfloat32\nstreams.query\tbusy\t\n"
    assert (
        plan_hash(cells, {"samples": 6})
        == hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()
    )
    more = [*cells, cells[0]._replace(variant="compiled")]
    assert plan_hash(more, {"samples": 6}) != plan_hash([*cells, cells[0]], {"samples": 6})


def test_the_file_of_a_level_lists_variants(tmp_path: Path) -> None:
    cells = {
        *(CellKey("layout.values", "add", "float32", variant) for variant in ("", "compiled")),
        CellKey("streams.query", "busy", "", "4 ranks"),
    }
    lines = ['version = "0.2"']
    for block in blocks(cells):
        lines += ["[[cells]]", *(f"{key} = {names!r}" for key, names in block.items())]
    path = tmp_path / "4.toml"
    path.write_text("\n".join(lines))
    assert read_level(path, 4).cells == cells


def test_a_case_may_have_its_name_twice_in_two_variants_but_not_in_one() -> None:
    cases, again = Cases(), Cases()

    def ranks(context: object, count: int) -> None:
        """Ranks."""

    cases(CASE_CLAUSE, variants={"2 ranks": (2,), "4 ranks": (4,)})(ranks)
    again(CASE_CLAUSE, variants={"4 ranks": (4,)})(ranks)
    assert [case.id for case in collect_cases(cases)] == [
        f"{CASE_CLAUSE}::ranks@2 ranks",
        f"{CASE_CLAUSE}::ranks@4 ranks",
    ]
    with pytest.raises(ValueError, match="two cases named 'ranks@4 ranks'"):
        collect_cases(cases, again)


@pytest.mark.parametrize(
    ("more", "whole", "op", "expected"),
    [
        (False, False, "mm", ("",)),
        (True, False, "mm", ("", "dynamic")),
        (True, False, "add", ("",)),
        (True, True, "add", ("", "dynamic", "compiler")),
    ],
)
def test_a_plan_has_a_variant_of_some_ops(
    more: bool, whole: bool, op: str, expected: tuple[str, ...]
) -> None:
    check = OpCheck(
        CLAUSE,
        applies=lambda traits: True,
        checks=(),
        more_variants={"dynamic": lambda op, clauses: op == "mm" and CLAUSE in clauses},
        whole_variants=("compiler",),
    )
    assert check.variants_of(op, (CLAUSE,), more=more, whole=whole) == expected


# -- a run with variants

OPS = ("add", "mul")
#: By variant, what the run with the fault shows.
CELLS = {CellKey(CLAUSE, op, "float32", v): bool(v) for op in OPS for v in ("", "twice")}
RANKS = {CellKey(CASE_CLAUSE, "counts_ranks", "", f"{n} ranks"): n == 4 for n in (2, 4)}


def run(fork: ForkServer, folder: Path, expectations: object, *selection: str, fault: str) -> Ran:
    given = ("--device", "cpu", "--plan", "quick", f"--results={folder}", "-q", *selection)
    more = ("-p", "tests.frame.variant_suite", f"--expectations={expectations}")
    return fork.pytest(*more, *given, **{FAULT: fault})


def outcomes(folder: Path) -> dict[CellKey, bool]:
    """By cell, whether it failed."""
    return {key: cell.outcome is Outcome.FAIL for key, cell in load_run(folder).results.items()}


@pytest.mark.slow
def test_variants_of_ops_have_a_life_of_their_own(
    fork: ForkServer, tmp_path: Path, cache: Path
) -> None:
    selection = ("--ops", ",".join(OPS), "--dtypes", "float32", "--clauses", CLAUSE)
    red, again, green = (tmp_path / name for name in ("red", "again", "green"))
    for folder in (red, again):
        assert run(fork, folder, "none", *selection, fault="1").code == 1
        assert outcomes(folder) == CELLS
    checks = {key: cell.checks for key, cell in load_run(red).results.items()}
    assert (
        checks[CellKey(CLAUSE, "add", "float32", "twice")]
        == checks[CellKey(CLAUSE, "add", "float32")]
    )

    # The repro script of a variant executes the call as the variant does.
    repro = load_run(red).results[CellKey(CLAUSE, "add", "float32", "twice")].repro
    assert repro == f"repro/{CLAUSE}/add-float32-twice.py"
    ran = fork.script(red / repro)
    assert ran.code == 1 and "FAIL" in ran.text, ran.text
    right = (red / repro).read_text().replace("wrong=True", "wrong=False")
    (red / repro).write_text(right)
    ran = fork.script(red / repro)
    assert (ran.code, ran.text.strip()) == (0, "PASS"), ran.text

    # JUnit names the variant.
    (suite,) = JUnitXml.fromfile(str(red / "junit-layout.xml"))
    assert {(case.classname, case.name) for case in suite} == {(CLAUSE, key.name) for key in CELLS}

    # A manifest is written from the two runs, and expects the variant alone.
    manifest = tmp_path / "expected.toml"
    manifest.write_text("")
    given = ("--manifest", str(manifest), "--reason", "executed twice, the result is too large")
    ran = run_conform("manifest", "update", *given, str(red), str(again), cache=cache)
    assert ran.code == 0 and 'variant = "twice"' in manifest.read_text(), ran.text
    ran = run(fork, green, manifest, *selection, fault="1")
    assert ran.code == 0, ran.text + manifest.read_text()
    found = load_run(green).results
    assert {key: cell.verdict is Verdict.EXPECTED for key, cell in found.items()} == CELLS

    # The comparison of two runs names the variant.
    fixed = tmp_path / "fixed"
    assert run(fork, fixed, "none", *selection, fault="0").code == 0
    ran = run_conform("diff", str(red), str(fixed), cache=cache)
    assert (
        f"{CLAUSE}::add[float32]@twice" in ran.text and f"{CLAUSE}::add[float32]:" not in ran.text
    )
    cell = f"{CLAUSE}::add[float32]@twice"
    ran = run_conform(
        "manifest", "explain", f"--manifest={manifest}", "--device=cpu", cell, cache=cache
    )
    assert "variant 'twice'" in ran.text and "decides" in ran.text, ran.text
    plain = cell.removesuffix("@twice")
    ran = run_conform(
        "manifest", "explain", f"--manifest={manifest}", "--device=cpu", plain, cache=cache
    )
    assert "expected: pass" in ran.text, ran.text


def test_variants_of_a_case_have_a_life_of_their_own(fork: ForkServer, tmp_path: Path) -> None:
    selection = ("--clauses", CASE_CLAUSE, "-k", "counts_ranks")
    assert run(fork, tmp_path / "run", "none", *selection, fault="1").code == 1
    found = outcomes(tmp_path / "run")
    assert {key: found[key] for key in RANKS} == RANKS
    repro = (
        load_run(tmp_path / "run")
        .results[CellKey(CASE_CLAUSE, "counts_ranks", "", "4 ranks")]
        .repro
    )
    assert repro == f"repro/{CASE_CLAUSE}/counts_ranks-4_ranks.py"
    # The name of the case, with its variant, is the seed of its random numbers.
    assert "variant='4 ranks'" in (tmp_path / "run" / repro).read_text()
    ran = fork.script(tmp_path / "run" / repro, **{FAULT: "1"})
    assert ran.code == 1 and "4 ranks were expected, and 3 were found" in ran.text, ran.text
    ran = fork.script(tmp_path / "run" / repro)
    assert ran.code == 0, ran.text
