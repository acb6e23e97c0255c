"""Dispatch: what runs where, and what is refused."""

from __future__ import annotations

from conformance.behaviour.cases import Suite

SUITE = Suite("dispatch")
