"""``conform init``: a folder for a device that nobody has described."""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import date
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from conformance.cli import conform
from conformance.contract import load
from conformance.onboarding import drafting, init, probing
from conformance.onboarding.init import agreement
from conformance.onboarding.probing import first_use, flushes_subnormals, in_host_memory, questions
from conformance.onboarding.questions import Question, Reply
from devices import registry
from devices.cell import CellKey, Outcome, Verdict
from devices.descriptor import CAPABILITIES, DTYPES
from devices.manifest import Manifest
from devices.registry import load_file
from opinfo.device import open_device
from opinfo.layouts import covering_set
from reports.advice import TRIAGE
from reports.model import CellResult, Run
from tests.planting.places import replaced
from tests.plugin.running import CHECKOUT, run_conform
from tests.reports.builders import (
    ADD,
    ADD_INT,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    failed,
    plan_document,
    results,
)
from tests.strangers.bench import MODULES

DAY = date(2026, 1, 31)
UNTIL = date(2026, 3, 2)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(conform, ["init", *arguments])


def a_run(*given: CellResult) -> Run:
    return Run(Path(), plan_document(), PROVENANCE, results(*given))


def by_key(failing: list[CellResult]) -> dict[CellKey, CellResult]:
    return {each.key: each for each in failing}


def written(path: Path, text: str) -> Manifest:
    path.write_text(text, encoding="utf-8")
    layouts = {"transposed", "contiguous"}
    return Manifest.load(path, {"clause": load().clauses, "layouts": layouts})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", "--device-string", "No Device"), "expected a device as torch writes it"),
        (("x", "--device-string", "npu", "--module", "a b"), "expected a module"),
        (("X!", "--device-string", "npu"), "a device's name must begin with"),
    ],
)
def test_bad_arguments_are_one_message(arguments: tuple[str, ...], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 4 and message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "device", "message"),
    [
        ("no_such_module", "npu", "importing 'no_such_module' failed: ModuleNotFoundError"),
        ("json", "npux", "importing 'json' registered no device type. If the module needs a call"),
        pytest.param(
            "json:no_such_function",
            "npu",
            "json.no_such_function() failed: AttributeError",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "strange_bare", "baer", "the type that was registered is 'bare'", marks=pytest.mark.slow
        ),
        pytest.param(
            "strange_refusing",
            "refusing",
            "OSError: librefusing.so.1: cannot open (from KeyError",
            marks=pytest.mark.slow,
        ),
        (
            "strange_leaving",
            "leaving",
            "importing 'strange_leaving' ended the process, which exited",
        ),
    ],
)
def test_a_device_that_cannot_be_had_is_one_message(
    tmp_path: Path, module: str, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(MODULES))
    folder = tmp_path / "x"
    result = call("x", "--device-string", device, "--module", module, "-o", str(folder))
    assert result.exit_code == 3 and message in result.stderr
    assert "nothing was written" in result.stderr and result.stderr.count("\n") == 1
    assert not folder.exists(), "nothing is left behind"


@pytest.mark.slow
def test_a_backend_that_breaks_torch_is_in_the_way_of_those_alone_who_need_it(
    tmp_path: Path, cache: Path
) -> None:
    """It loads itself with torch, and cannot: users can import torch only without it."""
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nbroken = strange_refusing:load\n")
    path = f"{tmp_path}:{MODULES}:{CHECKOUT}"
    ran = run_conform(
        *("init", "x", "--device-string", "npu"), cache=cache, cwd=tmp_path, PYTHONPATH=path
    )
    assert (
        ran.code == 3 and "importing the backends that torch loads failed: RuntimeError" in ran.text
    )
    assert "(from KeyError: 'LIBREFUSING')" in ran.text
    cpu = ("run", "--device=cpu", "-n", "0", "--ops=neg", "--dtypes=float32")
    ran = run_conform(*cpu, cache=cache, cwd=tmp_path, PYTHONPATH=path)
    assert ran.code == 0, ran.text
    path = f"{tmp_path / 'no torch'}:{path}"
    broken = tmp_path / "no torch" / "torch" / "__init__.py"
    broken.parent.mkdir(parents=True)
    broken.write_text("raise OSError('libtorch.so: cannot open')\n")
    ran = run_conform(*cpu, cache=cache, cwd=tmp_path, PYTHONPATH=path)
    assert ran.code == 3 and "Traceback" not in ran.text and "INTERNALERROR" not in ran.text
    assert "torch cannot be imported: OSError: libtorch.so: cannot open" in ran.text


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    result = call("x", "--device-string", "npu", "-o", str(tmp_path))
    assert result.exit_code == 4 and "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.slow
def test_what_a_run_refuses_is_the_message_of_init(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    text = drafting.descriptor(Question(name="mine", torch_type="cpu"), Reply({}, ["float32"]), DAY)
    (folder / "descriptor.py").write_text(text)
    result = call("mine", "--device-string", "cpu", "-o", str(folder), "--ops", "mull")
    assert result.exit_code == 4 and result.stderr.count("\n") == 1
    assert "error: --ops 'mull' matches nothing in this plan; did you mean 'mul'" in result.stderr


@pytest.mark.parametrize("module", ["", "some_module", "torch._lazy.ts_backend"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_drafted_descriptor_says_what_was_answered(
    tmp_path: Path, module: str, count: int
) -> None:
    answers = dict.fromkeys(CAPABILITIES, None) | {"strides": True, "storage": False}
    reply = Reply(answers, sorted(DTYPES)[:3], {"device_name": 'A "quoted" name'}, count)
    question = Question(name="mine", torch_type="npu", module=module, init="init" if module else "")
    (tmp_path / "descriptor.py").write_text(drafting.descriptor(question, reply, DAY))
    device = load_file(tmp_path)
    assert (device.name, device.torch_type) == ("mine", "npu")
    assert (device.module or "", device.init or "") == (module, question.init)
    assert device.capabilities == {"strides"} and device.dtypes == set(sorted(DTYPES)[:3])
    assert device.title == 'A "quoted" name'
    assert (device.unavailable() is None) == (module != "some_module")


@pytest.mark.parametrize(
    ("longer", "drafted"), [(0.0, 30.0), (0.09, 30.0), (2.5, 30.0), (3.2, 40.0), (61.0, 610.0)]
)
def test_a_device_that_compiles_at_first_use_is_drafted_an_allowance(
    tmp_path: Path, longer: float, drafted: float
) -> None:
    reply = Reply(dict.fromkeys(CAPABILITIES, False), ["float32"], first_use=longer)
    text = drafting.descriptor(Question(name="mine", torch_type="npu"), reply, DAY)
    (tmp_path / "descriptor.py").write_text(text)
    assert load_file(tmp_path).first_use == drafted
    assert (f"took {longer:.1f} s longer" in text) == (drafted > 30.0)


def test_the_bytes_that_a_small_tensor_takes_are_drafted_where_they_are_counted(
    tmp_path: Path,
) -> None:
    for counts, declared in ((True, 512), (False, None)):
        capabilities = dict.fromkeys(CAPABILITIES, False) | {"allocator_statistics": counts}
        reply = Reply(capabilities, ["float32"], granularity=512)
        (tmp_path / "descriptor.py").write_text(
            drafting.descriptor(Question(name="mine", torch_type="npu"), reply, DAY)
        )
        assert load_file(tmp_path).granularity == declared


@pytest.mark.parametrize(
    ("present", "in_host_memory", "declared"),
    [((), True, True), (("allocator_memory_info",), True, False), ((), False, False)],
)
def test_memory_of_the_host_is_drafted_where_the_device_does_not_say_how_much_it_has(
    tmp_path: Path, present: tuple[str, ...], in_host_memory: bool, declared: bool
) -> None:
    capabilities = dict.fromkeys(CAPABILITIES, False) | dict.fromkeys(present, True)
    reply = Reply(capabilities, ["float32"], host_memory=in_host_memory)
    text = drafting.descriptor(Question(name="mine", torch_type="npu"), reply, DAY)
    (tmp_path / "descriptor.py").write_text(text)
    assert load_file(tmp_path).host_memory == declared


def test_a_function_that_keeps_a_stream_busy_is_asked_for_where_there_are_streams(
    tmp_path: Path,
) -> None:
    for present in (("profiler", "streams"), ("profiler",)):
        capabilities = dict.fromkeys(CAPABILITIES, False) | dict.fromkeys(present, True)
        reply = Reply(capabilities, ["float32"])
        text = drafting.descriptor(Question(name="mine", torch_type="npu"), reply, DAY)
        assert ("# busy=" in text) == ("streams" in present)
        (tmp_path / "descriptor.py").write_text(text)
        assert "profiler" in load_file(tmp_path).capabilities


def test_a_profile_and_the_memory_of_the_host_are_asked_for() -> None:
    cpu = open_device(registry.get("cpu"))
    assert dict(questions(cpu))["profiler"](cpu)
    with replaced(probing, "kineto_events", lambda call: []), pytest.raises(probing.Wrong):
        dict(questions(cpu))["profiler"](cpu)
    if sys.platform == "linux":
        assert in_host_memory(cpu)


def test_dtypes_whose_subnormal_numbers_count_as_zeros_are_asked_for_and_drafted(
    tmp_path: Path,
) -> None:
    cpu = open_device(registry.get("cpu"))
    assert flushes_subnormals(cpu) == []
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormal numbers")
    try:
        flushed = flushes_subnormals(cpu)
    finally:
        torch.set_flush_denormal(False)
    assert {"float32", "float64"} <= set(flushed)
    for found in (flushed, []):
        reply = Reply(dict.fromkeys(CAPABILITIES, False), ["float32"], flushes_subnormals=found)
        (tmp_path / "descriptor.py").write_text(
            drafting.descriptor(Question(name="mine", torch_type="npu"), reply, DAY)
        )
        assert load_file(tmp_path).flushes_subnormals == frozenset(found)


def test_a_draft_names_where_the_lists_of_autocast_differ_and_does_not_declare_it(
    tmp_path: Path,
) -> None:
    answers = {**dict.fromkeys(CAPABILITIES, False), "autocast": True}
    found = {"unlisted": ["mm", "exp"], "lower": ["tensordot"]}
    reply = Reply(answers, ["float32"], autocast=found)
    path = tmp_path / "descriptor.py"
    path.write_text(drafting.descriptor(Question(name="mine", torch_type="cpu"), reply, DAY))
    assert registry.load_file(path).autocast == ()
    assert '#   Autocast("unlisted", frozenset("exp mm".split()), "…")' in path.read_text()
    without = drafting.descriptor(Question(name="mine", torch_type="cpu"), Reply(answers), DAY)
    assert "Autocast" not in without


def _said_of(run: str, tmp_path: Path, until: float | None) -> tuple[int | None, list[str]]:
    """What ``conform init`` returns and says of a run, which is a Python program here."""
    said: list[str] = []
    command = [sys.executable, "-u", "-c", run]
    return init._watched(command, tmp_path / "run.log", until, said.append), said


def test_a_run_says_early_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "_FIRST_REPORT", 0.0)
    status, said = _said_of("import time; print('... [ 20%]'); time.sleep(1.5)", tmp_path, None)
    assert status == 0
    assert re.fullmatch(r"  \d s: 20 % is done; about \d+ s left", said[0])


def test_a_run_whose_time_is_up_is_ended(tmp_path: Path) -> None:
    program = "import os, time; print(os.getpid()); time.sleep(600)"
    status, _ = _said_of(program, tmp_path, time.monotonic() + 1.0)
    assert status is None
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "run.log").read_text()), 0)


def test_the_first_call_of_an_op_is_measured_against_the_second() -> None:
    times = iter([0.0, 1.0, 2.0, 2.0, 9.0, 9.5, 9.5, 9.5, 9.5, 9.5, 9.5, 9.5])
    cpu = open_device(registry.get("cpu"))
    assert first_use(cpu, lambda: next(times)) == 6.5


def test_a_drafted_descriptor_declares_what_is_there_and_wrong(tmp_path: Path) -> None:
    answers = dict.fromkeys(CAPABILITIES, False) | {"strides": True}
    seen = {"generator": 'two draws\ndiffered "', "float16": "1.0 became 2.0", "properties": "None"}
    raised = {"events": "NotImplementedError: later", "dlpack": "ValueError: no stream"}
    broken = {"dlpack": "ValueError: no stream"}
    reply = Reply(answers, ["float32"], raised=raised, wrong=seen, broken=broken)
    text = drafting.descriptor(Question(name="mine", torch_type="npu"), reply, DAY)
    (tmp_path / "descriptor.py").write_text(text)
    device = load_file(tmp_path)
    assert device.capabilities == {"strides", "generator", "properties", "dlpack"}
    assert device.functions == {"properties": "get_device_properties"}  # which its clauses call
    assert device.dtypes == {"float16", "float32"}
    assert '"generator",  # wrong: two draws differed "\n' in text
    assert '"dlpack",  # fails: ValueError: no stream\n' in text
    assert text.count("ValueError: no stream") == 1
    absent = text.partition("does not have these:")[2].partition("capabilities=")[0]
    assert {"storage", "streams"} <= set(absent.replace(",", " ").split())
    assert not {"generator", "events", "dlpack"} & set(absent.replace(",", " ").split())
    assert "#   events: NotImplementedError: later" in text


@pytest.mark.parametrize(
    ("error", "absent"),
    [
        (NotImplementedError("later"), True),
        (AttributeError("module 'torch.npu' has no attribute 'memory_allocated'"), True),
        (RuntimeError("Backend doesn't support events."), True),
        (ValueError("Unknown device type npu for Dlpack"), True),
        (RuntimeError("driver call failed: 700"), False),
        (TypeError("elapsed_time() takes 1 positional argument but 2 were given"), False),
    ],
)
def test_an_api_that_raises_is_broken_or_absent(error: Exception, absent: bool) -> None:
    assert probing.is_absent(error) is absent


def test_a_drafted_manifest_stands_by_cause(tmp_path: Path) -> None:
    failing = [failed(ADD), failed(CONV), failed(ADD_INT)]
    reasons = {
        CONV: f"{TRIAGE} the large one",
        ADD: f"{TRIAGE} the other",
        ADD_INT: f"{TRIAGE} the large one",
    }
    text = drafting.manifest("mine", by_key(failing), {}, {}, 2, DAY, UNTIL, reasons)
    manifest = written(tmp_path / "m.toml", text)
    assert [block.reason for block in manifest.blocks] == [f"{TRIAGE} the large one"] * 2 + [
        f"{TRIAGE} the other"
    ]
    assert text.count("# the large one\n") == text.count("# the other\n") == 1


def test_clauses_with_the_same_cells_share_a_drafted_block(tmp_path: Path) -> None:
    failing = by_key([failed(ADD), failed(BOUNDS)])
    text = drafting.manifest("mine", failing, {}, {}, 2, DAY, UNTIL, dict.fromkeys(failing, "one"))
    (block,) = written(tmp_path / "m.toml", text).blocks
    assert (block.clause, block.op) == (("layout.bounds", "layout.values"), ("add",))


def test_a_drafted_manifest_groups_by_clause_and_failing_layouts(tmp_path: Path) -> None:
    failing = [
        failed(ADD),
        failed(ADD_INT),
        failed(CONV, layouts=("contiguous", "transposed")),
        failed(BOUNDS),
        failed(CellKey("layout.values", "mul", "float32")),
        failed(CellKey("layout.values", "mul", "int64")),
    ]
    manifest = written(
        tmp_path / "m.toml", drafting.manifest("mine", by_key(failing), {}, {}, 2, DAY, UNTIL)
    )
    seen = {(b.clause, b.op, b.dtype, b.layouts) for b in manifest.blocks}
    assert seen == {
        (("layout.values",), ("add", "mul"), ("float32", "int64"), frozenset({"transposed"})),
        (
            ("layout.values",),
            ("nn.functional.conv2d",),
            ("float32",),
            frozenset({"contiguous", "transposed"}),
        ),
        (("layout.bounds",), ("add",), ("float32",), frozenset({"transposed"})),
    }
    assert all(block.reason.startswith("triage:") for block in manifest.blocks)


@pytest.mark.parametrize(
    "text", ['"""', "\\", "a\x00\x1b\x7f\n# b", "\ud800", "é\U0001f600", "'''"]
)
def test_no_message_breaks_the_manifest(tmp_path: Path, text: str) -> None:
    failing = by_key([failed(ADD, message=text)])
    drafted = drafting.manifest("mine", failing, {}, {BOUNDS: text}, 1, DAY, UNTIL)
    assert len(written(tmp_path / "m.toml", drafted).blocks) == 1


def test_a_cell_that_fails_now_and_then_is_flaky_for_some_days(tmp_path: Path) -> None:
    runs = [a_run(failed(ADD), failed(CONV)), a_run(failed(ADD))]
    agreed, flaky, apart = agreement(runs)
    assert (list(agreed), list(flaky), apart) == ([ADD], [CONV], {})
    drafted = drafting.manifest("mine", agreed, flaky, apart, 2, DAY, UNTIL)
    of_add, of_conv = written(tmp_path / "m.toml", drafted).blocks
    assert (of_add.outcome.value, of_add.expires) == ("fail", None)
    assert (of_conv.outcome.value, of_conv.expires, of_conv.layouts) == ("flaky", UNTIL, None)


def test_a_cell_that_fails_in_another_way_each_time_fails_in_any_way() -> None:
    runs = [a_run(failed(ADD)), a_run(failed(ADD, layouts=("contiguous", "transposed")))]
    agreed, _, apart = agreement(runs)
    assert agreed[ADD].layouts == () and apart == {}


def test_cells_that_no_block_can_describe_are_in_none() -> None:
    error = failed(BOUNDS, outcome=Outcome.ERROR)
    first = a_run(failed(ADD), failed(CONV, outcome=Outcome.CRASH), error)
    agreed, flaky, apart = agreement([first, a_run(failed(ADD), failed(CONV), error)])
    assert list(agreed) == [ADD] and not flaky
    assert apart[CONV] == "the runs disagree: crash, then fail"
    assert apart[BOUNDS].startswith("error: ")


def test_a_cell_without_an_outcome_is_in_no_block() -> None:
    run = a_run(failed(ADD), failed(CONV, Verdict.MISSING, outcome=Outcome.NOT_RUN))
    agreed, _, apart = agreement([run])
    assert list(agreed) == [ADD] and apart == {CONV: "the cell has no outcome"}
    assert set(CELLS) > {ADD, CONV}


@pytest.mark.slow
def test_the_lazy_backend_is_described_in_one_command(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the runs' results go
    ran = run_conform(
        *("init", "mylazy", "--module", "torch._lazy.ts_backend:init", "--device-string", "lazy:0"),
        *("--fast", "--ops", "add,mul,nn.functional.pixel_shuffle", "-o", str(tmp_path / "mylazy")),
        cache=cache,
        cwd=tmp_path,
    )
    assert ran.code == 0, ran.text
    device = load_file(tmp_path / "mylazy")
    assert (device.torch_type, device.init) == ("lazy", "init")
    assert "float32" in device.dtypes and "strides" not in device.capabilities
    assert device.expectations is not None
    known = {"clause": load().clauses, "layouts": covering_set().ids}
    manifest = Manifest.load(device.expectations, known)
    # A descriptor without `settle` may find late errors of refused calls blamed on other ops: those are
    # unsupported, while the one that is really wrong in the layout suite fails.
    failing = [b for b in manifest.blocks if b.outcome.value == "fail"]
    values = {op for block in failing if "layout.values" in block.clause for op in block.op}
    assert values == {"nn.functional.pixel_shuffle"}
    assert all(TRIAGE in block.reason for block in manifest.blocks)
