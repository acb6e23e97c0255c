"""The first lines of a repro script: tensors and call to be pasted into a bug report, what was expected and found."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks.cells import Recorder
from conformance.checks.ops.calls import repeated
from conformance.checks.ops.context import OpContext, run_checks
from conformance.checks.ops.snippet import target_source, tensor_source
from conformance.checks.repro.script import expected_and_found, headed
from conformance.suites import layout
from devices import registry
from devices.failure import Difference, Failure, Kind
from devices.simulated.backend.fault_switches import planted
from opinfo.database import DATABASE
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.layouts import Operand, covering, recorded_geometry
from opinfo.reference import StrideReference
from opinfo.samples import choose, probe

SHAPES = ((), (3,), (2, 3), (2, 0), (2, 3, 4), (2, 2, 1, 3))


def pasted(line: str) -> torch.Tensor:
    """The tensor that a line of a snippet makes."""
    found: list[torch.Tensor] = eval(f"[{line}\n]", {"torch": torch})
    return found[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_line_makes_the_tensor_in_every_layout(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    given = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    for _, (geometry,) in covering((Operand(shape, len(shape)),), None):
        (values,) = repeated([given], [geometry])
        made = pasted(tensor_source(values, geometry, "cpu"))
        assert (made.dtype, made.shape) == (dtype, shape)
        assert torch.equal(made, values)
        assert all(n < 2 or a == b for n, a, b in zip(shape, made.stride(), geometry.stride))
        assert made.storage_offset() == geometry.offset
        target = eval(target_source(dtype, geometry, "cpu"), {"torch": torch})
        assert target.shape == shape and target.storage_offset() == geometry.offset


def test_what_no_literal_of_numbers_says_is_made_too() -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    assert pasted(tensor_source(special, None, "cpu")).isnan().tolist() == [True, *[False] * 3]
    sparse = torch.eye(3).to_sparse_csr()
    assert pasted(tensor_source(sparse, None, "cpu")).layout is torch.sparse_csr
    line = tensor_source(torch.zeros(25), None, "cpu")
    assert line.endswith("# the values of the run are below") and pasted(line).shape == (25,)
    both = recorded_geometry((2, 3), (0, 0), 5)
    assert pasted(tensor_source(torch.ones(2, 3), both, "cpu")).stride() == (0, 0)


def failing(fault: str, op: str, clause: str) -> str:
    """The script of a clause that fails."""
    subject, known, descriptor = DATABASE.subjects()[op], exceptions(), registry.get("simulated")
    samples = choose(DATABASE.samples(subject, "float32"), 6)
    traits = probe(subject, "float32", samples, known)
    recorder = Recorder(op, "float32", [clause])
    about = (subject, "float32", traits, samples, open_device(descriptor))
    context = OpContext(*about, StrideReference("simulated", None), recorder, known)
    with planted(fault):
        run_checks(context, layout.SUITE.op_checks)
        shown = recorder.cells[clause].smallest
    assert shown is not None
    return shown.script()


def snippet_of(script: str) -> tuple[list[str], list[str]]:
    """The indented lines of a script's docstring, and those that come after them."""
    lines = (ast.get_docstring(ast.parse(script), clean=False) or "").splitlines()
    code = [n for n, line in enumerate(lines) if line.startswith("    ")]
    return [line[4:] for line in lines[code[0] : code[-1] + 1]], lines[code[-1] + 1 :]


def test_the_first_screen_is_what_somebody_pastes_into_a_bug_report() -> None:
    script = failing("inputs.overwritten", "atan2", "layout.inputs_intact")
    code, after = snippet_of(script)
    space: dict[str, Any] = {}
    with planted("inputs.overwritten"):
        exec("\n".join(code[:-1]), space)
        before = [each.cpu() for each in space["t"]]
        eval(code[-1], space)
        changed = [not torch.equal(each.cpu(), old) for each, old in zip(space["t"], before)]
    assert code[-1] == "torch.atan2(t[0], t[1])" and any(changed)
    assert after[1:4] == [
        "Concerns: input 0",
        "Expected: unchanged bytes",
        after[3],
    ]
    assert after[3].startswith("Found:    ") and "changed bytes in its elements" in after[3]
    assert script.count("\n", 0, script.index("Found:")) < 20


def test_a_call_into_a_target_makes_the_target() -> None:
    script = failing("out.reallocate", "mul", "layout.out_kept")
    code, _ = snippet_of(script)
    assert code[-2].startswith("out = torch.empty(") and "out=out" in code[-1]
    space: dict[str, Any] = {}
    exec("\n".join(code[:-1]), space)
    at = space["out"].data_ptr()
    with planted("out.reallocate"):
        eval(code[-1], space)
    assert space["out"].data_ptr() != at


def test_texts_of_a_device_cannot_end_the_docstring(tmp_path: Path) -> None:
    hostile = 'a """ and a \\N{none} and \\x'
    failure = Failure(kind=Kind.RAISED, expected=hostile, found=hostile, subject="output 0")
    text = f'"""{headed("title", [], failure)}\n"""'
    assert hostile in (ast.get_docstring(ast.parse(text)) or "")


def test_long_texts_are_cut_and_differences_are_told() -> None:
    difference = Difference(3, 9, (0, 1))
    failure = Failure(kind=Kind.VALUES, expected="word " * 500, found="2", where=difference)
    lines = expected_and_found(failure)
    assert len(lines) == 5 and lines[3].endswith(" …")
    assert lines[4] == "Found:    2; 3 of 9 differ, the first at [0, 1]"
    assert expected_and_found(Failure(kind=Kind.ENDED, detail="was killed")) == [
        "Found:    was killed"
    ]
