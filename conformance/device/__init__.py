"""The device itself: indices, properties, processes, late errors."""

from __future__ import annotations

from conformance.behaviour.cases import Suite

SUITE = Suite("device")
