"""A device that declares dtypes and nothing else is judged by what its tensors hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.running import CHECKOUT, environment

#: What each manner of the device with opaque tensors fails, among others.
_VIEW = "transposed+step_outer+offset"
_MANNERS: dict[str, set[str]] = {
    "loses_writes_to_views": {
        *(f"layout.out_kept::neg[out={_VIEW}]", f"layout.inplace::neg[{_VIEW}]"),
        *(f"transfer.view_destination::by_{name}[]" for name in ("fill", "zero", "where", "out")),
        *(f"random.distribution::view_{name}_[]" for name in ("normal", "uniform")),
    },
    "loses_copies_to_views": {
        *("transfer.strides::host_to_device[]", "transfer.strides::within_the_device[]"),
        *(f"transfer.view_destination::{name}[]" for name in ("sliced_from_host", "by_indices")),
    },
    "copies_resize": {"transfer.view_destination::from_device[]"},
    "changes_inputs": {"layout.inputs_intact::neg[contiguous]"},
    "gives_inputs": {"layout.output_fresh::clone[contiguous]"},
    "keeps_out": {"layout.out_resize::neg[out=smaller]"},
    "copies_for_views": {"layout.views::transpose[contiguous]"},
}


@pytest.fixture(scope="module")
def manners(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By manner, what does not pass of a device that declares nothing but dtypes."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.strangers.manners", str(tmp_path_factory.mktemp("cache"))],
        cwd=CHECKOUT, env=environment(cache), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.slow
def test_opaque_tensors_of_a_sound_device_pass(manners: dict[str, list[str]]) -> None:
    assert manners[""] == [  # of the common base
        "layout.out_resize::neg[out=wrong_device]: fail",  # operands on the host are accepted
        "layout.views::transpose[neg]: fail",  # no negative bit is kept
    ]


@pytest.mark.slow
@pytest.mark.parametrize("manner", _MANNERS)
def test_opaque_tensors_are_judged_by_what_they_hold(
    manner: str, manners: dict[str, list[str]]
) -> None:
    assert {f"{each}: fail" for each in _MANNERS[manner]} - set(manners[manner]) == set()
