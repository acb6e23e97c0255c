"""The manifest of a device, as the other packages use it: read, match, judge, lint."""

from __future__ import annotations

from devices.block import Block, ExpectedOutcome, Kind
from devices.lifecycle.linting import Problem, lint
from devices.manifest import Manifest, ManifestError
from devices.matching import Expectation, ManifestConflict, Match, Matcher
from devices.verdicts import Judgement, judge
from devices.when import Condition, public_version

__all__ = [
    "Block",
    "Condition",
    "Expectation",
    "ExpectedOutcome",
    "Judgement",
    "Kind",
    "Manifest",
    "ManifestConflict",
    "ManifestError",
    "Match",
    "Matcher",
    "Problem",
    "judge",
    "lint",
    "public_version",
]
