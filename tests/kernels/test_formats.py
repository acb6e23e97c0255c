"""Kernels are found in the files and folders of each format, and judged by the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import conform
from conformance.kernels import formats
from conformance.kernels.formats import (
    backendbench,
    flashinfer,
    kernelbench,
    named_function,
    reference_file,
)
from conformance.kernels.judgement import Fault, Judgement, Verdict
from devices.errors import ConformError
from devices.failure import Failure, Kind

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kernels"
WANTED = formats.Wanted()

RELU = "import torch\n\n\ndef relu__default_kernel_impl(x):\n    return torch.where({}, x, torch.where(x.isnan(), x, 0.0))\n"
DEFINITION: dict[str, Any] = {
    "name": "scaled_add",
    "op_type": "elementwise",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 24}},
    "inputs": {
        "x": {"shape": ["M", "N"], "dtype": "float32"},
        "y": {"shape": ["M", "N"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"z": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "def run(x, y, scale):\n    return x + scale * y\n",
}


def trace_folder(path: Path, body: str) -> Path:
    """Writes a trace folder with one solution, whose function has this body."""
    content = f"def run(x, y, scale, z):\n    {body}\n"
    solution = {
        "name": "ours",
        "definition": "scaled_add",
        "author": "somebody",
        "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run"},
        "sources": [{"path": "main.py", "content": content}],
    }
    random = {"type": "random"}
    inputs = {"x": random, "y": random, "scale": {"type": "scalar", "value": 0.5}}
    lines = [
        {
            "definition": "scaled_add",
            "workload": {"uuid": f"w{m}", "axes": {"M": m}, "inputs": inputs},
            "solution": None,
            "evaluation": None,
        }
        for m in (1, 7)
    ]
    for name, text in {
        "definitions/elementwise/scaled_add.json": json.dumps(DEFINITION),
        "workloads/elementwise/scaled_add.jsonl": "\n".join(map(json.dumps, lines)),
        "solutions/elementwise/scaled_add/ours.json": json.dumps(solution),
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
    return path


def test_each_example_has_its_format() -> None:
    found = {
        each.name: getattr(formats.format_of(each), "__name__", "").rpartition(".")[2]
        for each in EXAMPLES.glob("*.py")
    }
    assert found == {
        "softmax.py": "",
        "rms_norm.py": "reference_file",
        "overrides.py": "library_module",
        "kernelbench.py": "kernelbench",
    }


def test_a_model_of_kernelbench_is_judged_on_inputs_of_its_own_shape() -> None:
    (request,) = kernelbench.requests(EXAMPLES / "kernelbench.py", WANTED)
    assert not (request.shapes or request.layouts or request.strides)


def test_every_function_beside_a_reference_and_its_samples_is_a_kernel(tmp_path: Path) -> None:
    file = tmp_path / "attempts.py"
    names = ("reference", "samples", "first", "_helper", "second")
    text = "\n\n".join(f"def {name}():\n    return None" for name in names)
    for decorator in ("@triton.jit", "@triton.autotune(configs=[], key=[])", "@jit"):
        text += f"\n\n{decorator}\ndef launched():\n    return None\n"
    file.write_text(text, encoding="utf-8")
    assert formats.format_of(file) is reference_file
    found = reference_file.requests(file, WANTED)
    assert [each.name for each in found] == ["first", "second"]
    assert all(each.shapes and each.layouts and not each.strides for each in found)
    named = formats.Wanted(target="aten::relu")  # which function, the user has to say
    assert reference_file.requests(file, named) == []
    file.write_text("def reference(): ...\n\ndef samples(): ...\n", encoding="utf-8")
    assert formats.format_of(file) is None


def test_the_name_of_a_folder_of_backendbench_is_read_from_the_right(tmp_path: Path) -> None:
    assert backendbench.overload_of("add__Tensor") == "aten::add.Tensor"
    assert backendbench.overload_of("add___Tensor") == "aten::add_.Tensor"
    for name in ("relu__default_implementation_v2.py", "relu__default_implementation_v1.py"):
        (tmp_path / "relu__default").mkdir(exist_ok=True)
        (tmp_path / "relu__default" / name).write_text(RELU.format("x > 0"), encoding="utf-8")
    (request,) = backendbench.requests(tmp_path, WANTED)
    assert request.target == "aten::relu.default"
    assert request.kernel.path.endswith("implementation_v1.py")


def test_a_path_may_name_a_function() -> None:
    assert named_function.split("a/b.py:f") == (Path("a/b.py"), "f")
    assert named_function.split("a/b.py:space::op") == (Path("a/b.py"), "space::op")
    assert named_function.split("a/b.py") == (Path("a/b.py"), "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.py"], "expected a file or a folder"),
        ([str(EXAMPLES / "softmax.py")], "softmax.py:first_try --as OP"),
        (
            [f"{EXAMPLES / 'softmax.py'}:fixd", "--as", "aten::softmax.int"],
            "does not define 'fixd'",
        ),
        ([f"{EXAMPLES / 'softmax.py'}:fixed"], "--as"),
    ],
)
def test_a_wrong_use_exits_4_and_says_what_was_expected(arguments: list[str], says: str) -> None:
    with pytest.raises(ConformError, match=says) as raised:
        conform.main(["kernels", *arguments, "--device", "cpu"], standalone_mode=False)
    assert raised.value.exit_code == 4


def test_a_solution_of_flashinfer_gets_its_verdict_as_an_evaluation(tmp_path: Path) -> None:
    folder = trace_folder(tmp_path, "z[:, :16].copy_((x + scale * y)[:, :16])")
    code = conform.main(
        ["kernels", str(folder), "--device", "cpu", "-o", str(tmp_path / "out")],
        standalone_mode=False,
    )
    assert code == 1
    (file,) = (folder / "traces").rglob("*.jsonl")
    traces = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["workload"]["uuid"] for each in traces] == ["w1", "w7"]
    evaluation = traces[0]["evaluation"]
    assert evaluation["status"] == "INCORRECT_NUMERICAL" and evaluation["performance"] is None
    assert evaluation["correctness"]["extra"]["torch_conformance"]["verdict"] == "wrong"


@pytest.mark.slow
def test_a_right_solution_of_flashinfer_passes(tmp_path: Path) -> None:
    folder = trace_folder(tmp_path, "z.copy_(x + scale * y)")
    command = ["kernels", str(folder), "--device", "cpu", "-o", str(tmp_path / "out")]
    assert conform.main(command, standalone_mode=False) == 0
    (file,) = (folder / "traces").rglob("*.jsonl")
    (evaluation, _) = [json.loads(line)["evaluation"] for line in file.read_text().splitlines()]
    assert evaluation["status"] == "PASSED" and evaluation["performance"]["latency_ms"] > 0


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (Kind.SHAPE, "INCORRECT_SHAPE"),
        (Kind.DTYPE, "INCORRECT_DTYPE"),
        (Kind.VALUES, "INCORRECT_NUMERICAL"),
        (Kind.ENDED, "RUNTIME_ERROR"),
    ],
)
def test_the_status_follows_from_the_kind_of_the_failure(kind: Kind, status: str) -> None:
    fault = Fault("layout.values", "…", failure=Failure(kind=kind))
    found = Judgement("k", "r", "cpu", Verdict.WRONG, (fault,))
    assert flashinfer.evaluation_of(found).status == status


@pytest.mark.slow
def test_the_examples_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def judged(*arguments: str) -> int:
        command = ["kernels", *arguments, "--device", "cpu", "-o", str(tmp_path)]
        code: int = conform.main(command, standalone_mode=False)
        return code

    assert judged(f"{EXAMPLES / 'softmax.py'}:first_try", "--as", "aten::softmax.int") == 1
    assert (tmp_path / "first_try" / "layout.values-float32.py").exists()
    assert judged(f"{EXAMPLES / 'softmax.py'}:fixed", "--as", "softmax", "--no-speed") == 0
    assert judged(f"{EXAMPLES / 'rms_norm.py'}:kernel", "--reference", "reference") == 0
    assert judged(str(EXAMPLES)) == 0  # the overrides, the model, and what has a reference
    printed = capsys.readouterr().out
    assert "first_try (aten::softmax.int)" in printed and "4 of 4 kernels right" in printed


@pytest.mark.slow
def test_a_folder_of_backendbench_is_judged(tmp_path: Path) -> None:
    folder = tmp_path / "relu__default"
    folder.mkdir()
    file = folder / "relu__default_implementation.py"
    for condition, code in (("x > 0", 0), ("x > 1e-4", 1)):
        file.write_text(RELU.format(condition), encoding="utf-8")
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        command = ["kernels", str(tmp_path), "--device", "cpu", "-o", str(tmp_path / "out")]
        assert conform.main(command, standalone_mode=False) == code
