"""Random numbers: reproducible, and distributed as they should be."""

from __future__ import annotations

from conformance.behaviour.cases import Suite

SUITE = Suite("random")
