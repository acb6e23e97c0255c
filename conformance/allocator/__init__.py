"""Memory: counted, reused, returned."""

from __future__ import annotations

from conformance.allocator import accounting
from conformance.behaviour.cases import Suite, gathered

SUITE = Suite("allocator", cases=gathered(accounting.cases))
