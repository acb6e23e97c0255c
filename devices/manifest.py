"""Reads and checks manifests. A manifest is the file ``expected.toml`` of a device, which lists its expected
failures."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from devices.descriptor import DTYPES, FACTS, VERSION_FACTS
from devices.errors import ConformError, listing, suggestion
from devices.failure import Word
from devices.files import explained, read_regular, tomllib


class ConditionError(ValueError):
    """The error for a condition that is malformed or cannot be evaluated on the current machine."""


def public_version(version: str) -> str:
    """Returns a version without its local part: "2.13.0" for "2.13.0+cpu".

    Conditions ignore the local part, because it only distinguishes builds of the same version.
    """
    return version.partition("+")[0]


@dataclass(frozen=True, slots=True)
class Condition:
    """A fact and its required value: a PEP 440 specifier for a version, a glob for any other fact."""

    fact: str
    wanted: str

    @classmethod
    def parse(cls, fact: str, wanted: object) -> Condition:
        """Returns a condition after checking its fact and its required value. Raises ConditionError."""
        if fact not in FACTS:
            raise ConditionError(
                f"unknown fact '{fact}'{suggestion(fact, FACTS)} (known: {listing(FACTS)})"
            )
        if not isinstance(wanted, str) or not wanted.strip():
            version = fact in VERSION_FACTS
            form = "version specifier such as '>=2.12,<2.14'" if version else "glob such as '*Arc*'"
            raise ConditionError(f"'{fact}' must be a {form}, got {wanted!r}")
        if fact in VERSION_FACTS:
            _specifiers(fact, wanted)
        return cls(fact, wanted)

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Returns True if a machine with the given facts meets the condition. Raises ConditionError if the fact is
        missing.

        A pre-release counts as its release (2.14.0.dev20260901 is not before 2.14), unless the specifier itself names a
        pre-release. By PEP 440 alone, a nightly build would satisfy neither "<2.14" nor ">=2.14".
        """
        if self.fact not in facts:
            raise ConditionError(
                f"the condition needs the fact '{self.fact}', which is not known on this machine"
                f" (known: {listing(facts)}): let the descriptor's facts() return it"
            )
        value = facts[self.fact]
        if self.fact not in VERSION_FACTS:
            return fnmatch.fnmatchcase(value, self.wanted)
        try:
            version = Version(public_version(value))
        except InvalidVersion:
            raise ConditionError(
                f"the condition needs the version '{self.fact}', but its value here is {value!r}, which"
                " is not a version (PEP 440): let the descriptor's facts() normalise it"
            ) from None
        specifiers = _specifiers(self.fact, self.wanted)
        named = (Version(each.version.removesuffix(".*")) for each in specifiers)
        if version.is_prerelease and not any(each.is_prerelease for each in named):
            version = Version(version.base_version)
        return specifiers.contains(version, prereleases=True)


def _specifiers(fact: str, wanted: str) -> SpecifierSet:
    try:
        if not len(specifiers := SpecifierSet(wanted)):
            raise InvalidSpecifier
    except InvalidSpecifier:
        raise ConditionError(
            f"'{fact}' must be a version specifier (PEP 440) such as '>=2.12,<2.14', got {wanted!r}"
        ) from None
    for specifier in specifiers:
        if specifier.operator == "===":
            raise ConditionError(
                f"'{fact}' uses '===', which compares texts: write '==', got {wanted!r}"
            )
        if "+" in specifier.version:
            raise ConditionError(
                f"'{fact}' has the local version '{specifier.version}', which conditions ignore:"
                f" write '{specifier.operator}{public_version(specifier.version)}'"
            )
    return specifiers


class ExpectedOutcome(Word):
    """The outcome that a block of the manifest expects of its cells."""

    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    UNSUPPORTED = "unsupported"
    BLOCKED = "blocked"
    FLAKY = "flaky"  # passes or fails; needs `expires` and `min_pass_rate`


class CauseKind(Word):
    """The kind of a block's root cause, which says who must fix the cause."""

    NOT_IMPLEMENTED = "not-implemented"
    DEVICE_BUG = "device-bug"
    UPSTREAM_BUG = "upstream-bug"
    HARDWARE_LIMIT = "hardware-limit"


AXES: Final = ("clause", "op", "dtype", "variant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """An ``[[expect]]`` block of a manifest, which describes one root cause.

    ``clause``, ``op``, ``dtype`` and ``variant`` hold patterns: exact names, or prefixes that end in ``*``. The variant of
    most cells is the empty name. ``layouts`` is None if any layout may fail.
    """

    line: int  # of its header, from 1
    path: Path | None = None
    clause: tuple[str, ...]
    op: tuple[str, ...] = ("*",)
    dtype: tuple[str, ...] = ("*",)
    variant: tuple[str, ...] = ("*",)
    layouts: frozenset[str] | None = None
    outcome: ExpectedOutcome
    raises: str | None = None
    match: re.Pattern[str] | None = None  # searched for in the text of the device's exception
    when: tuple[Condition, ...] = ()
    kind: CauseKind | None = None
    reason: str
    issue: str | None = None
    expires: date | None = None  # the last day on which the block is valid
    min_pass_rate: float | None = None  # the share of a flaky cell's runs that must pass, 0 to 1

    @property
    def where(self) -> str:
        """File and line of the block, in the form that editors and terminals can open."""
        return place(self.path, self.line)

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """The patterns of clause, op, dtype and variant."""
        return (self.clause, self.op, self.dtype, self.variant)

    def is_expired(self, today: date) -> bool:
        """Returns True if the last day on which the block is valid has passed."""
        return self.expires is not None and self.expires < today


def place(path: Path | None, line: int) -> str:
    """Returns ``path:line``, or ``line N`` if no file is given."""
    return f"{path}:{line}" if path else f"line {line}"


#: The names that exist, by the key of a block; keys that are not listed take any name.
Known = Mapping[str, Collection[str]]
_ANY: Final[Known] = MappingProxyType({})


class ManifestError(ConformError):
    """The error for a manifest that cannot be read or applied. The text of the error gives file, line and advice for
    each problem."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The blocks of one manifest in the order of the file. ``inactive`` has the blocks whose conditions the machine
    does not meet."""

    blocks: tuple[Block, ...] = ()
    inactive: tuple[Block, ...] = ()
    path: Path | None = None

    @classmethod
    def load(cls, path: Path, known: Known = _ANY) -> Manifest:
        """Reads a manifest from a file. Raises ManifestError, which names every block that has a problem.

        ``known`` may list the existing clauses and layouts (``clause``, ``layouts``); names that are not in these lists
        are then refused.
        """
        try:
            with explained(ManifestError, path, "expected the path of an expected.toml"):
                text = read_regular(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise ManifestError(
                f"{place(path, line)}: the manifest is not UTF-8: save it as UTF-8"
            ) from None
        return cls.parse(text, path, known)

    @classmethod
    def parse(cls, text: str, path: Path | None = None, known: Known = _ANY) -> Manifest:
        """Reads a manifest from its text, in the same way as ``load`` from its file."""
        tables, lines = _tables(text, path)
        blocks: list[Block] = []
        problems: list[str] = []
        for table, line in zip(tables, lines, strict=True):
            try:
                blocks.append(read_block(table, line, path, known))
            except BlockError as error:
                problems.append(f"{place(path, line)}: {error}")
        if problems:
            raise ManifestError("\n".join(problems))
        return cls(tuple(blocks), (), path)

    def active(self, facts: Mapping[str, str]) -> Manifest:
        """Returns the manifest for a machine with the given facts: blocks whose conditions are not met become
        ``inactive``.

        Raises ManifestError if a block needs a fact that is missing.
        """
        here: list[Block] = []
        elsewhere: list[Block] = []
        problems: list[str] = []
        for block in self.blocks:
            try:
                # Every condition is evaluated: a false one must not hide an unknown fact.
                answers = [condition.holds(facts) for condition in block.when]
            except ConditionError as error:
                problems.append(f"{block.where}: when: {error}")
                continue
            (here if all(answers) else elsewhere).append(block)
        if problems:
            raise ManifestError("\n".join(problems))
        return replace(self, blocks=tuple(here), inactive=(*self.inactive, *elsewhere))


# Headers, and the strings and comments that may contain the text of a header, in TOML's grammar.
_TOKENS: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|^[ \t]*(?P<header>\[\[[ \t]*(?:expect|"expect"|\'expect\')[ \t]*\]\])'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|(?P<comment>#[^\n]*)",
    re.DOTALL | re.MULTILINE,
)
_WHERE: Final = re.compile(r" ?\((?:at line (\d+), column (\d+)|at end of document)\)$")
_HOW: Final = "write each block under a [[expect]] header of its own"


def _tables(text: str, path: Path | None) -> tuple[list[Mapping[str, object]], list[int]]:
    """Returns the ``expect`` tables of a TOML text and the lines of their headers. Raises ManifestError."""
    prefix = f"{path}: " if path else ""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ManifestError(f"{prefix}the TOML is nested too deeply to be read") from None
    except ValueError as error:  # TOMLDecodeError; bare where a number has too many digits
        raise ManifestError(_syntax_error(str(error), text, path)) from None
    for key in document:
        if key != "expect":
            raise ManifestError(f"{prefix}the key '{key}' is outside of any block: {_HOW}")
    tables = document.get("expect", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ManifestError(f"{prefix}'expect' must be a list of tables: {_HOW}")
    lines = header_lines(text)
    if len(lines) != len(tables):
        raise ManifestError(
            f"{prefix}not every block has an [[expect]] header (blocks: {len(tables)}, headers: {len(lines)}): {_HOW}"
        )
    return tables, lines


def header_lines(text: str) -> list[int]:
    """Returns the line numbers of the ``[[expect]]`` headers in a TOML text; the first line has number 1."""
    return [line + 1 for line, token in _tokens(text) if token["header"]]


def comment_lines(text: str) -> frozenset[int]:
    """Returns the numbers of the lines in a TOML text that contain only a comment; the first line has number 0."""
    return frozenset(
        line
        for line, token in _tokens(text)
        if token["comment"]
        and not text[text.rfind("\n", 0, token.start()) + 1 : token.start()].strip()
    )


def _tokens(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yields the headers, strings and comments of a TOML text, each with the number of its line; the first line has
    number 0."""
    line, seen = 0, 0
    for token in _TOKENS.finditer(text):
        line += text.count("\n", seen, token.start())
        seen = token.start()
        yield line, token


def comments_in(text: str) -> list[str]:
    """Returns the comments of a TOML text."""
    return [token["comment"].rstrip() for token in _TOKENS.finditer(text) if token["comment"]]


def _syntax_error(message: str, text: str, path: Path | None) -> str:
    found = _WHERE.search(message)
    what = f"not TOML: {_WHERE.sub('', message)}"
    if not found:
        return f"{path}: {what}" if path else what
    if found[1] is None:
        return f"{place(path, text.count(chr(10)) + 1)}: {what}, at the end of the file"
    return f"{place(path, int(found[1]))}: {what} (column {found[2]})"


# -- one block ------------------------------------------------------------------------------------

#: The keys of a block in canonical order, each with the advice that ends its error messages.
_ADVICE: Final[Mapping[str, str]] = {
    "clause": 'name one clause or several, such as clause = "layout.values"',
    "op": "name at least one op, or leave the key out",
    "dtype": "name at least one dtype, or leave the key out",
    "variant": "name at least one variant, or leave the key out",
    "layouts": "name at least one layout, or leave the key out",
    "outcome": f"write one of {', '.join(repr(each.value) for each in ExpectedOutcome)}",
    "raises": "write the exception type's bare name, such as 'RuntimeError'",
    "match": "write a regular expression, or leave the key out",
    "when": "name at least one fact, or leave the key out",
    "kind": f"write one of {', '.join(repr(each.value) for each in CauseKind)}",
    "reason": "write a sentence that says what causes the failures",
    "issue": "write the address in full, such as 'https://github.com/pytorch/pytorch/issues/1'",
    "expires": "write the last day on which the block is valid, such as expires = 2027-03-01",
    "min_pass_rate": "write the share of a cell's runs that must pass, such as min_pass_rate = 0.9",
}
KEYS: Final = tuple(_ADVICE)
_REQUIRED: Final = ("clause", "outcome", "reason")


class BlockError(ValueError):
    """The error for a block that has a problem. The text of the error does not contain file and line."""


def read_block(table: Mapping[str, object], line: int, path: Path | None, known: Known) -> Block:
    """Returns the block of a TOML table after checking every key. Raises BlockError for the first problem."""
    for key in table:
        if key not in KEYS:
            raise BlockError(f"unknown key '{key}'{suggestion(key, KEYS)} (known: {listing(KEYS)})")
    for key in _REQUIRED:
        if key not in table:
            raise BlockError(f"the key '{key}' is missing: {_ADVICE[key]}")
    known = {"dtype": DTYPES, **known}
    read = {key: _READERS[key](key, table[key], known.get(key)) for key in KEYS if key in table}
    block = Block(line=line, path=path, **read)
    if block.outcome is ExpectedOutcome.FLAKY:
        for key in ("expires", "min_pass_rate"):
            if key not in table:
                raise BlockError(f"outcome 'flaky' needs '{key}': {_ADVICE[key]}")
    elif "min_pass_rate" in table:
        raise BlockError(
            f"'min_pass_rate' is for outcome 'flaky' only, and the block has the outcome '{block.outcome}'"
        )
    return block


def read_axes(table: Mapping[str, object], known: Known) -> dict[str, Any]:
    """Returns the patterns of clause, op, dtype and variant in a TOML table, by key. Raises BlockError."""
    known = {"dtype": DTYPES, **known}
    return {key: _axis(key, table[key], known.get(key)) for key in AXES if key in table}


def _text(key: str, value: object, known: Collection[str] | None = None) -> str:
    if not isinstance(value, str):
        raise BlockError(f"'{key}' must be a string, got {_short_text(value)}: {_ADVICE[key]}")
    if not value.strip():
        raise BlockError(f"'{key}' is blank: {_ADVICE[key]}")
    if key == "raises" and not value.isidentifier():
        raise BlockError(f"'raises' is {value!r}: {_ADVICE[key]}")
    if key == "issue" and not re.fullmatch(r"https?://[^\s/]+\S*", value):
        raise BlockError(f"'issue' is {value!r}, which is not a URL: {_ADVICE[key]}")
    return value


def _texts(key: str, value: object, wanted: str) -> tuple[str, ...]:
    """Returns the value of a key as a list of strings. Raises BlockError unless it has at least one string and none is
    blank."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BlockError(f"'{key}' must be {wanted}, got {_short_text(value)}")
    if not value:
        raise BlockError(f"'{key}' is an empty list: {_ADVICE[key]}")
    for item in value:
        if (not item and key != "variant") or item != item.strip():
            raise BlockError(
                f"'{key}' has the name {item!r}, which is blank or has spaces around it"
            )
    return tuple(dict.fromkeys(value))  # without duplicates


def _axis(key: str, value: object, known: Collection[str] | None) -> tuple[str, ...]:
    """Returns the patterns of one key (clause, op, dtype or variant): exact names, or prefixes that end in one ``*``. Raises
    BlockError for other patterns and unknown names."""
    single = [value] if isinstance(value, str) else value
    patterns = _texts(key, single, "a string or a list of strings")
    for pattern in patterns:
        prefix = pattern.removesuffix("*")
        if "*" in prefix:
            raise BlockError(
                f"'{key}' has the pattern {pattern!r}: only one '*' is allowed, at the end"
            )
        if pattern == prefix:
            _check_known(key, pattern, known, "; write one of the known names, or a prefix and '*'")
        elif known is not None and not any(name.startswith(prefix) for name in known):
            raise BlockError(f"no {key} begins with {prefix!r}{suggestion(prefix, known)}")
    return patterns


def _layouts(key: str, value: object, known: Collection[str] | None) -> frozenset[str]:
    layouts = _texts(key, value, "a list of layout names")
    for layout in layouts:
        if "*" in layout:
            raise BlockError(
                f"'layouts' has the pattern {layout!r}: name each layout in full, without '*'"
            )
        _check_known("layout", layout, known)
    return frozenset(layouts)


def _check_known(what: str, name: str, known: Collection[str] | None, advice: str = "") -> None:
    if known is not None and name not in known:
        count = "1 is known" if len(known) == 1 else f"{len(known)} are known"
        raise BlockError(f"unknown {what} {name!r}{suggestion(name, known)} ({count}{advice})")


def _choice(key: str, value: object, known: Collection[str] | None) -> Word:
    choices = {each.value: each for each in (ExpectedOutcome if key == "outcome" else CauseKind)}
    if isinstance(value, str) and value in choices:
        return choices[value]
    near = suggestion(value, choices) if isinstance(value, str) else ""
    names = ", ".join(map(repr, choices))
    raise BlockError(f"'{key}' must be one of {names}, got {_short_text(value)}{near}")


def _match(key: str, value: object, known: Collection[str] | None) -> re.Pattern[str]:
    pattern = _text(key, value)
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise BlockError(
            f"'match' must be a regular expression, got {pattern!r}: {error}"
        ) from None


def _when(key: str, value: object, known: Collection[str] | None) -> tuple[Condition, ...]:
    if not isinstance(value, dict):
        raise BlockError(
            f"'when' must be a table of facts, such as {{ torch = \">=2.12\" }}, got {_short_text(value)}"
        )
    if not value:
        raise BlockError(f"'when' is empty: {_ADVICE[key]}")
    try:
        return tuple(Condition.parse(fact, wanted) for fact, wanted in value.items())
    except ConditionError as error:
        raise BlockError(f"when: {error}") from None


def _expires(key: str, value: object, known: Collection[str] | None) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise BlockError(
            f"'expires' must be a date, without quotes and without a time of day, such as expires = 2027-03-01, got {_short_text(value)}"
        )
    return value


def _min_pass_rate(key: str, value: object, known: Collection[str] | None) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise BlockError(f"'min_pass_rate' must be a number from 0 to 1, got {_short_text(value)}")
    return float(value)


_READERS: Final[Mapping[str, Callable[[str, object, Collection[str] | None], Any]]] = {
    **dict.fromkeys(AXES, _axis),
    **dict.fromkeys(("outcome", "kind"), _choice),
    **dict.fromkeys(("raises", "reason", "issue"), _text),
    **{"layouts": _layouts, "match": _match, "when": _when},
    **{"expires": _expires, "min_pass_rate": _min_pass_rate},
}


def _short_text(value: object) -> str:
    text = str(value) if isinstance(value, (date, dict)) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
