"""The measure of depth itself: it tells a mutant that is noticed from one that is not reached and from one that is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase
from devices.manifest import Manifest
from devices.verdicts import Matcher
from tests.mutation import __main__ as command
from tests.mutation import items, kernels, pool, reach, report, runtime, sources, unmet, unobserved
from tests.mutation.conditions import AXES
from tests.mutation.effects import GENERAL, OWN, conditioned, spoil
from tests.mutation.kernels import Mutant, Result
from tests.mutation.pool import Task, run
from tests.mutation.probe import observable
from tests.planting.calls import NOT_MET, Effect, KernelCall
from tests.planting.places import planted


def off_by_one(call: KernelCall) -> torch.Tensor:
    result: torch.Tensor = call.honest()
    spoil(result, "last", "off")
    return result


def exp(effect: Callable[[KernelCall], object]) -> Mutant:
    return Mutant("k0000", "exp", "any call", "last off", ("exp", "exp.out", "exp_"), effect)


def judged(mutant: Mutant) -> Result:
    return kernels.judged(mutant, lambda: mutant, Random(0))


def test_a_wrong_element_is_noticed_by_the_clause_of_values() -> None:
    found = judged(exp(off_by_one))
    assert (found.result, found.plan) == ("noticed", "quick") and "layout.values" in found.by


@pytest.fixture
def nothing_gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Treat every clause as if it did not gate."""
    monkeypatch.setenv(items.NOT_GATING, "*")
    items.not_gating.cache_clear()
    yield
    items.not_gating.cache_clear()


@pytest.mark.slow
def test_cells_that_do_not_gate_are_not_counted_as_noticed(nothing_gates: None) -> None:
    found = judged(exp(off_by_one))
    assert (found.result, found.by) == ("not_gated", []) and "layout.values" in found.not_gating
    assert report.score([found]) == 0.0


def test_a_provisional_clause_does_not_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contract.load()
    newest = msgspec.structs.replace(whole.clauses["nn.rnn"], provisional_since="0.2")
    clauses = {**whole.clauses, newest.id: newest}
    monkeypatch.setattr(contract, "load", lambda: contract.Contract(clauses, whole.families))
    items.not_gating.cache_clear()
    try:
        assert items.not_gating() == {"nn.rnn"}
    finally:
        items.not_gating.cache_clear()


def test_every_checked_clause_gates_today() -> None:
    assert items.not_gating() == frozenset()


def test_a_case_is_refused_only_if_the_manifest_does_not_expect_its_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails = BehaviourCase(
        "device.count", "made_up", lambda context: context.check(False, "made up")
    )
    assert items.is_refused(fails)
    block = (
        '[[expect]]\nclause = "device.count"\nop = "made_up"\noutcome = "fail"\n'
        'kind = "device-bug"\nreason = "made up"\n'
    )
    expecting = Matcher(Manifest.parse(block))
    monkeypatch.setattr(items, "matcher", lambda: expecting)
    assert not items.is_refused(fails)


def test_what_changes_nothing_is_equivalent() -> None:
    assert judged(exp(lambda call: call.honest())).result == "equivalent"


def test_a_warning_that_is_given_once_is_no_difference() -> None:
    """bucketize says once that its boundaries are not contiguous: in the honest call, which comes first."""
    overloads = ("bucketize.Tensor", "bucketize.Tensor_out")
    assert (
        observable(overloads, lambda call: call.honest(), "bucketize", ["float32"], Random(0)) == ""
    )


def moved_by_one(call: KernelCall) -> torch.Tensor:
    result: torch.Tensor = call.honest()
    result.copy_(result.cpu().roll(1))
    return result


def test_the_same_draws_in_other_places_are_equivalent() -> None:
    def tried(op: str, effect: Effect, *overloads: str) -> str:
        return observable(overloads, effect, op, ["float32"], Random(0))

    assert tried("geometric", moved_by_one, "geometric_") == ""
    assert "other values" in tried("geometric", off_by_one, "geometric_")
    # With a mean for each element.
    assert "other" in tried("normal", moved_by_one, "normal.Tensor_Tensor", "normal.Tensor_float")


def test_what_no_call_of_the_suite_meets_is_not_reached() -> None:
    # 70,001 is an extent of the probe's alone.
    far = conditioned(lambda call: 70_001 in call.operands[0].tensor.shape, off_by_one)
    found = judged(exp(far))
    assert (found.result, found.reached) == ("not_reached", 0) and "other values" in found.note


def test_what_is_met_and_changes_only_what_no_clause_looks_at_survives() -> None:
    """In the suite's calls it does what it should; the probe's, of which there are no others, it spoils."""

    def effect(call: KernelCall) -> object:
        return off_by_one(call) if 70_001 in call.operands[0].tensor.shape else call.honest()

    found = judged(exp(effect))
    assert found.result == "survived" and found.reached > 0


def test_the_reference_never_sees_a_mutant() -> None:
    there = torch.ones(3, device="simulated")
    with planted(["exp"], off_by_one) as mutant:
        here = torch.exp(torch.ones(3))
        assert torch.exp(there).cpu()[-1] != here[-1] and here[0] == here[-1]
    assert mutant.reached == 1
    assert torch.equal(torch.exp(there).cpu(), here)


def test_an_honest_override_gives_what_the_kernel_gives() -> None:
    """Python scalars arrive as such, and promote as such."""
    x = torch.arange(4, dtype=torch.float16, device="simulated")
    want = torch.add(x, 2.5, alpha=2)
    with planted(["add.Tensor", "add_.Tensor"], lambda call: NOT_MET):
        got = torch.add(x, 2.5, alpha=2)
        x.add_(1)
    assert got.dtype == want.dtype and torch.equal(got, want) and x._version == 1


def test_the_same_seed_breeds_the_same_mutants() -> None:
    ops = kernels.ops_of(3, 12, None)
    assert ops == kernels.ops_of(3, 12, None) != kernels.ops_of(4, 12, None)
    bred = [[kernels.breed(3, n, op) for n, op in enumerate(ops[:4])] for _ in range(2)]
    one, two = ([(m.id, m.axis, m.kind) for m in each if m is not None] for each in bred)
    assert one == two and one


def test_every_op_comes_before_any_comes_again() -> None:
    count = len(set(kernels.ops_of(0, 5000, None)))
    assert len(set(kernels.ops_of(0, count, None))) == count > 600


def test_there_are_enough_axes_and_kinds() -> None:
    assert len({*AXES, *OWN}) >= 25 and len(GENERAL) >= 6


# -- processes


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What tries mutants in the place of the real worker: it dies of the second."""
    script = tmp_path / "stub.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    task = json.loads(line)\n"
        "    print(json.dumps({'id': f\"k{task['number']:04d}\", 'family': 'f', 'op': task['name'],"
        " 'axis': 'rank', 'kind': 'raises', 'result': ''}), flush=True)\n"
        "    if task['number'] == 1: sys.exit(3)\n"
        "    print(json.dumps({'id': f\"k{task['number']:04d}\", 'family': 'f', 'op': task['name'],"
        " 'axis': 'rank', 'kind': 'raises', 'result': 'survived'}), flush=True)\n"
    )
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, str(script)))
    return tmp_path


TASKS = [Task("kernel", 5, number, op) for number, op in enumerate(("abs", "exp", "neg"))]


def test_a_mutant_that_ends_its_process_is_noticed_and_costs_only_itself(stub: Path) -> None:
    found = run(TASKS, 1, None)
    assert [each.result for each in found] == ["survived", "noticed", "survived"]
    assert found[1].by == ["the process ended"] and found[1].axis == "rank"


def test_a_mutant_that_ends_a_case_that_does_not_gate_leaves_the_gate_green(
    stub: Path, nothing_gates: None
) -> None:
    script = stub / "stub.py"
    script.write_text(
        script.read_text().replace("'result': ''", "'result': '', 'trying': 'nn.rnn'")
    )
    ended = run(TASKS, 1, None)[1]
    assert (ended.result, ended.by, ended.not_gating) == ("not_gated", [], ["nn.rnn"])
    assert ended.note == "the process ended"


def test_a_mutant_that_ends_its_process_in_the_probe_was_noticed_by_no_cell(stub: Path) -> None:
    script = stub / "stub.py"
    script.write_text(
        script.read_text().replace(
            "'result': ''", "'result': '', 'reached': 1, 'trying': 'the probe'"
        )
    )
    ended = run(TASKS, 1, None)[1]
    assert (ended.result, ended.by) == ("survived", [])
    assert ended.note == "the process ended in the probe"


def test_a_worker_is_given_more_time_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.os, "cpu_count", lambda: 2)
    for load, seconds in ((0.5, 300.0), (2.0, 300.0), (20.0, 3000.0)):
        monkeypatch.setattr(pool.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert pool.patience() == seconds


def test_what_an_earlier_run_did_is_not_done_again(stub: Path) -> None:
    path, said = stub / "kept.jsonl", list[Result]()
    first = run(TASKS[:2], 1, path)
    with path.open("ab") as file:
        file.write(b'[{"sort": "kern')  # the run was killed
    again = run(TASKS, 1, path, said.append)
    assert again[:2] == first and [each.id for each in said] == ["k0002"]


def test_the_command_writes_json_and_fails_below_its_threshold(
    stub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "kernel_tasks", lambda *args: TASKS)
    path = stub / "out.json"
    status = command.main(
        ["--family", "kernels", "--seed", "5", "--json", str(path), "-n", "1", "--at-least", "34"]
    )
    data = json.loads(path.read_bytes())
    assert status == 1 and "Score 33.3 %" in capsys.readouterr().out
    assert data["seed"] == 5 and len(data["mutants"]) == 3
    assert set(data["mutants"][0]) >= {"id", "family", "op", "axis", "kind", "result", "by"}


def test_the_report_says_both_numbers_where_they_differ() -> None:
    def made(result: str, by: tuple[str, ...] = (), others: tuple[str, ...] = ()) -> Result:
        found = Result("k0000", "f", "abs", "rank", "raises", result)
        found.by, found.not_gating = [*by], [*others]
        return found

    seen = made("noticed", by=("layout.values",))
    assert "only cells red" not in "\n".join(report.lines([seen]))
    text = "\n".join(report.lines([seen, made("not_gated", others=("nn.rnn",))]))
    assert "1 noticed by the gate" in text and "Score 50.0 %" in text
    assert "cells noticed 2, the gate 1." in text
    assert "| clause that does not gate | turned red |\n|---|---:|\n| `nn.rnn` | 1 |" in text


def test_equivalent_mutants_are_not_part_of_the_score() -> None:
    def made(result: str) -> Result:
        return Result("k0000", "f", "abs", "rank", "raises", result)

    assert report.score([made("noticed"), made("equivalent"), made("survived")]) == 50.0


# -- mutants of the runtime


def test_conditions_statements_and_answers_are_mutated_and_planted_faults_are_not() -> None:
    kinds = {kind for line in LINES for kind, _, _ in sources.ways(line)}
    assert {
        "condition true",
        "condition false",
        "< is <=",
        "call left out",
        "answer turned around",
    } <= kinds
    assert not list(sources.ways("  if (on(Fault::allocator_never_reuse)) {"))
    assert not list(sources.ways("  const size_t size = block_size(bytes);"))


LINES = [
    "  if (size < kLargeRequest) {",
    "  put_back_locked(block);",
    "  return mark == nullptr || mark->done();",
]


def test_several_mutations_of_one_line_are_nested() -> None:
    line = LINES[0]
    made = [
        sources.Site(n, "allocator.cpp", 1, kind, axis, line.strip(), becomes)
        for n, (kind, axis, becomes) in enumerate(sources.ways(line))
    ]
    text = sources._together(line, made)
    assert len(made) == 3 and all(f"({n}" in text for n in range(3))
    assert text.count("size < kLargeRequest") >= 1 and text.endswith(") {")


def test_what_reaches_no_mutation_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "reach.json"
    table.write_text('{"streams.wait::many_wait": [3]}')
    monkeypatch.setenv(reach.TABLE, str(table))
    reach.table.cache_clear()
    try:
        assert reach.reaches("streams.wait::many_wait", 3)
        assert not reach.reaches("streams.wait::many_wait", 4)
        assert reach.reaches("streams.wait::new", 4)  # of a case that the table does not know
    finally:
        reach.table.cache_clear()


def test_every_family_of_the_runtime_has_mutations() -> None:
    found = {site.family for site in sources.sites()}
    assert found >= {"allocator", "streams", "events", "graphs", "transfer", "random", "device"}
    chosen = runtime.sample_of(1, 40, None, sources.sites())
    assert chosen == runtime.sample_of(1, 40, None, sources.sites())
    assert {site.family for site in chosen} == found


SITE = sources.Site(7, "pinned.cpp", 58, "condition false", "conditions", "if (a) {", "")


@pytest.mark.parametrize(
    ("kind", "text", "differs"),
    [
        ("condition true", "if (!on(Fault::a_b)) {", False),
        ("condition true", "if (!on(Fault::a_b) || here) {", False),
        ("condition true", "if (!on(Fault::a_b) && here) {", True),
        ("condition false", "if (here && on(Fault::a_b) && there) {", False),
        ("condition false", "if (here || on(Fault::a_b)) {", True),
        ("condition false", "if (here && !on(Fault::a_b)) {", True),
        ("&& is ||", "if (here && on(Fault::a_b)) {", True),
    ],
)
def test_a_condition_that_only_a_planted_fault_changes_is_not_drawn(
    kind: str, text: str, differs: bool
) -> None:
    site = sources.Site(1, "copy.cpp", 1, kind, "conditions", text, "")
    assert runtime.can_differ(site) == differs


def test_a_cell_that_is_red_without_a_mutant_does_not_hide_the_cells_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first cell is always red. The second is red with the mutant only."""
    cells = {"streams.wait::unsteady": (True, True), "allocator.host::peaks": (True, False)}

    def refused(
        site: object,
        say: object,
        reached: object,
        only: str = "",
        skipped: frozenset[str] = frozenset(),
    ) -> Iterator[str]:
        for name, (mutated, clean) in cells.items():
            if name not in skipped and (not only or name == only):
                yield from [name] * (clean if only else mutated)

    def in_a_fork(
        site: object, work: Callable[[Callable[[], None]], str], on: object
    ) -> tuple[str, int]:
        return work(lambda: None), 1

    monkeypatch.setattr(runtime, "_refused", refused)
    monkeypatch.setattr(runtime, "_in_a_fork", in_a_fork)
    found = runtime.result_of(SITE, 0)
    assert runtime._is_noticed(SITE, found, lambda: None, lambda name, site: True)
    assert (found.by, found.unsteady) == (["allocator.host"], ["streams.wait::unsteady"])


def test_only_the_mutants_of_the_named_lines_are_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "reach.json"
    table.write_text("{}")
    monkeypatch.setenv(reach.TABLE, str(table))
    sites = sources.sites()
    monkeypatch.setattr(sources, "prepared", lambda: (tmp_path, sites))
    site = next(each for each in sites if (each.file, each.kind) == ("pinned.cpp", "call left out"))
    tasks, environment = command.runtime_tasks(1, 1, None, {runtime.name_of(site)})
    wanted = {
        str(each.number) for each in sites if (each.file, each.line) == (site.file, site.line)
    }
    assert {task.name for task in tasks} == wanted
    assert environment[reach.TABLE] == str(table)


def test_a_line_without_mutants_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "pinned.cpp:1"])
    assert "pinned.cpp:1 has no mutant; --list prints all of them" in capsys.readouterr().err


def test_every_line_that_is_left_out_is_there_and_would_be_mutated() -> None:
    for entry in unobserved.UNOBSERVED:
        lines = (sources.build.SOURCES / entry.file).read_text(encoding="utf-8").splitlines()
        found = [number for number, by in unobserved.unobserved(entry.file, lines) if by is entry]
        assert any(list(sources.ways(lines[number - 1])) for number in found), entry
        left = {(site.file, site.line) for site in sources.sites()}
        assert not left & {(entry.file, number) for number in found}


def test_conditions_that_no_call_of_the_suite_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_extent(extent: int) -> Any:
        return lambda facts, rng: (
            f"an extent of {extent}",
            lambda call: any(extent in each.tensor.shape for each in call.operands),
        )

    # 7 is one of the suite's, 300 one of the probe's, and 11,111 nobody's.
    axes = {str(extent): of_extent(extent) for extent in (7, 300, 11_111)}
    monkeypatch.setattr(unmet, "AXES", axes)
    assert {each.axis for each in unmet.unprobed("neg")} == {"300", "11111"}
    (found,) = unmet.unmet("neg")
    assert (found.op, found.axis, found.condition) == ("neg", "300", "an extent of 300")
    assert found.kernel.startswith("neg") and "(300, 300)" in found.call
