"""This harness on equal work: the same ops and float32 samples, in one non-contiguous layout and with ``out=``.

It uses the harness's own code: guarded buffers, the CPU as reference for values, comparison and recording. It uses no
stride reference, because upstream's way has none.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.same_ops import LIMIT, same_ops
from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext
from conformance.suites.layout.reads import reads
from conformance.suites.layout.writes import out_kept
from devices import registry
from opinfo.catalog import catalogue
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.layouts import CONTIGUOUS, Layout, uniform
from opinfo.reference import StrideReference
from opinfo.samples import direct_seeding, draw, probe

KNOWN = exceptions()
DEVICE = open_device(registry.get("cpu"))
CASE = uniform(Layout("contiguous", step="inner"))
CLAUSES = ("layout.values", "layout.inputs_intact", "layout.bounds", "layout.out_kept")
torch.set_num_threads(1)


@pytest.mark.parametrize("name", same_ops())
def test_layout(name: str) -> None:
    op = catalogue()[name]
    samples = draw(op, "float32", LIMIT or 10_000)
    context = OpContext(
        subject=op,
        dtype="float32",
        traits=probe(op, "float32", samples[:1], KNOWN),
        samples=samples,
        device=DEVICE,
        strides=StrideReference("cpu", None),
        recorder=Recorder(name, "float32", CLAUSES),
        known=KNOWN,
        cases=(CASE,),
        targets=(CONTIGUOUS,),
    )
    with torch.no_grad(), direct_seeding():
        reads(context)
        out_kept(context)
