"""Strangers on their first day: init, a green gate with honest red in it, a new fault that regresses, and the update."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.registry import load_file
from tests.strangers.bench import STRANGERS, FirstDay, Stranger

#: Two ops that every stranger has, one of them with the fault of the vendor's next version.
OPS = "mul,neg"

BY_DEVICE = {each.device: each for each in STRANGERS}


@pytest.mark.parametrize("stranger", STRANGERS, ids=list(BY_DEVICE))
def test_init_leads_to_a_green_gate(stranger: Stranger, tmp_path: Path, cache: Path) -> None:
    day = FirstDay(stranger, tmp_path, cache, OPS)
    day.init("--fast")
    day.green("first")
    assert "float32" in load_file(tmp_path / stranger.name).dtypes


@pytest.mark.parametrize("device", ["twin", "simulated"])
def test_a_fault_of_the_next_version_regresses_and_can_be_recorded(
    device: str, tmp_path: Path, cache: Path
) -> None:
    FirstDay(BY_DEVICE[device], tmp_path, cache, OPS).all()


def test_what_does_not_answer_is_named_in_the_descriptor(tmp_path: Path, cache: Path) -> None:
    """One question hangs and one ends the process: the others are answered all the same."""
    day = FirstDay(BY_DEVICE["fatal"], tmp_path, cache, "neg")
    day.init("--fast")
    text = (tmp_path / "myfatal" / "descriptor.py").read_text(encoding="utf-8")
    assert "facts: the process exited with status 3" in text
    assert "properties: the process was killed by SIGSEGV" in text
    assert load_file(tmp_path / "myfatal").capabilities >= {"strides"}
