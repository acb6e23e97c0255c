"""Parses, formats and edits the text of a manifest, and shows differences.

The canonical form makes it possible to merge branches: keys are in a fixed order, names are sorted, an array is on one
line if it fits and otherwise has one entry per line, headings are sorted, the blocks under a heading are sorted by
reason, and one blank line separates blocks. Texts (reasons, regular expressions, addresses) and comments stay as they
were written.

A comment directly above a header belongs to that block. A comment that a blank line separates from the header is a
heading for all blocks down to the next heading. The first paragraph of comments in a file is its preamble.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import SequenceMatcher
from enum import Enum
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, Final

import tomlkit
from tomlkit.items import Array, Item, Table

from devices.manifest import AXES, KEYS, Block, Manifest, comment_lines, comments_in, header_lines

WIDTH: Final = 100
_HEADER: Final = "[[expect]]"
_PREAMBLE: Final = "# Expected failures, one block for each root cause."


# -- a file taken apart ---------------------------------------------------------------------------


@dataclass
class Entry:
    """A block of the file: the text of its header and keys, the comments directly above, and the block itself."""

    text: str  # without a line break at the end
    comments: str
    block: Block

    def __str__(self) -> str:
        return f"{self.comments}\n{self.text}" if self.comments else self.text

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The key by which blocks are sorted: reason, then clause and op. Narrowing a block does not change its
        reason, so the block stays at its position."""
        block = self.block
        names = (sorted(block.clause), sorted(block.op), sorted(block.dtype))
        rest = (block.outcome.value, sorted(block.layouts or ()), block.raises or "", str(self))
        return (block.reason, *names, *rest)


@dataclass
class Section:
    """The entries under one heading. The heading may be empty."""

    heading: str
    entries: list[Entry]


@dataclass
class ManifestText:
    """The text of a whole manifest file, taken apart into its preamble, sections and entries."""

    preamble: str
    sections: list[Section]
    epilogue: str
    crlf: bool

    def join(self) -> str:
        """Returns the text of the file. One blank line separates the parts, and the text ends with one line break."""
        preamble = self.preamble
        if self.sections and self.sections[0].heading and not preamble:
            preamble = _PREAMBLE  # otherwise the first heading would be read as the preamble
        parts = [preamble]
        for section in self.sections:
            parts += [section.heading, *map(str, section.entries)]
        text = "\n\n".join(part for part in (*parts, self.epilogue) if part)
        text = f"{text}\n" if text else ""
        return text.replace("\n", "\r\n") if self.crlf else text


def take_apart(text: str, blocks: Sequence[Block]) -> ManifestText:
    """Splits the text of a manifest file into its parts. ``blocks`` are the blocks that were read from the text."""
    crlf = "\r\n" in text
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    headers = [line - 1 for line in header_lines(text)]
    comments = comment_lines(text)
    sections: list[Section] = []
    # There is no block above the comments before the first block.
    trailing, paragraphs, own = _between(lines, 0, headers[0] if headers else len(lines), headers)
    paragraphs = [*filter(None, ["\n".join(trailing)]), *paragraphs]
    preamble = paragraphs.pop(0) if paragraphs else ""
    entries: list[Entry] = []
    ends = [*headers[1:], len(lines)][: len(headers)]
    for header, after, block in zip(headers, ends, blocks, strict=True):
        stop = after
        while stop > header + 1 and (not lines[stop - 1].strip() or stop - 1 in comments):
            stop -= 1
        last = after == len(lines)
        trailing, more, own_of_next = _between(lines, stop, after, not last)
        entries.append(Entry("\n".join([*lines[header:stop], *trailing]), own, block))
        own = own_of_next
        if last or more:
            sections.append(Section("\n\n".join(paragraphs), entries))
            entries, paragraphs = [], more
    return ManifestText(preamble, sections, "\n\n".join(paragraphs), crlf)


def _between(
    lines: Sequence[str], start: int, end: int, header_follows: object
) -> tuple[list[str], list[str], str]:
    """Splits the blank and comment lines from ``start`` up to ``end`` into the lines directly below the previous block,
    the paragraphs, and the comments directly above the next header."""
    paragraphs: list[list[str]] = [[]]
    for line in lines[start:end]:
        if line.strip():
            paragraphs[-1].append(line.strip())
        else:
            paragraphs.append([])
    own = "\n".join(paragraphs.pop()) if header_follows else ""
    trailing = paragraphs.pop(0) if paragraphs else []
    return trailing, ["\n".join(each) for each in paragraphs if each], own


def canonical(text: str, manifest: Manifest) -> str:
    """Returns the canonical form of a manifest's text. ``manifest`` is the result of reading that text."""
    parts = take_apart(text, manifest.blocks)
    for section in parts.sections:
        section.entries = sorted(map(_canonical, section.entries), key=lambda entry: entry.key)
    # Entries without a heading stay first: further down they would come under a heading.
    parts.sections.sort(key=lambda each: (bool(each.heading), each.heading, each.entries[0].key))
    return parts.join()


def _canonical(entry: Entry) -> Entry:
    """Returns one block in canonical form. Parsing is slow, so the text is not parsed if it equals that of a
    newly rendered block."""
    comments = "\n".join(line.strip() for line in entry.comments.splitlines())
    plain = render(entry.block)
    text = plain if entry.text == plain else edited(entry.text)
    return Entry(text, comments, entry.block)


# -- new blocks -----------------------------------------------------------------------------------


def render(block: Block) -> str:
    """Returns the text of a new block as it is written to a manifest."""
    values = ((key, _written(key, getattr(block, key))) for key in KEYS)
    return "\n".join([_HEADER, *(f"{key} = {value}" for key, value in values if value is not None)])


def _written(key: str, value: object) -> str | None:
    """Returns the text of a key's value; None if the value is the default."""
    match value:
        case re.Pattern():
            return string(value.pattern)
        case Enum():
            return string(value.value)
        case date():
            return value.isoformat()
        case float():
            return repr(value)
        case str():
            return long_text(key, value) if key == "reason" else string(value)
        case tuple() if value and key == "when":
            return when_text({each.fact: each.wanted for each in value})
        case tuple() | frozenset() if value:
            return names_text(key, sorted(value))
    return None


def names_text(key: str, names: Sequence[str]) -> str | None:
    """Returns the text of the names in ``clause``, ``op``, ``dtype``, ``variant`` or ``layouts``; None if the value is the
    default."""
    if key in ("op", "dtype", "variant") and tuple(names) == ("*",):
        return None
    listed = [string(name) for name in sorted(set(names))]
    if key in AXES and len(listed) == 1:
        return listed[0]
    line = f"[{', '.join(listed)}]"
    if len(key) + 3 + len(line) <= WIDTH:
        return line
    return "[\n" + "".join(f"  {name},\n" for name in listed) + "]"


def when_text(conditions: Mapping[str, str]) -> str:
    """Returns the sorted conditions as an inline table."""
    pairs = ", ".join(f"{fact} = {string(wanted)}" for fact, wanted in sorted(conditions.items()))
    return f"{{ {pairs} }}"


def long_text(key: str, text: str) -> str:
    """Returns the TOML string of a text: on one line if it fits, otherwise broken between words by backslashes at the
    ends of lines."""
    line = string(text)
    if len(key) + 3 + len(line) <= WIDTH or text[0].isspace():
        return line
    lines, held = [], ""
    for word in re.findall(r"[^ ]+ *", line[1:-1]):
        if held and len(held) + len(word) > WIDTH - 4:
            lines.append(held)
            held = ""
        held += word
    return '"""\\\n' + "".join(f"{each}\\\n" for each in lines) + f'{held}"""'


@lru_cache(maxsize=65536)
def string(text: str) -> str:
    """Returns a text as a basic TOML string, in quotes and with escapes."""
    return tomlkit.string(text).as_string()


# -- existing blocks ------------------------------------------------------------------------------

#: The new names of changed keys.
Changes = Mapping[str, Sequence[str]]


def edited(text: str, changes: Changes = MappingProxyType({})) -> str:
    """Returns the text of a block in canonical form, with the new names in ``changes``."""
    table: Table = tomlkit.parse(text + "\n")["expect"][0]
    values: dict[str, Any] = table.unwrap()
    above: dict[str, list[str]] = {key: [] for key in KEYS}  # comments
    lines = {key: _line(key, names_text(key, names)) for key, names in changes.items()}
    waiting: list[str] = []
    for part, item in table.value.body:
        if part is None:
            waiting += comments_in(item.as_string())
            continue
        key, comment = part.key, item.trivia.comment
        above[key] += waiting
        waiting = []
        if isinstance(values[key], Mapping):
            # Dotted keys and sub-tables become an inline table, which cannot contain comments.
            above[key] += comments_in(f"\n{item.as_string()}")
            if isinstance(item, Table):
                above[key] += filter(None, [comment])
                comment = ""
            value: str | None = when_text(values[key])
        elif key in changes:
            value = _other_names(key, item, changes[key])
        else:
            value = _value_text(key, values[key], item)
        lines[key] = _line(key, value, comment)
    header = table.trivia.comment
    body = (line for key in KEYS for line in (*above[key], lines.get(key)) if line)
    return "\n".join([f"{_HEADER}  {header}" if header else _HEADER, *body, *waiting])


def _line(key: str, value: str | None, comment: str = "") -> str:
    """Returns the line with a key and its value, followed by the comment on that line; only the comment if ``value``
    is None, which means that the value is the default."""
    return "  ".join(filter(None, [f"{key} = {value}" if value else "", comment]))


def _other_names(key: str, item: Item, names: Sequence[str]) -> str | None:
    """Returns the text of a key's value with the new names. An array keeps the comments of the names that stay."""
    if isinstance(item, Array) and comments_in(item.as_string()):
        old = [str(name) for name in item]
        if set(names) <= set(old):
            for name in old:
                if name not in names:
                    item.remove(name)
            return item.as_string()
    return names_text(key, names)


def _value_text(key: str, value: object, item: Item) -> str | None:
    text = item.as_string().strip()
    if key in (*AXES, "layouts"):
        if comments_in(text):
            return text  # after sorting, the comments would be next to the wrong names
        names = [value] if isinstance(value, str) else value
        if isinstance(names, list):
            return names_text(key, names)
    if key in ("outcome", "kind") and isinstance(value, str):
        return string(value)
    return text


# -- editing a file ---------------------------------------------------------------------------------


class Editing:
    """An editor for a manifest file, which can change, remove and add blocks. ``text`` returns the result."""

    def __init__(self, text: str, manifest: Manifest) -> None:
        """Starts to edit the text from which ``manifest`` was read."""
        self.removed: list[Block] = []
        self.narrowed: list[Block] = []
        self.added: list[Block] = []
        self._path = manifest.path
        self._parts = take_apart(text, manifest.blocks)
        self._new: list[Entry] = []
        #: The entries that are now in the place of each block, by the line of the old block.
        self._now = {
            entry.block.line: [entry] for each in self._parts.sections for entry in each.entries
        }

    @property
    def changed(self) -> bool:
        return bool(self.removed or self.narrowed or self.added)

    def replace(self, block: Block, pieces: Sequence[Changes]) -> None:
        """Replaces a block by changed copies, or removes it if no copies are given. Call the method at most once for
        each block."""
        (self.narrowed if pieces else self.removed).append(block)
        (old,) = self._now[block.line]
        self._now[block.line] = []
        for changes in pieces:
            text = edited(old.text, changes)
            (read,) = Manifest.parse(f"{text}\n", self._path).blocks
            self._now[block.line].append(Entry(text, old.comments, replace(read, line=block.line)))

    def insert(self, block: Block) -> None:
        """Adds a block at its position in the canonical order."""
        self.added.append(block)
        self._new.append(Entry(render(block), "", replace(block, path=self._path)))

    def blocks(self) -> tuple[Block, ...]:
        """Returns the current blocks."""
        return tuple(each.block for each in chain(*self._now.values(), self._new))

    def text(self) -> str:
        """Returns the current text. Blocks that were not changed stay as they were written."""
        sections = []
        for old in self._parts.sections:
            entries = [now for each in old.entries for now in self._now[each.block.line]]
            keys = [each.key for each in old.entries]
            if entries != old.entries and keys == sorted(keys):
                # The entries were sorted; a block that lost names may now belong in another place.
                entries.sort(key=lambda entry: entry.key)
            if entries:
                sections.append(Section(old.heading, entries))
        for entry in self._new:
            _place(sections, entry)
        return replace(self._parts, sections=sections).join()


def _place(sections: list[Section], entry: Entry) -> None:
    """Inserts a block into the sections of a manifest: under the heading of blocks with the same reason or, if no block
    has the same reason, under a new heading in sorted order.

    Headings differ from cause to cause. Without headings, git may match the first lines of one block with the first
    lines of the next one, and report a conflict although the changes to the two blocks do not conflict.
    """
    for section in sections:
        if any(each.block.reason == entry.block.reason for each in section.entries):
            at = next((n for n, e in enumerate(section.entries) if e.key > entry.key), None)
            section.entries.insert(len(section.entries) if at is None else at, entry)
            return
    line = " ".join(entry.block.reason.split())
    heading = f"# {line if len(line) <= 96 else line[:95] + '…'}"
    at = next((n for n, section in enumerate(sections) if section.heading > heading), None)
    sections.insert(len(sections) if at is None else at, Section(heading, [entry]))


# -- differences ----------------------------------------------------------------------------------

_Opcode = tuple[str, int, int, int, int]


def unified(old: str, new: str, name: str) -> Iterator[str]:
    """Yields the lines of a unified diff without line breaks, or nothing if the texts are equal."""
    before, after = old.splitlines(), new.splitlines()
    for number, group in enumerate(_ByParagraph(before, after).get_grouped_opcodes()):
        if number == 0:
            yield f"--- {name}"
            yield f"+++ {name} (updated)"
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[i1:i2])
            else:
                yield from (f"-{line}" for line in before[i1:i2])
                yield from (f"+{line}" for line in after[j1:j2])


class _ByParagraph(SequenceMatcher[str]):
    """A matcher that compares paragraphs first, then the lines of paragraphs that differ. Most lines of a manifest
    occur in many blocks, which makes difflib slow."""

    def __init__(self, *texts: Sequence[str]) -> None:
        super().__init__()
        self._texts = texts

    def get_opcodes(self) -> list[_Opcode]:  # type: ignore[override]
        before, after = self._texts
        a_at, b_at = (
            [0, *(n for n, line in enumerate(lines, 1) if not line), len(lines)]
            for lines in (before, after)
        )
        one = [tuple(before[i:j]) for i, j in pairwise(a_at)]
        other = [tuple(after[i:j]) for i, j in pairwise(b_at)]
        found: list[_Opcode] = []
        for tag, *ends in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
            i, i_end, j, j_end = a_at[ends[0]], a_at[ends[1]], b_at[ends[2]], b_at[ends[3]]
            lines = SequenceMatcher(None, before[i:i_end], after[j:j_end], autojunk=False)
            inner = lines.get_opcodes() if tag == "replace" else [(tag, 0, i_end - i, 0, j_end - j)]
            for kind, i1, i2, j1, j2 in inner:
                opcode = (kind, i + i1, i + i2, j + j1, j + j2)
                # Join equal lines on both sides of a border between paragraphs.
                if found and found[-1][0] == kind == "equal":
                    opcode = (kind, found[-1][1], opcode[2], found.pop()[3], opcode[4])
                found.append(opcode)
        return found


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"
