"""The lazy device: honest refusals by declaration, real findings elsewhere, nothing vacuous."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome, Verdict
from reports.model import CellResult
from tests.plugin.running import ForkServer, cells_of

PIXELS = CellKey("layout.values", "nn.functional.pixel_shuffle", "float32")
OPS = "add,sum,clone,unsafe_split,to_sparse,sparse.sampled_addmm,nn.functional.pixel_shuffle"


@pytest.fixture(scope="module")
def ran(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lazy")
    done = fork.pytest("--device=lazy", f"--ops={OPS}", "-q", f"--results={folder}")
    assert done.code == 0, done.text
    return folder


@pytest.fixture(scope="module")
def cells(ran: Path) -> dict[CellKey, CellResult]:
    return cells_of(ran)


@pytest.mark.slow
def test_what_is_about_strides_is_unsupported_by_declaration(
    cells: dict[CellKey, CellResult],
) -> None:
    refused = [r for r in cells.values() if r.message.startswith("by declaration: ")]
    assert CellKey("layout.output_strides", "add", "float32") in {r.key for r in refused}
    assert {(r.outcome, r.verdict, r.checks) for r in refused} == {
        (Outcome.UNSUPPORTED, Verdict.OK, 0)
    }


@pytest.mark.slow
def test_everything_else_was_checked(cells: dict[CellKey, CellResult]) -> None:
    tried = [r for r in cells.values() if not r.message.startswith("by declaration: ")]
    assert len(tried) > 10
    assert all(r.checks or r.raises == "NotImplementedError" or r.blocked_by for r in tried)
    assert {r.ran_layouts for r in tried if r.key.clause == "layout.values" and r.checks} == {
        ("contiguous", "transposed+step_outer+offset")
    }


@pytest.mark.slow
def test_bounds_need_an_input_with_memory_around_it(fork: ForkServer, tmp_path: Path) -> None:
    """An overload is tried in two layouts, of which the device can make only the one without memory around it."""
    given = ("--device=lazy", "--ops=aten._masked_softmax,sin", "--clauses=layout.bounds")
    assert fork.pytest(*given, "-q", f"--results={tmp_path}").code == 0
    found = {key.unit: each for key, each in cells_of(tmp_path).items()}
    assert found["aten._masked_softmax"].outcome is Outcome.UNSUPPORTED
    assert "no input has memory around its elements" in found["aten._masked_softmax"].message
    assert found["sin"].outcome is Outcome.PASS


@pytest.mark.slow
def test_an_error_that_is_raised_twice_is_not_charged_to_the_next_call(
    fork: ForkServer, tmp_path: Path
) -> None:
    """The lazy device raises the error of as_strided_scatter once more when something else is read."""
    given = ("--device=lazy", "--ops=as_strided_scatter,logcumsumexp")
    ran = fork.pytest(
        *given, "--clauses=dispatch.error_inputs", "-q", f"--results={tmp_path}", "-n0"
    )
    assert ran.code == 0, ran.text


@pytest.mark.slow
def test_real_faults_are_found_and_expected(cells: dict[CellKey, CellResult]) -> None:
    assert (cells[PIXELS].outcome, cells[PIXELS].verdict) == (Outcome.FAIL, Verdict.EXPECTED)
    raised = cells[CellKey("layout.values", "sparse.sampled_addmm", "float32")]
    assert (raised.outcome, raised.verdict) == (Outcome.UNSUPPORTED, Verdict.EXPECTED)


@pytest.mark.slow
def test_a_refusal_that_nothing_declares_is_red(fork: ForkServer, tmp_path: Path) -> None:
    done = fork.pytest(
        *("--device=lazy", "--ops=to_sparse", "--expectations=none", "-q", f"--results={tmp_path}")
    )
    assert done.code == 1, done.text
    refused = cells_of(tmp_path)[CellKey("layout.variants", "to_sparse", "float32")]
    assert (refused.outcome, refused.verdict) == (Outcome.UNSUPPORTED, Verdict.REGRESSION)


def test_a_run_of_undeclared_clauses_alone_checks_nothing(fork: ForkServer, tmp_path: Path) -> None:
    done = fork.pytest(
        *(
            "--device=lazy",
            "--ops=add",
            "--clauses=layout.output_strides",
            "-q",
            f"--results={tmp_path}",
        )
    )
    assert done.code == 3 and "all are unsupported by declaration" in done.text


@pytest.mark.slow
def test_a_repro_shows_the_fault(ran: Path, fork: ForkServer) -> None:
    repro = cells_of(ran)[PIXELS].repro
    assert repro is not None
    script = (ran / repro).read_text(encoding="utf-8")
    assert "torch._lazy.ts_backend.init()" in script and "conformance" not in script.split('"""')[2]
    done = fork.script(ran / repro)
    assert done.code == 1 and "FAIL: " in done.text


def test_a_late_error_is_told_once_and_blames_no_later_op(fork: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import torch\n"
        "import torch._lazy.ts_backend as backend\n"
        "from devices.lazy.descriptor import from_device, settle\n"
        "backend.init()\n"
        "def late():\n"
        "    x, far = torch.ones(3).to('lazy'), torch.tensor([7]).to('lazy')\n"
        "    return torch.index_select(x, 0, far)\n"
        "for wait in (lambda t: settle([t]), from_device):\n"
        "    try:\n"
        "        wait(late())\n"
        "        print('missed')\n"
        "    except RuntimeError as error:\n"
        "        print('told', 'out of range' in str(error))\n"
        "    print((torch.ones(2).to('lazy') + 1).cpu().tolist())\n"
    )
    assert fork.script(script).text.split("\n")[:4] == ["told True", "[2.0, 2.0]"] * 2


_ONE_AFTER_THE_OTHER = """
import torch, warnings
from conformance.checks.cases.execution import here
from conformance.checks.cases.processes import DeviceLocator
from devices import registry
from opinfo.device import open_device

def fails_late(context):
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.5)
    x = context.to_device(torch.ones(3, 5)).requires_grad_()
    loss(x, context.to_device(torch.tensor([1, 2, 3]))).backward()
    x.grad.cpu()

def waits(context):
    torch._lazy.wait_device_ops()
    context.check(True, "nothing is left")

warnings.simplefilter("ignore")
lazy = open_device(registry.get("lazy"))
for check in (fails_late, waits):
    made = here(check, (), lazy, "a seed", DeviceLocator(device="lazy"))
    print(check.__name__, "passes" if made.passes else made.failure.raises)
"""


@pytest.mark.slow
def test_what_a_case_left_behind_does_not_blame_the_next() -> None:
    """torch raises a late error of lazy tensors twice."""
    ran = subprocess.run(
        [sys.executable, "-c", _ONE_AFTER_THE_OTHER], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == ["fails_late RuntimeError", "waits passes"]
