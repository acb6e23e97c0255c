"""Mutants of process groups: which are reached by a call is what changes something, and a seed draws the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from conformance.checks.cases.cases import BehaviourCase
from devices.cell import Outcome
from opinfo.device import Device
from tests.distributed import measure
from tests.mutation import group_reach, groups
from tests.mutation.group_mutants import CONDITIONS, READS, RESULTS, WRITES, Spec, mutant_of

Tensor = torch.Tensor
BASE = torch.arange(1.0, 41.0)
#: Operands, and the results that are written to them.
OPERANDS = {
    "contiguous": BASE[:12].view(3, 4),
    "stepped": BASE[1:25:2].view(3, 4),
    "transposed": BASE[:12].view(4, 3).t(),
    "one element": BASE[3:4],
    "odd": BASE[2:7],
    "integers": BASE[:6].long(),
    "short": BASE[:6].bfloat16(),
}


def noted(folder: Path) -> set[str]:
    lines = [each for file in folder.glob("*.notes") for each in file.read_text().splitlines()]
    return {line.partition("\t")[2] for line in lines}


@pytest.mark.parametrize("name", OPERANDS)
def test_the_operands_that_a_mutant_reads_otherwise_reach_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "case").write_text("a case")
    watching, given = group_reach.Notes(tmp_path).mutant(), OPERANDS[name]
    assert watching.read is not None
    assert watching.read("gather", given) is given
    found = noted(tmp_path)
    for kind in READS:
        for condition in CONDITIONS:
            spec = Spec("gather", kind, condition)
            read = mutant_of(spec.name).read
            assert read is not None
            assert (spec.name in found) == (not torch.equal(read("gather", given), given)), spec


@pytest.mark.parametrize("name", OPERANDS)
def test_the_targets_that_a_mutant_writes_otherwise_reach_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "case").write_text("a case")
    watching, result = group_reach.Notes(tmp_path).mutant(), -OPERANDS[name].contiguous()

    def target() -> tuple[Tensor, Tensor]:
        given = OPERANDS[name]
        memory = torch.empty(0, dtype=given.dtype).set_(given.untyped_storage().clone())
        return memory, memory.as_strided(given.shape, given.stride(), given.storage_offset())

    assert watching.write is not None
    right, view = target()
    watching.write("gather", view, result)
    assert torch.equal(view, result)
    found = noted(tmp_path)
    for kind in WRITES:
        for condition in CONDITIONS:
            spec, (memory, view) = Spec("gather", kind, condition), target()
            write = mutant_of(spec.name).write
            assert write is not None
            write("gather", view, result)
            assert (spec.name in found) == (not torch.equal(memory, right)), spec


def test_the_results_that_a_mutant_changes_reach_it(tmp_path: Path) -> None:
    (tmp_path / "case").write_text("a case")
    watching, given = group_reach.Notes(tmp_path).mutant(), -BASE[:12].view(3, 4) / 3
    assert watching.results is not None
    found = [given.clone()]
    watching.results("gather", found, 0, 2)
    assert torch.equal(found[0], given)
    reached = noted(tmp_path)
    for kind in RESULTS:
        for condition in CONDITIONS:
            spec, changed = Spec("gather", kind, condition), [given.clone()]
            results = mutant_of(spec.name).results
            assert results is not None
            results("gather", changed, 0, 2)
            assert (spec.name in reached) == (not torch.equal(changed[0], given)), spec


def test_a_call_with_other_results_reaches_a_mutant_that_gives_those_of_the_call_before(
    tmp_path: Path,
) -> None:
    (tmp_path / "case").write_text("a case")
    watching, name = group_reach.Notes(tmp_path).mutant(), "gather|result of the call before|always"
    assert watching.results is not None
    for times, reaches in ((1, False), (1, False), (2, True)):
        watching.results("gather", [BASE * times], 0, 2)
        assert (name in noted(tmp_path)) is reaches


def test_each_case_notes_what_it_reaches(tmp_path: Path) -> None:
    watching = group_reach.Notes(tmp_path).mutant()
    assert watching.read is not None
    for case in ("one", "two"):
        (tmp_path / "case").write_text(case)
        watching.read("gather", BASE)
    lines = [each for file in tmp_path.glob("*.notes") for each in file.read_text().splitlines()]
    assert {line.partition("\t")[0] for line in lines if "read reversed|always" in line} == {
        "one",
        "two",
    }


def test_a_mutant_runs_where_its_condition_holds_even_if_it_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "case").write_text("a case")
    watching, given = group_reach.Notes(tmp_path).mutant(), torch.tensor([3])
    assert watching.results is not None
    watching.results("gather", [given], 0, 2)
    idle, other = (Spec("gather", "elements reversed", each) for each in ("int64", "float64"))
    found = noted(tmp_path)
    assert idle.name not in found and {*group_reach.places_of(idle)} <= found
    assert not {*group_reach.places_of(other)} & found


def test_a_case_that_fails_without_a_mutant_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    case, failing = SimpleNamespace(id="a case"), (Outcome.FAIL, "no such rank")
    monkeypatch.setattr(measure, "outcome", lambda *_: failing)
    with pytest.raises(RuntimeError, match="a case fails without a mutant"):
        group_reach.table(cast(Device, None), [cast(BehaviourCase, case)])


def test_a_seed_draws_the_same_mutants_and_none_twice() -> None:
    drawn = groups.names(5, 100)
    assert drawn == groups.names(5, 100)
    assert len({*drawn}) == 100
    assert {*drawn} <= {*group_reach.every_name()}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setenv(measure.ENVIRONMENT, "sound")
    with measure.opened() as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("broadcast|sign lost|more than 4,096 elements", "different"),
        ("all_reduce|sign lost|one element", "different"),
        ("all_reduce|written as dense|one element", "equal"),
        ("receive|read as zeros|always", "not run"),  # reads nothing
    ],
)
def test_the_probe_says_which_mutants_are_equivalent(
    name: str, answer: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_device", lambda: device)
    assert groups.observed(Spec(*name.split("|"))) == answer
