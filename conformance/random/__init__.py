"""Random numbers: seeds, states, distributions."""

from __future__ import annotations

from conformance.behaviour.cases import Suite, gathered
from conformance.random import distribution, reproducible, seeding

SUITE = Suite("random", cases=gathered(reproducible.cases, seeding.cases, distribution.cases))
