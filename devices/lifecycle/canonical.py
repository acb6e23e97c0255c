"""The canonical form of a manifest: one way to write the same thing, so that branches merge.

Keys in one order, names sorted, an array on one line where it fits and else one entry a line, headings
sorted, blocks sorted by cause (their reason) under them, one blank line between any two. Texts (reasons,
regular expressions, addresses) and comments stay as they were written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import tomlkit
from tomlkit.items import Array, Item, Table

from devices.block import Block
from devices.lifecycle.text import ManifestText, Section, Source, take_apart
from devices.manifest import Manifest, comments_in
from devices.reading import KEYS

WIDTH: Final = 100
_AXES: Final = ("clause", "op", "dtype")
_HEADER: Final = "[[expect]]"


def canonical(text: str, manifest: Manifest) -> str:
    """The canonical form of a file's text; ``manifest`` is what was read from it."""
    return join(ordered(formatted(take_apart(text), manifest.blocks), manifest.blocks))


def formatted(parts: ManifestText, blocks: Sequence[Block]) -> ManifestText:
    """Every block in canonical form, where it stands."""
    sources = tuple(
        canonical_block(source, block) for source, block in zip(parts.sources, blocks, strict=True)
    )
    return replace(parts, sources=sources)


def ordered(parts: ManifestText, blocks: Sequence[Block]) -> ManifestText:
    """Blocks sorted under their headings, and these by themselves.

    Neither key changes when a block is narrowed, so that blocks do not move about. Blocks without a heading stay first: further down they would fall under another's.
    """
    keys = [
        sort_key(block, str(source)) for block, source in zip(blocks, parts.sources, strict=True)
    ]
    sections = [
        Section(section.heading, tuple(sorted(section.blocks, key=keys.__getitem__)))
        for section in parts.sections
        if section.blocks
    ]
    sections.sort(key=lambda each: (bool(each.heading), each.heading, keys[each.blocks[0]]))
    return replace(parts, sections=tuple(sections))


def join(parts: ManifestText) -> str:
    """The text of a file. Without a preamble its first heading would be read as one."""
    headed = parts.sections and parts.sections[0].heading
    if headed and not parts.preamble:
        parts = replace(parts, preamble=_PREAMBLE)
    return parts.join()


_PREAMBLE: Final = "# Expected failures, one block a root cause."


def sort_key(block: Block, text: str = "") -> tuple[object, ...]:
    """By cause, then clause and op."""
    return (
        block.reason,
        sorted(block.clause),
        sorted(block.op),
        sorted(block.dtype),
        block.outcome.value,
        sorted(block.layouts or ()),
        block.raises or "",
        text,
    )


def canonical_block(source: Source, block: Block) -> Source:
    """One block in canonical form. Texts of our own making are known without parsing."""
    comments = "\n".join(line.strip() for line in source.comments.splitlines())
    if source.text == (plain := render(block)):
        return Source(plain, comments)
    parsed = _Parsed.read(source.text)
    return Source(parsed.text(), comments)


def edited(source: Source, changes: Mapping[str, Sequence[str] | str | None]) -> Source:
    """A block with other values, in canonical form: names, a text, or None to take the key away."""
    parsed = _Parsed.read(source.text)
    for key, value in changes.items():
        parsed.change(key, value)
    return Source(parsed.text(), source.comments)


# -- from a block ---------------------------------------------------------------------------------


def render(block: Block) -> str:
    """A block as we write it ourselves."""
    lines = [_HEADER]
    for key, value in _values(block):
        if value is not None:
            lines.append(f"{key} = {value}")
    return "\n".join(lines)


def _values(block: Block) -> Iterable[tuple[str, str | None]]:
    yield "clause", names_text("clause", block.clause)
    yield "op", names_text("op", block.op)
    yield "dtype", names_text("dtype", block.dtype)
    yield "layouts", names_text("layouts", sorted(block.layouts)) if block.layouts else None
    yield "outcome", string(block.outcome.value)
    yield "raises", string(block.raises) if block.raises else None
    yield "match", string(block.match.pattern) if block.match else None
    conditions = {each.fact: each.wanted for each in block.when}
    yield "when", when_text(conditions) if conditions else None
    yield "kind", string(block.kind.value) if block.kind else None
    yield "reason", long_text("reason", block.reason)
    yield "issue", string(block.issue) if block.issue else None
    yield "expires", block.expires.isoformat() if block.expires else None
    yield "min_pass_rate", repr(block.min_pass_rate) if block.min_pass_rate is not None else None


def names_text(key: str, names: Sequence[str]) -> str | None:
    """The value of an axis or of ``layouts``; None where the key says no more than its default."""
    if key in ("op", "dtype") and tuple(names) == ("*",):
        return None
    listed = [string(name) for name in sorted(set(names))]
    if key in _AXES and len(listed) == 1:
        return listed[0]
    line = f"[{', '.join(listed)}]"
    if len(key) + 3 + len(line) <= WIDTH:
        return line
    return "[\n" + "".join(f"  {name},\n" for name in listed) + "]"


def when_text(conditions: Mapping[str, str]) -> str:
    """The conditions as an inline table, sorted."""
    pairs = ", ".join(f"{fact} = {string(wanted)}" for fact, wanted in sorted(conditions.items()))
    return f"{{ {pairs} }}"


def long_text(key: str, text: str) -> str:
    """A text on one line where it fits, else broken between words by TOML's line-ending backslash."""
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
    """A basic string of TOML."""
    return tomlkit.string(text).as_string()


# -- from a text ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    """A key, the comment lines above it, its value as text, and the comment behind it."""

    comments: list[str]
    value: str
    comment: str = ""
    item: Item | None = None


@dataclass(slots=True)
class _Parsed:
    """A block's text, taken apart by tomlkit."""

    comment: str  # behind the header
    entries: dict[str, _Entry] = field(default_factory=dict)
    trailing: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> _Parsed:
        table: Table = tomlkit.parse(text + "\n")["expect"][0]
        parsed = cls(table.trivia.comment)
        values: dict[str, Any] = table.unwrap()
        waiting: list[str] = []
        for key, item in table.value.body:
            if key is None:
                waiting += comments_in(item.as_string())
                continue
            entry = parsed.entries.setdefault(key.key, _Entry([], "", "", item))
            entry.comments += waiting
            waiting = []
            value = values[key.key]
            if isinstance(value, Mapping):
                # Dotted keys and sub-tables become an inline table, which can hold no comment.
                entry.comments += comments_in(f"\n{item.as_string()}")
                if isinstance(item, Table) and item.trivia.comment:
                    entry.comments.append(item.trivia.comment)
                entry.value = when_text(value)
                if not isinstance(item, Table):
                    entry.comment = item.trivia.comment
                continue
            entry.comment = item.trivia.comment
            entry.value = _value_text(key.key, value, item)
        parsed.trailing = waiting
        return parsed

    def change(self, key: str, value: Sequence[str] | str | None) -> None:
        """Give a key another value; None takes it away, with its comments."""
        if value is None:
            self.entries.pop(key, None)
            return
        entry = self.entries.setdefault(key, _Entry([], ""))
        if isinstance(value, str):
            entry.value = string(value)
            return
        if isinstance(entry.item, Array) and comments_in(entry.item.as_string()):
            old = [str(name) for name in entry.item]
            if set(value) <= set(old):
                for name in old:
                    if name not in value:
                        entry.item.remove(name)
                entry.value = entry.item.as_string()
                return
        entry.value = names_text(key, value) or ""

    def text(self) -> str:
        lines = [f"{_HEADER}  {self.comment}" if self.comment else _HEADER]
        for key in KEYS:
            entry = self.entries.get(key)
            if entry is None:
                continue
            lines += entry.comments
            if entry.value:
                lines.append(f"{key} = {entry.value}{'  ' if entry.comment else ''}{entry.comment}")
            elif entry.comment:
                lines.append(entry.comment)
        return "\n".join([*lines, *self.trailing])


def _value_text(key: str, value: object, item: Item) -> str:
    text = item.as_string().strip()
    if key in (*_AXES, "layouts"):
        if comments_in(text):
            return text  # sorted, they would stand beside the wrong names
        names = [value] if isinstance(value, str) else value
        if isinstance(names, list):
            return names_text(key, names) or ""
    if key in ("outcome", "kind") and isinstance(value, str):
        return string(value)
    return text
