"""A plug-in of pytest that makes one clause provisional in its process: the contract itself has none in most versions."""

from __future__ import annotations

import msgspec

from conformance.contract import load
from conformance.version import VERSION

CLAUSE = "autograd.forward_ad"
SINCE = VERSION.rpartition(".")[0]

msgspec.structs.force_setattr(load().clauses[CLAUSE], "provisional_since", SINCE)
