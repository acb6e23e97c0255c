"""Wrong uses of ``conform`` and of its run: one message, the documented exit code, no file lost, and no wait for torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reports.run import write_run
from tests.plugin.running import CHECKOUT, environment
from tests.reports.builders import ADD, PROVENANCE, failed, plan_document, results

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

#: Begins like the progress of a run that was killed.
_BEGUN = {
    "type": "begun",
    "run": {"device": "cpu", "plan": "x", "machine": {}, "selection": {}, "shard": ""},
    "start": "2026-01-01T00:00:00+00:00",
    "planned": 15_340,
}
_FINISHED = {
    "type": "finished",
    "worker": "gw0",
    "report": {"cells": [{"cell": ["layout.values", "add", "float32"], "outcome": "pass"}]},
}

Ask = Callable[[list[str]], tuple[int, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, damaged runs, and whatever else a user may name by mistake."""
    base = tmp_path_factory.mktemp("wrong")
    write_run(base / "run", plan_document(), results(failed(ADD)), PROVENANCE)
    shutil.copytree(base / "run", base / "conform-results" / "cpu-quick")
    record = (base / "run" / "run.conform").read_bytes()
    for name, text in (("damaged", record[:-20]), ("other", b"PK\x03\x04"), ("none", b"")):
        (base / name).mkdir()
        (base / name / "run.conform").write_bytes(text)
    (base / "newer").mkdir()
    (base / "newer" / "run.conform").write_bytes(record.replace(b"-run 1 ", b"-run 7 ", 1))
    (base / "killed").mkdir()
    lines = (json.dumps(_BEGUN), json.dumps(_FINISHED), '{"type": "fin')
    (base / "killed" / ".progress.jsonl").write_text("\n".join(lines))
    (base / "junit").mkdir()
    shutil.copy(base / "run" / "junit-layout.xml", base / "junit")
    (base / "mine").mkdir()
    (base / "mine" / "descriptor.py").write_text("raise ValueError('not yet')\n")
    (base / "mine" / "expected.toml").write_text("# mine\n")
    (base / "only-a-manifest").mkdir()
    (base / "only-a-manifest" / "expected.toml").write_text("# mine\n")
    (base / "photos").mkdir()
    (base / "photos" / "cat.jpg").write_text("meow")
    (base / "empty").mkdir()
    (base / "afile").write_text("text")
    (base / "bad.toml").write_text("[[expect")
    (base / "latin.toml").write_bytes(b"# \xe9\n")
    (base / "nothing.py").write_text("x = 1\n")
    (base / "syntax.py").write_text("def\n")
    (base / "loop").symlink_to(base / "loop")
    os.mkfifo(base / "pipe")
    with (base / "huge").open("wb") as stream:
        stream.truncate(3 << 30)
    return base


@pytest.fixture(scope="module")
def ask(folder: Path, cache: Path) -> Iterator[Ask]:
    """Runs ``conform`` where an import of torch is an error."""
    with asking(folder, cache) as asked:
        yield asked


@pytest.fixture(scope="module")
def ask_with_torch(folder: Path, cache: Path) -> Iterator[Ask]:
    with asking(folder, cache, "torch") as asked:
        yield asked


@contextmanager
def asking(folder: Path, cache: Path, *arguments: str) -> Iterator[Ask]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.plugin.torchfree", *arguments],
        cwd=CHECKOUT,
        env=environment(cache),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None
    into, out = server.stdin, server.stdout

    def asked(arguments: list[str]) -> tuple[int, str]:
        into.write(json.dumps([arguments, str(folder)]) + "\n")
        into.flush()
        code, text = json.loads(out.readline())
        return int(code), str(text)

    yield asked
    into.close()
    out.close()
    server.kill()
    server.wait()


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """What is in a folder, without Python's bytecode of descriptors; of large and special files only that they are
    there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and path.name != "huge"
        else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


#: By command line: the exit code and a part of the message.
CASES: dict[str, tuple[int, str]] = {
    # devices, plans, manifests
    "run --device nosuch": (4, "there is no device 'nosuch'"),
    "run --device cpuu": (4, "did you mean 'cpu'"),
    "run --device=": (4, "there is no device ''"),
    "run --descriptor nosuch": (4, "no such file"),
    "run --descriptor nothing.py": (4, "there is no DESCRIPTOR"),
    "run --descriptor syntax.py": (4, "line 1: not valid Python"),
    "run --descriptor mine": (4, "loading the descriptor raised ValueError: not yet"),
    "run --descriptor /dev/zero": (4, "no such file"),
    "run --descriptor afile": (4, "its name must end in .py"),
    "run --device cuda --descriptor nothing.py": (4, "there is no DESCRIPTOR"),
    "run --plan fast": (4, "unknown plan 'fast': expected one of quick, core, full"),
    "run --plan=": (4, "unknown plan ''"),
    "run --device cpu --expectations nosuch.toml": (4, "nosuch.toml"),
    "run --device cpu --expectations bad.toml": (4, "bad.toml"),
    "run --device cpu --expectations latin.toml": (4, "not UTF-8"),
    "run --device cpu --expectations empty": (4, "empty: expected the path of an expected.toml"),
    "run --device cpu --expectations /dev/zero": (4, "found a device or a pipe"),
    "run --device cpu --expectations pipe": (4, "found a device or a pipe"),
    "run --device cpu --expectations huge": (4, "expected at most 64 MiB"),
    "run --device cpu --expectations loop": (4, "loop"),
    # what to run
    "run --device cpu add": (4, "'add' is not a file or folder; did you mean --ops add?"),
    "run --device cpu nn.functional.conv2": (4, "did you mean --ops nn.functional.conv2d?"),
    "run --device cpu layout.values": (4, "did you mean --clauses layout.values?"),
    "run cuda": (4, "did you mean --device cuda?"),
    "run --device cpu nosuch.py": (4, "'nosuch.py' is not a file or folder"),
    "run --device cpu afile::x nosuch::y": (4, "'nosuch::y' is not a file or folder"),
    "run --device cpu --ops ,": (4, "--ops is empty"),
    "run --device cpu --ops=": (4, "--ops is empty"),
    "run --device cpu --dtypes float23": (4, "--dtypes 'float23' matches nothing"),
    "run --device cpu --dtypes ,": (4, "--dtypes is empty"),
    "run --device cpu --clauses laout.*": (4, "no clause matches 'laout.*'"),
    "run --device cpu --clauses=": (4, "--clauses is empty"),
    "run --max-time soon": (4, "--max-time 'soon': expected a duration"),
    "run --max-time 0": (4, "--max-time '0': expected a duration"),
    "run --max-time=-5s": (4, "--max-time '-5s': expected a duration"),
    "run --cell-timeout never": (4, "--cell-timeout 'never': expected a duration"),
    "run --explore 1d": (4, "--explore '1d': expected a duration"),
    "run --explore-seed one": (4, "--explore-seed 'one': expected a whole number"),
    "run --minimise=-1": (4, "--minimise '-1': expected a whole number"),
    "run --shard 3/2": (4, "--shard '3/2': expected the number of a shard"),
    "run --shard 0/2": (4, "--shard '0/2'"),
    "run --shard two": (4, "--shard 'two'"),
    "run --shard-times run": (4, "--shard-times needs --shard I/N"),
    "run --shard 1/2 --shard-times nosuch": (4, "nosuch"),
    "run --shard 1/2 --shard-times damaged": (4, "truncated or changed"),
    "run --shard 1/2 --shard-times /dev/zero": (4, "found a device or a pipe"),
    "run --nosuch": (4, "unrecognized arguments: --nosuch"),
    "run --device": (4, "expected one argument"),
    "run --resume --no-resume": (4, "--resume and --no-resume exclude each other"),
    "run -n 2 --dist loadscope": (4, "--dist loadscope: expected load or worksteal"),
    "run -n 2 --dist each": (4, "--dist each: expected load or worksteal"),
    "run -n many": (4, "many"),
    # where results go
    "run --device cpu --results afile": (4, "expected a folder, found a file"),
    "run --device cpu --results afile/run": (4, "afile is a file; expected a folder"),
    "run --device cpu --results /dev/null": (4, "expected a folder, found a file"),
    "run --device cpu --results pipe": (4, "expected a folder, found a file"),
    "run --device cpu --results mine": (
        4,
        "files that no run wrote (descriptor.py, expected.toml)",
    ),
    "run --device cpu --results only-a-manifest": (4, "no run wrote (expected.toml)"),
    "run --device cpu --results photos": (4, "files that no run wrote (cat.jpg)"),
    "run --device cpu --results .": (4, "files that no run wrote"),
    "run --device cpu --results killed": (4, "an interrupted run with 1 of 15,340 cells: continue"),
    "run --device cpu --ops add --results run": (4, "which a partial run (--ops) must not replace"),
    "run --device cpu --max-time 1m --results run": (4, "a partial run (--max-time)"),
    "run --device cpu --shard 1/2 --results run": (4, "which a shard must not replace"),
    "run --device cpu -k add --results run": (4, "a partial run (pytest keyword)"),
    "run --device cpu --resume": (
        4,
        "nothing to resume in conform-results/cpu-quick: the run in the folder is",
    ),
    "run --device cpu --resume --results empty": (4, "the folder holds no run"),
    "run --device cpu --resume --results new": (4, "the folder holds no run"),
    "run --device cpu --junitxml empty": (4, "--junitxml must be a filename"),
    # runs
    "gate": (4, "Missing argument 'RUN'"),
    "gate nosuch": (4, "not found"),
    "gate empty": (4, "expected the folder of a run"),
    "gate afile": (4, "not the record of a run"),
    "gate damaged": (4, "truncated or changed"),
    "gate other": (4, "not the record of a run"),
    "gate none": (4, "not the record of a run"),
    "gate newer": (4, "expected format 1, found 7"),
    "gate junit": (4, "the folder has JUnit files only"),
    "gate killed": (2, "killed holds 1 of 15,340 cells of a run that was interrupted"),
    "gate /dev/zero": (4, "found a device or a pipe"),
    "gate pipe": (4, "found a device or a pipe"),
    "gate huge": (4, "expected at most 1,024 MiB"),
    "gate loop": (4, "loop"),
    "gate run --against nosuch": (4, "not found"),
    "gate run --against killed": (2, "--resume"),
    "gate run extra": (4, "unexpected extra argument"),
    "gate run --verbos": (4, "No such option"),
    "results nosuch": (4, "not found"),
    "results killed": (2, "--resume"),
    "results /dev/full": (4, "found a device or a pipe"),
    "diff run": (4, "Missing argument 'AFTER'"),
    "diff run nosuch": (4, "not found"),
    "diff run damaged": (4, "truncated or changed"),
    "diff run run --limit many": (4, "many"),
    "merge run -o run": (4, "is the folder of a shard"),
    "merge run": (4, "Missing option '-o'"),
    "merge damaged -o new": (4, "truncated or changed"),
    "merge run -o mine": (4, "files that no run wrote"),
    "merge run -o afile": (4, "expected a folder, found a file"),
    "crcr killed": (2, "--resume"),
    "crcr run -o empty": (4, "empty"),
    "crcr run --event nightly --pr 1": (4, "tests no pull request"),
    "crcr run --commit main": (4, "expected 7 to 40 hexadecimal digits"),
    "crcr run --baseline nosuch": (4, "not found"),
    "gate run --must-pass nosuch.toml": (4, "nosuch.toml: cannot be read"),
    "gate run --must-pass bad.toml": (4, "bad.toml"),
    "bundle run": (4, "Missing option '-o'"),
    "bundle nosuch -o new.zip": (4, "not found"),
    "bundle killed -o new.zip": (2, "--resume"),
    "bundle run -o empty": (4, "empty"),
    "bundle verify": (4, "Missing argument 'FILE'"),
    "bundle verify afile": (4, "no zip file"),
    "bundle verify /dev/zero": (4, "/dev/zero"),
    "bundle verify pipe": (4, "pipe"),
    "history add": (4, "Missing argument 'RUN…'"),
    "history add killed": (2, "--resume"),
    "history add damaged": (4, "truncated or changed"),
    "history add run --file empty": (4, "empty"),
    "history list": (4, "history.jsonl: cannot be read"),
    "history list --file afile": (4, "expected a run of a history"),
    "issue 1": (4, "Missing option '--run'"),
    "issue 1 --run killed": (2, "--resume"),
    "issue 99 --run run": (4, "run"),
    "issue add --run run": (4, "expected a cell such as"),
    "manifest import nosuch.txt run run": (4, "nosuch.txt: cannot be read"),
    "manifest import bad.toml": (4, "Missing argument 'RUN RUN2'"),
    "manifest quarantine layout.values::add[float32] --until soon --reason x --run run": (
        4,
        "--until 'soon' is not a date",
    ),
    "manifest quarantine layout.values::add[float32] --reason x": (4, "Missing option '--until'"),
    "diff run nosuch --errors": (4, "not found"),
    "dashboard -o site": (4, "Missing argument 'RUN"),
    "dashboard nosuch -o site": (4, "nosuch"),
    "dashboard run -o afile": (4, "afile"),
    "dashboard run -o site --jobs 0": (4, "--jobs"),
    # devices, the contract, manifests, examples
    "devices nosuch": (4, "there is no device 'nosuch'"),
    "contract --clauses laout.*": (4, "no clause matches 'laout.*'"),
    "contract --clauses ,": (4, "--clauses"),
    "contract --bugs nosuchbackend": (4, "nosuchbackend"),
    "contract --bugs x --clauses y": (4, "--clauses cannot be used with --bugs"),
    "manifest lint --manifest nosuch.toml": (4, "nosuch.toml does not exist"),
    "manifest lint --manifest bad.toml": (4, "bad.toml"),
    "manifest lint --manifest /dev/zero": (4, "found a device or a pipe"),
    "manifest lint --device nosuch": (4, "there is no device 'nosuch'"),
    "manifest update": (4, "Missing argument 'RUN...'"),
    "manifest update nosuch": (4, "not found"),
    "manifest update run --triage --reason x": (4, "--triage writes a draft of each reason"),
    "manifest update run --kind device-bug": (4, "--kind needs --reason or --triage"),
    "manifest update run --reason x --expires soon": (4, "is not a date"),
    "manifest update run --reason x --issue 12": (4, "is not a URL"),
    "manifest stats --device nosuch": (4, "there is no device 'nosuch'"),
    "minimise add": (4, "add"),
    "minimise layout.values::add[float32] --run damaged": (4, "truncated or changed"),
    "precision update nosuch": (4, "not found"),
    "precision update run": (4, "no passing cell of precision.ulp measured an error"),
    "precision table killed": (2, "--resume"),
    "init": (4, "Missing"),
    "init x --device-string cpu --workers 0": (4, "--workers"),
    "nosuch": (4, "No such command 'nosuch'"),
    "--nosuch": (4, "No such option"),
    "gates run": (4, "No such command 'gates'"),
}


#: Wrong uses that can only be found with torch.
WITH_TORCH: dict[str, tuple[int, str]] = {
    "run -n 0 --device npu": (4, "device 'npu' cannot be used here"),
    "run -n 0 --device cpu --ops addd": (4, "--ops 'addd' matches nothing in this plan; did you"),
    "run -n 0 --device cpu --ops neg --clauses layout.as_strided": (5, "nothing selected"),
    "manifest explain add": (4, "add"),
    "manifest explain layout.valeus::add[float32]": (4, "unknown clause 'layout.valeus'"),
    "manifest explain layout.values::add[float23]": (4, "unknown dtype 'float23'"),
    "minimise streams.query::nosuch": (4, "nosuch"),
    "pin nosuch": (4, "nosuch"),
    "pin run": (4, "run"),
}


@pytest.mark.parametrize("command", CASES)
def test_a_wrong_use_is_one_message_before_torch_is_imported(
    ask: Ask, folder: Path, command: str
) -> None:
    check(ask, folder, command, *CASES[command])


@pytest.mark.parametrize("command", WITH_TORCH)
def test_a_wrong_use_that_needs_torch_is_one_message(
    ask_with_torch: Ask, folder: Path, command: str
) -> None:
    check(ask_with_torch, folder, command, *WITH_TORCH[command])


def check(ask: Ask, folder: Path, command: str, code: int, says: str) -> None:
    before = snapshot(folder)
    got, text = ask(command.split(" "))
    lines = [line for line in text.splitlines() if line.strip()]
    # pytest and click put their usage above or below what is wrong.
    wrong = [
        line for line in lines if line.lower().startswith(("error: ", "pytest: error: ", "!!! _"))
    ]
    assert got == code and says in text, text
    assert "Traceback" not in text and "INTERNALERROR" not in text, text
    assert len(wrong) <= 2 and 1 <= len(lines) <= 5, text
    after = snapshot(folder)
    assert {name: after.get(name) for name in before} == before
    assert set(after) - set(before) == set()
