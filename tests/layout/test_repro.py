"""Repro scripts: each shows its failure by itself, and says so when the fault is gone."""

from __future__ import annotations

import ast
import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import isfunction
from itertools import count
from pathlib import Path
from pkgutil import iter_modules
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from conformance import contract
from conformance.checks.cells import Recorder
from conformance.checks.ops.calls import elements_named, repeated
from conformance.checks.ops.context import OpContext, run_checks, script_for_call
from conformance.checks.ops.roundings import allowance, exact_answer
from conformance.checks.repro.bundle import Bundle
from conformance.checks.repro.modules import NotCarried
from conformance.run.worker import Worker
from conformance.suites import planned_op_checks
from conformance.suites.layout import SUITE
from devices import registry
from devices.cell import CallKey, CellKey, CellOutcome, Outcome
from opinfo.catalog import catalogue, drawn_sample
from opinfo.compare import replace_tensors, tensors_of
from opinfo.database import DATABASE
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.reference import OutputSpec, StrideReference, ValueAnswer, value_answer
from opinfo.samples import choose, draw, probe
from tests.conftest import WholeRun
from tests.faulty import run_faulty
from tests.layout.test_deterministic import varying_where_an_index_repeats
from tests.planting.calls import Effect, KernelCall
from tests.plugin.running import ForkServer, Ran, cells_of
from tests.trials import one_thread
from tests.wrapped.scripts import settings_kept

CPU = registry.get("cpu")

# -- the scripts of a run of two ops, and of all: the fault is there


@pytest.fixture(scope="module")
def two_ops(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """A run of two ops that torch's CPU computes wrong."""
    folder = tmp_path_factory.mktemp("two-ops") / "run"
    ran = fork.pytest(
        *("-q", "--device", "cpu", "--ops", "median,tril", "--expectations", "none"),
        *("--clauses", "layout.expanded_read,layout.out_kept,layout.bounds", f"--results={folder}"),
    )
    assert ran.code == 1, ran.text
    return WholeRun(folder, ran, cells_of(folder))


@pytest.fixture(scope="module", params=["two ops", pytest.param("all ops", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest) -> WholeRun:
    """Runs whose failing cells have scripts."""
    found = request.getfixturevalue({"two ops": "two_ops", "all ops": "whole_run"}[request.param])
    assert isinstance(found, WholeRun)
    return found


@pytest.fixture(scope="module")
def scripts(run: WholeRun) -> list[Path]:
    """Every script that the run wrote for a cell of an op."""
    return sorted(path for key, path in written(run).items() if not key.is_case)


def written(run: WholeRun) -> dict[CellKey, Path]:
    """The scripts of all cells."""
    cells = run.cells.items()
    named = {key: run.folder / cell.repro for key, cell in cells if cell.repro}
    assert named and set(named.values()) == set(run.folder.glob("repro/*/*.py"))
    return named


def fresh_python(path: Path) -> Ran:
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return Ran(done.returncode, done.stdout)


@pytest.mark.parametrize("cell", ["layout.expanded_read/median", "layout.out_kept/tril"])
def test_in_a_fresh_python_a_script_exits_1_and_tells_the_fault(run: WholeRun, cell: str) -> None:
    ran = fresh_python(run.folder / "repro" / f"{cell}-float32.py")
    assert ran.code == 1 and "FAIL: " in ran.text and "Traceback" not in ran.text


@pytest.mark.slow
def test_in_a_fresh_python_the_script_of_a_memory_format_tells_the_fault(
    whole_run: WholeRun,
) -> None:
    ran = fresh_python(whole_run.folder / "repro" / "layout.memory_format" / "to-float32.py")
    assert ran.code == 1 and "FAIL: " in ran.text and "Traceback" not in ran.text


@pytest.mark.slow
def test_every_failing_cell_s_script_shows_its_fault(scripts: list[Path], fork: ForkServer) -> None:
    silent = {}
    for path in scripts:
        ran = fork.script(path)
        if ran.code != 1 or "FAIL: " not in ran.text:
            silent[f"{path.parent.name}/{path.name}"] = (ran.code, ran.text[-300:])
    assert silent == {}


@pytest.mark.slow
def test_every_failing_case_s_script_fails_as_the_run_did(
    whole_run: WholeRun, fork: ForkServer
) -> None:
    """Scripts of cases bring the suite's modules along: see ``tests/behaviour/test_scripts.py``."""
    cases = {key: path for key, path in written(whole_run).items() if key.is_case}
    for key, path in cases.items():
        ran = fork.script(path)
        assert ran.code == 1 and ran.text.startswith("FAIL: "), ran.text
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert text is not None and text.startswith(f"{key.clause}::{key.unit} on cpu\n")


def imported(text: str) -> set[str]:
    """The top names of all that a script imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None
            found.add(node.module.partition(".")[0])
    return found


def test_scripts_import_torch_and_the_standard_library_alone(scripts: list[Path]) -> None:
    allowed = {"torch", *sys.stdlib_module_names}
    foreign = {path.name: imported(path.read_text(encoding="utf-8")) - allowed for path in scripts}
    assert {name: names for name, names in foreign.items() if names} == {}


def test_a_script_says_on_top_which_cell_and_layout_it_is_about(scripts: list[Path]) -> None:
    for path in scripts:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert text is not None
        op, _, dtype = path.stem.rpartition("-")
        assert text.startswith(f"{path.parent.name}: {op}[{dtype}]")
        # Their checks make operands of their own, which have no layout.
        apart = path.parent.name.startswith(("precision.", "dispatch."))
        assert ", layout " in text or apart
        assert f"torch {torch.__version__}" in text


# -- scripts written for a faulty device, run where the fault is gone: torch's own CPU


def off_by_one(call: KernelCall) -> Any:
    """Wrong values, and an ``out=`` and a self that get them too."""
    result = call.honest()
    with torch.no_grad():
        return replace_tensors(result, lambda t: t.add_(1) if t.is_floating_point() else t)


def ignores_conj_bits(call: KernelCall) -> Any:
    def as_it_lies(value: Any) -> Any:
        lazy = isinstance(value, torch.Tensor) and value.is_conj()
        return torch.conj(value) if lazy else value  # the same memory, without the bit

    return call.function(*map(as_it_lies, call.args), **call.kwargs)


def never_the_same() -> Effect:
    calls = count()
    return lambda call: replace_tensors(call.honest(), lambda t: t + next(calls))


def other_strides(call: KernelCall) -> Any:
    def reversed_strides(t: torch.Tensor) -> torch.Tensor:
        order = list(range(t.dim()))[::-1]
        return t.permute(order).contiguous().permute(order)

    return replace_tensors(call.honest(), reversed_strides)


def aliases_its_input(call: KernelCall) -> Any:
    result, first = call.honest(), tensors_of(call.args)[0]
    same = isinstance(result, torch.Tensor) and result.shape == first.shape
    return first if same and "out" not in call.kwargs else result


def overwrite_last_byte(tensor: torch.Tensor) -> None:
    """The last byte of the storage, which may lie outside of the tensor."""
    storage = tensor.untyped_storage()
    if storage.nbytes():
        storage[storage.nbytes() - 1] = 7


def writes_around_its_input(call: KernelCall) -> Any:
    """Changes an element, and the storage's last byte."""
    result = call.honest()
    for tensor in tensors_of(call.args):
        overwrite_last_byte(tensor)
        if tensor.numel() and tensor.dim():
            tensor[(0,) * tensor.dim()] = 3
    return result


def writes_around_its_target(call: KernelCall) -> Any:
    result = call.honest()
    for tensor in tensors_of([call.kwargs.get("out"), result]):
        overwrite_last_byte(tensor)
    return result


def swallows(call: KernelCall) -> Any:
    """Returns where it should raise."""
    try:
        return call.honest()
    except (RuntimeError, TypeError, ValueError):
        return call.kwargs.get("out", call.first)


def refuses(call: KernelCall) -> Any:
    raise ValueError("no such kernel")


def moves_its_target(call: KernelCall) -> Any:
    """Gives ``out=`` and self a storage of their own instead of writing to what they have."""
    result = call.honest()
    for tensor in tensors_of(call.kwargs.get("out")):
        tensor.data = tensor.clone()
    return result


def drops_nan(call: KernelCall) -> Any:
    return torch.nan_to_num(call.honest())


def widens(call: KernelCall) -> Any:
    return call.honest().double()


def copies(call: KernelCall) -> Any:
    result = call.honest()
    return result if result is call.first else result.clone()


def suite_modules(family: str) -> Iterator[ModuleType]:
    package = import_module(f"conformance.suites.{family}")
    for found in iter_modules(package.__path__):
        yield import_module(f"{package.__name__}.{found.name}")


#: Every judge of a call, and what makes directed checks in a script. Only recorded calls have shared memory, which a test of
#: recordings judges.
JUDGES = {
    name
    for module in suite_modules("layout")
    for name, function in vars(module).items()
    if name.startswith("judge_")
    and function.__module__ == module.__name__
    and not name.startswith("judge_shared_")
} | {"report_check"}

#: Op, fault, and what judges in the scripts that it must bring about.
FAULTS: list[tuple[str, Effect, tuple[str, ...]]] = [
    ("add", off_by_one, ("judge_values", "judge_kept", "judge_in_place", "judge_variant")),
    ("mm", off_by_one, ("judge_values", "judge_precision")),
    ("addmm", off_by_one, ("judge_values", "report_check")),
    ("sum", off_by_one, ("report_check",)),
    ("amax", drops_nan, ("report_check",)),
    ("zeros_like", other_strides, ("report_check", "judge_strides")),
    ("abs", never_the_same(), ("judge_same_bits", "judge_values")),
    ("neg", other_strides, ("judge_strides",)),
    ("exp", aliases_its_input, ("judge_fresh",)),
    ("cos", writes_around_its_input, ("judge_inputs", "judge_bounds")),
    ("sin", writes_around_its_target, ("judge_target_bounds", "judge_self_bounds")),
    ("mul", swallows, ("judge_unfit", "judge_overlap", "report_check")),
    ("tan", moves_its_target, ("judge_kept",)),
    ("sub", widens, ("report_check",)),
    ("unsqueeze", copies, ("judge_views",)),
    ("squeeze", off_by_one, ("judge_values", "judge_in_place")),
    ("as_strided", off_by_one, ("report_check",)),
    ("sqrt", refuses, ("judge_values", "judge_kept", "judge_unfit", "judge_in_place")),
    ("dot", ignores_conj_bits, ("judge_turned_values",)),
    ("index_select", never_the_same(), ("judge_same_bits_and_values",)),
    ("gather", varying_where_an_index_repeats(), ("judge_same_gradients",)),
]
#: The dtype of the others is float32.
DTYPES = {"dot": "complex64"}


def kind_of(script: str) -> str:
    """What judges in a script."""
    main = script[script.index("def main()") : script.index("def move(")]
    (kind,) = (name for name in JUDGES if f"{name}(" in main)
    return kind


def scripts_of(op_id: str, effect: Effect) -> dict[str, str]:
    """Scripts for what fails on the faulty device: by clause and kind, the one of the first failure."""
    dtype = DTYPES.get(op_id, "float32")
    samples = choose(draw(catalogue()[op_id], dtype), 6)
    recorder = run_faulty(op_id, dtype, samples, SUITE.op_checks, effect)
    found: dict[str, str] = {}
    for clause, record in recorder.cells.items():
        for failure in record.failures:
            assert failure.repro is not None, clause
            judge = getattr(getattr(failure.repro, "judge", None), "__name__", "")
            if f"{clause} {judge}" in found:
                continue  # a script of this kind is written already
            text = failure.script()
            found.setdefault(f"{clause} {kind_of(text)}", text)
    return found


@pytest.fixture(scope="module")
def faulty_scripts() -> dict[str, dict[str, str]]:
    """The scripts of every faulty device, by op."""
    return {op: scripts_of(op, effect) for op, effect, _ in FAULTS}


@pytest.mark.parametrize(("op", "kinds"), [(op, kinds) for op, _, kinds in FAULTS])
def test_a_fault_brings_about_scripts_of_its_kinds(
    faulty_scripts: dict[str, dict[str, str]], op: str, kinds: tuple[str, ...]
) -> None:
    assert set(kinds) <= {kind_of(text) for text in faulty_scripts[op].values()}


def test_the_faults_bring_about_scripts_of_every_kind(
    faulty_scripts: dict[str, dict[str, str]],
) -> None:
    kinds = {kind_of(text) for texts in faulty_scripts.values() for text in texts.values()}
    assert kinds == JUDGES


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op, _, _ in FAULTS])
def test_a_script_exits_0_where_its_fault_is_gone(
    tmp_path: Path, fork: ForkServer, faulty_scripts: dict[str, dict[str, str]], op: str
) -> None:
    wrong = {}
    for number, (name, text) in enumerate(faulty_scripts[op].items()):
        path = tmp_path / f"{number}.py"
        path.write_text(text, encoding="utf-8")
        ran = fork.script(path)
        if ran.code != 0 or "PASS" not in ran.text:
            wrong[name] = (ran.code, ran.text[-400:])
    assert wrong == {}


# -- scripts of calls that pass


def context_of(op_id: str, dtype: str, clauses: list[str]) -> OpContext:
    """An item on torch's own CPU, that keeps the scripts of what it judges."""
    op, known = catalogue()[op_id], exceptions()
    samples = choose(draw(op, dtype), 2)
    traits = probe(op, dtype, samples, known)
    recorder, strides = Recorder(op_id, dtype, clauses), StrideReference("cpu", None)
    context = OpContext(op, dtype, traits, samples, open_device(CPU), strides, recorder, known)
    context.scripts = {}
    return context


def passing_scripts(seed: int, most: int) -> Iterator[tuple[CellKey, str]]:
    """Cells of the CPU that pass, drawn from a seed, each with the script of the first call that it judged."""
    random = Random(seed)
    items = [(op.id, d) for op in catalogue().values() for d in sorted(op.dtypes & CPU.dtypes)]
    checks = [
        check
        for check in planned_op_checks(contract.load())
        if check.clause.startswith(("layout.", "dispatch."))
    ]
    while most:
        op, dtype = random.choice(items)
        traits = context_of(op, dtype, []).traits
        clauses = [
            check.clause
            for check in checks
            if traits.returns
            and check.applies(traits)
            and not (check.untried and check.untried(CPU, op, DATABASE))
            and exceptions().excluded(check.clause, op, dtype, fake_only=True) is None
        ]
        if not clauses:
            continue
        clause = random.choice(clauses)
        context = context_of(op, dtype, [clause])
        run_checks(context, checks)
        record = context.recorder.cells[clause]
        if record.outcome() is Outcome.PASS and context.scripts:
            yield record.key, context.scripts[clause]()
            most -= 1


@pytest.mark.slow
def test_scripts_of_cells_that_pass_find_no_fault() -> None:
    wrong = {}
    for cell, text in passing_scripts(seed=1, most=200):
        with one_thread(), settings_kept():
            status, said = exit_status(text)
        if status != 0:
            wrong[str(cell)] = said
    assert wrong == {}


@pytest.mark.parametrize("op", ["nonzero", "masked_select", "unique"])
def test_a_script_knows_the_strides_of_outputs_whose_shape_depends_on_values(op: str) -> None:
    context = context_of(op, "float32", ["layout.output_strides"])
    run_checks(context, SUITE.op_checks)
    for script in (context.scripts or {}).values():
        assert exit_status(script())[0] == 0


def exit_status(script: str) -> tuple[int, str]:
    """The exit status of a script that runs in this process, and what it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            exec(compile(script, "<repro>", "exec"), {"__name__": "__main__"})
        except SystemExit as done:
            return int(done.code or 0), said.getvalue()
    raise AssertionError("a repro script ends with sys.exit, this one did not")


# -- scripts of calls that were never finished


def test_a_script_of_a_call_that_dies_reports_how_its_process_ended(
    tmp_path: Path, fork: ForkServer
) -> None:
    context = context_of("add", "float32", ["layout.values"])
    call = CallKey(context.samples[0].index, "contiguous")
    script = script_for_call(context, SUITE.op_checks, "layout.values", call, seconds=60.0)
    path = tmp_path / "returns.py"
    path.write_text(script, encoding="utf-8")
    assert fork.script(path) == Ran(0, "PASS: the call returned\n")
    dying = script.replace("op = torch.add", "import os\n    op = lambda *a, **k: os.abort()")
    path.write_text(dying, encoding="utf-8")
    ran = fork.script(path)
    assert ran.code == 1 and "FAIL: the process was killed by SIGABRT" in ran.text


@pytest.mark.parametrize(
    ("op", "clause", "layout", "shows"),
    [
        ("add", "layout.out_resize", "out=wrong_shape", "called_into_unfit(call"),
        ("mul", "layout.views", "neg", "called_turned(call"),
        ("add", "layout.overlap_raises", "self=expanded", "called_on_expanded(call"),
        ("add", "layout.variants", "function", "called_on_copies(call"),
        ("add", "layout.variants", "out", "called_into_prefilled(call"),
        ("mul", "layout.inplace", "contiguous", "called_in_place(call"),
    ],
)
def test_the_script_of_a_call_makes_that_call(
    op: str, clause: str, layout: str, shows: str
) -> None:
    context = context_of(op, "float32", [clause])
    call = CallKey(context.samples[-1].index, layout)
    assert shows in script_for_call(context, SUITE.op_checks, clause, call, seconds=60.0)
    assert context.recorder.cells[clause].checks == 0


def test_the_script_of_a_directed_check_makes_that_check() -> None:
    clause, made = "layout.inplace", 0
    context = context_of("add", "float32", [clause])
    name = "self=broadcast(dtype='float32')"
    script = script_for_call(context, SUITE.op_checks, clause, CallKey(made, name), seconds=60.0)
    assert "report_check(refuses_to_grow" in script and "report_end(60.0)" in script


def test_the_script_of_a_judgement_that_died_judges_too(tmp_path: Path, fork: ForkServer) -> None:
    context = context_of("t", "float32", ["layout.views"])
    call = CallKey(context.samples[0].index, "contiguous")
    given = {"seconds": 60.0, "judged": True}
    script = script_for_call(context, SUITE.op_checks, "layout.views", call, **given)  # type: ignore[arg-type]
    path = tmp_path / "judged.py"
    path.write_text(script, encoding="utf-8")
    assert fork.script(path) == Ran(0, "PASS\nPASS: the call returned\n")


# -- what a script carries


@pytest.mark.parametrize("family", ["autograd", "dispatch", "layout", "precision"])
def test_what_a_clause_calls_fits_into_one_script_with_all_that_references_are_made_with(
    family: str,
) -> None:
    """A definition that cannot be copied would leave a failure without its script."""
    parts = (
        *(ValueAnswer, OutputSpec, value_answer, repeated, exact_answer, allowance),
        *(elements_named, drawn_sample),
    )
    tried = 0
    for module in suite_modules(family):
        for function in vars(module).values():
            if getattr(function, "__module__", None) != module.__name__ or not isfunction(function):
                continue
            with contextlib.suppress(NotCarried):  # it is not made for scripts
                Bundle().take([function]).texts()
                tried += 1
                try:
                    Bundle().take([function, *parts]).texts()
                except NotCarried as error:
                    pytest.fail(f"{module.__name__}.{function.__name__}: {error}")
    assert tried > 20


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotCarried("one is in a and in b"), "one is in a and in b"),
        (KeyError("stride"), "KeyError: 'stride'"),
    ],
)
def test_a_failure_whose_script_cannot_be_written_keeps_its_outcome(
    error: Exception, said: str
) -> None:
    def repro() -> str:
        raise error

    failed = CellOutcome(
        cell=CellKey("layout.values", "add", "float32"), outcome=Outcome.FAIL, note="seen"
    )
    record: Any = SimpleNamespace(
        to_outcome=lambda: failed, smallest=SimpleNamespace(repro=repro, script=repro)
    )
    worker: Any = SimpleNamespace(watch=SimpleNamespace(noted=lambda told: told))
    found = Worker._outcome(worker, record)
    assert found.outcome is Outcome.FAIL and found.repro is None
    assert found.note == f"seen; no repro script could be written: {said}"
