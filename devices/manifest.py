"""The manifest: what a device's ``expected.toml`` says, read and checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from devices._toml import tomllib
from devices.block import Block, place
from devices.errors import ConformError
from devices.reading import BlockError, read_block
from devices.when import ConditionError


class ManifestError(ConformError):
    """A manifest that cannot be read or applied: each problem with file, line and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The blocks of one manifest, in the file's order; ``inactive`` do not hold on this machine."""

    blocks: tuple[Block, ...] = ()
    inactive: tuple[Block, ...] = ()
    path: Path | None = None

    @classmethod
    def load(
        cls,
        path: Path,
        known_clauses: Collection[str] | None = None,
        known_layouts: Collection[str] | None = None,
    ) -> Manifest:
        """Read a manifest. Clauses and layouts are checked where the known ones are given.

        Raises ManifestError, which names every block that has a problem.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            reason = error.strerror or str(error)
            raise ManifestError(
                f"{path}: cannot read the manifest: {reason}; give the path of an expected.toml"
            ) from None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise ManifestError(
                f"{place(path, line)}: the manifest is not UTF-8 text: save it as UTF-8"
            ) from None
        return cls.parse(text, path, known_clauses, known_layouts)

    @classmethod
    def parse(
        cls,
        text: str,
        path: Path | None = None,
        known_clauses: Collection[str] | None = None,
        known_layouts: Collection[str] | None = None,
    ) -> Manifest:
        """Read a manifest from its text; as ``load``."""
        tables, lines = _tables(text, path)
        blocks: list[Block] = []
        problems: list[str] = []
        for table, line in zip(tables, lines, strict=True):
            try:
                blocks.append(read_block(table, line, path, known_clauses, known_layouts))
            except BlockError as error:
                problems.append(f"{place(path, line)}: {error}")
        if problems:
            raise ManifestError("\n".join(problems))
        return cls(tuple(blocks), (), path)

    def active(self, facts: Mapping[str, str]) -> Manifest:
        """The manifest as it holds on a machine with these facts; the rest goes to ``inactive``.

        Raises ManifestError where a block depends on a fact that the machine does not know.
        """
        here: list[Block] = []
        elsewhere: list[Block] = []
        problems: list[str] = []
        for block in self.blocks:
            try:
                # Every condition is asked: an unknown fact must not hide behind a false one.
                answers = [condition.holds(facts) for condition in block.when]
            except ConditionError as error:
                problems.append(f"{block.where}: when: {error}")
                continue
            (here if all(answers) else elsewhere).append(block)
        if problems:
            raise ManifestError("\n".join(problems))
        return replace(self, blocks=tuple(here), inactive=(*self.inactive, *elsewhere))


# What may hide a header from a line-wise search: strings and comments, in TOML's own grammar.
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
    """The ``expect`` tables of a TOML text, and their headers' lines. Raises ManifestError."""
    prefix = f"{path}: " if path else ""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ManifestError(f"{prefix}not TOML that can be read: nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError; bare where a number has too many digits
        raise ManifestError(_syntax_error(str(error), text, path)) from None
    for key in document:
        if key != "expect":
            raise ManifestError(f"{prefix}unknown key '{key}' outside of any block: {_HOW}")
    tables = document.get("expect", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ManifestError(f"{prefix}'expect' must be a list of tables: {_HOW}")
    lines = list(header_lines(text))
    if len(lines) != len(tables):
        raise ManifestError(
            f"{prefix}{len(tables)} blocks under {len(lines)} [[expect]] headers: {_HOW}"
        )
    return tables, lines


def header_lines(text: str) -> Iterable[int]:
    """The lines, from 1, of the ``[[expect]]`` headers of a TOML text."""
    line, seen = 1, 0
    for token in _TOKENS.finditer(text):
        if token["header"]:
            start = token.start("header")
            line += text.count("\n", seen, start)
            seen = start
            yield line


def comment_lines(text: str) -> frozenset[int]:
    """The lines, from 0, of a TOML text that hold nothing but a comment."""
    found: list[int] = []
    line, seen = 0, 0
    for token in _TOKENS.finditer(text):
        if token["comment"] is None:
            continue
        start = token.start()
        line += text.count("\n", seen, start)
        seen = start
        if not text[text.rfind("\n", 0, start) + 1 : start].strip():
            found.append(line)
    return frozenset(found)


def comments_in(text: str) -> list[str]:
    """The comments of a TOML text, wherever they stand."""
    return [token["comment"].rstrip() for token in _TOKENS.finditer(text) if token["comment"]]


def _syntax_error(message: str, text: str, path: Path | None) -> str:
    found = _WHERE.search(message)
    what = _WHERE.sub("", message)
    if not found:
        return f"{path}: not TOML: {what}" if path else f"not TOML: {what}"
    if found[1] is None:
        return f"{place(path, text.count(chr(10)) + 1)}: not TOML: {what}, at the end of the file"
    return f"{place(path, int(found[1]))}: not TOML: {what} (column {found[2]})"
