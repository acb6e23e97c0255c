"""A call without an answer, a check that was not made, and a lost result of opcheck are in the verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import judge
from conformance.cli import conform
from conformance.kernels.exchange import Exchange, NotMade
from conformance.kernels.judgement import Judgement, Verdict
from conformance.kernels.request import NotLoadable, Source
from conformance.kernels.targets import overload_named, sources_of
from devices.cell import Outcome
from tests.kernels import custom_ops, decorated, leaks, references, unanswering

DOUBLED: dict[str, Any] = {"reference": references.doubled, "samples": references.single}
OF_TWO: dict[str, Any] = {"reference": decorated.reference, "samples": decorated.samples}


def checks_of(found: Judgement) -> set[str]:
    return {each.check for each in found.faults}


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (unanswering.raises_on_long, "RuntimeError: too long, for (float32[65543])"),
        (unanswering.ends_on_long, "the process exited with status 0, for (float32[65543])"),
        (unanswering.claims_all_calls, "calls, found none from"),
        (unanswering.deletes_answers, "there is no answer"),
    ],
)
def test_a_call_without_an_answer_is_a_fault(kernel: Callable[..., Any], says: str) -> None:
    found = judge(kernel, "aten::relu", guard_pages=kernel is not unanswering.claims_all_calls)
    assert found.verdict is Verdict.WRONG
    (fault,) = [each for each in found.faults if each.check == "kernel.answers"]
    assert says in fault.message and fault.failed >= 1 and fault.checks == found.calls


def test_a_check_whose_calls_the_kernel_refuses_is_named_in_a_note() -> None:
    found = judge(unanswering.refuses_long, "aten::relu", guard_pages=False)
    assert found.right
    assert "not checked: precision.ulp[float32]: NotImplementedError: too long" in found.notes
    (result,) = [each for each in found.results if each.check == "precision.ulp"]
    assert result.outcome is Outcome.UNSUPPORTED


def test_a_check_whose_calls_were_not_made_has_not_passed() -> None:
    found = judge(unanswering.claims_all_calls, "aten::relu")
    assert Outcome.PASS not in {each.outcome for each in found.results if each.checks}


def test_a_list_of_one_tensor_is_not_a_tensor() -> None:
    found = judge(unanswering.in_a_list, **DOUBLED, guard_pages=False)
    (fault,) = [each for each in found.faults if each.check == "kernel.plain_result"]
    assert "(Tensor) in place of Tensor" in fault.message


def test_after_the_last_round_a_further_call_has_no_answer() -> None:
    exchange = Exchange(torch.neg, "cpu", closed=True)
    with pytest.raises(NotMade, match="led to new calls in each round"):
        exchange(exchange.marks.to_device(torch.ones(2)))
    assert exchange.planned == [] and len(exchange.unanswered) == 1


def test_an_overload_that_serves_several_ops_gets_samples_of_each_kind() -> None:
    ids = [each.id for each in sources_of(overload_named("aten::convolution"))]
    assert {"conv_transpose" in each for each in ids} == {True, False}


@pytest.mark.slow
def test_random_wrong_kernels_leave_nothing_behind() -> None:
    found = leaks.measure(4, 3)
    assert (found.count, found.accepted, found.changed) == (4, [], {})


def test_a_decorated_kernel_is_not_the_function_that_it_wraps() -> None:
    assert Source.of(decorated.relu).name == "relu"
    assert Source.of(decorated.zeros).name == "zeros"
    assert Source.of(decorated.of_no_module).name == "of_no_module"
    assert Source.of(decorated.compiled).name == "compiled"
    assert Source.of(decorated.kernel).name == "kernel"
    assert Source.of(custom_ops.doubled).name == "doubled"
    with pytest.raises(NotLoadable, match="relu: expected a function that is defined at module"):
        Source.of(torch.compile(decorated.relu, backend="eager"))


@pytest.mark.slow
def test_the_compiled_function_is_judged_and_not_the_function_that_was_compiled() -> None:
    assert "layout.values" in checks_of(judge(decorated.compiled, "aten::relu", guard_pages=False))


def test_a_decorator_that_the_kernel_shares_with_its_reference_is_no_call_of_the_reference() -> (
    None
):
    assert judge(decorated.kernel, **OF_TWO).faults == ()


@pytest.mark.slow
def test_a_call_of_a_decorated_reference_is_found() -> None:
    assert checks_of(judge(decorated.calling_reference, **OF_TWO)) == {"kernel.delegates"}


def test_a_model_that_inherits_its_forward_from_the_reference_computes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.tanh(x) * x + 1\n\n\nclass ModelNew(Model):\n    pass\n\n\n"
        "def get_inputs():\n    return [torch.randn(4, 24)]\n",
        encoding="utf-8",
    )
    command = ["kernels", str(file), "--device", "cpu", "--no-speed", "-o", str(tmp_path / "out")]
    assert conform.main(command, standalone_mode=False) == 1
    assert "kernel.delegates: the kernel does not compute its result" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("op", "says"),
    [
        (custom_ops.ending, "opcheck: the process exited with status 0"),
        (custom_ops.interrupted, "opcheck: the process exited with status 1"),
    ],
)
def test_opcheck_that_does_not_end_is_a_fault(op: Any, says: str) -> None:
    found = judge(op, **DOUBLED, guard_pages=False)
    assert [each.message for each in found.faults if each.check == "kernel.opcheck"] == [says]


@pytest.mark.slow
def test_opcheck_gets_a_call_that_the_kernel_does_not_refuse() -> None:
    found = judge(custom_ops.of_small, **DOUBLED)
    assert found.right, found.faults
    assert any("were refused: too large" in each for each in found.notes)


def test_opcheck_is_run_for_a_custom_op_that_is_named_as_a_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Path(__file__).parent
    command = ["kernels", f"{here / 'custom_ops.py'}:without_fake", "--device", "cpu", "--no-speed"]
    given = ["--reference", f"{here / 'references.py'}:doubled", "-o", str(tmp_path)]
    given += ["--samples", f"{here / 'references.py'}:single"]
    assert conform.main([*command, *given], standalone_mode=False) == 1
    assert "kernel.opcheck: test_faketensor" in capsys.readouterr().out
