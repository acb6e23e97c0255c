"""Copies: between host and device, between dtypes, layouts and files."""

from __future__ import annotations

from conformance.behaviour.cases import Suite

SUITE = Suite("transfer")
