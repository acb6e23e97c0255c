"""The table of which mutants each case reaches, which one run without a mutant wrote (``compiled_reach``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from conformance.checks.cases.cases import BehaviourCase

#: The environment variable with the path of the table, for the processes that try mutants.
TABLE: Final = "COMPILED_REACH_TABLE"


class Reach(msgspec.Struct):
    """The names of the mutants that a case reaches, and how many seconds the case takes."""

    seconds: float
    mutants: set[str]


@cache
def table() -> dict[str, Reach]:
    """What each case reaches, by the case's id; empty if no table was written for this run."""
    path = os.environ.get(TABLE, "")
    if not path:
        return {}
    return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Reach])


def reaching(mutants: set[str], cases: Sequence[BehaviourCase]) -> list[BehaviourCase]:
    """The cases that reach one of the mutants, those of plan quick first, and of a plan the quickest first. A case that is not
    in the table may reach them."""
    known = table()
    return sorted(
        (each for each in cases if each.id not in known or mutants & known[each.id].mutants),
        key=lambda each: (each.more, known[each.id].seconds if each.id in known else 0.0),
    )
