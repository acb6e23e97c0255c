"""Counts of a run taken from its JUnit files alone, by ElementTree, with none of our code."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Counted:
    """Cells of a run, or of a family of it."""

    planned: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    undeclared: int = 0

    @property
    def passed(self) -> int:
        return self.outcomes["pass"]

    @property
    def judged(self) -> int:
        return self.planned - self.outcomes["ambiguous-reference"] - self.undeclared


def cells(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Every testcase: class name, name, outcome and verdict."""
    for path in sorted(folder.glob("junit-*.xml")):
        for case in ET.parse(path).getroot().iter("testcase"):
            text = case.findtext("system-out") or ""
            told = json.loads(text.partition("\n")[0].removeprefix("conform "))
            yield (
                case.get("classname", ""),
                case.get("name", ""),
                told.get("outcome", "pass"),
                told.get("verdict", "ok"),
            )


def count(folder: Path) -> dict[str, Counted]:
    """By family, and all under "all"."""
    found: dict[str, Counted] = {}
    for clause, _, outcome, verdict in cells(folder):
        for name in ("all", clause.partition(".")[0]):
            counted = found.setdefault(name, Counted())
            counted.planned += 1
            counted.outcomes[outcome] += 1
            counted.verdicts[verdict] += 1
            counted.undeclared += (outcome, verdict) == ("unsupported", "ok")
    return found
