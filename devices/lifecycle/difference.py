"""The difference between two texts of a manifest, as ``diff -u`` writes it.

difflib alone takes minutes for 10,000 blocks, whose lines are mostly alike. Whole blocks are not: they
are compared first, and lines only within blocks that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate

_Opcode = tuple[str, int, int, int, int]


def unified(old: str, new: str, name: str) -> Iterator[str]:
    """The lines of a unified difference without line breaks; none where the texts are the same."""
    before, after = old.splitlines(), new.splitlines()
    for number, group in enumerate(_Known(_opcodes(before, after)).get_grouped_opcodes(3)):
        if number == 0:
            yield f"--- {name}"
            yield f"+++ {name} (updated)"
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[i1:i2])
                continue
            yield from (f"-{line}" for line in before[i1:i2])
            yield from (f"+{line}" for line in after[j1:j2])


class _Known(SequenceMatcher[str]):
    """Groups operations that were found already."""

    def __init__(self, opcodes: Iterable[_Opcode]) -> None:
        super().__init__()
        self._known = list(opcodes)

    def get_opcodes(self) -> list[_Opcode]:  # type: ignore[override]
        return self._known


def _opcodes(before: Sequence[str], after: Sequence[str]) -> Iterator[_Opcode]:
    one, other = _paragraphs(before), _paragraphs(after)
    # Where each paragraph begins, and where the last one ends.
    i_at = [0, *accumulate(len(each) for each in one)]
    j_at = [0, *accumulate(len(each) for each in other)]
    joined: list[_Opcode] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        i, i_end, j, j_end = i_at[i1], i_at[i2], j_at[j1], j_at[j2]
        if tag != "replace":
            _append(joined, (tag, i, i_end, j, j_end))
            continue
        lines = SequenceMatcher(None, before[i:i_end], after[j:j_end], autojunk=False)
        for kind, a1, a2, b1, b2 in lines.get_opcodes():
            _append(joined, (kind, i + a1, i + a2, j + b1, j + b2))
    yield from joined


def _append(opcodes: list[_Opcode], opcode: _Opcode) -> None:
    """Join what is equal on both sides of a border between paragraphs."""
    if opcodes and opcodes[-1][0] == opcode[0] == "equal":
        opcode = ("equal", opcodes[-1][1], opcode[2], opcodes.pop()[3], opcode[4])
    opcodes.append(opcode)


def _paragraphs(lines: Sequence[str]) -> list[tuple[str, ...]]:
    """Lines up to and with each blank one."""
    found: list[tuple[str, ...]] = []
    held: list[str] = []
    for line in lines:
        held.append(line)
        if not line:
            found.append(tuple(held))
            held = []
    return [*found, tuple(held)] if held else found


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"
