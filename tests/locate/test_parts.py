"""The parts of locating: making calls again, redirecting a program to a device, drawing on the CPU, files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance.locate.journal import Entry, Journal, read_journal
from conformance.locate.locate_script import write_repro
from conformance.locate.random_numbers import drawn_on_cpu
from conformance.locate.redirect import Redirected
from conformance.locate.repeat import make_again, wrong_in
from conformance.locate.step_judge import judge_steps
from conformance.locate.steps import Numbering, Operand, Step, read_bytes
from conformance.locate.trace import traced_tensor
from conformance.locate.traces import Trace, TracedCall, read_trace, write_trace
from conformance.locate.wire import LocatedCall, LocateError
from conformance.plan.selection import find_descriptor
from opinfo.device import open_device

CPU = torch.device("cpu")
aten = torch.ops.aten


def two_steps() -> tuple[list[Step], list[tuple[int, torch.Tensor]]]:
    """A product, to which 1 is added in place, as calls with their inputs."""
    numbering = Numbering()
    x, y = torch.arange(6.0).view(2, 3), torch.ones(3, 2).t()
    given = numbering.describe((x, y.t()))
    before = [(n, read_bytes(each)) for n, each in enumerate(numbering.storages)]
    product = aten.mm.default(x, y.t())
    described = numbering.describe(product)
    bounds = {"float32": (1.3e-6, 64.0)}
    first = Step("aten.mm.default", given, {}, bounds=bounds, results=described)
    second = Step("aten.add_.Tensor", (described, 1.0), {}, bounds=bounds, results=described)
    return [first, second], before


def test_calls_are_made_again_on_the_results_of_those_before() -> None:
    steps, contents = two_steps()
    made, before, after = make_again(steps, dict(contents), CPU)
    (result,) = {each.results for each in made}
    expected = torch.arange(6.0).view(2, 3) @ torch.ones(3, 2) + 1
    assert isinstance(result, Operand)
    assert torch.equal(result.view(after[result.storage]), expected)
    assert all(each.wrong is None for each in judge_steps(made, before, after))


def test_calls_made_again_that_are_right_have_no_fault() -> None:
    assert wrong_in(*two_steps(), "cpu") == []


def test_a_script_has_the_calls_and_says_what_was_expected(tmp_path: Path) -> None:
    steps, contents = two_steps()
    call = LocatedCall(7, "aten.add_.Tensor", inputs=("float32[2, 2]",), call="…")
    device = open_device(find_descriptor("cpu", None))
    path = Path(write_repro(tmp_path, device, call, "expected 1, found 2", steps, dict(contents)))
    text = path.read_text(encoding="utf-8")
    assert "expected 1, found 2" in text and "Step('aten.mm.default'" in text
    assert not [line for line in text.splitlines() if line.startswith("from conformance")]
    compile(text, str(path), "exec")
    assert [n for n, _ in torch.load(tmp_path / "inputs.pt")] == [0, 1]


def test_a_device_type_is_replaced_by_another() -> None:
    with Redirected("cuda", torch.device("meta")):
        one = torch.ones(2, device="cuda")
        other = torch.ones(2).to(torch.device("cuda", 0))
        moved = torch.nn.Linear(2, 2).to("cuda:0")(torch.ones(1, 2).cuda())
        kept = torch.ones(2)
    assert {each.device.type for each in (one, other, moved)} == {"meta"}
    assert kept.device.type == "cpu"


def test_random_numbers_are_drawn_from_the_generator_of_the_cpu() -> None:
    torch.manual_seed(3)
    expected = torch.empty(4).uniform_()
    torch.manual_seed(3)
    target = torch.empty(4)
    assert drawn_on_cpu(aten.uniform_.default, (target,), {}, CPU) is target
    assert torch.equal(target, expected)
    torch.manual_seed(3)
    made = drawn_on_cpu(aten.rand.default, ([4],), {"device": torch.device("meta")}, CPU)
    assert torch.equal(made, expected)


def test_a_journal_names_the_last_call(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for number, op in ((1, "aten.native_layer_norm_backward.default"), (2, "aten.cos.default")):
        journal.write(LocatedCall(number, op))
    assert read_journal(path) == Entry(LocatedCall(2, "aten.cos.default"))
    journal.write(LocatedCall(2, "aten.cos.default"), is_done=True)
    assert read_journal(path) == Entry(LocatedCall(2, "aten.cos.default"), is_done=True)
    assert read_journal(tmp_path / "absent") is None


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    operand = Numbering().operand(torch.ones(3))
    tensor = traced_tensor(operand, torch.ones(3).view(torch.uint8))
    trace = Trace(
        "cpu", "2.13", "python x.py", (TracedCall(LocatedCall(1, "aten.cos.default"), (tensor,)),)
    )
    write_trace(tmp_path / "trace", trace)
    assert read_trace(tmp_path / "trace") == trace
    (tmp_path / "trace").write_bytes((tmp_path / "trace").read_bytes()[:-9])
    with pytest.raises(LocateError, match="line 2"):
        read_trace(tmp_path / "trace")
