"""A fault that no named layout shows: random search finds it, `conform pin` keeps it, later plans check it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from devices.cell import CellKey, Outcome, Verdict
from devices.pinned import FILE, add_pinned, read_pinned
from reports.model import CellResult
from reports.run import load_run
from tests.plugin.running import CHECKOUT, ForkServer, Ran, cells_of, run_conform

#: A device that reads from the start of the storage where the offset is small: the covering set has 17 only.
DEVICE = """
import os
from dataclasses import replace

import torch

from tests.planting.calls import NOT_MET
from tests.planting.tensors import reread
from tests.wrapped import registry
from tests.wrapped.descriptor import DESCRIPTOR as WRAPPED


def forget_small_offsets(call):
    offset = call.first.storage_offset()
    if not 2 < offset < 17 or offset == 4:
        return NOT_MET  # the covering set has offsets of 1, 2, 4 and 17 elements
    return call.honest().copy_(call.honest(self=reread(call.first, offset=0)))


if os.environ.get("ODD"):
    registry.plant_at({torch.ops.aten.neg.default: forget_small_offsets})
DESCRIPTOR = replace(WRAPPED, name="odd")
"""
NEG = CellKey("layout.values", "neg", "float32")
#: How long random search may take, one after the other: how far it comes depends on the machine.
SECONDS = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Odd:
    """A folder with the device, and ways to run it."""

    folder: Path
    fork: ForkServer
    cache: Path

    @property
    def descriptor(self) -> Path:
        return self.folder / "device"

    def run(self, name: str, *arguments: str, faulty: bool = True) -> Ran:
        return self.fork.pytest(
            *(
                "-q",
                "-n",
                "0",
                f"--descriptor={self.descriptor}",
                "--ops",
                "neg,exp",
                "--clauses",
                "layout.values,layout.inplace,layout.as_strided",
            ),
            *(f"--results={self.folder / name}", *arguments),
            ODD="1" if faulty else "",
        )

    def explore(self, name: str) -> Ran:
        """A run that explores, with more and more time until it has found what is wrong with ``neg``."""
        for seconds in SECONDS:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            ran = self.run(name, f"--explore={seconds}s", "--explore-seed=5")
            assert re.search(r"^explored [\d,]+ random calls of ", ran.text, re.MULTILINE), ran.text
            if any(tuple(f["finding"]["cell"]) == NEG for f in self.findings(name)):
                return ran
        raise AssertionError(f"{NEG} was not found in {SECONDS[-1]} seconds")

    def cell(self, name: str, key: CellKey = NEG) -> CellResult:
        return cells_of(self.folder / name)[key]

    def pin(self, *arguments: str) -> Ran:
        run, descriptor = str(self.folder / "found"), f"--descriptor={self.descriptor}"
        return run_conform("pin", run, descriptor, *arguments, cache=self.cache)

    def findings(self, name: str) -> list[dict[str, Any]]:
        text = (self.folder / name / "explore.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def make(folder: Path, fork: ForkServer, cache: Path) -> Odd:
    (folder / "device").mkdir()
    (folder / "device" / "descriptor.py").write_text(DEVICE)
    return Odd(folder, fork, cache)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, fork: ForkServer, cache: Path) -> Odd:
    """A run in folder ``found`` that explored."""
    made = make(tmp_path_factory.mktemp("odd"), fork, cache)
    made.explore("found")
    return made


@pytest.mark.slow
def test_the_plan_itself_is_green_and_its_cells_are_as_without_exploring(odd: Odd) -> None:
    plain = odd.run("plain")
    assert plain.code == 0 and "green" in plain.text

    def told(name: str) -> dict[CellKey, CellResult]:
        cells = cells_of(odd.folder / name)
        return {k: structs.replace(c, seconds=0.0, worker="") for k, c in cells.items()}

    assert told("plain") == told("found")
    runs = [load_run(odd.folder / name).provenance.plan_hash for name in ("plain", "found")]
    assert runs[0] == runs[1]


def test_what_was_found_is_minimal(odd: Odd) -> None:
    found = odd.findings("found")
    assert {tuple(f["finding"]["cell"])[1] for f in found} == {"neg"}
    (values,) = [f for f in found if tuple(f["finding"]["cell"]) == NEG]
    example = values["finding"]["example"]
    ((shape, offset),) = ((t["shape"], t["offset"]) for t in example["tensors"])
    assert (example["call"], example["layout"]) == ("torch.neg(t[0])", f"free:offset={offset}")
    assert shape == [] and 2 < offset < 17
    assert values["expected"] is False and values["seed"] == 5
    assert (odd.folder / "found" / str(values["repro"])).is_file()


def test_the_effort_is_written_down(odd: Odd) -> None:
    effort = json.loads((odd.folder / "found" / "explore.json").read_text())
    assert effort["candidates"] >= 1 and effort["checks"] > effort["candidates"]
    assert effort["new"] == len(odd.findings("found")) and effort["restarts"] == 0
    assert effort["peak_bytes"] >= effort["start_bytes"] > 0


@pytest.mark.slow
def test_the_same_seed_finds_the_same(odd: Odd) -> None:
    odd.explore("again")

    def drawn(name: str) -> list[tuple[object, ...]]:
        findings = [line["finding"] for line in odd.findings(name)]
        return [(f["cell"], f["kind"], f["number"]) for f in findings]

    first, second = drawn("found"), drawn("again")
    common = min(len(first), len(second))
    assert common >= 1 and first[:common] == second[:common]


@pytest.mark.slow
def test_a_finding_that_its_script_does_not_show_is_not_pinned(odd: Odd) -> None:
    # The script asks torch's own CPU, where the fault is not.
    ran = odd.pin()
    assert ran.code == 0 and "the repro script exits with status 0 in a new process" in ran.text
    assert not (odd.descriptor / FILE).exists()


@pytest.fixture(scope="module")
def kept(odd: Odd, tmp_path_factory: pytest.TempPathFactory) -> Odd:
    """The same run and device in a folder of its own, where what it found may be pinned."""
    made = make(tmp_path_factory.mktemp("kept"), odd.fork, odd.cache)
    shutil.copytree(odd.folder / "found", made.folder / "found")
    return made


@pytest.fixture(scope="module")
def pinned(kept: Odd) -> str:
    """The finding of NEG, pinned: its layout."""
    ran = kept.pin("--unconfirmed", "--only", f"{NEG.clause}::*", "--reason", "small offsets")
    assert ran.code == 0 and "1 of 1 findings added" in ran.text, ran.text
    again = kept.pin("--unconfirmed", "--only", f"{NEG.clause}::*")
    assert "0 of 1 findings added" in again.text
    (pin,) = read_pinned(kept.descriptor)
    assert (pin.cell, pin.kind, pin.reason) == (NEG, "values", "small offsets")
    return pin.layout


@pytest.mark.slow
def test_a_pinned_example_is_a_check_of_every_later_plan(kept: Odd, pinned: str) -> None:
    before = load_run(kept.folder / "found")
    ran = kept.run("red")
    after = load_run(kept.folder / "red")
    cell = after.results[NEG]
    assert ran.code == 1 and (cell.outcome, cell.layouts) == (Outcome.FAIL, (pinned,))
    assert cell.message.startswith(f"[{pinned}] pinned in layout free:offset=")
    assert cell.checks == before.results[NEG].checks + 1
    assert after.provenance.plan_hash != before.provenance.plan_hash
    assert cell.repro is not None and (kept.folder / "red" / cell.repro).is_file()


@pytest.mark.slow
def test_mended_it_passes_and_is_still_checked(kept: Odd, pinned: str) -> None:
    ran = kept.run("mended", faulty=False)
    cell = kept.cell("mended")
    assert (ran.code, cell.outcome) == (0, Outcome.PASS) and pinned in cell.ran_layouts


@pytest.mark.slow
def test_a_manifest_may_name_it_among_the_layouts(kept: Odd, pinned: str) -> None:
    manifest = kept.folder / "expected.toml"
    manifest.write_text(
        f'[[expect]]\nclause = "{NEG.clause}"\nop = "neg"\nlayouts = ["{pinned}"]\n'
        'outcome = "fail"\nreason = "small offsets"\n'
    )
    ran = kept.run("known", f"--expectations={manifest}")
    assert (ran.code, kept.cell("known").verdict) == (0, Verdict.EXPECTED)
    manifest.write_text(manifest.read_text().replace(pinned, "pinned:00000000"))
    ran = kept.run("stranger", f"--expectations={manifest}")
    assert ran.code == 4 and "pinned:00000000" in ran.text


@pytest.mark.slow
def test_an_example_that_cannot_be_rebuilt_is_an_error(
    kept: Odd, pinned: str, tmp_path: Path
) -> None:
    other = make(tmp_path, kept.fork, kept.cache)
    (pin,) = read_pinned(kept.descriptor)
    lost = {
        "a layout that is no layout": replace(pin, layouts={**pin.layouts, "first": "free:odd"}),
        "a call that the op refuses to be given": replace(pin, call={**pin.call, "tensors": []}),
        "an op that torch does not have": replace(pin, op="nonesuch"),
        "a clause that does not apply": replace(pin, clause="layout.as_strided"),
    }
    add_pinned(other.descriptor, lost.values())
    ran = other.fork.pytest(
        *("-q", "-n", "0", f"--descriptor={other.descriptor}", "--ops", "neg,nonesuch"),
        f"--results={tmp_path / 'run'}",
    )
    cells = cells_of(tmp_path / "run")
    assert ran.code == 1
    for what, example in lost.items():
        cell = cells[example.cell]
        assert cell.outcome is Outcome.ERROR, what
        assert f"{example.layout} cannot be rebuilt: " in cell.message, what


def test_a_damaged_file_ends_the_run_before_it_starts(odd: Odd, tmp_path: Path) -> None:
    other = make(tmp_path, odd.fork, odd.cache)
    (other.descriptor / FILE).write_text("{}\n")
    ran = other.run("run")
    assert (
        ran.code == 4
        and f"{FILE}:1: not a pinned example: Object missing required field `format`" in ran.text
    )
    assert "Traceback" not in ran.text


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("pin", "nowhere"), 4, "expected the results folder of a run with --explore"),
        (("minimise", "nonsense"), 4, "expected a cell such as"),
        (("minimise", "layout.values::neg[float32]", "--device", "none"), 4, "no device 'none'"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    cache: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    ran = run_conform(*arguments, cache=cache)
    assert ran.code == code and says in ran.text and "Traceback" not in ran.text
    assert CHECKOUT.is_dir()
