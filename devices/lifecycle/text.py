"""A manifest as text: which lines belong to which block, so that comments stay with what they are about.

A comment directly above a header is that block's own. One that a blank line separates from the header
is a heading, and speaks of every block down to the next heading. The first paragraph of comments in a
file is its preamble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from devices.manifest import comment_lines, header_lines


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one block: comments of its own, then header and keys. No line break at the end."""

    text: str
    comments: str = ""

    def __str__(self) -> str:
        return f"{self.comments}\n{self.text}" if self.comments else self.text


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under one heading, which may be empty; ``blocks`` are numbered as in the file."""

    heading: str
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ManifestText:
    """A whole file, taken apart. ``sources`` are in the file's order, as a Manifest's blocks are."""

    preamble: str = ""
    sources: tuple[Source, ...] = ()
    sections: tuple[Section, ...] = ()
    epilogue: str = ""
    crlf: bool = False

    def join(self) -> str:
        """The file's text: one blank line between any two parts, one line break at the end."""
        parts = [self.preamble]
        for section in self.sections:
            parts.append(section.heading)
            parts += [str(self.sources[index]) for index in section.blocks]
        parts.append(self.epilogue)
        text = "\n\n".join(part for part in parts if part)
        text = f"{text}\n" if text else ""
        return text.replace("\n", "\r\n") if self.crlf else text


@dataclass(slots=True)
class _Tail:
    """What stands between the last line of a block and the next header."""

    trailing: list[str] = field(default_factory=list)  # directly below the block
    paragraphs: list[str] = field(default_factory=list)
    own: str = ""  # directly above the next header


def take_apart(text: str) -> ManifestText:
    """Split a manifest's text, which must be one that can be read."""
    crlf = "\r\n" in text
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    headers = [line - 1 for line in header_lines(text)]
    comments = comment_lines(text)
    sources: list[Source] = []
    sections: list[Section] = []
    # Before the first block there is nothing that a comment could trail behind.
    before = _tail(lines, 0, headers[0] if headers else len(lines), bool(headers))
    before.paragraphs[:0] = ["\n".join(before.trailing)] if before.trailing else []
    preamble = before.paragraphs.pop(0) if before.paragraphs else ""
    heading, own = "\n\n".join(before.paragraphs), before.own
    members: list[int] = []
    for index, header in enumerate(headers):
        last = index + 1 == len(headers)
        end = len(lines) if last else headers[index + 1]
        stop = end
        while stop > header + 1 and (not lines[stop - 1].strip() or stop - 1 in comments):
            stop -= 1
        tail = _tail(lines, stop, end, not last)
        sources.append(Source("\n".join([*lines[header:stop], *tail.trailing]), own))
        members.append(index)
        own = tail.own
        if last or tail.paragraphs:
            sections.append(Section(heading, tuple(members)))
            members = []
            heading = "\n\n".join(tail.paragraphs)
    epilogue = heading if headers else "\n\n".join(before.paragraphs)
    return ManifestText(preamble, tuple(sources), tuple(sections), epilogue, crlf)


def _tail(lines: Sequence[str], start: int, end: int, header_follows: bool) -> _Tail:
    """Sort the blank and comment lines from ``start`` up to ``end`` into what they belong to."""
    paragraphs: list[list[str]] = [[]]
    for line in lines[start:end]:
        if line.strip():
            paragraphs[-1].append(line.strip())
        else:
            paragraphs.append([])
    tail = _Tail()
    if header_follows:
        tail.own = "\n".join(paragraphs.pop())
    if paragraphs:
        tail.trailing = paragraphs.pop(0)
    tail.paragraphs = ["\n".join(each) for each in paragraphs if each]
    return tail
