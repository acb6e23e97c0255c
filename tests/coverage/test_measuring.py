"""Which overloads count as calls under judgement."""

from __future__ import annotations

import torch

from conformance.coverage.measuring import Noted, Watching
from devices.cell import CallKey

CALL = CallKey(0, "contiguous")


def test_a_call_of_the_function_counts_for_the_clauses_that_judge_it() -> None:
    noted, x = Noted(), torch.ones(2)
    with Watching(noted.note):
        noted.call(CALL, ("layout.values", "layout.bounds"))
        noted.noted(torch.sin)(x)
        noted.judging("layout.values")
    assert noted.judged == {"layout.values": {"aten::sin"}}
    assert noted.reached == set()


def test_what_is_done_before_and_after_the_call_is_only_reached() -> None:
    noted, x = Noted(), torch.ones(2)
    with Watching(noted.note):
        noted.call(CALL, ("layout.values",))
        x.neg()
        noted.noted(torch.sin)(x)
        noted.judging("layout.values")
        x.cos()
    assert noted.judged == {"layout.values": {"aten::sin"}}
    assert noted.reached == {"aten::neg", "aten::cos"}


def test_a_call_whose_result_no_clause_judges_does_not_count() -> None:
    noted = Noted()
    with Watching(noted.note):
        noted.call(CALL, ("layout.values",))
        noted.noted(torch.sin)(torch.ones(2))
        noted.call(CALL, ("layout.bounds",))
        noted.judging("layout.bounds")
    assert noted.judged == {"layout.bounds": set()}


def test_backward_counts_as_part_of_the_call() -> None:
    noted, x = Noted(), torch.ones(2, requires_grad=True)
    with Watching(noted.note):
        noted.call(CALL, ("autograd.first",))
        y = noted.noted(torch.relu)(x)
        torch.autograd.grad(y, x, torch.ones(2))
        noted.judging("autograd.first")
    assert noted.judged == {
        "autograd.first": {"aten::relu", "aten::detach", "aten::threshold_backward"}
    }


def test_an_overload_that_a_composite_function_calls_is_noted_by_its_own_name() -> None:
    seen: set[str] = set()
    with Watching(seen.add):
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
    assert "aten::addmm" in seen
    assert not any(name.startswith("aten::linear") for name in seen)
