"""The contract's data: complete, well formed, and told clearly where it is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import contract
from conformance.contract import Contract, Status, page
from conformance.contract.page import markdown
from conformance.version import VERSION
from devices.cell import Outcome
from devices.descriptor import CAPABILITIES
from devices.errors import ConformError
from devices.simulated.backend import fault_switches, library
from devices.simulated.faults import ENVIRONMENT, FAULTS
from reports.run import load_run
from tests.wrapped import faults as wrapped_faults

ROOT = Path(__file__).resolve().parents[1]

EXPECTED = [
    "layout.values",
    "layout.output_strides",
    "layout.output_fresh",
    "layout.inputs_intact",
    "layout.bounds",
    "layout.out_kept",
    "layout.out_resize",
    "layout.inplace",
    "layout.variants",
    "layout.views",
    "layout.overlap_raises",
    "layout.expanded_read",
    "layout.as_strided",
    "layout.memory_format",
    "layout.type_promotion",
    "layout.special_values",
    "layout.beta_zero",
    "layout.empty_reduce",
    "layout.fp32_precision",
    "layout.grad",
    "layout.large",
    "layout.determinism",
    "transfer.strides",
    "transfer.snapshot",
    "transfer.view_destination",
    "transfer.non_blocking",
    "transfer.pinned",
    "transfer.scalars",
    "transfer.storage_resize",
    "transfer.serialization",
    "transfer.dlpack",
    "transfer.numpy_refused",
    "allocator.accounting",
    "allocator.ordering",
    "allocator.peaks",
    "allocator.disjoint",
    "allocator.contents",
    "allocator.reuse",
    "allocator.empty_cache",
    "allocator.memory_info",
    "allocator.oom",
    "allocator.error_leak",
    "allocator.record_stream",
    "allocator.cross_stream",
    "allocator.device_isolation",
    "allocator.fraction",
    "allocator.settings",
    "allocator.pools",
    "allocator.history",
    "allocator.pluggable",
    "allocator.threads",
    "allocator.host",
    "allocator.steady",
    "allocator.pending",
    "streams.current",
    "streams.identity",
    "streams.in_order",
    "streams.concurrent",
    "streams.wait",
    "streams.query",
    "streams.synchronize",
    "streams.cross_device",
    "streams.priority",
    "streams.native_handle",
    "streams.external",
    "streams.threads",
    "streams.autograd",
    "events.record",
    "events.elapsed",
    "events.identity",
    "events.ipc",
    "graphs.capture_defers",
    "graphs.replay_equals_eager",
    "graphs.every_op",
    "graphs.addresses",
    "graphs.pool",
    "graphs.errors",
    "graphs.recovery",
    "graphs.modes",
    "graphs.fork_join",
    "graphs.random",
    "graphs.lifecycle",
    "graphs.nesting",
    "graphs.devices",
    "graphs.callables",
    "device.count",
    "device.capability",
    "device.properties",
    "device.peers",
    "device.placement",
    "device.fork",
    "device.lazy_init",
    "device.autoload",
    "device.clean_exit",
    "device.async_error",
    "dispatch.no_silent_fallback",
    "dispatch.cross_device",
    "dispatch.error_inputs",
    "dispatch.unsupported",
    "dispatch.device_assert",
    "dispatch.index_range",
    "dispatch.refusals",
    "random.reproducible",
    "random.global_seed",
    "random.distribution",
    "precision.ulp",
    "precision.exact_sums",
    "precision.trust",
    "precision.budget",
    "precision.conversions",
    "precision.sparse_and_quantized",
    "precision.gradients",
    "autograd.first",
    "autograd.second",
    "autograd.forward_ad",
    "autograd.saved",
    "autograd.saved_strides",
    "autograd.version_counter",
    "autograd.threads",
    "autograd.function",
    "autocast.lists",
    "autocast.grad_scaler",
    "optim.foreach",
    "optim.steps",
    "optim.train",
    "nn.modules",
    "nn.rnn",
    "nn.attention",
    "compile.meta_agrees",
    "compile.stride_tags",
    "compile.eager_equals_compiled",
    "compile.programs",
    "compile.device_interface",
    "compile.autograd",
    "compile.nested",
    "compile.export",
    "profiler.activity",
    "distributed.backend",
    "distributed.collectives",
    "distributed.order",
    "distributed.ddp",
    "distributed.sharded",
    "distributed.sharing",
]

LEVEL_OF_FAMILY = {
    **dict.fromkeys(("layout", "transfer", "device", "dispatch"), 1),
    **dict.fromkeys(("allocator", "streams", "events"), 2),
    "graphs": 3,
    **dict.fromkeys(("autograd", "autocast", "optim", "nn"), 5),
}

#: Clauses of training in other families.
TRAINING = {
    "layout.grad",
    "allocator.steady",
    "allocator.pending",
    "dispatch.index_range",
    "dispatch.refusals",
    "distributed.ddp",
    "distributed.sharded",
}

GOOD = """\
[family]
title = "a title"

[[clause]]
id = "layout.values"
level = 1
unit = "op"
status = "checked"
requires = ["strides"]
since = "0.1"
statement = "It holds."
source = "a header"
simulated_faults = ["values.ignore_strides"]
"""


@pytest.fixture(scope="module")
def loaded() -> Contract:
    return contract.load()


def read(folder: Path, text: str) -> Contract:
    (folder / "layout.toml").write_text(text, encoding="utf-8")
    return contract.read_contract(folder, ("layout",))


# The shipped data


def test_every_clause_is_there_and_no_other(loaded: Contract) -> None:
    assert list(loaded.clauses) == EXPECTED


def test_families_come_in_order(loaded: Contract) -> None:
    assert tuple(loaded.families) == contract.FAMILIES


def test_no_field_is_empty(loaded: Contract) -> None:
    for clause in loaded.clauses.values():
        assert all((clause.statement, clause.source, clause.since)), clause.id
        assert clause.faults or clause.status is Status.PLANNED, clause.id


def test_statements_are_sentences(loaded: Contract) -> None:
    clauses = loaded.clauses.values()
    assert [clause.id for clause in clauses if not clause.statement.endswith(".")] == []


def test_required_capabilities_are_known(loaded: Contract) -> None:
    for clause in loaded.clauses.values():
        assert set(clause.requires) <= set(CAPABILITIES), clause.id


def test_no_clause_is_provisional_for_longer_than_one_minor_version(loaded: Contract) -> None:
    assert contract.misdated(loaded.clauses.values(), VERSION) == []


@pytest.mark.parametrize(
    ("since", "version", "says"),
    [
        ("0.2", "0.3.0", "remove 'provisional_since'"),
        ("0.2", "1.0.0", "remove 'provisional_since'"),
        ("1.9", "2.0.1", "remove 'provisional_since'"),
        ("0.10", "0.11.2", "remove 'provisional_since'"),
        ("0.4", "0.2.0", "the minor version of 0.2.0 or the next one, got 0.4"),
        ("9.9", "0.2.0", "the minor version of 0.2.0 or the next one, got 9.9"),
        ("0.2", "0.2.7", ""),
        ("0.3", "0.2.0", ""),
        ("1.0", "0.9.0", ""),
    ],
)
def test_a_clause_that_outlives_its_minor_version_is_found(
    tmp_path: Path, since: str, version: str, says: str
) -> None:
    made_up = read(
        tmp_path, GOOD.replace('since = "0.1"', f'since = "0.1"\nprovisional_since = "{since}"')
    )
    found = contract.misdated(made_up.clauses.values(), version)
    assert len(found) == bool(says) and says in "".join(found)
    assert all("clauses/layout.toml: layout.values" in each for each in found)


def test_a_provisional_clause_is_marked(tmp_path: Path) -> None:
    text = GOOD.replace('since = "0.1"', 'since = "0.1"\nprovisional_since = "0.2"')
    made_up = read(tmp_path, text)
    assert made_up.snapshot()["clauses"][0]["provisional"] is True
    text = markdown(made_up)
    assert "checked (provisional)" in text and "Provisional now: `layout.values`." in text
    assert "No clause is provisional now." in markdown(read(tmp_path, GOOD))


# The planted faults that the page shows


def shown(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """The faults of each clause in the table of planted faults: the simulated device's, and the wrapped device's."""
    table = text.partition("## Planted faults")[2].partition("## Public bugs")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| [`")]
    names = [[set(re.findall(r"`([^`]+)`", cell)) for cell in row] for row in rows]
    return {row[0].split("`")[1]: (sets[1], sets[2]) for row, sets in zip(rows, names)}


def test_every_fault_on_the_page_can_be_switched_on(
    loaded: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = shown(markdown(loaded))
    assert list(rows) == EXPECTED
    assert {name for row in rows.values() for names in row for name in names} == {
        name for clause in loaded.clauses.values() for name in clause.faults
    }
    simulated = {name for row in rows.values() for name in row[0]}
    wrapped = {name for row in rows.values() for name in row[1]}
    # One at a time, as some faults replace the same kernel. The blocks switch them off again.
    for name in sorted(simulated):
        monkeypatch.setenv(contract.SIMULATED, name)
        with fault_switches.planted():
            fault_switches.switch_on_from_environment()
            assert library.faults_that_are_on() == [name]
    for name in sorted(wrapped):
        monkeypatch.setenv(contract.WRAPPED, name)
        with wrapped_faults.planted():
            wrapped_faults.plant_from_environment()


def test_every_fault_on_the_page_breaks_the_clause_that_names_it(loaded: Contract) -> None:
    for clause, (simulated, wrapped) in shown(markdown(loaded)).items():
        assert all(clause in FAULTS[name].clauses for name in simulated), clause
        assert all(clause in wrapped_faults.REGISTRY[name].clauses for name in wrapped), clause


def test_clauses_name_the_faults_of_the_simulated_device_that_name_them(loaded: Contract) -> None:
    for clause in loaded.clauses.values():
        declared = tuple(name for name, fault in FAULTS.items() if clause.id in fault.clauses)
        assert clause.simulated_faults == declared, clause.id
        assert not set(declared) & set(clause.wrapped_faults), clause.id


def test_the_contract_names_the_variable_that_the_simulated_device_reads() -> None:
    assert contract.SIMULATED == ENVIRONMENT


def test_faults_name_clauses_of_the_contract(loaded: Contract) -> None:
    assert {name for fault in FAULTS.values() for name in fault.clauses} <= loaded.clauses.keys()


@pytest.mark.slow
@pytest.mark.parametrize("command", [page._SIMULATED_COMMAND, page._WRAPPED_COMMAND])
def test_the_command_on_the_page_switches_a_fault_on(command: str, tmp_path: Path) -> None:
    assert f"\n{command}\n" in markdown(contract.load())
    variable, _, rest = command.partition(" ")
    name, _, fault = variable.partition("=")
    done = subprocess.run(
        [sys.executable, "-m", *rest.split(), "-n", "0", "--minimise", "0", f"--results={tmp_path / 'run'}"],
        cwd=ROOT, env={**os.environ, name: fault}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    results = load_run(tmp_path / "run").results.values()
    assert [result.outcome for result in results] == [Outcome.FAIL]


def test_levels_follow_the_families(loaded: Contract) -> None:
    for clause in loaded.clauses.values():
        level = 5 if clause.id in TRAINING else LEVEL_OF_FAMILY.get(clause.family, 4)
        assert clause.level == level, clause.id


def test_snapshot_survives_json(loaded: Contract) -> None:
    snapshot = loaded.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert [clause["id"] for clause in snapshot["clauses"]] == EXPECTED


def test_the_snapshot_lists_the_faults_of_both_devices_together(loaded: Contract) -> None:
    for clause in loaded.snapshot()["clauses"]:
        whole = loaded.clauses[clause["id"]]
        assert clause["faults"] == [*whole.simulated_faults, *whole.wrapped_faults]
        assert "simulated_faults" not in clause  # records of all versions have the same fields


def test_page_on_disk_is_the_generated_one(loaded: Contract) -> None:
    on_disk = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    assert on_disk == markdown(loaded), (
        "docs/contract.md is not what the clauses say;"
        " run: python -m conformance.contract > docs/contract.md"
    )


def test_module_prints_the_page(loaded: Contract) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "conformance.contract"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    assert printed.decode() == markdown(loaded)


def test_page_links_threads_to_pytorch(loaded: Contract) -> None:
    link = "[pytorch/pytorch#87894](https://github.com/pytorch/pytorch/issues/87894)"
    assert link in markdown(loaded)


def test_page_escapes_underscores_outside_code(loaded: Contract) -> None:
    assert r"torch/\_\_init\_\_.py" in markdown(loaded)


def test_importing_needs_no_torch() -> None:
    code = "import sys, conformance.contract as c; c.load(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# Looking up


def test_clause_by_id(loaded: Contract) -> None:
    (clause,) = loaded.select(["layout.bounds"])
    assert (clause.id, clause.family, clause.status) == ("layout.bounds", "layout", Status.CHECKED)


def test_unknown_clause_names_near_ones(loaded: Contract) -> None:
    with pytest.raises(ConformError, match=r"'layout\.valeus'; did you mean 'layout\.values'"):
        loaded.select(["layout.valeus"])


def test_family_for_a_clause_is_told_its_glob(loaded: Contract) -> None:
    with pytest.raises(ConformError, match=r"that family are 'graphs\.\*'"):
        loaded.select(["graphs"])


def test_nothing_near_lists_the_families(loaded: Contract) -> None:
    with pytest.raises(ConformError, match="the families are 'allocator', "):
        loaded.select(["zzz"])


def test_select_keeps_the_order_of_the_contract(loaded: Contract) -> None:
    chosen = loaded.select(["events.*", "layout.out_*", "layout.out_kept"])
    assert [clause.id for clause in chosen] == [
        "layout.out_kept",
        "layout.out_resize",
        "events.record",
        "events.elapsed",
        "events.identity",
        "events.ipc",
    ]


def test_a_glob_that_matches_nothing_is_an_error(loaded: Contract) -> None:
    with pytest.raises(ConformError, match=r"no clause matches 'stream\.\*'"):
        loaded.select(["layout.*", "stream.*"])


# Malformed data


def test_good_data_is_read(tmp_path: Path) -> None:
    assert list(read(tmp_path, GOOD).clauses) == ["layout.values"]


def test_wrapped_text_is_one_line(tmp_path: Path) -> None:
    text = GOOD.replace('"It holds."', '"""\nIt\n  holds.\n"""')
    assert read(tmp_path, text).clauses["layout.values"].statement == "It holds."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("level = 1", "levle = 1", "contains unknown field `levle`"),
        ("level = 1\n", "", "missing required field `level`"),
        ("level = 1", "level = 6", r"`int` <= 5 - at `\$\.level`"),
        ("level = 1", "level = true", "Expected `int`, got `bool`"),
        ('"checked"', '"done"', r"Invalid enum value 'done' - at `\$\.status`"),
        ('"op"', '"cell"', r"Invalid enum value 'cell' - at `\$\.unit`"),
        ('["strides"]', '["stride"]', "unknown capability 'stride'; did you mean 'strides'"),
        ('["strides"]', '"strides"', r"Expected `array`, got `str` - at `\$\.requires`"),
        ('["strides"]', '["strides", "strides"]', "'requires' names a capability twice"),
        ('"It holds."', '" "', r"matching regex .* - at `\$\.statement`"),
        ('"a header"', '""', r"matching regex .* - at `\$\.source`"),
        (
            'simulated_faults = ["values.ignore_strides"]',
            "",
            "no planted fault makes this clause fail",
        ),
        (
            "level = 1",
            'level = 1\nwrapped_faults = ["ignore"]',
            r"matching regex .* - at `\$\.wrapped_faults\[0\]`",
        ),
        ('"0.1"', '"soon"', r"matching regex .* - at `\$\.since`"),
        (
            "level = 1",
            'level = 1\nprovisional_since = "0.2.0"',
            r"matching regex .* - at `\$\.provisional_since`",
        ),
        ('"checked"', '"planned"\nprovisional_since = "0.2"', "a planned clause has no results"),
        ('"layout.values"', '"values"', r"matching regex .* - at `\$\.id`"),
        ('"layout.values"', '"graphs.pool"', r"expected an id that starts with 'layout\.'"),
        ("[[clause]]", "[clause]", r"Expected `array`, got `object` - at `\$\.clause`"),
        ('title = "a title"', "", r"missing required field `title` - at `\$\.family`"),
        ("level = 1", "level =", "expected a file of valid TOML"),
    ],
)
def test_malformed_data_is_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConformError, match=message):
        read(tmp_path, GOOD.replace(old, new))


def test_errors_name_the_file_and_the_clause(tmp_path: Path) -> None:
    with pytest.raises(ConformError, match=r"layout\.toml: clause 'layout\.values': "):
        read(tmp_path, GOOD.replace("level = 1", "level = 9"))


def test_an_id_used_twice_is_told(tmp_path: Path) -> None:
    again = GOOD[GOOD.index("[[clause]]") :]
    with pytest.raises(ConformError, match=r"the id 'layout\.values' is used twice"):
        read(tmp_path, GOOD + again)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConformError, match=r"layout\.toml: .* No such file"):
        contract.read_contract(tmp_path, ("layout",))


def test_a_file_of_no_family_is_told(tmp_path: Path) -> None:
    (tmp_path / "layuot.toml").write_text(GOOD, encoding="utf-8")
    with pytest.raises(ConformError, match="files of unknown families"):
        read(tmp_path, GOOD)
