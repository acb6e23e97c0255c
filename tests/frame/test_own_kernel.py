"""A kernel that torch does not have, given with a reference of its own, is judged as an op is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checks.cases.cases import Suite
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.suites import layout, precision
from devices import registry
from devices.cell import Outcome
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.reference import StrideReference
from opinfo.samples import draw, probe
from opinfo.subject import Subject
from tests.plugin.running import ForkServer

#: A fused kernel and what it must compute. The kernel reads its weight as if it were contiguous.
KERNELS = """
import torch


def rms_norm(x, weight):
    assert weight.device.type == "DEVICE", "the kernel runs on the device alone"
    flat = weight.as_strided(weight.shape, (STRIDE,), weight.storage_offset())
    return RESULT((x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * flat).contiguous())


def contiguous(result):
    return result


def transposed(result):
    return result.mT.contiguous().mT


def reference(x, weight):
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)
"""
WRONG, RIGHT = "1", "weight.stride(0)"


class RmsNorm(Subject):
    """The kernel of a file, on samples of two shapes."""

    id = "fused.rms_norm"
    dtypes = frozenset({"float32"})

    def __init__(self, module: ModuleType) -> None:
        self.function, self.reference = module.rms_norm, module.reference

    def raw_samples(self, dtype: torch.dtype) -> Iterator[Any]:
        for shape in ((4, 8), (2, 3, 5)):
            x, weight = torch.randn(shape, dtype=dtype), torch.rand(shape[-1], dtype=dtype) + 0.5
            given = {"input": x, "args": (weight,), "kwargs": {}}
            yield SimpleNamespace(**given, output_process_fn_grad=None)


def kernels(path: Path, stride: str, device: str, result: str = "contiguous") -> ModuleType:
    text = KERNELS.replace("STRIDE", stride).replace("DEVICE", device).replace("RESULT", result)
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("kernels_of_the_test", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judged(module: ModuleType, device: str, suite: Suite = layout.SUITE) -> Recorder:
    descriptor, known, subject = registry.get(device), exceptions(), RmsNorm(module)
    samples = draw(subject, "float32")
    traits = probe(subject, "float32", samples, known)
    recorder = Recorder(subject.id, "float32", [*suite.applying(traits)])
    about = (subject, "float32", traits, samples, open_device(descriptor))
    strides = StrideReference(descriptor.torch_type, None)
    run_checks(OpContext(*about, strides, recorder, known), suite.op_checks)
    return recorder


def test_a_kernel_that_ignores_the_strides_of_its_weight_fails_and_its_fix_passes(
    fork: ForkServer, tmp_path: Path
) -> None:
    path, device = tmp_path / "fused.py", "simulated"
    cells = judged(kernels(path, WRONG, device), device).cells
    failed = {clause for clause, cell in cells.items() if cell.outcome() is Outcome.FAIL}
    assert failed == {"layout.values", "layout.expanded_read"}
    shown = cells["layout.values"].smallest
    assert shown is not None and shown.repro is not None
    script = tmp_path / "repro.py"
    script.write_text(shown.script(), encoding="utf-8")
    assert (
        "Needs only torch, the files from which it loads functions, and devices" in shown.script()
    )
    ran = fork.script(script)
    assert (ran.code, "FAIL" in ran.text) == (1, True), ran.text

    cells = judged(kernels(path, RIGHT, device), device).cells
    assert {cell.outcome() for cell in cells.values()} == {Outcome.PASS}
    ran = fork.script(script)
    assert (ran.code, ran.text.strip()) == (0, "PASS")


def test_the_strides_of_a_kernel_are_those_of_its_reference(tmp_path: Path) -> None:
    """FakeTensor cannot run the kernel itself."""
    cells = judged(kernels(tmp_path / "fused.py", RIGHT, "cpu", "transposed"), "cpu").cells
    failed = {clause for clause, cell in cells.items() if cell.outcome() is Outcome.FAIL}
    assert failed == {"layout.output_strides"}


@pytest.mark.parametrize("result", ["contiguous", "transposed"])
def test_a_check_that_calls_one_function_on_device_and_cpu_says_that_it_was_not_made(
    result: str, tmp_path: Path
) -> None:
    module = kernels(tmp_path / "fused.py", RIGHT, "simulated", result)
    cell = judged(module, "simulated", precision.SUITE).cells["precision.trust"]
    assert (cell.outcome(), cell.checks) == (Outcome.UNSUPPORTED, 0)
    assert (
        "fresh_answers() also calls the function under test on the CPU" in cell.to_outcome().message
    )
