"""Mutants of profiles and of large tensors: drawn from a seed, distinct, and each changes what its name says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.context import CaseContext
from conformance.suites.profiler.recording import Recording, labelled
from tests.mutation import families, profiles, sessions, sizes
from tests.mutation.items import device, is_refused
from tests.planting.calls import KernelCall


@pytest.mark.parametrize("family", ["profiles", "sizes"])
def test_a_seed_draws_distinct_mutants_and_the_same_again(family: str) -> None:
    module = families.module_of(family)
    one, two, other = (module.names(seed, 120) for seed in (4, 4, 5))
    assert one == two != other and len({*one}) == 120


def test_no_subject_is_drawn_more_often_because_it_has_more_changes() -> None:
    drawn = [name.split("|")[0] for name in profiles.names(6, 480)]
    of_events = [drawn.count(f"kineto {subject}") for subject in profiles.KINETO]
    assert min(of_events) > 15 and {name.split(" ")[0] for name in drawn} == {
        "kineto", "trace", "session",
    }  # fmt: skip


def seen_with(name: str) -> Recording:
    """A profile of two ops on the simulated device with a mutant."""
    context = CaseContext(device(), "a test")
    x = torch.ones(8, device=context.device)
    with profiles.planted(name) as run, Recording(context) as seen:
        labelled("region", x.add, 1)
        labelled("region", x.mul, 2)
        context.settle()
    with profiles.planted(name) as run:
        _ = seen.host, seen.executions, seen.trace
    assert run.reached
    return seen


def test_the_last_kernel_has_no_op_and_the_others_keep_theirs() -> None:
    ops = [each.op for each in seen_with("kineto kernels|no op|the last").executions]
    assert ops[-1] == 0 and 0 not in ops[:-1]


def test_a_kernel_is_listed_twice_or_not_at_all() -> None:
    twice, never = (
        seen_with(f"kineto kernels|{change}|the first").executions
        for change in ("is listed twice", "is not listed")
    )
    assert len(twice) == len(never) + 2


def test_a_region_of_the_trace_begins_early_and_ends_where_it_did() -> None:
    seen = seen_with("trace regions|begins 20 ms early|the last")
    found = [e for e in seen.trace if e.get("cat") == "user_annotation"]
    assert len(found) == 2 and max(e["dur"] for e in found) > 20_000


def test_a_mutant_that_changes_nothing_is_not_reached() -> None:
    context = CaseContext(device(), "a test")
    with profiles.planted("kineto nodes|no number|past the 20th") as run:
        with Recording(context) as seen:
            torch.ones(8, device=context.device)
            context.settle()
        _ = seen.host
    assert run.reached == 0


#: Mutants that strike in a later profile, on another index or another stream only, and the case that notices each.
LATE = {
    "kineto kernels|no duration|not on the first stream": "streams_are_told_apart",
    "kineto kernels|on index 0|the first": "on_its_index",
    "kineto kernels|on index 0|not on the first stream": "on_its_index",
    "trace executions|begins and ends 20 ms late|after the first profile": "has_the_executions",
    "trace executions|the op of the one before|after the first profile": "has_the_executions",
    "trace begins of arrows|20 ms early|always": "arrows",
    "trace begins of arrows|is listed twice|the last": "arrows",
    "trace ends of arrows|is not listed|after the first profile": "arrows",
    "trace ops|on another thread|after the first profile": "has_what_the_profile_lists",
    "trace ops|other dtypes|after the first profile": "shapes_and_dtypes",
    "trace regions|a negative duration|after the first profile": "has_what_the_profile_lists",
    "trace regions|begins 20 ms early|the first": "has_what_the_profile_lists",
    "trace frees|no total|on index 1": "memory_on_its_index",
    "trace frees|nothing is reserved|on index 1": "as_the_allocator_counts",
}


@pytest.mark.parametrize("name", LATE)
def test_each_field_is_read_in_every_profile_and_on_every_index(name: str) -> None:
    [case] = profiles.cases_named(LATE[name])
    assert not is_refused(case)
    with profiles.planted(name) as run:
        assert is_refused(case)
    assert run.reached


@pytest.mark.parametrize("name", [name for row in sessions.names() for name in row])
def test_every_mutant_of_a_session_can_be_planted_and_is_taken_away(name: str) -> None:
    before = _replaced()
    with sessions.planted(name, SimpleNamespace(met=0, reached=0)):
        assert _replaced() != before
    assert _replaced() == before


def _replaced() -> tuple[Any, ...]:
    """The functions that mutants of sessions replace."""
    kept = ("__init__", "__exit__", "stop", "step", "events", "key_averages", "export_chrome_trace")
    places = [(sessions.PROFILE, name) for name in kept]
    places += [(sessions.REGION, "__enter__"), (sessions.REGION, "__exit__")]
    places += [(sessions.recording, "kineto_events"), (sessions.suite, "schedule")]
    return tuple(getattr(owner, name) for owner, name in places)


# Large tensors


@pytest.mark.parametrize("change", sizes.CHANGES)
def test_a_large_result_is_changed_and_a_small_one_is_not(change: str) -> None:
    effect = sizes.effect_of(change, 100_000)

    def made(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.arange(count) + 1
        call = KernelCall(torch.clone, (x,), {})
        result = effect(call)
        return x, call.honest() if not isinstance(result, torch.Tensor) else result

    x, found = made(1000)
    assert torch.equal(x, found)
    if change.startswith(("an error", "an internal")):
        with pytest.raises(RuntimeError):
            made(200_000)
    elif change not in ("an index in float32", "numbers in float32"):  # right up to 2^24
        x, found = made(200_000)
        assert not torch.equal(x, found)


def test_each_case_has_a_limit_and_little_memory() -> None:
    def limit(case: BehaviourCase) -> int:
        return sizes.limit_of(case)

    assert {limit(case) for case in sizes.cases()} >= {2**16, 2**24}
    assert all(case.memory <= sizes.MEMORY for case in sizes.cases())
