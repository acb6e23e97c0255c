"""A wrong use of ``conform kernels`` and ``judge`` is one sentence that says what was expected and what was found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checks.child import Ended
from conformance.kernels import kernel_process
from conformance.kernels.formats.python_file import Unreadable, tree_of
from conformance.kernels.judge import CannotJudge, _Rounds
from conformance.kernels.judging import UnknownDtype, check_dtypes
from conformance.kernels.reference_calls import LeftOut
from conformance.kernels.request import Request, Source
from conformance.kernels.subjects import NoSamples, ReferenceSubject, samples_for
from conformance.kernels.targets import UnknownTarget, overload_named, subject_named
from opinfo.device import DeviceUnusable


def nothing() -> Iterator[Any]:
    yield from ()


def tensors() -> Iterator[Any]:
    yield torch.ones(4)


def empty() -> Iterator[Any]:
    yield ()


def raising() -> Iterator[Any]:
    yield (torch.ones(2),)
    raise ValueError("no data")


def ones() -> Iterator[Any]:
    yield (torch.ones(2),)


def refuses(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("too old")


def subject_of(samples: Callable[..., Any]) -> ReferenceSubject:
    request = Request(
        kernel=Source("k.py", "k"), reference=Source.of(refuses), samples=Source.of(samples)
    )
    return ReferenceSubject(request, LeftOut())


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (nothing, "nothing: expected at least one tuple of arguments, found none"),
        (tensors, "tensors: expected tuples of arguments, .* found an object of type Tensor"),
        (empty, "empty: expected tuples of arguments, .* found an empty tuple"),
        (raising, "raising raised ValueError: no data"),
    ],
)
def test_a_function_that_yields_no_arguments_is_named(
    samples: Callable[..., Any], says: str
) -> None:
    with pytest.raises(NoSamples, match=says):
        list(subject_of(samples).raw_samples(torch.float32))


def test_a_reference_that_refuses_every_sample_says_why() -> None:
    subject = subject_of(ones)
    with pytest.raises(NoSamples, match=r"1 call was left out, .* \(float32\[2\]\): too old"):
        samples_for(subject, subject.request, "float32")


def test_an_unknown_dtype_is_named() -> None:
    check_dtypes(("float32", "bool"))
    with pytest.raises(UnknownDtype, match="'float31': .*; did you mean 'float32'"):
        check_dtypes(("float32", "float31"))
    with pytest.raises(UnknownDtype, match="at least one dtype"):
        check_dtypes(())


def test_an_overload_with_a_typing_error_has_suggestions() -> None:
    with pytest.raises(UnknownTarget, match="did you mean 'aten::relu'"):
        overload_named("atn::relu")


@pytest.mark.slow
def test_an_op_of_the_database_with_a_typing_error_has_suggestions() -> None:
    with pytest.raises(UnknownTarget, match="did you mean 'relu'"):
        subject_named("rellu")


def test_a_syntax_error_has_the_name_of_the_file_and_the_line(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("def kernel(x:\n", encoding="utf-8")
    with pytest.raises(Unreadable, match=r"\(kernel.py, line 1\)"):
        tree_of(tmp_path / "kernel.py")


def test_a_device_that_cannot_be_used_is_no_fault_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unusable(descriptor: Any) -> Any:
        raise DeviceUnusable("device 'cpu' failed to run a tiny op")

    monkeypatch.setattr(kernel_process, "open_device", unusable)
    request = Request(kernel=Source("k.py", "k"))

    def run(target: str, given: list[str], *_: Any) -> Ended:
        if target.endswith(":check_device"):
            kernel_process.check_device(*given)
        return Ended(1)

    server: Any = SimpleNamespace(run=run)
    with pytest.raises(CannotJudge, match="failed to run a tiny op") as raised:
        _Rounds(request, tmp_path, server)._calls(tmp_path, 1)
    assert raised.value.exit_code == 3


@pytest.mark.slow
def test_a_script_that_judges_when_it_is_imported_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from conformance import judge\n\n\ndef neg(x):\n    return -x\n\n\n"
        "print(judge(neg, 'aten::neg').faults[0].message)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=200, check=False
    )
    assert "judge() was called by the import of the kernel's file" in done.stdout, done.stderr
