"""Strangers on their first day: init, a green gate with honest red in it, a new fault that regresses, and the update."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strangers.bench import STRANGERS, FirstDay, Stranger

#: Two ops that every stranger has, one of them with the fault of the vendor's next version.
OPS = "mul,neg"


@pytest.mark.parametrize("stranger", STRANGERS, ids=[each.device for each in STRANGERS])
def test_the_first_day_ends_with_a_green_gate(
    stranger: Stranger, tmp_path: Path, cache: Path
) -> None:
    FirstDay(stranger, tmp_path, cache, OPS).all()
