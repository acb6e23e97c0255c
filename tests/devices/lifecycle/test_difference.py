"""The difference between two texts is one that ``patch`` understands."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from devices.lifecycle.text import unified
from tests.fuzzing import examples

_TEXTS = st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=14)


def patched(lines: list[str], difference: list[str]) -> list[str]:
    """Apply a unified difference, strictly. Raises AssertionError where it does not fit."""
    out: list[str] = []
    at = 0
    for line in difference[2:]:
        header = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@", line)
        if header:
            start = int(header[1]) - (0 if header[2] == "0" else 1)
            out += lines[at:start]
            at = start
        elif line[0] == "+":
            out.append(line[1:])
        else:
            assert lines[at] == line[1:]
            out += [line[1:]] if line[0] == " " else []
            at += 1
    return out + lines[at:]


@examples(200)
@given(_TEXTS, _TEXTS)
def test_applied_to_the_old_text_it_gives_the_new(old: list[str], new: list[str]) -> None:
    one, other = "\n".join(old), "\n".join(new)
    difference = list(unified(one, other, "expected.toml"))
    assert patched(one.splitlines(), difference) == other.splitlines()
    assert bool(difference) == (one.splitlines() != other.splitlines())


def test_it_shows_what_changed_in_its_surroundings() -> None:
    old = "[[expect]]\nop = 'a'\n\n[[expect]]\nop = ['b', 'c']\nreason = 'x'\n"
    assert list(unified(old, old.replace(", 'c'", ""), "e.toml")) == [
        "--- e.toml",
        "+++ e.toml (updated)",
        "@@ -2,5 +2,5 @@",
        " op = 'a'",
        " ",
        " [[expect]]",
        "-op = ['b', 'c']",
        "+op = ['b']",
        " reason = 'x'",
    ]
