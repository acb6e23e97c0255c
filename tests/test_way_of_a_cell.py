"""How many modules of ours a reader passes who follows one op's cell from the options to the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.architecture import CHECKOUT, PACKAGES

#: Modules in which a function runs on the way of one passing cell of an op: 40, 10 that make its samples by axis, and
#: 1 that negates its operands lazily.
MOST = 51

_PROFILED = """
import json, sys, threading
import pytest

called, importing = {}, threading.local()

def profile(frame, event, arg):
    code, depth = frame.f_code, getattr(importing, "depth", 0)
    if code.co_name == "<module>":  # what importing a module runs is its definition, not the cell's way
        importing.depth = depth + {"call": 1, "return": -1}.get(event, 0)
    elif event == "call" and not depth and code.co_flags & 1:  # CO_OPTIMIZED: a function, not a class body
        called.setdefault(code.co_filename, code.co_qualname if sys.version_info >= (3, 11) else code.co_name)

threading.setprofile(profile)
sys.setprofile(profile)
code = pytest.main(sys.argv[2:])
sys.setprofile(None)
with open(sys.argv[1], "w") as file:
    json.dump([int(code), called], file)
"""


def test_the_way_of_one_cell_passes_few_modules(tmp_path: Path, cache: Path) -> None:
    found = tmp_path / "called.json"
    command = [
        *(sys.executable, "-c", _PROFILED, str(found)),
        *("-q", "-n", "0", "--device", "cpu", "-p", "no:cacheprovider"),
        *("--ops", "add", "--dtypes", "float32", "--clauses", "layout.values"),
        f"--results={tmp_path / 'results'}",
    ]
    # The first run asks every suite which of its clauses apply to every op; the second knows it.
    for _ in range(2):
        run = subprocess.run(
            command,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env={**os.environ, "TORCH_CONFORMANCE_CACHE": str(cache)},
        )
    assert found.exists(), run.stdout + run.stderr
    code, called = json.loads(found.read_text())
    assert code == 0, run.stdout + run.stderr
    ways = sorted(
        f"{Path(file).relative_to(CHECKOUT).as_posix()}: {name}"
        for file, name in called.items()
        # Of the packages only: an environment of tox lies in the checkout too.
        if any(Path(file).is_relative_to(CHECKOUT / package) for package in PACKAGES)
    )
    print(len(ways), *ways, sep="\n")
    assert len(ways) <= MOST, "\n".join([f"{len(ways)} modules, expected {MOST} at most:", *ways])
