"""The streams suite: streams, events, and the order of their work."""

from conformance.checks.cases.cases import Suite, gathered
from conformance.suites.streams import drawn, events, identity, ordering

SUITE = Suite("streams", cases=gathered(identity.cases, ordering.cases, events.cases, drawn.cases))
