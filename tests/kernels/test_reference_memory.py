"""A reference that needs too much memory: its calls are left out and counted, and the judge's process is not killed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance import judge
from conformance.checks.child import Ended
from conformance.kernels import reference_memory
from conformance.kernels.judge import _Rounds
from conformance.kernels.reference_memory import LeftOut, NeedsTooMuch
from conformance.kernels.request import Request, Source
from devices.errors import ConformError
from tests.kernels import quadratic

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux limits the address space of a process"
)


@linux
def test_a_call_of_a_reference_has_a_limit_and_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_memory, "_GRANTED", reference_memory.LIMIT - 2**20)
    found = LeftOut()
    bounded = found.bounded(quadratic.reference)
    size = 2**16  # a table of 16 GiB
    for dtype in (torch.float32, torch.float32, torch.float64):
        with pytest.raises(NeedsTooMuch):
            bounded(torch.zeros(size, dtype=dtype))
    small = torch.arange(4.0)
    assert torch.equal(bounded(small), quadratic.reference(small))
    found.keep(tmp_path)
    later = LeftOut({"float32[70000]": 70_000})
    later.keep(tmp_path)
    assert later.note == (
        "2 calls were left out, because the reference needs more than 2 GiB of memory; the smallest: "
        "(float32[65536])"
    )


def test_another_exception_of_a_reference_is_its_own() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("expected a matrix")

    found = LeftOut()
    with pytest.raises(RuntimeError, match="expected a matrix"):
        found.bounded(refuses)(torch.zeros(2))
    assert found.calls == {} and found.note == ""


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
