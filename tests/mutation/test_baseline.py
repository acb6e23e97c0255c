"""What counts: a cell that is red with a mutant and green without it counts, and a mutant is equivalent only if the probe ran it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import torch

from conformance.checks.cases.cases import BehaviourCase
from conformance.suites.distributed.views import numbers
from devices.cell import Outcome
from tests.distributed.faulty import ENVIRONMENT
from tests.mutation import baseline, compiled_probe, compilers, groups, profiles, report
from tests.mutation.kernels import Result

CASE = cast(BehaviourCase, SimpleNamespace(
    id="a.clause::a_case", name="a_case", clause="compile.programs", more=False
))  # fmt: skip
GROUP = "gather|sign lost|always"
COMPILER = "dropped|tanh|all|always"
PROFILE = "kineto nodes|no number|past the 20th"


def nothing(result: Result) -> None:
    pass


def answers(*red: bool) -> Callable[..., bool]:
    """A case that is red in these runs, and green afterwards."""
    left = chain(red, repeat(False))
    return lambda *_: next(left)


# -- a cell that is red anyway, or sometimes


@pytest.fixture(params=["distributed", "compilers", "profiles"])
def tried(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[..., bool]], Result]:
    """Tries a mutant of a family with one case, whose runs are red as a function says; no probe tells the mutant apart."""

    def as_outcome(red: Callable[..., bool]) -> Callable[..., Outcome]:
        return lambda *_: Outcome.FAIL if red() else Outcome.PASS

    def try_group(red: Callable[..., bool]) -> Result:
        outcome = as_outcome(red)
        monkeypatch.setattr(groups, "_device", lambda: None)
        monkeypatch.setattr(groups, "_reaching", lambda spec, say: [CASE])
        monkeypatch.setattr(groups.measure, "outcome", lambda *_: (outcome(), ""))
        monkeypatch.setattr(groups, "_reached_by_probe", lambda collective: frozenset())
        return groups.tried(1, 0, GROUP, nothing)

    def try_compiler(red: Callable[..., bool]) -> Result:
        monkeypatch.setattr(compilers, "cases", lambda: [CASE])
        monkeypatch.setattr(compilers, "outcome", as_outcome(red))
        monkeypatch.setattr(compiled_probe, "_PROGRAMS", 1)
        return compilers.tried(1, 0, COMPILER, nothing)

    def try_profile(red: Callable[..., bool]) -> Result:
        monkeypatch.setattr(profiles, "cases", lambda: [CASE])
        monkeypatch.setattr(profiles, "is_refused", red)
        monkeypatch.setattr(profiles, "probe", lambda: None)
        return profiles.tried(1, 0, PROFILE, nothing)

    monkeypatch.setenv(ENVIRONMENT, "sound")
    compilers.register()
    return {"distributed": try_group, "compilers": try_compiler, "profiles": try_profile}[
        request.param
    ]


def test_a_cell_that_is_red_with_a_mutant_alone_notices_it(
    tried: Callable[[Callable[..., bool]], Result],
) -> None:
    found = tried(answers(True, False, True))
    assert (found.result, found.by, found.unsteady) == ("noticed", [CASE.clause], [])


@pytest.mark.parametrize("red", [(True, True, True, True), (True, False, False, False)])
def test_a_cell_that_is_red_anyway_or_sometimes_notices_nothing(
    red: Sequence[bool], tried: Callable[[Callable[..., bool]], Result]
) -> None:
    found = tried(answers(*red))
    assert found.result != "noticed"
    assert found.unsteady == [CASE.id]


def test_what_remembers_earlier_calls_is_tried_again_behind_the_cases_before() -> None:
    before = cast(BehaviourCase, SimpleNamespace(id="before"))
    ran: list[tuple[bool, int]] = []

    def red(mutated: bool, cases: Sequence[BehaviourCase]) -> bool:
        ran.append((mutated, len(cases)))
        return mutated and len(cases) == 2

    assert baseline.is_cause(red, CASE, [before])
    assert ran == [(False, 1), (True, 1), (False, 2), (True, 2)]
    assert not baseline.is_cause(red, CASE)


def test_the_baseline_of_a_group_is_the_group_without_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []

    def outcome(*_: Any) -> tuple[Outcome, str]:
        ran.append(os.environ[ENVIRONMENT])
        return (Outcome.PASS if ran[-1] == "sound" else Outcome.FAIL), ""

    monkeypatch.setenv(ENVIRONMENT, "sound")
    monkeypatch.setattr(groups, "_device", lambda: None)
    monkeypatch.setattr(groups, "_reaching", lambda spec, say: [CASE])
    monkeypatch.setattr(groups.measure, "outcome", outcome)
    assert groups.tried(1, 0, GROUP, nothing).result == "noticed"
    assert ran == [GROUP, "sound", GROUP]


@pytest.mark.parametrize(
    "name",
    [
        "exchanged|sub|all|always",
        "off by one|sum|all|always",
        "outputs|zero|all|always",
        "run|an input is overwritten|all|always",
        "run|written inputs are not written|all|always",
        "guard left out|TENSOR_MATCH|all|always",
    ],
)
def test_a_sham_mutant_of_a_compiler_runs_its_code_and_changes_nothing(name: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.mul_(3)
        return (x - y).sum(0)

    def left(backend: str) -> list[float]:
        torch._dynamo.reset()
        x, y = torch.arange(4.0).view(2, 2), torch.ones(2, 2)
        made = torch.compile(program, backend=backend)(x, y) if backend else program(x, y)
        return [*made.flatten().tolist(), *x.flatten().tolist(), *y.flatten().tolist()]

    compilers.register()
    with compilers.planted(compilers.Spec(*name.split("|")), sham=True):
        assert left(compilers.NAME) == left("")


def test_a_tensor_and_a_number_that_change_places_are_unlike() -> None:
    x = torch.ones(3)
    assert compilers._unlike((2, x), (x, 2)) and not compilers._unlike((2, x), (2, x))


def test_a_sham_mutant_of_a_profile_lists_the_events_as_they_are() -> None:
    found = [
        (each, {"type": torch.profiler.DeviceType.CPU, "name": "aten::add", "op": 0, "begin": n})
        for n, each in enumerate("ab")
    ]
    for sham, listed in ((False, []), (True, ["a", "b"])):
        run = profiles.Run()
        when = (lambda one: False) if sham else profiles.ANYWHERE["always"]
        change = profiles.EXISTENCE["is not listed"]
        subject = profiles.KINETO["ops"]
        assert profiles._altered(run, found, subject, change, when, 1, profiles.Changed) == listed


def test_a_mutant_of_a_trace_leaves_text_alone_that_is_no_json() -> None:
    class Profile:
        def export_chrome_trace(self, path: str) -> None:
            Path(path).write_text('{"name": "a "quoted" name"}', encoding="utf-8")

    with mock.patch.object(profiles, "PROFILE", Profile), TemporaryDirectory() as folder:
        with profiles.planted("trace ops|no duration|always"):
            Profile().export_chrome_trace(f"{folder}/trace.json")
        found = Path(folder, "trace.json").read_text(encoding="utf-8")
    assert found == '{"name": "a "quoted" name"}'


def test_the_report_names_the_cells_that_do_not_count() -> None:
    made = Result("c0000", "compilers", "sin", "all", "dropped", "survived", unsteady=[CASE.id])
    assert any(CASE.id in line and "do not count" in line for line in report.lines([made]))


# -- equivalent, or not reached


def test_a_mutant_of_a_group_that_the_probe_does_not_run_is_not_equivalent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "sound")
    monkeypatch.setattr(groups, "_device", lambda: None)
    monkeypatch.setattr(groups, "_reaching", lambda spec, say: [])
    monkeypatch.setattr(groups, "_reached_by_probe", lambda collective: frozenset())
    assert groups.tried(1, 0, GROUP, nothing).result == "not_reached"


def test_a_mutant_of_a_group_that_runs_in_the_probe_and_changes_nothing_is_equivalent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "_device", lambda: None)
    monkeypatch.setattr(groups, "_reaching", lambda spec, say: [])
    places = frozenset({"gather|results are made|always"})
    monkeypatch.setattr(groups, "_reached_by_probe", lambda collective: places)
    assert groups.tried(1, 0, GROUP, nothing).result == "equivalent"


def test_a_mutant_of_a_compiler_that_no_program_runs_is_not_equivalent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilers, "cases", lambda: [])
    monkeypatch.setattr(compiled_probe, "_PROGRAMS", 1)
    monkeypatch.setitem(compilers.CONDITIONS, "always", lambda given: False)
    found = compilers.tried(1, 0, COMPILER, nothing)
    assert found.result == "not_reached" and found.note


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("read as contiguous|mul|all|always", False),  # all operands are contiguous
        ("read from the start|mul|all|always", False),
        ("off by one|cumsum|all|always", False),  # the program has no such op
        ("outputs|contiguous|all|always", False),
        ("run|sizes are one too small|all|always", False),  # the sizes are constants
        ("exchanged|sub|all|always", True),
        ("dropped|exp|all|always", True),
    ],
)
def test_a_mutant_of_a_compiler_is_reached_where_it_has_something_to_change(
    name: str, reached: bool
) -> None:
    torch._dynamo.reset()
    compilers.register()
    with compilers.planted(compilers.Spec(*name.split("|"))) as state:
        torch.compile(lambda x, y: (x - y).exp() * 2, backend=compilers.NAME)(
            torch.ones(2, 2), torch.zeros(2, 2)
        )
    assert bool(state.reached) is reached


def test_a_mutant_of_a_profile_whose_condition_the_probe_does_not_meet_is_not_equivalent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiles, "cases", lambda: [])
    monkeypatch.setattr(profiles, "probe", lambda: None)
    assert profiles.tried(1, 0, PROFILE, nothing).result == "not_reached"


# -- probes without a mutant


def test_a_probe_that_fails_to_compile_a_program_without_a_mutant_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = compiled_probe._left

    def failing(seed: int, backend: str, first: Any = None) -> list[Any]:
        if backend and first is not None:
            raise ValueError("dynamic shapes")
        return left(seed, backend, first)

    monkeypatch.setattr(compilers, "cases", lambda: [])
    monkeypatch.setattr(compiled_probe, "_PROGRAMS", 2)
    monkeypatch.setattr(compiled_probe, "_left", failing)
    with pytest.raises(RuntimeError, match="fails without a mutant"):
        compilers.tried(1, 0, "dropped|tanh|backward|some operand has no elements", nothing)


def test_a_long_program_that_fails_without_a_mutant_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing() -> None:
        raise ValueError("no such event")

    profiles._check_probe.cache_clear()
    monkeypatch.setattr(profiles, "cases", lambda: [])
    monkeypatch.setattr(profiles, "probe", failing)
    with pytest.raises(ValueError, match="no such event"):
        profiles.tried(1, 0, PROFILE, nothing)


# -- the signs of the probe's operands


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("turn", [1, 2])
def test_every_third_element_of_an_operand_of_the_probe_is_negative(rank: int, turn: int) -> None:
    given = numbers(rank)
    found = groups._with_signs(given, turn)
    assert torch.equal(found.abs(), given.abs())
    assert (found < 0).flatten()[2 - turn :: 3].all() and (found < 0).sum() * 3 <= found.numel() + 2


def test_a_single_element_is_negative_on_one_of_two_turns() -> None:
    for one in (torch.ones(1), torch.tensor(-2.0)):
        assert {bool(groups._with_signs(one, turn) < 0) for turn in (1, 2)} == {True, False}


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint16, torch.uint32])
def test_values_without_a_sign_stay_as_they_are(dtype: torch.dtype) -> None:
    given = torch.tensor([1, 0, 1, 1, 1]).to(dtype)
    assert torch.equal(groups._with_signs(given, 1), given)


def test_zeros_and_nan_keep_their_bits() -> None:
    given = torch.tensor([0.0, 0.0, -0.0, float("nan"), float("nan"), 0.0])
    found = groups._with_signs(given, 1)
    assert torch.equal(found.view(torch.int32), given.view(torch.int32))


def test_complex_numbers_have_the_sign_of_their_real_part() -> None:
    given = torch.tensor([1 + 2j, 3 - 4j, -5 + 6j])
    assert groups._with_signs(given, 1).tolist() == [1 + 2j, -3 + 4j, 5 - 6j]
