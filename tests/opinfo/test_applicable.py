"""What the planner keeps between runs: it is what it would find anew, and it is not taken where it is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.contract import load
from conformance.plan import applicable
from conformance.plan.applicable import ApplicableClauses, SubjectClauses, file_of
from conformance.plan.planner import make_plan
from conformance.plan.selection import Machine
from devices import registry
from opinfo.database import DATABASE, Database
from opinfo.plan import plan_spec
from opinfo.samples import Traits

SAMPLES = 2


def clauses(traits: Traits) -> Iterator[str]:
    yield f"for {traits.op}"
    if traits.has_out:
        yield "has out"


def asked(path: Path | None) -> ApplicableClauses:
    return ApplicableClauses(DATABASE, "cpu", SAMPLES, clauses, path)


@pytest.fixture
def no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Database, "samples", lambda self, op, dtype: pytest.fail(f"drew {op.id}"))


def test_an_op_is_asked_for_its_samples_and_clauses() -> None:
    found = asked(None).of("add", "float32")
    assert found == SubjectClauses("add", "float32", SAMPLES, True, ("for add", "has out"))


def test_what_is_kept_is_not_asked_again(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "of" / "this.json"
    first = asked(path)
    wanted = [first.of(op, "float32") for op in ("add", "nonzero")]
    first.save()
    request.getfixturevalue("no_draws")
    second = asked(path)
    assert second.ops == first.ops and len(second.ops) > 300
    assert [second.of(op, "float32") for op in ("add", "nonzero")] == wanted
    with pytest.raises(pytest.fail.Exception, match="drew sum"):
        second.of("sum", "float32")


@pytest.mark.parametrize(
    "text", ["", "{", '{"ops": [], "subjects": 7}', '{"ops": [], "subjects": {}}', "[]", "\x00"]
)
def test_a_damaged_file_is_asked_anew_and_mended(tmp_path: Path, text: str) -> None:
    path = tmp_path / "this.json"
    path.write_text(text)
    found = asked(path)
    wanted = found.of("add", "float32")
    found.save()
    again = asked(path)
    assert again.of("add", "float32") == wanted and len(again.ops) > 300
    assert path.read_text() != text


def test_a_folder_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = asked(tmp_path / "file" / "this.json")
    assert found.of("add", "float32").returns
    found.save()


def test_few_files_are_kept(tmp_path: Path) -> None:
    for number in range(2 * applicable._KEPT):
        found = asked(tmp_path / f"{number}.json")
        found.of("add", "float32")
        found.save()
    assert len(list(tmp_path.glob("*.json"))) == applicable._KEPT
    assert not list(tmp_path.glob(".writing-*"))


def test_the_file_is_of_one_state_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("2.13.0", "1", "a device", "0")
    files = [file_of(tmp_path, "cpu", 16, machine)]
    assert files[0] == file_of(tmp_path, "cpu", 16, Machine("2.13.0", "1", "a device", "0"))
    files.append(file_of(tmp_path, "cuda", 16, machine))
    files.append(file_of(tmp_path, "cpu", 8, machine))
    files.append(file_of(tmp_path, "cpu", 16, Machine("2.13.0", "2", "a device", "0")))
    monkeypatch.setenv("PYTORCH_TEST_WITH_SLOW", "1")
    files.append(file_of(tmp_path, "cpu", 16, machine))
    monkeypatch.setattr(applicable, "_version", lambda package: f"{package} of tomorrow")
    files.append(file_of(tmp_path, "cpu", 16, machine))
    monkeypatch.setattr(applicable, "_sources", lambda: "other sources")
    files.append(file_of(tmp_path, "cpu", 16, machine))
    assert len(set(files)) == len(files)


def test_a_change_in_the_sources_is_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("conformance", "opinfo", "devices"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(
        applicable, "__file__", str(tmp_path / "conformance" / "plan" / "planner.py")
    )
    states = {applicable._sources()}
    for name in ("conformance/a.py", "opinfo/exceptions.toml", "devices/b.py"):
        (tmp_path / name).write_text("1")
        states.add(applicable._sources())
        (tmp_path / name).write_text("2")
        states.add(applicable._sources())
    (tmp_path / "conformance" / "notes.txt").write_text("no source")
    assert applicable._sources() in states and len(states) == 7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpu", pytest.param("lazy", marks=pytest.mark.slow)])
def test_a_plan_from_what_is_kept_is_the_plan(name: str, tmp_path: Path) -> None:
    device, contract, spec = registry.get(name), load(), plan_spec("quick")
    anew = make_plan(spec, device, contract)
    first, second = (make_plan(spec, device, contract, tmp_path) for _ in range(2))
    for plan in (first, second):
        assert (plan.hash, plan.cells, plan.families) == (anew.hash, anew.cells, anew.families)
        assert plan.excluded == anew.excluded
    path = file_of(tmp_path, device.torch_type, spec.samples,
                   Machine.of(device.facts()))  # fmt: skip
    assert path.is_file()


@pytest.mark.slow
def test_a_plan_from_what_is_kept_does_not_load_the_database(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from conformance.contract import load;"
        "from conformance.plan.planner import make_plan; from devices import registry;"
        "from opinfo.plan import plan_spec;"
        "device = registry.get('cpu');"
        f"plan = make_plan(plan_spec('quick'), device, load(), Path({str(tmp_path)!r}));"
        "print(plan.hash, 'torch.testing._internal.common_methods_invocations' in sys.modules)"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [each[1] for each in said] == ["True", "False"] and said[0][0] == said[1][0]
