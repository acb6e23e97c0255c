"""The streams suite: cases about streams, events, and the order in which their work runs."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.streams import drawn, events, identity, ordering

SUITE = Suite("streams", cases=gathered(identity.cases, ordering.cases, events.cases, drawn.cases))
