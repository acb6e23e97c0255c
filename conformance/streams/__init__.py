"""Streams and events: the order of work."""

from __future__ import annotations

from conformance.behaviour.cases import Suite

SUITE = Suite("streams")
