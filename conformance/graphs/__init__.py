"""Graphs: work captured once and replayed."""

from __future__ import annotations

from conformance.behaviour.cases import Suite

SUITE = Suite("graphs")
