"""Public bugs: the data is sound, and the suite notices every imitation that it is said to notice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

import pytest
import torch
from click.testing import CliRunner

from conformance import contract
from conformance.cli import conform
from conformance.contract.bugs import (
    LAID_OUT,
    MEASURED,
    NOTHING,
    Bug,
    Family,
    Imitation,
    Noticed,
    Then,
    bugs,
    read_bugs,
)
from conformance.suites import planned_cases
from conformance.suites.compile import comparing
from devices.cell import CellKey, Outcome
from devices.errors import ConformError
from devices.simulated.faults import FAULTS as SIMULATED
from opinfo.catalog import catalogue
from tests.bugs.conditions import CONDITIONS
from tests.bugs.device_faults import DEVICE_FAULTS, in_the_device
from tests.bugs.groups import GROUPS
from tests.bugs.imitations import effect_of, fit
from tests.bugs.large import LARGE
from tests.bugs.patches import PATCHES, PROPERTIES
from tests.bugs.trials import fate, outcome_on_cpu
from tests.bugs.wrong_compilers import BACKENDS, right_backend
from tests.mutation.items import is_refused
from tests.planting.calls import KernelCall
from tests.planting.places import replaced
from tests.sampling import first_of_each

KNOWN = tuple(bugs())
#: Imitations that are said to be noticed, those of one op one after another: they share its samples.
PATCHED = [bug for bug in KNOWN if bug.patch and not bug.missed]
TRIED = sorted((b for b in KNOWN if b.imitation and not b.missed), key=lambda b: b.imitation.op)  # type: ignore[union-attr]
FAULTS = [bug for bug in KNOWN if bug.fault and not bug.missed]


def named(found: list[Bug]) -> list[str]:
    return [bug.reference for bug in found]


# Imitations


def _what_goes_wrong(bug: Bug) -> str | None:
    """None of an imitation with a condition in words: a test below is about these, and tries none of them on a whole op."""
    assert bug.imitation is not None
    return None if bug.imitation.where else bug.imitation.then


@pytest.mark.parametrize("bug", first_of_each(TRIED, _what_goes_wrong, lambda bug: bug.reference))
def test_suite_notices_the_imitation(bug: Bug) -> None:
    found, _ = fate(bug)
    assert found in ("quick", "core", "full", "planned"), bug.imitated


def _quick_family(bug: Bug) -> Family | None:
    """The family of a patched bug; None where its cells compile, take many samples of a law, start ranks, fill memory,
    or run on the simulated device."""
    compiled = any(clause.startswith("compile.") for clause in bug.clauses)
    slow = compiled or bug.family == "random" or bug.patch in {*DEVICE_FAULTS, *GROUPS, *LARGE}
    return None if slow else bug.family


@pytest.mark.parametrize("bug", first_of_each(PATCHED, _quick_family, lambda bug: bug.reference))
def test_suite_notices_the_patched_function(bug: Bug) -> None:
    assert fate(bug)[0] in ("quick", "core", "full"), bug.imitated


def test_suite_notices_a_fault_in_the_simulated_device() -> None:
    """Of kernels, and of Python functions: the tests above try all of them, slowly."""
    for reference in ("pytorch#86052", "Ascend/pytorch#14", "vllm-project/vllm-ascend#597", "pytorch/xla#354"):  # fmt: skip
        (bug,) = (bug for bug in KNOWN if bug.reference == reference)
        assert fate(bug)[0] == "quick", bug.imitated


def test_a_copy_to_the_host_that_takes_the_gaps_is_noticed() -> None:
    (case,) = (c for c in planned_cases(contract.load()) if c.name == "device_to_host")
    assert not is_refused(case)
    with in_the_device("copy_to_the_host_takes_the_gaps"):
        assert is_refused(case)


#: Programs of which a wrong compiler imitates a bug.
COMPILED = sorted({name for bug in PATCHED if bug.patch in BACKENDS for name in bug.ops})


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_a_backend_that_spoils_nothing_passes(name: str) -> None:
    """So a wrong compiler is noticed by what it spoils, and not because it runs graphs op by op."""
    [case] = [c for c in planned_cases(contract.load(), whole=False) if c.name == name]
    with replaced(comparing, "backend_of", right_backend):
        assert outcome_on_cpu(case) is Outcome.PASS


def test_every_patch_is_of_a_bug_and_the_other_way_round() -> None:
    assert {bug.patch for bug in KNOWN if bug.patch} == {
        *PATCHES, *PROPERTIES, *DEVICE_FAULTS, *GROUPS, *LARGE
    }  # fmt: skip


def test_every_condition_in_words_is_of_an_imitation_and_the_other_way_round() -> None:
    named = {bug.imitation.where for bug in KNOWN if bug.imitation and bug.imitation.where}
    assert named == {*CONDITIONS}


def test_a_fault_strikes_only_where_its_condition_in_words_holds() -> None:
    effect = effect_of(Imitation(op="neg", then="zeros", where="there is no bias"))
    x = torch.ones(2)
    struck = [
        KernelCall(torch.add, given, {}).answered_by(effect).tolist() for given in ((x, x), (x, 1))
    ]
    assert struck == [[0, 0], [2, 2]]


def test_planted_faults_that_bugs_name_are_those_of_the_simulated_device() -> None:
    assert {bug.fault for bug in KNOWN if bug.fault} <= SIMULATED.keys()


@pytest.mark.parametrize("bug", FAULTS, ids=named(FAULTS))
def test_planted_fault_trips_a_clause_of_the_bug(bug: Bug) -> None:
    """That these clauses fail with the fault on is tested where the fault is."""
    assert fate(bug)[0] in ("quick", "core", "planned"), bug.imitated


# What an imitation does


def imitated(given: torch.Tensor, **fields: object) -> torch.Tensor:
    effect = effect_of(Imitation(op="neg", **fields))  # type: ignore[arg-type]
    result = KernelCall(torch.neg, (given,), {}).answered_by(effect)
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("then", get_args(Then))
def test_every_word_says_what_goes_wrong(then: str) -> None:
    assert Imitation(op="neg", then=then, keyword="dim" if then == "ignored" else "")  # type: ignore[arg-type]


def test_a_strided_operand_is_read_in_a_row() -> None:
    given = torch.arange(4.0).reshape(2, 2).t()
    assert imitated(given, then="read_dense", when=("strided",)).tolist() == [[-0.0, -1], [-2, -3]]


def test_a_fault_does_not_strike_where_a_condition_does_not_hold() -> None:
    given = torch.arange(4.0).reshape(2, 2)
    assert torch.equal(imitated(given, then="read_dense", when=("strided",)), -given)
    assert torch.equal(imitated(given, then="zeros", when=("size",), past=4), -given)
    assert torch.equal(imitated(given, then="zeros", when=("size",), past=3), 0 * given)


@pytest.mark.parametrize(
    ("pattern", "shapes", "others"),
    [
        ("*, 1, 2-4", [(0, 1, 2), (9, 1, 4)], [(9, 1, 5), (9, 2, 4), (1, 2), (1, 9, 1, 2), ()]),
        ("..., 64-", [(64,), (2, 3, 65)], [(63,), (64, 2), ()]),
        ("...", [(), (2, 3)], []),
        ("5", [(5,)], [(), (4,), (5, 5)]),
    ],
)
def test_a_pattern_of_shapes(
    pattern: str, shapes: list[tuple[int, ...]], others: list[tuple[int, ...]]
) -> None:
    given = {shape: fit((pattern,), [torch.empty(shape)]) for shape in shapes + others}
    assert given == {**dict.fromkeys(shapes, True), **dict.fromkeys(others, False)}


def test_a_pattern_without_an_operand_does_not_fit() -> None:
    assert not fit(("...", "..."), [torch.empty(2)])


def test_a_lost_write_leaves_self_as_it_was() -> None:
    effect = effect_of(Imitation(op="neg", then="write_lost", when=("inplace",)))
    call = KernelCall(torch.Tensor.neg_, (torch.ones(2),), {})
    assert call.answered_by(effect).tolist() == [1, 1]


# The data


def test_ops_are_those_of_the_database_and_cases_those_of_the_suite() -> None:
    names = {*catalogue(), *(case.name for case in planned_cases(contract.load()))}
    unknown = [
        (bug.reference, glob)
        for bug in KNOWN
        for glob in bug.ops
        if not any(fnmatchcase(name, glob) for name in names)
    ]
    assert unknown == []


def test_imitations_are_of_ops_and_dtypes_that_there_are() -> None:
    for bug in KNOWN:
        if bug.imitation is not None:
            assert bug.imitation.dtype in catalogue()[bug.imitation.op].dtypes, bug.reference


#: Words of a statement, and the conditions of an imitation that say the same.
SAID = (
    (r"\b(strided|transposed|permuted|sliced?|slices)\b", LAID_OUT | {"strided_out"}),
    (r"\bexpanded\b", {"expanded"}),
    (r"\bchannels_last\b", {"channels_last"}),
    (r"\b(negated|conjugate) view\b", {"conj"}),
    (r"\bdeterministic mode\b", {"deterministic"}),
    (r"\brepeated ind(ex|ices)\b", {"repeats"}),
    (r"\bempty (batch|index)\b", {"empty"}),
    (r"\bPython (number|scalar)\b", {"number", "leading_number"}),
    (
        r"\b(more than|above|past|of) (about )?[\d,^]+ |\b[\d,^]+ (and|or) more\b",
        MEASURED | {"shapes"},
    ),
)


def struck_as_reported() -> list[Bug]:
    return [b for b in KNOWN if b.imitation and b.lacks == NOTHING]


def unsaid(bug: Bug) -> list[str]:
    """The conditions in the statement of a bug that its imitation does not have."""
    assert bug.imitation is not None
    held = {*bug.imitation.when, *(["shapes"] if bug.imitation.shapes else [])}
    return [
        word
        for word, conditions in SAID
        if re.search(word, bug.statement)
        and not held & conditions
        and not re.search(word, bug.imitation.where)
    ]


def test_an_imitation_strikes_under_the_condition_of_its_statement_or_says_what_it_lacks() -> None:
    """The imitation of a bug of strided tensors, for example, spares contiguous tensors."""
    assert {bug.reference: found for bug in struck_as_reported() if (found := unsaid(bug))} == {}


def test_a_fault_in_another_op_is_not_said_to_strike_as_reported() -> None:
    """The ops of an entry are those of the report, and a planted fault is in the ops that it names."""
    elsewhere = [
        bug.reference
        for bug in FAULTS
        if bug.lacks == NOTHING and (ops := SIMULATED[bug.fault].ops) and bug.ops
        and not any(fnmatchcase(op, glob) for op in ops for glob in bug.ops)
    ]  # fmt: skip
    assert elsewhere == []


def test_the_measure_of_an_easier_fault_is_not_that_of_the_bug() -> None:
    (easier,) = (bug for bug in KNOWN if bug.reference == "pytorch#183419")
    (exact,) = (bug for bug in KNOWN if bug.reference == "pytorch#161640")
    assert (easier.noticed, exact.noticed) == (Noticed.EASIER, Noticed.AS_REPORTED)


def test_statements_are_sentences() -> None:
    assert [bug.reference for bug in KNOWN if not bug.statement.endswith(".")] == []


def test_clauses_about_ops_name_them() -> None:
    """Otherwise every failing cell of the clause would say that it was seen before."""
    clauses = contract.load().clauses
    unnamed = [
        bug.reference
        for bug in KNOWN
        if not bug.ops
        and any(clauses[c].unit == "op" and clauses[c].status == "checked" for c in bug.clauses)
    ]
    assert unnamed == []


def test_a_cell_knows_where_it_was_seen() -> None:
    (seen,) = bugs().seen_in(CellKey("layout.values", "nn.functional.silu", "float32"))
    assert str(seen) == "pytorch#139006 on MPS"
    assert seen.url == "https://github.com/pytorch/pytorch/issues/139006"
    assert bugs().seen_in(CellKey("layout.bounds", "nn.functional.silu", "float32")) == ()


def seen(clause: str, op: str, dtype: str, *layouts: str) -> list[str]:
    return [bug.reference for bug in bugs().seen_in(CellKey(clause, op, dtype), layouts)]


def test_a_bug_of_strided_tensors_is_not_seen_where_contiguous_ones_fail() -> None:
    assert seen("layout.values", "nn.functional.silu", "float32", "transposed") != []
    assert seen("layout.values", "nn.functional.silu", "float32", "transposed", "contiguous") == []


def test_a_bug_of_integers_is_not_seen_in_floats() -> None:
    assert "pytorch#190052" in seen("layout.values", "abs", "int32")
    assert "pytorch#190052" not in seen("layout.values", "abs", "float32")


def test_a_bug_of_a_clause_about_cases_is_seen_in_all_of_them() -> None:
    assert "pytorch#178037" in seen("device.fork", "after_use", "")


def test_every_family_is_there() -> None:
    assert {bug.family for bug in KNOWN} == set(get_args(Family))


def test_importing_needs_no_torch() -> None:
    code = "import sys, conformance.contract.bugs as b; b.bugs(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Malformed data

GOOD = """\
[[bug]]
reference = "pytorch#139006"
backend = "MPS"
family = "layout"
statement = "It is wrong."
clauses = ["layout.values"]
ops = ["neg"]
imitation = { when = ["strided"], then = "read_dense" }
lacks = "nothing"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("backend", "bakend", "contains unknown field `bakend`"),
        ('"pytorch#139006"', '"139006"', r"matching regex .* - at `\$\.reference`"),
        ('"layout"', '"layuot"', r"Invalid enum value 'layuot' - at `\$\.family`"),
        ('"layout.values"', '"layout.valeus"', r"unknown clause 'layout\.valeus'; did you mean 'layout\.values'"),
        ('"strided"', '"striding"', r"Invalid enum value 'striding' - at `\$\.imitation\.when\[0\]`"),
        ('["strided"]', '["size"]', "expected 'past' if and only if 'when' has one of the conditions"),
        ('"read_dense"', '"ignored"', "expected the name of the ignored argument in 'keyword'"),
        ('ops = ["neg"]\n', "", "expected an 'op' in the imitation"),
        ('clauses = ["layout.values"]\n', "", "expected clauses and a fault that imitates the bug, or a 'why'"),
        ("ops =", 'fault = "values.ignore_strides"\nops =', "expected at most one of 'fault', 'imitation' and 'patch'"),
        ("imitation =", 'missed = "too few"\nwhy = "it"\n# ', "'missed' is given, but nothing imitates the bug"),
        ('lacks = "nothing"\n', "", "expected 'lacks' if and only if something imitates the bug"),
        ("imitation =", 'why = "it"\n# ', "expected 'lacks' if and only if something imitates the bug"),
        ('when = ["strided"]', 'shapes = ["2 3"]', r"matching regex .* - at `\$\.imitation\.shapes\[0\]`"),
        ("It is wrong.", " ", r"matching regex .* - at `\$\.statement`"),
    ],
)  # fmt: skip
def test_malformed_data_is_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = tmp_path / "bugs.toml"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConformError, match=f"bugs.toml: bug .*: .*{message}"):
        read_bugs(path, contract.load())


def test_a_reference_used_twice_is_told(tmp_path: Path) -> None:
    path = tmp_path / "bugs.toml"
    path.write_text(GOOD + GOOD, encoding="utf-8")
    with pytest.raises(ConformError, match="'pytorch#139006': the reference is used twice"):
        read_bugs(path, contract.load())


# The command


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(conform, ["contract", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("word", ["layout.values", "layout.*", "mps", "layout"])
def test_command_shows_the_bugs_of_a_clause_a_backend_or_a_family(word: str) -> None:
    text = printed("--bugs", word)
    assert "pytorch#139006 on MPS (layout)\n" in text
    assert "https://github.com/pytorch/pytorch/issues/139006" in text
    assert "pytorch#12669" not in text


def test_command_shows_all_bugs_as_json() -> None:
    assert len(json.loads(printed("--bugs", "--json"))["bugs"]) == len(KNOWN)


def test_command_counts_easier_faults_apart() -> None:
    text = printed("--bugs", "layout.bounds")
    assert "easier to notice than the report, which also needs the result of a plain call" in text
    assert "imitation of 0 under the reported condition, and of 1 only under an easier" in text


def test_an_unknown_word_is_told() -> None:
    with pytest.raises(ConformError, match=r"family 'MSP'; did you mean 'MPS'"):
        bugs().select("MSP")
