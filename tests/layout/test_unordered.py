"""Eigenvalues have no promised order: another order passes, another eigenvalue does not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from conformance.suites import layout, precision
from devices.cell import Outcome
from devices.simulated.descriptor import DESCRIPTOR
from opinfo.compare import in_order_of
from opinfo.device import open_device
from tests.planting.calls import KernelCall
from tests.planting.places import planted
from tests.trials import Rig, Subject

CLAUSES = ("layout.values", "precision.ulp")


def _outcomes(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> list[Outcome]:
    """The outcomes of the clauses on a device whose ``linalg.eigvals`` changes its result."""

    def effect(call: KernelCall) -> torch.Tensor:
        return change(call.honest())

    checks = (*layout.SUITE.op_checks, *precision.SUITE.op_checks)
    rig = Rig(
        DESCRIPTOR,
        (("linalg.eigvals", "float32"),),
        planted=lambda _: nullcontext(),
        watched=lambda: nullcontext(set()),
        places=lambda _: set(),
        samples=4,
        checks=tuple(each for each in checks if each.clause in CLAUSES),
    )
    device = open_device(DESCRIPTOR)
    with planted(["linalg_eigvals"], effect):
        run = Subject(rig.items[0], rig, device, folder).run()
    found = {key.clause: record.outcome() for key, record in run.cells.items()}
    return [found[clause] for clause in CLAUSES]


def test_another_order_passes(tmp_path: Path) -> None:
    found = _outcomes(tmp_path, lambda values: values.flip(-1).clone())
    assert found == [Outcome.PASS, Outcome.PASS]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda values: values.flip(-1) * 1.001, id="all are off", marks=pytest.mark.slow),
        pytest.param(lambda values: values.flip(-1).index_fill(-1, _first(values), 0.5), id="one is another"),
        pytest.param(lambda values: values.select(-1, 0).unsqueeze(-1).expand_as(values).clone(), id="one is repeated", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_another_eigenvalue_fails(
    tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    assert _outcomes(tmp_path, change) == [Outcome.FAIL, Outcome.FAIL]


def _first(values: torch.Tensor) -> torch.Tensor:
    return torch.zeros(min(1, values.shape[-1]), dtype=torch.int64, device=values.device)


def test_each_element_is_matched_with_the_closest() -> None:
    want = torch.tensor([[1 + 1j, 1 - 1j, 5], [0, 2, 3]])
    near = torch.tensor([[5.1, 1 - 1.1j, 1 + 0.9j], [3, 0, 2]])
    expected = torch.tensor([[1 + 0.9j, 1 - 1.1j, 5.1], [0, 2, 3]])
    assert torch.equal(in_order_of(near, want), expected)


def test_rows_that_cannot_be_matched_keep_their_order() -> None:
    broken = torch.tensor([torch.nan, 1.0])
    assert torch.equal(in_order_of(broken, torch.tensor([1.0, 2.0]))[1:], broken[1:])
    assert torch.equal(in_order_of(broken, torch.ones(3))[1:], broken[1:])
