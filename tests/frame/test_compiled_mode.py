"""Ops that torch.compile made are judged by the layout judges as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.checks.ops.modes import Mode, compiled
from conformance.suites import layout
from devices import registry
from devices.cell import Outcome
from devices.simulated.backend.fault_switches import planted
from opinfo.database import DATABASE
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.reference import StrideReference
from opinfo.samples import choose, probe
from tests.plugin.running import ForkServer

CLAUSES = ("layout.values", "layout.output_strides", "layout.output_fresh", "layout.views")
CLAUSES += ("layout.inputs_intact", "layout.bounds", "layout.expanded_read")
OPS = (
    *("add", "mul", "exp", "nn.functional.relu", "where", "cumsum", "sum", "amax", "mm", "addmm"),
    *("cat", "index_select", "gather", "tril", "flip", "transpose", "clone", "einsum"),
    *("nn.functional.layer_norm", "softmax"),
)


COMPILED = Mode("compiled", compiled, {"backend": "aot_eager"})


def judged(op: str, device: str = "cpu") -> Recorder:
    """The cells of an op on a device, with each call compiled."""
    descriptor = registry.get(device)
    subject, known = DATABASE.subjects()[op], exceptions()
    samples = choose(DATABASE.samples(subject, "float32"), 2)
    traits = probe(subject, "float32", samples, known)
    recorder = Recorder(op, "float32", [c for c in layout.SUITE.applying(traits) if c in CLAUSES])
    about = (subject, "float32", traits, samples, open_device(descriptor))
    strides = StrideReference(descriptor.torch_type, None)
    context = OpContext(*about, strides, recorder, known, mode=COMPILED)
    run_checks(context, layout.SUITE.op_checks)
    return recorder


@pytest.fixture(autouse=True)
def every_layout_may_recompile() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=1000):
        yield


#: The fast tests compile these; the slow tests compile every op.
_FAST = ("transpose", "clone")


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=() if op in _FAST else pytest.mark.slow) for op in OPS]
)
def test_compiled_ops_pass_the_layout_clauses(op: str) -> None:
    for clause, record in judged(op).cells.items():
        assert (clause, record.outcome(), record.to_outcome().message) == (clause, Outcome.PASS, "")
        assert record.checks > 0


@pytest.mark.slow
def test_a_fault_below_the_compiler_fails_and_its_repro_is_compiled_too(
    fork: ForkServer, tmp_path: Path
) -> None:
    assert {each.outcome() for each in judged("atan2", "simulated").cells.values()} == {
        Outcome.PASS
    }
    with planted("inputs.overwritten"):
        record = judged("atan2", "simulated").cells["layout.inputs_intact"]
    assert record.outcome() is Outcome.FAIL
    assert record.smallest is not None and record.smallest.repro is not None
    text = record.smallest.script()
    assert "compiled(op, backend='aot_eager')" in text
    assert "torch.atan2(t[0], t[1])  # executed as compiled(op, backend='aot_eager')" in text
    script = tmp_path / "repro.py"
    script.write_text(text, encoding="utf-8")
    for faults, code, said in (("inputs.overwritten", 1, "FAIL: "), ("", 0, "PASS")):
        ran = fork.script(script, SIMULATED_FAULTS=faults)
        assert said in ran.text
        assert ran.code == code, ran.text
