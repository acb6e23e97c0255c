"""graphs.every_op: ops captured on blank inputs and replayed on real ones, with and without its planted fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance import contract
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.plan.planner import untried, untried_with
from conformance.suites import graphs
from conformance.suites.graphs import every_op
from devices import registry
from devices.cell import Outcome
from devices.descriptor import Descriptor
from devices.simulated.backend.fault_switches import planted
from opinfo.catalog import catalogue
from opinfo.device import Device, open_device
from opinfo.exceptions import exceptions
from opinfo.reference import StrideReference
from opinfo.samples import Traits, choose, draw, probe
from tests.plugin.running import ForkServer

FAULT = "graphs.op_runs_at_capture"

#: Queued ones, ones that are waited for outside of captures, composites, in-place ones, random ones, empty results.
OPS = (
    *(
        "neg",
        "add",
        "sort",
        "cumsum",
        "where",
        "index_select",
        "linalg.svd",
        "nn.functional.conv2d",
    ),
    *("nn.functional.layer_norm", "nn.functional.dropout", "uniform", "zero_", "empty_like", "cat"),
)


def traits_of(op: str, dtype: str = "float32") -> Traits:
    return probe(catalogue()[op], dtype, choose(draw(catalogue()[op], dtype), 3), exceptions())


def judged(op: str, device: Device) -> CellRecord:
    """The op's cell."""
    samples = choose(draw(catalogue()[op], "float32"), 3)
    withheld = untried_with([op], device.descriptor, contract.load())[op]
    recorder = Recorder(op, "float32", [every_op.CLAUSE], {}, withheld)
    run_checks(
        OpContext(
            subject=catalogue()[op],
            dtype="float32",
            traits=probe(catalogue()[op], "float32", samples, exceptions()),
            samples=samples,
            device=device,
            strides=StrideReference(device.descriptor.torch_type, None),
            recorder=recorder,
            known=exceptions(),
        ),
        graphs.SUITE.op_checks,
    )
    return recorder.cells[every_op.CLAUSE]


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(registry.get("simulated"))


@pytest.mark.parametrize("op", OPS)
def test_a_sound_device_passes_and_every_sample_is_checked(op: str, device: Device) -> None:
    record = judged(op, device)
    assert (record.outcome(), record.to_outcome().message) == (Outcome.PASS, "")
    assert record.checks >= len(record.samples) > 0


def test_the_planted_fault_fails_its_op_and_no_other(device: Device) -> None:
    clean = {op: judged(op, device) for op in OPS}
    with planted(FAULT):
        faulty = {op: judged(op, device) for op in OPS}
    changed = {op for op in OPS if clean[op].outcome() is not faulty[op].outcome()}
    assert changed == {"neg"}
    assert "the replay compared with eager execution" in faulty["neg"].to_outcome().message


def test_an_op_that_never_runs_is_blocked_by_its_values(device: Device) -> None:
    with planted("device.declared_dtype_refused"):
        told = judged("short", device).to_outcome()
    assert (told.outcome, told.blocked_by) == (Outcome.BLOCKED, "layout.values")
    assert told.said == "simulated device: int16 is not supported"


def test_a_repro_script_shows_the_fault_and_its_absence(
    device: Device, fork: ForkServer, tmp_path: Path
) -> None:
    with planted(FAULT):
        shown = judged("neg", device).smallest
    assert shown is not None and shown.repro is not None
    text = shown.script()
    script = tmp_path / "repro.py"
    script.write_text(text, encoding="utf-8")
    for faults, code, said in ((FAULT, 1, "FAIL: "), ("", 0, "PASS")):
        ran = fork.script(script, SIMULATED_FAULTS=faults)
        assert said in ran.text
        assert ran.code == code, ran.text


def test_an_op_that_cannot_be_captured_fails(device: Device) -> None:
    everything = replace(device, descriptor=replace_not_captured(device.descriptor))
    record = judged("masked.sum", everything)
    assert record.outcome() is Outcome.FAIL
    assert "is not permitted while" in record.to_outcome().message


def test_a_capture_that_failed_leaves_nothing_to_the_next_op(device: Device) -> None:
    everything = replace(device, descriptor=replace_not_captured(device.descriptor))
    for op, outcome in (("masked.sum", Outcome.FAIL), ("nn.functional.dropout", Outcome.PASS)):
        record = judged(op, everything)
        assert record.outcome() is outcome, record.to_outcome().message


def replace_not_captured(descriptor: Descriptor) -> Descriptor:
    return replace(descriptor, not_captured=frozenset())


def test_an_op_that_is_declared_not_capturable_is_left_alone_and_told(device: Device) -> None:
    record = judged("masked.sum", device)
    assert (record.outcome(), record.checks) == (Outcome.UNSUPPORTED, 0)
    told = untried(device.descriptor, contract.load(), catalogue())[every_op.CLAUSE]
    assert told["masked.sum"] == record.to_outcome().message and "neg" not in told


@pytest.mark.parametrize(("op", "want"), [("add", True), ("nonzero", False), ("item", False)])
def test_the_clause_applies_where_shapes_are_known_without_values(op: str, want: bool) -> None:
    assert every_op.applies(traits_of(op)) is want


def test_every_name_that_the_simulated_device_withholds_is_that_of_an_op() -> None:
    from fnmatch import filter as matching

    globs = registry.get("simulated").not_captured
    named = [*catalogue(), *dir(torch.ops.aten)]  # recorded calls have the names of aten's ops
    assert [glob for glob in globs if not matching(named, glob)] == []


def test_the_cell_is_left_as_it_was_found(device: Device) -> None:
    judged("add", device)
    torch.simulated.synchronize()
    assert not torch.simulated.is_current_stream_capturing()
