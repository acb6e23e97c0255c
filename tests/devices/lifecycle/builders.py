"""Manifests and runs made up for the tests of the life cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from devices.cell import CellKey, Observed, Outcome
from devices.lifecycle.evidence import Evidence, Seen
from devices.manifest import KEYS, Manifest

PATH = Path("expected.toml")
TODAY = date(2027, 1, 1)
FACTS = {"os": "linux", "torch": "2.13.0"}
LAYOUTS = frozenset({"contiguous", "transposed", "offset"})

PASS = Seen(Observed(Outcome.PASS), LAYOUTS)


def cell(text: str) -> CellKey:
    return CellKey.parse(text)


def fails(*layouts: str, raises: str | None = None, ran: Iterable[str] = LAYOUTS) -> Seen:
    """A failure in these layouts; of a clause without layouts where there are none."""
    ran = frozenset(ran) if layouts else frozenset()
    return Seen(Observed(Outcome.FAIL, frozenset(layouts), raises), ran)


def seen(outcome: Outcome, raises: str | None = None) -> Seen:
    return Seen(Observed(outcome, frozenset(), raises))


def run(
    cells: Mapping[CellKey, Seen],
    name: str = "a",
    planned: Iterable[CellKey] | None = None,
    **more: Any,
) -> Evidence:
    """A run of these cells."""
    given: dict[str, Any] = {
        "name": name,
        "device": "npu",
        "plan": "quick",
        "plan_hash": "1234",
        "torch": "2.13.0",
        "driver": "1",
        "start": f"start of {name}",
        "facts": FACTS,
        "planned": tuple(cells if planned is None else planned),
        "cells": dict(cells),
    }
    return Evidence(**{**given, **more})


def parse(text: str) -> Manifest:
    return Manifest.parse(text, PATH)


def block(**values: str) -> str:
    """A block of these keys, each value written in TOML; a failure of layout.values by default."""
    keys = {"clause": '"layout.values"', "outcome": '"fail"', "reason": '"why"', **values}
    return "[[expect]]\n" + "".join(f"{key} = {keys[key]}\n" for key in KEYS if key in keys)


def manifest(*blocks: str) -> str:
    return "\n".join(blocks)
