"""Copies: data crosses the boundary whole."""

from __future__ import annotations

from conformance.behaviour.cases import Suite, gathered
from conformance.transfer import exchange, layouts, moments, pinned, storages, values

SUITE = Suite(
    "transfer",
    cases=gathered(
        layouts.cases,
        moments.cases,
        pinned.cases,
        values.cases,
        storages.cases,
        exchange.cases,
    ),
)
