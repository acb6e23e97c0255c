"""A manifest's file while blocks of it are replaced, taken out and added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from devices.block import Block
from devices.lifecycle.canonical import join, render, sort_key
from devices.lifecycle.text import ManifestText, Section, Source, take_apart
from devices.manifest import Manifest


@dataclass
class _Entry:
    """A block as it stands in the file."""

    source: Source
    block: Block

    @cached_property
    def key(self) -> tuple[object, ...]:
        return sort_key(self.block, str(self.source))


@dataclass(slots=True)
class _Section:
    heading: str
    entries: list[_Entry]


@dataclass(slots=True)
class Editing:
    """What became of each block, and what was added; ``text`` is the file that follows."""

    manifest: Manifest
    _parts: ManifestText
    _sources: dict[int, Source]  # by the block's line
    removed: list[Block] = field(default_factory=list)
    narrowed: list[Block] = field(default_factory=list)
    added: list[Block] = field(default_factory=list)
    _replaced: dict[int, list[_Entry]] = field(default_factory=dict)  # by the old block's line
    _new: list[_Entry] = field(default_factory=list)

    @classmethod
    def of(cls, text: str, manifest: Manifest) -> Editing:
        """Begin with the text that a manifest was read from."""
        parts = take_apart(text)
        lines = (block.line for block in manifest.blocks)
        return cls(manifest, parts, dict(zip(lines, parts.sources, strict=True)))

    @property
    def changed(self) -> bool:
        return bool(self.removed or self.narrowed or self.added)

    def source(self, block: Block) -> Source:
        """The text of a block that the file had."""
        return self._sources[block.line]

    def replace(self, block: Block, sources: Sequence[Source]) -> None:
        """Put other sources, or none, in a block's place."""
        (self.narrowed if sources else self.removed).append(block)
        self._replaced[block.line] = [
            _Entry(source, replace(self._read(source), line=block.line)) for source in sources
        ]

    def insert(self, block: Block) -> None:
        """Add a block where the canonical order has it."""
        self.added.append(block)
        self._new.append(_Entry(Source(render(block)), replace(block, path=self.manifest.path)))

    def blocks(self) -> tuple[Block, ...]:
        """The blocks as they are now."""
        now: list[Block] = []
        for block in self.manifest.blocks:
            entries = self._replaced.get(block.line)
            now += [block] if entries is None else [entry.block for entry in entries]
        return (*now, *(entry.block for entry in self._new))

    def text(self) -> str:
        """The file as it is now. What was not touched stays as it was written."""
        touched = {
            n for n, block in enumerate(self.manifest.blocks) if block.line in self._replaced
        }
        entries = [
            self._replaced.get(block.line, [_Entry(source, block)])
            for source, block in zip(self._parts.sources, self.manifest.blocks, strict=True)
        ]
        sections = []
        for part in self._parts.sections:
            section = _Section(part.heading, [entry for n in part.blocks for entry in entries[n]])
            if len(section.entries) != len(part.blocks) or any(n in touched for n in part.blocks):
                _restore_order(section, [self._old(n) for n in part.blocks])
            if section.entries:
                sections.append(section)
        for entry in self._new:
            _place(sections, entry)
        sources: list[Source] = []
        numbered: list[Section] = []
        for section in sections:
            first = len(sources)
            sources += [entry.source for entry in section.entries]
            numbered.append(Section(section.heading, tuple(range(first, len(sources)))))
        return join(replace(self._parts, sources=tuple(sources), sections=tuple(numbered)))

    def _old(self, number: int) -> _Entry:
        return _Entry(self._parts.sources[number], self.manifest.blocks[number])

    def _read(self, source: Source) -> Block:
        return Manifest.parse(f"{source}\n", self.manifest.path).blocks[0]


def _restore_order(section: _Section, before: Sequence[_Entry]) -> None:
    """Sort what stood in order before: a block that lost names may come before another now."""
    keys = [entry.key for entry in before]
    if keys == sorted(keys):
        section.entries.sort(key=lambda entry: entry.key)


def _place(sections: list[_Section], entry: _Entry) -> None:
    """Under the heading of blocks with the same reason; else under one of its own, in order.

    Headings are lines that differ from cause to cause. Without them git may take the first lines of
    one block for those of the next, and see a conflict between neighbours where there is none.
    """
    for section in sections:
        if any(each.block.reason == entry.block.reason for each in section.entries):
            _insert(section.entries, entry)
            return
    heading = _heading(entry.block.reason)
    at = next((n for n, section in enumerate(sections) if section.heading > heading), len(sections))
    sections.insert(at, _Section(heading, [entry]))


def _insert(entries: list[_Entry], entry: _Entry) -> None:
    key = entry.key
    at = next((n for n, each in enumerate(entries) if each.key > key), len(entries))
    entries.insert(at, entry)


def _heading(reason: str) -> str:
    line = " ".join(reason.split())
    return f"# {line if len(line) <= 96 else line[:95] + '…'}"
