"""Lists for the kinds of mutants of compile: the names of the mutants of a seed, and the cases of a clause."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase, not_here
from conformance.suites import planned_cases
from opinfo.device import Device


def all_in_turn(family: str, known: Iterable[str], seed: int, count: int) -> list[str]:
    """Mutants 0 to count - 1 of a family: all ``known`` ones in an order drawn from the seed, then all again in another."""
    rng, names, found = Random(f"{family} {seed}"), list(known), list[str]()
    while len(found) < count:
        found += rng.sample(names, len(names))
    return found[:count]


def cases_of(clause: str, device: Device, indices: int) -> tuple[BehaviourCase, ...]:
    """The cases of a clause that a device with so many indices takes and that run in this process, those of plan quick
    first."""
    found: dict[str, BehaviourCase] = {}
    for more in (False, True):
        for case in planned_cases(contract.load(), more=more, whole=False):
            refused = not_here(case, device.descriptor.capabilities, indices)
            if case.clause == clause and not refused and not case.own_process:
                found.setdefault(case.id, case)
    return tuple(found.values())
