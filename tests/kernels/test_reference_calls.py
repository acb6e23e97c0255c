"""A reference that cannot answer every call, because it needs too much memory, ends the process or raises: such calls are
left out and counted, the kernel is not charged with them, and all other calls are judged."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance import judge
from conformance.checks.child import Ended
from conformance.kernels import reference_calls
from conformance.kernels.exchange import Exchange
from conformance.kernels.judge import _Rounds
from conformance.kernels.reference_calls import (
    LeftOut,
    LeftOutCall,
    NoAnswer,
    Trials,
    ValuePerKey,
)
from conformance.kernels.request import Request, Source
from devices.errors import ConformError
from tests.kernels import ending, quadratic, references, right

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux limits the address space of a process"
)


@linux
def test_a_call_of_a_reference_has_a_limit_and_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_calls, "_GRANTED", reference_calls.LIMIT - 2**20)
    found = LeftOut()
    bounded = found.bounded(quadratic.reference)
    size = 2**16  # a table of 16 GiB
    for dtype in (torch.float32, torch.float32, torch.float64):
        with pytest.raises(NoAnswer):
            bounded(torch.zeros(size, dtype=dtype))
    small = torch.arange(4.0)
    assert torch.equal(bounded(small), quadratic.reference(small))
    found.keep(tmp_path)
    why = "the reference needs more than 2 GiB of memory"
    later = LeftOut({"float32[70000]": LeftOutCall(70_000, why)})
    later.keep(tmp_path)
    assert later.notes == [f"2 calls were left out, because {why}; the smallest: (float32[65536])"]


def test_another_exception_of_a_reference_is_its_own() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("expected a matrix")

    found = LeftOut()
    with pytest.raises(RuntimeError, match="expected a matrix"):
        found.bounded(refuses)(torch.zeros(2))
    assert found.calls == {} and found.notes == []


def test_a_call_that_ends_the_process_of_a_reference_is_counted_and_the_others_return(
    tmp_path: Path,
) -> None:
    trials = Trials(LeftOut(), seconds=3)
    tried = trials.tried(ending.reference)
    assert torch.equal(tried(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(ValueError, match="9 elements"):
        tried(torch.ones(9))
    for size in (3, 3, 5, 7, 6):
        with pytest.raises(NoAnswer):
            tried(torch.ones(size))
    with pytest.raises(NoAnswer):
        tried(torch.ones(3, dtype=torch.float64))  # not counted: it repeats the call in float32
    assert trials.left_out.notes == [
        "1 call was left out, because the process of the reference was killed by SIGSEGV; "
        "the smallest: (float32[3])",
        "1 call was left out, because the process of the reference exited with status 0; "
        "the smallest: (float32[5])",
        "1 call was left out, because the reference did not return within 3 s; "
        "the smallest: (float32[6])",
        "1 call was left out, because the process of the reference exited with status 1; "
        "the smallest: (float32[7])",
    ]
    trials.save(tmp_path)
    again = Trials(LeftOut(), seconds=3)
    again.load(tmp_path)
    assert again.ends == trials.ends and len(again.ends) == 7


def test_values_tell_the_calls_of_a_reference_apart() -> None:
    trials = Trials(LeftOut(), seconds=5)
    tried = trials.tried(ending.of_negative)
    assert torch.equal(tried(torch.ones(2)), torch.ones(2))
    with pytest.raises(NoAnswer):
        tried(-torch.ones(2))
    assert torch.equal(tried(torch.ones(2)), torch.ones(2))


def test_attention_without_a_value_for_each_key_is_refused() -> None:
    query, key, value = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 5, 4)
    with ValuePerKey():
        assert references.attention(query, key, key).shape == (1, 1, 2, 4)
        for keys, values in ((key, value), (value, key)):
            with pytest.raises(ValueError, match="one value for each key, found . keys"):
                references.attention(query, keys, values)


def test_a_call_that_the_reference_cannot_answer_is_not_made() -> None:
    def cannot(x: torch.Tensor) -> torch.Tensor:
        raise NoAnswer("the process of the reference was killed by SIGSEGV")

    for closed in (False, True):
        exchange = Exchange(cannot, "cpu", closed=closed)
        with pytest.raises(NotImplementedError, match="SIGSEGV"):
            exchange(exchange.marks.to_device(torch.ones(2)))
        assert exchange.planned == [] and exchange.unanswered == []


def test_a_call_that_the_reference_refuses_is_made() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("expected a matrix")

    exchange = Exchange(refuses, "cpu")
    with pytest.raises(RuntimeError, match="expected a matrix"):
        exchange(exchange.marks.to_device(torch.ones(2)))
    assert len(exchange.planned) == 1


def test_a_judge_that_the_system_kills_says_what_to_do(tmp_path: Path) -> None:
    server: Any = SimpleNamespace(run=lambda *_: Ended(-9))
    rounds = _Rounds(Request(kernel=Source("kernel.py", "kernel")), tmp_path, server)
    with pytest.raises(ConformError, match=r"was killed by SIGKILL\. .*memory.*smaller samples"):
        rounds.run()


@linux
@pytest.mark.slow
def test_a_kernel_is_judged_by_the_calls_for_which_its_reference_has_memory() -> None:
    found = judge(quadratic.kernel, reference=quadratic.reference, samples=quadratic.samples)
    assert found.right and found.faults == ()
    (note,) = found.notes
    assert "left out, because the reference needs more than 2 GiB of memory" in note


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [ending.right, ending.wrong])
def test_a_kernel_is_judged_by_the_calls_that_its_reference_survives(kernel: Any) -> None:
    given: dict[str, Any] = {"reference": ending.reference, "samples": ending.samples}
    found = judge(kernel, **given, seconds=0.5)
    assert found.right is (kernel is ending.right), found.faults
    assert ("layout.values" in {each.check for each in found.faults}) is (kernel is ending.wrong)
    for said in (
        "was killed by SIGSEGV; the smallest: (float32[3])",
        "exited with status 0; the smallest: (float32[5])",
        "1 call was left out, because the reference raises ValueError; the smallest: (float32[9]): "
        "cannot take 9 elements",
    ):
        assert any(said in note for note in found.notes), found.notes


@pytest.mark.slow
def test_a_target_whose_calls_end_the_process_is_judged_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The judge's process is told to be careful; the CPU answers all calls of this op."""
    monkeypatch.setattr(_Rounds, "_has_come_to_its_end", careful_only)
    found = judge(right.relu, "aten::relu", guard_pages=False)
    assert found.right and found.faults == ()


def careful_only(self: _Rounds, ended: Ended, number: int) -> bool:
    return self.careful


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [ending.attention, ending.strict_attention])
def test_a_right_attention_is_judged_by_calls_with_a_value_for_each_key(kernel: Any) -> None:
    found = judge(kernel, reference=references.attention, samples=references.heads)
    assert found.right, found.faults


@pytest.mark.slow
def test_an_attention_that_is_wrong_only_for_many_keys_is_wrong() -> None:
    """No sample has many keys: the judge lengthens keys and values together."""
    found = judge(ending.first_keys, reference=references.attention, samples=references.heads)
    assert "layout.values" in {each.check for each in found.faults}
