"""Right kernels pass, and wrong ones fail for their reason, in processes of their own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import judge
from conformance.kernels.formats import Wanted, reference_file
from conformance.kernels.judge import judged as judge_request
from conformance.kernels.judge import process_count
from conformance.kernels.judgement import Judgement, Verdict
from conformance.kernels.process_state import fingerprint, replaced_names
from conformance.kernels.targets import (
    OverloadSubject,
    named_function,
    overload_named,
    written_arguments,
)
from conformance.kernels.zygote import zygote
from devices.errors import ConformError
from opinfo.compare import replace_tensors, tensors_of
from opinfo.samples import draw
from tests.kernels import (
    accumulating,
    custom_ops,
    passing_on,
    public_bugs,
    references,
    refusing,
)
from tests.kernels import right as right_kernels
from tests.kernels import wrong as wrong_kernels
from tests.kernels.entries import Entry

CHECKOUT = Path(__file__).resolve().parents[2]
RIGHT, WRONG = right_kernels.right.entries, wrong_kernels.wrong.entries
#: The kernels of the fast part: one of each kind.
FAST = {"tiled_matmul", "strides_ignored", "reads_past_the_end", "one_buffer", "passes_on"}
FAST |= {"gelu_formula", "gelu_shifted", "transpose", "seeds_the_generator"}


def some_slow(names: Iterable[str]) -> list[object]:
    return [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]


def arguments_of(given: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Returns copies of the positional and keyword arguments of a call, whose last item may be a dictionary."""
    named = given[-1] if isinstance(given[-1], dict) else {}
    args, kwargs = replace_tensors((given[: len(given) - bool(named)], named), torch.Tensor.clone)
    return list(args), kwargs


def judged(entry: Entry) -> Judgement:
    given = {"reference": entry.reference, "samples": entry.samples, **entry.given}
    return judge(entry.function, entry.target, **given)


@pytest.mark.parametrize("name", some_slow(RIGHT))
def test_a_right_kernel_passes(name: str) -> None:
    found = judged(RIGHT[name])
    assert found.faults == ()
    assert found.right and found.comparisons > 100 and found.calls > 50


@pytest.mark.parametrize("name", some_slow(WRONG))
def test_a_wrong_kernel_fails_for_its_reason(name: str) -> None:
    found = judged(WRONG[name])
    assert found.verdict is Verdict.WRONG and not found.right
    assert WRONG[name].checks <= {each.check for each in found.faults}
    assert found.speed is None


@pytest.mark.slow
@pytest.mark.parametrize("name", public_bugs.public.entries)
def test_a_kernel_with_the_fault_of_a_public_report_fails_for_its_reason(name: str) -> None:
    entry = public_bugs.public.entries[name]
    assert entry.checks <= {each.check for each in judged(entry).faults}


@pytest.mark.slow
@pytest.mark.parametrize("name", passing_on.passing_on.entries)
def test_the_op_itself_only_delegates(name: str) -> None:
    entry = passing_on.passing_on.entries[name]
    assert {each.check for each in judged(entry).faults} == entry.checks


@pytest.mark.parametrize("name", WRONG)
def test_a_single_comparison_accepts_each_wrong_kernel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, allclose = WRONG[name], torch.allclose
    monkeypatch.setattr(torch, "equal", torch.equal)  # one kernel replaces both
    monkeypatch.setattr(torch, "allclose", allclose)
    assert entry.call is not None
    reference = entry.reference
    if reference is None:
        op, _, overload = entry.target.removeprefix("aten::").partition(".")
        if entry.target.startswith("aten::"):
            reference = getattr(getattr(torch.ops.aten, op), overload or "default")
        else:
            reference = named_function(entry.target)
    (args, kwargs), (again, named) = (arguments_of(entry.call()) for _ in range(2))
    wanted = tensors_of(reference(*args, **kwargs))
    found = tensors_of(entry.function(*again, **named))
    for one, want in zip(found, wanted, strict=True):
        assert allclose(one.to(want.dtype), want, rtol=1e-2, atol=1e-2)


def test_a_fault_has_the_smallest_call_and_a_script_that_fails_until_the_kernel_is_fixed(
    tmp_path: Path,
) -> None:
    kernel = tmp_path / "kernel.py"
    text = "import torch\n\n\ndef relu(x):\n    return torch.where({} > 0, x, torch.where(x.isnan(), x, 0.0))\n"
    kernel.write_text(text.format("(x - 1e-3)"), encoding="utf-8")
    sys.path.insert(0, str(tmp_path))
    try:
        from kernel import relu
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("kernel", None)
    # The module cannot be imported by its name any more, so it is loaded by its path.
    relu.__module__ = "__main__"
    main = sys.modules["__main__"]
    before = getattr(main, "__file__", None)
    main.__file__ = str(kernel)
    main.__dict__["relu"] = relu
    try:
        found = judge(relu, "aten::relu")
    finally:
        main.__file__ = before
        del main.__dict__["relu"]
    shown = found.smallest
    assert shown is not None and shown.failure is not None
    assert shown.failure.call.startswith("relu(t[0]") and shown.failure.inputs
    script = tmp_path / "repro.py"
    script.write_text(shown.script, encoding="utf-8")
    failing = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (failing.returncode, failing.stdout[:5]) == (1, "FAIL:"), failing.stderr
    kernel.write_text(text.format("x"), encoding="utf-8")
    fixed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (fixed.returncode, fixed.stdout.strip()) == (0, "PASS"), fixed.stderr


def test_nothing_of_the_caller_changes_and_nothing_is_left(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before, state, files = fingerprint(), torch.get_rng_state(), {*os.listdir("/proc/self/fd")}
    found = judged(WRONG["replaces_torch_equal"])
    assert not found.right
    assert replaced_names(before) == []
    assert torch.equal(torch.get_rng_state(), state)
    assert process_count() == 0 and not any(zygote().folder.iterdir())
    assert capfd.readouterr() == ("", "")
    assert len({*os.listdir("/proc/self/fd")} - files) <= 2  # the pipes of the zygote, once


@pytest.mark.slow
def test_a_kernel_is_judged_on_another_device() -> None:
    found = judge(right_kernels.softmax, "aten::softmax.int", device="simulated")
    assert found.right and found.device == "simulated"
    wrong = judge(wrong_kernels.offset_ignored, "aten::relu", device="simulated")
    assert "layout.values" in {each.check for each in wrong.faults}


@pytest.mark.slow
def test_opcheck_is_one_of_the_judges_of_a_custom_op() -> None:
    given = {"reference": references.doubled, "samples": references.single}
    found = judge(custom_ops.doubled, **given)
    assert found.right, found.faults
    without = judge(custom_ops.without_fake, **given)
    assert {each.check for each in without.faults} == {"kernel.opcheck"}
    assert "test_faketensor" in without.faults[0].message


@pytest.mark.slow
def test_bfloat16_is_judged_where_it_is_asked_for() -> None:
    found = judge(right_kernels.relu, "aten::relu", dtypes=("float32", "bfloat16"))
    assert found.right and {each.dtype for each in found.results} == {"float32", "bfloat16"}
    given = {"reference": references.row_sum, "samples": references.single}
    assert judge(accumulating.in_own_dtype, **given).right
    wrong = judge(accumulating.in_own_dtype, **given, dtypes=("bfloat16",))
    assert "layout.values" in {each.check for each in wrong.faults}


@pytest.mark.slow
def test_many_kernels_leave_no_process_no_file_and_no_memory() -> None:
    kernel = WRONG["strides_ignored"]
    judged(kernel)
    gc.collect()
    files, objects = len(os.listdir("/proc/self/fd")), len(gc.get_objects())
    for name in [*WRONG][:12]:
        assert not judged(WRONG[name]).right
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files
    assert len(gc.get_objects()) < objects + 2000
    assert process_count() == 0 and not any(zygote().folder.iterdir())


def test_a_function_that_cannot_be_imported_is_a_wrong_use() -> None:
    with pytest.raises(ConformError, match="defined at module level of a Python file"):
        judge(lambda x: x, "aten::relu")
    with pytest.raises(
        ConformError,
        match="expected either replaces=, the op that the kernel replaces, or reference=",
    ):
        judge(right_kernels.relu)


def test_an_op_that_torch_lacks_is_a_wrong_use() -> None:
    says = "torch has no such op; did you mean 'aten::relu'"
    with pytest.raises(ConformError, match=says) as raised:
        judge(right_kernels.relu, "aten::rellu")
    assert raised.value.exit_code == 4


@pytest.mark.parametrize(
    ("target", "plain"),
    [
        ("aten::relu_", "aten.relu.default"),
        ("aten::add_.Scalar", "aten.add.Scalar"),
        ("aten::add.out", "aten.add.Tensor"),
        ("aten::sum.IntList_out", "aten.sum.dim_IntList"),
        ("aten::max.dim_max", "aten.max.dim"),
        ("aten::polygamma_", "aten.polygamma.default"),
        ("aten::gelu_", "aten.gelu.default"),
        ("aten::fill_.Tensor", "None"),
        ("aten::arange.start_out", "aten.arange.start_step"),
    ],
)
def test_an_overload_that_writes_is_judged_on_the_calls_of_the_one_that_returns(
    target: str, plain: str
) -> None:
    found = OverloadSubject(overload_named(target))
    assert str(found.plain) == plain
    source = found.main
    calls = [call for each in draw(source, "float32")[:8] for call in found.calls_in(each, source)]
    assert calls
    for call in calls:
        written = found.written_tensors(call)
        assert len(written) == len(written_arguments(found.schema))
        found.function(*call.args, **call.kwargs)


@pytest.mark.slow
def test_a_fault_of_an_overload_that_writes_shows_a_call_of_this_overload() -> None:
    shown = judged(WRONG["returns_without_writing"]).smallest
    assert shown is not None and shown.failure is not None
    assert shown.failure.call == "returns_without_writing(t[0])"
    assert shown.message.startswith("[contiguous] input 0 after the call: expected 0.0, found")


def test_a_kernel_that_refuses_every_call_is_not_judged() -> None:
    found = judge(refusing.refuses_all, "aten::relu")
    assert (found.verdict, found.faults) == (Verdict.NOT_JUDGED, ())
    assert "no kernel for this machine" in found.why


@pytest.mark.slow
def test_a_kernel_that_refuses_some_calls_is_right_with_a_note() -> None:
    found = judge(refusing.refuses_matrices, "aten::relu")
    assert found.right and any("no matrices" in each for each in found.notes)


@pytest.mark.slow
def test_the_name_of_a_kernel_with_a_reference_excuses_nothing() -> None:
    requests = reference_file.requests(Path(__file__).with_name("names_of_ops.py"), Wanted())
    assert [each.name for each in requests] == ["empty_like", "elu"]
    for request in requests:
        assert "layout.values" in {each.check for each in judge_request(request).faults}
