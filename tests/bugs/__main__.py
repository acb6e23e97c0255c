"""``python -m tests.bugs [REFERENCE...] [--all]``: which public bugs the suite notices, by family.

Those whose imitation is known to be missed are tried too with ``--all``.
"""

from __future__ import annotations

import sys
from collections import Counter

from conformance.contract.bugs import Bug, bugs
from tests.bugs.trials import FATES, Fate, fate


def main(words: list[str]) -> int:
    """The exit status is 1 if an imitation that should be noticed is not."""
    every = "--all" in words
    chosen = [b for b in bugs() if b.reference in words or not set(words) - {"--all"}]
    counts: dict[str, Counter[Fate]] = {}
    red = 0
    for bug in chosen:
        found, by = fate(bug) if every or not bug.missed else ("missed", ())
        counts.setdefault(bug.family, Counter())[found] += 1
        note = _note(bug, found, by)
        red += note.startswith("MISSED")
        if note:
            print(f"{bug.reference:32} {note}", flush=True)
    width = max(map(len, counts), default=0)
    print(" ".join(["family".ljust(width), *(name.rjust(13) for name in (*FATES, "all"))]))
    for family, of_family in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        row = [*(of_family[name] for name in FATES), of_family.total()]
        print(" ".join([family.ljust(width), *(f"{number:13}" for number in row)]))
    return int(red > 0)


def _note(bug: Bug, found: Fate, by: tuple[str, ...]) -> str:
    if found == "missed" and not bug.missed:
        return f"MISSED {bug.imitated}"
    if found != "missed" and bug.missed:
        return f"noticed by {', '.join(by)}: remove its 'missed' ({bug.missed})"
    return ""


sys.exit(main(sys.argv[1:]))
