"""Evidence that was written to a file is judged in another process, without the device, as it was in the run."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.checks.ops.judgements import Judgement, write_judgements
from conformance.contract import load
from conformance.suites import planned_op_checks
from devices import registry
from devices.cell import CellKey
from devices.simulated.backend.fault_switches import planted as simulated_planted
from devices.simulated.faults import FAULTS as SIMULATED_FAULTS
from opinfo.database import DATABASE
from opinfo.device import Device, open_device
from opinfo.exceptions import exceptions
from opinfo.reference import StrideReference
from opinfo.samples import choose, probe
from tests.wrapped import faults as wrapped
from tests.wrapped.descriptor import DESCRIPTOR as WRAPPED

SEED = 20261128

#: The clauses of the layout suite that are judged by evidence; the others make checks of their own.
LAYOUT = (
    *("values", "output_strides", "output_fresh", "inputs_intact", "bounds", "views"),
    *("out_kept", "out_resize", "inplace", "variants", "overlap_raises", "expanded_read"),
    *("fp32_precision", "determinism"),
)


class Planted(NamedTuple):
    """A fault in one op and dtype of a device."""

    device: str
    op: str
    dtype: str
    context: AbstractContextManager[None]


def planted_faults() -> Iterator[Planted]:
    """Every fault that is planted in an op, in the first of its ops and dtypes."""
    for name, fault in wrapped.REGISTRY.items():
        yield Planted("wrapped", fault.ops[0], fault.dtypes[0], wrapped.planted(name))
    for name, each in SIMULATED_FAULTS.items():
        if each.ops:
            yield Planted("simulated", each.ops[0], each.dtypes[0], simulated_planted(name))


def judged(planted: Planted, devices: dict[str, Device]) -> tuple[Recorder, list[Judgement]]:
    """The cells and the judged calls of the faulty op, for all clauses that apply."""
    subject, known, device = DATABASE.subjects()[planted.op], exceptions(), devices[planted.device]
    samples = choose(DATABASE.samples(subject, planted.dtype), 2)
    traits = probe(subject, planted.dtype, samples, known)
    checks = planned_op_checks(load())
    recorder = Recorder(
        planted.op,
        planted.dtype,
        [each.clause for each in checks if each.applies(traits)],
    )
    about = (subject, planted.dtype, traits, samples, device)
    strides = StrideReference(device.descriptor.torch_type, None)
    context = OpContext(*about, strides, recorder, known, judgements=[])
    with planted.context, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_checks(context, checks)
    assert context.judgements is not None
    return recorder, context.judgements


def elsewhere(judgements: list[Judgement], folder: Path) -> list[list[str]]:
    """The faults of each judgement, as another process finds them."""
    path = folder / "evidence.json"
    write_judgements(path, judgements)
    command = [sys.executable, "-m", "tests.frame.judged_elsewhere", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: list[list[str]] = json.loads(ran.stdout)
    return found


@pytest.fixture(scope="module")
def devices() -> dict[str, Device]:
    return {each.name: open_device(each) for each in (WRAPPED, registry.get("simulated"))}


def compared(
    planted: list[Planted], devices: dict[str, Device], count: int, folder: Path
) -> dict[tuple[int, CellKey], bool]:
    """Whether each of up to ``count`` cells, drawn by a seed, has a fault. Their evidence is judged in another process,
    which must find the same faults."""
    cells: dict[tuple[int, CellKey], list[Judgement]] = {}
    for number, each in enumerate(planted):
        recorder, judgements = judged(each, devices)
        for judgement in judgements:
            key = recorder.cells[judgement.clause].key
            cells.setdefault((number, key), []).append(judgement)
    random = Random(SEED)
    order = random.sample(sorted(cells), len(cells))
    first = {key.clause: (number, key) for number, key in reversed(order)}  # of each clause, one
    chosen = list(dict.fromkeys([*first.values(), *order]))[:count]
    drawn = [judgement for cell in chosen for judgement in cells[cell]]
    here = [each.faults() for each in drawn]
    assert elsewhere(drawn, folder) == here
    return {cell: any(each.faults() for each in cells[cell]) for cell in chosen}


def clauses_of(found: dict[tuple[int, CellKey], bool]) -> set[str]:
    return {key.clause for _, key in found}


@pytest.mark.slow
def test_evidence_is_judged_elsewhere_as_in_the_run(
    devices: dict[str, Device], tmp_path: Path
) -> None:
    every = list(planted_faults())
    planted = Random(SEED).sample(every, 6)
    found = compared(planted, devices, 40, tmp_path)
    assert sum(found.values()) >= 3 and len(clauses_of(found)) >= 15


@pytest.mark.slow
def test_evidence_of_500_cells_is_judged_elsewhere_as_in_the_run(
    devices: dict[str, Device], tmp_path: Path
) -> None:
    found = compared(list(planted_faults()), devices, 500, tmp_path)
    assert len(found) == 500 and sum(found.values()) >= 60
    assert clauses_of(found) >= {
        *(f"layout.{each}" for each in LAYOUT),
        *("graphs.every_op", "precision.exact_sums", "layout.grad"),
        *("autograd.first", "autograd.second", "autograd.forward_ad"),
    }
