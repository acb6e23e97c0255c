"""The conditions of a manifest's block: on which machines it holds."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from devices._text import listing, suggestion
from devices.vocabulary import FACTS, VERSION_FACTS


class ConditionError(ValueError):
    """A condition that cannot be read, or that this machine cannot answer."""


def public_version(version: str) -> str:
    """A version without its local part: "2.13.0" for "2.13.0+cpu".

    Builds of one version differ in the local part alone, so no condition looks at it.
    """
    return version.partition("+")[0]


@dataclass(frozen=True, slots=True)
class Condition:
    """One fact and what it must be: a PEP 440 specifier for versions, a glob for the others."""

    fact: str
    wanted: str

    @classmethod
    def parse(cls, fact: str, wanted: object) -> Condition:
        """Check and build. Raises ConditionError."""
        if fact not in FACTS:
            raise ConditionError(
                f"unknown fact '{fact}'{suggestion(fact, FACTS)} (known: {listing(FACTS)})"
            )
        if not isinstance(wanted, str) or not wanted.strip():
            form = "a version specifier such as '>=2.12,<2.14'"
            if fact not in VERSION_FACTS:
                form = "a glob such as '*Arc*'"
            raise ConditionError(f"'{fact}' must be {form}, got {wanted!r}")
        if fact in VERSION_FACTS:
            _specifiers(fact, wanted)
        return cls(fact, wanted)

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Whether it holds on a machine with these facts. Raises ConditionError if it cannot say.

        A pre-release counts as its release (2.14.0.dev20260901 is not before 2.14) unless the
        specifier names a pre-release itself: PEP 440 alone would have a nightly build satisfy
        neither "<2.14" nor ">=2.14".
        """
        if self.fact not in facts:
            raise ConditionError(
                f"it depends on the fact '{self.fact}', which this machine does not know"
                f" (known here: {listing(facts)}): let the descriptor's facts() give it"
            )
        value = facts[self.fact]
        if self.fact not in VERSION_FACTS:
            return fnmatch.fnmatchcase(value, self.wanted)
        try:
            version = Version(public_version(value))
        except InvalidVersion:
            raise ConditionError(
                f"it depends on the version '{self.fact}', and this machine's is {value!r}, which"
                " is no version (PEP 440): let the descriptor's facts() normalise it"
            ) from None
        specifiers = _specifiers(self.fact, self.wanted)
        if version.is_prerelease and not _names_prerelease(specifiers):
            version = Version(version.base_version)
        return specifiers.contains(version, prereleases=True)


def _specifiers(fact: str, wanted: str) -> SpecifierSet:
    try:
        specifiers = SpecifierSet(wanted)
    except InvalidSpecifier:
        specifiers = SpecifierSet()
    if not len(specifiers):
        raise ConditionError(
            f"'{fact}' must be a version specifier (PEP 440) such as '>=2.12,<2.14', got {wanted!r}"
        )
    for specifier in specifiers:
        if specifier.operator == "===":
            raise ConditionError(f"'{fact}' compares text with '===': write '==', got {wanted!r}")
        if "+" in specifier.version:
            raise ConditionError(
                f"'{fact}' names the local version '{specifier.version}', which is never compared:"
                f" write '{specifier.operator}{public_version(specifier.version)}'"
            )
    return specifiers


def _names_prerelease(specifiers: SpecifierSet) -> bool:
    return any(Version(each.version.removesuffix(".*")).is_prerelease for each in specifiers)
