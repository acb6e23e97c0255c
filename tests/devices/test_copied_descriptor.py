"""No policy hangs on a device's name: a copy of a descriptor under another name gives the same verdicts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices import registry
from reports.run import CellResult
from tests.plugin.running import ForkServer, cells_of

#: Some with expected failures (median, tril, cumsum), some whose only stride reference is FakeTensor on the CPU.
OPS = (
    "add,median,nanmedian,tril,triu,cumsum,cumprod,sum,mm,bmm,addmm,cat,clone,empty_like,nonzero,index_select,"
    "gather,where,unfold,transpose,as_strided,sort,topk,matmul,normal,nn.functional.conv2d,nn.functional.gelu"
)
CLAUSES = (
    "layout.values,layout.output_strides,layout.out_kept,layout.out_resize,layout.variants,layout.overlap_raises,"
    "layout.views,layout.memory_format,layout.expanded_read,dispatch.*"
)
#: Items of ops, and cases of the device's state.
SELECTIONS = (
    (f"--ops={OPS}", f"--clauses={CLAUSES}"),
    ("--clauses=random.*,transfer.serialization",),
)


@pytest.fixture(scope="module")
def fork(cache: Path) -> Iterator[ForkServer]:
    with ForkServer(cache) as server:
        yield server


def run(fork: ForkServer, folder: Path, *options: str) -> dict[str, CellResult]:
    found: dict[str, CellResult] = {}
    for place, selection in enumerate(SELECTIONS):
        results = folder / str(place)
        ran = fork.pytest("-q", *selection, f"--results={results}", *options)
        assert ran.code in (0, 1), ran.text
        found |= {str(key): result for key, result in cells_of(results).items()}
    return found


@pytest.mark.slow
def test_a_copied_descriptor_under_another_name_gives_the_same_verdicts(
    fork: ForkServer, tmp_path: Path
) -> None:
    home = registry.get("cpu").folder
    assert home is not None
    copy = shutil.copytree(home, tmp_path / "mycpu")
    file = copy / "descriptor.py"
    text = file.read_text(encoding="utf-8")
    assert text.count('name="cpu"') == 1
    file.write_text(text.replace('name="cpu"', 'name="mycpu"'), encoding="utf-8")

    own = run(fork, tmp_path / "own", "--device=cpu")
    other = run(fork, tmp_path / "other", f"--descriptor={copy}")

    said = {
        key: (each.outcome, each.verdict, each.layouts, each.checks) for key, each in own.items()
    }
    assert {
        key: (each.outcome, each.verdict, each.layouts, each.checks) for key, each in other.items()
    } == said
    assert {verdict for _, verdict, _, _ in said.values()} >= {"ok", "expected"}
    assert any(key.endswith("]") for key in said) and not all(key.endswith("]") for key in said)
