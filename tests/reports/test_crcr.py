"""What the Cross-Repository CI Relay is given of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.cli import conform
from devices import torch_version
from devices.cell import CellKey, Verdict
from reports.causes import causes_of
from reports.crcr import DETAIL_LIMIT, LIMIT, counts, details, inputs, payload, text_of
from reports.gate import gate
from reports.model import CellResult, Run
from reports.run import write_run
from reports.triage import Job, triage
from tests.plugin.running import run_conform
from tests.reports.builders import ADD, CELLS, CONV, PROVENANCE, failed, plan_document, results
from tests.reports.relay_rules import callback


def a_run(*made: CellResult, cells: tuple[CellKey, ...] = CELLS) -> Run:
    return Run(Path("out"), plan_document(cells), PROVENANCE, results(*made, cells=cells))


def test_the_counts_are_those_of_the_junit_files() -> None:
    run = a_run(failed(CONV), failed(ADD, Verdict.EXPECTED))
    assert counts(run) == {"passed": 3, "failed": 1, "skipped": 1}


def test_a_cell_without_an_outcome_has_failed() -> None:
    run = a_run()
    run.results.pop(ADD)
    assert counts(run) == {"passed": 4, "failed": 1}


def test_the_environment_is_told_without_host_and_uuid() -> None:
    run = a_run()
    found = payload(gate(run))
    environment = found.conformance.environment
    assert environment["torch"] == PROVENANCE.torch and environment["device"] == "cpu"
    assert "builder7" not in text_of(found) and "GPU-1234" not in text_of(found)


def test_it_concludes_as_the_gate_does() -> None:
    green, red = a_run(), a_run(failed(CONV))
    assert payload(gate(green)).conclusion == "success"
    found = payload(gate(red))
    assert found.conclusion == "failure" and found.conformance.exit_code == 1
    (new,) = found.conformance.new
    assert new.cell == str(CONV) and new.message.startswith("AssertionError: values differ")


def test_it_stays_small_however_much_fails() -> None:
    cells = tuple(CellKey("layout.values", f"op{n}", "float32") for n in range(20_000))
    message = 'a "quoted" message \N{SNOWMAN} ' * 40
    run = a_run(*(failed(cell, message=message) for cell in cells), cells=cells)
    found = payload(gate(run))
    text = text_of(found)
    assert LIMIT * 0.95 < len(text) <= LIMIT and text.isascii()
    ours = json.loads(text)["conformance"]
    assert len(ours["new"]) + ours["new_left_out"] == len(cells) and len(ours["new"]) > 50


def test_only_the_cells_of_a_shard_count() -> None:
    shard = Run(
        Path("out"),
        plan_document(selected=(ADD, CONV), partial=False),
        replace(PROVENANCE, shard="1/2"),
        results(failed(CONV), cells=(ADD, CONV)),
    )
    assert counts(shard) == {"passed": 1, "failed": 1}
    assert [one.name for one in details(shard)] == [CONV.name]


def test_a_failing_cell_is_described_as_in_the_junit_files() -> None:
    (one,) = details(a_run(failed(CONV)))
    assert (one.name, one.classname, one.duration) == (CONV.name, CONV.clause, 0.25)
    assert one.message == "AssertionError: values differ"
    assert "at (0, 1)" in one.stacktrace and "python repro/0001.py" in one.stacktrace


def many(count: int) -> Run:
    """A run in which many cells fail, for two causes, with long messages."""
    cells = tuple(CellKey("layout.values", f"op{n}", "float32") for n in range(count))
    made = [failed(c, message=f'a "quoted" \N{SNOWMAN} {"x" * 200}\nline 2') for c in cells]
    other = failed(cells[-1], raises="RuntimeError", failure=None, said="broken", note="broken")
    return a_run(*made[:-1], other, cells=cells)


def test_of_1500_failures_1000_are_described_and_every_cause_in_full() -> None:
    run = many(1500)
    made = inputs(gate(run), triage(gate(run), Job()))
    sent = callback(made.by_name())
    told = sent["failed_tests_detail"]
    assert len(told) == 1000 and len({one["name"] for one in told}) == 1000
    causes = causes_of(run, run.results.values())
    examples = [cause.example.key.name for cause in causes]
    assert [one["name"] for one in told[: len(causes)]] == examples and len(causes) == 2
    assert all(one["stacktrace"] for one in told[:2])
    assert len(made.details) > DETAIL_LIMIT * 0.95
    assert sent["test_results"]["failed"] == 1500


def test_a_green_run_sends_its_counts_alone() -> None:
    judged = gate(a_run())
    made = inputs(judged, triage(judged, Job()))
    sent = callback(made.by_name())
    assert sent["conclusion"] == "success" and sent["test_results"]["passed"] == 5
    assert not {"failed_tests_detail", "triage_verdict"} & set(sent)


def test_cells_without_an_outcome_come_last() -> None:
    run = a_run(failed(CONV))
    run.results.pop(ADD)
    sent = callback(inputs(gate(run), triage(gate(run), Job())).by_name())
    assert sent["triage_verdict"]["category"] == "infra" and sent["test_results"]["failed"] == 2
    first, last = details(run)
    assert first.name == CONV.name
    assert (last.name, last.message) == (ADD.name, "the run has no outcome for this cell")


# -- the command

EVENT = {
    "action": "pull_request",
    "client_payload": {
        "event_type": "pull_request",
        "delivery_id": "1",
        "payload": {"pull_request": {"number": 194610, "head": {"sha": "0e797b5a6acf" + "0" * 28}}},
    },
}
GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "foo/torch_foo",
    "GITHUB_RUN_ID": "77",
    "GITHUB_JOB": "conformance",
}


def outputs(path: Path) -> dict[str, str]:
    """What a step wrote to $GITHUB_OUTPUT."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


Ask = Callable[..., tuple[int, str, dict[str, str]]]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs ``conform crcr`` as in a job of GitHub Actions, which the relay has started."""
    event, into = tmp_path / "event.json", tmp_path / "outputs"
    event.write_text(json.dumps(EVENT), encoding="utf-8")
    for name, value in GITHUB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    monkeypatch.setenv("GITHUB_OUTPUT", str(into))
    monkeypatch.setenv("GITHUB_EVENT_NAME", "repository_dispatch")

    def asked(*arguments: str) -> tuple[int, str, dict[str, str]]:
        into.unlink(missing_ok=True)
        monkeypatch.chdir(tmp_path)
        ran = CliRunner().invoke(conform, ["crcr", *arguments])
        return ran.exit_code, ran.output, outputs(into) if into.exists() else {}

    return asked


def test_the_command_prints_the_counts_and_tells_github_everything(
    tmp_path: Path, ask: Ask
) -> None:
    write_run(tmp_path / "run", plan_document(), results(failed(CONV)), replace(PROVENANCE))
    code, text, given = ask("run")
    assert code == 0 and json.loads(text)["failed"] == 1
    assert given["test-results"] == text.strip() and given["conclusion"] == "failure"
    sent = callback(given)
    assert sent["artifact_url"] == "https://github.com/foo/torch_foo/actions/runs/77#artifacts"
    (item,) = sent["triage_verdict"]["evidence"]
    assert item["job"] == "conformance" and item["test"] == str(CONV)
    assert len(sent["failed_tests_detail"]) == 1


def test_the_pull_request_of_the_event_is_suspected(tmp_path: Path, ask: Ask) -> None:
    facts = {"backend": "2.5.0"}
    document = plan_document(facts=facts)
    write_run(tmp_path / "before", document, results(), replace(PROVENANCE))
    write_run(tmp_path / "run", document, results(failed(CONV)), replace(PROVENANCE))
    code, _, given = ask("run", "--baseline", "before", "--retry", "run")
    verdict = callback(given)["triage_verdict"]
    assert code == 0 and (verdict["category"], verdict["confidence"]) == ("upstream", "high")
    assert verdict["suspected_upstream"]["pr"] == 194610


def test_a_nightly_run_names_the_commit_that_it_tests(tmp_path: Path, ask: Ask) -> None:
    write_run(tmp_path / "run", plan_document(), results(failed(CONV)), replace(PROVENANCE))
    _, _, given = ask("run", "--event", "nightly", "--commit", "a" * 40)
    assert (given["event-type"], given["delivery-id"]) == ("nightly", "a" * 40)
    callback(given)


def test_a_nightly_run_finds_the_commit_of_the_installed_torch(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", plan_document(), results(), replace(PROVENANCE))
    monkeypatch.setattr(torch_version, "commit", lambda: "b" * 40)
    assert ask("run", "--event", "periodic")[2]["delivery-id"] == "b" * 40
    monkeypatch.setattr(torch_version, "commit", lambda: None)
    code, text, given = ask("run", "--event", "periodic")
    assert code != 0 and "give --commit SHA" in text and given == {}


def test_the_commit_of_the_installed_torch_is_read_without_importing_it() -> None:
    assert re.fullmatch("[0-9a-f]{40}", torch_version.commit() or "")


def test_a_run_without_an_end_is_reported_as_interrupted(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "killed").mkdir()
    line = '{"type": "begun", "planned": 15340}\n'
    (tmp_path / "killed" / ".progress.jsonl").write_text(line, encoding="utf-8")
    _, _text, given = ask("killed")
    sent = callback(given)
    assert sent["conclusion"] == "failure" and "test_results" not in sent
    assert sent["triage_verdict"]["category"] == "infra"
    assert "0 of 15,340 cells" in sent["triage_verdict"]["summary"]


def test_a_shard_is_judged_by_its_own_cells(tmp_path: Path, ask: Ask) -> None:
    document = plan_document(selected=(ADD, CONV), partial=False)
    origin = replace(PROVENANCE, shard="1/2")
    write_run(tmp_path / "run", document, results(cells=(ADD, CONV)), origin)
    sent = callback(ask("run")[2])
    assert sent["conclusion"] == "success" and sent["test_results"]["total"] == 2


def test_all_inputs_can_be_printed_for_other_ci_systems(tmp_path: Path, ask: Ask) -> None:
    write_run(tmp_path / "run", plan_document(), results(failed(CONV)), replace(PROVENANCE))
    _, text, given = ask("run", "--inputs")
    printed = json.loads(text)
    assert {name for name, value in printed.items() if value} == set(given)
    callback(printed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--commit", "main"], "expected 7 to 40 hexadecimal digits"),
        (["--event", "hourly"], "hourly"),
        (["--event", "nightly", "--pr", "3"], "tests no pull request"),
        (["--artifact-url", "javascript:alert(1)"], "expected an address"),
        (["--artifact-url", "https://github.com@evil.example/"], "expected an address"),
    ],
)
def test_a_wrong_option_is_one_message(
    tmp_path: Path, ask: Ask, options: list[str], says: str
) -> None:
    write_run(tmp_path / "run", plan_document(), results(failed(CONV)), replace(PROVENANCE))
    ran = ask("run", *options)
    assert ran[0] == 4 and says in ran[1] and "Traceback" not in ran[1] and ran[2] == {}


@pytest.mark.parametrize("option", ["--baseline", "--retry"])
def test_a_run_to_compare_with_that_cannot_be_read_costs_the_verdict_alone(
    tmp_path: Path, ask: Ask, option: str
) -> None:
    write_run(tmp_path / "run", plan_document(), results(failed(CONV)), replace(PROVENANCE))
    code, text, given = ask("run", option, "nosuch")
    assert code == 4 and "nosuch" in text
    sent = callback(given)
    assert sent["test_results"]["failed"] == 1 and "triage_verdict" not in sent


@pytest.mark.parametrize("text", ["{", "[]", '{"client_payload": {"payload": 3}}'])
def test_an_event_that_the_relay_did_not_write_is_one_message(
    tmp_path: Path, ask: Ask, text: str
) -> None:
    write_run(tmp_path / "run", plan_document(), results(failed(CONV)), replace(PROVENANCE))
    (tmp_path / "event.json").write_text(text, encoding="utf-8")
    code, said, given = ask("run")
    assert code == 4 and "expected an event of the relay" in said and given == {}


def test_a_run_that_cannot_be_read_exits_4(tmp_path: Path, cache: Path) -> None:
    ran = run_conform("crcr", str(tmp_path), cache=cache)
    assert ran.code == 4 and ran.text.startswith("error: ")
