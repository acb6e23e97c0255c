"""The report on mutants: tables by family, by axis and by clause, and the list of those that the gate missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from tests.mutation.kernels import Result

#: The results that count. An equivalent mutant does not: nobody can observe it.
LIVE = ("noticed", "not_gated", "survived", "not_reached")


def live(results: Iterable[Result]) -> list[Result]:
    return [each for each in results if each.result in LIVE]


def score(results: Iterable[Result]) -> float:
    """The percentage of live mutants that turned the gate red; 100 if there are none."""
    found = live(results)
    noticed = sum(each.result == "noticed" for each in found)
    return 100.0 * noticed / len(found) if found else 100.0


def lines(results: Sequence[Result]) -> Iterator[str]:
    """The report, as Markdown."""
    counts = Counter(each.result for each in results)
    yield (
        f"{len(results)} mutants: {counts['noticed']} noticed by the gate, {counts['survived']} reached and not noticed, "
        f"{counts['not_reached']} not reached, {counts['equivalent']} equivalent. "
        f"Score {score(results):.1f} %."
    )
    if counts["not_gated"]:
        yield (
            f"{counts['not_gated']} more turned only cells red whose clauses do not gate:"
            f" cells noticed {counts['noticed'] + counts['not_gated']}, the gate {counts['noticed']}."
        )
    if counts["broken"]:
        yield f"{counts['broken']} could not be tried, which is a mistake of this tool."
    unsteady = Counter(cell for each in results for cell in each.unsteady)
    if unsteady:
        named = ", ".join(f"`{cell}` ({count})" for cell, count in unsteady.most_common())
        yield f"Cells that were red without a mutant, or not each time with it, and do not count: {named}."
    for title, key in (("family", _family), ("axis", lambda each: each.axis)):
        yield from ("", *_table(title, results, key))
    clauses = Counter(clause for each in results for clause in each.by)
    alone = Counter(each.by[0] for each in results if len(each.by) == 1)
    yield from ("", "| gating clause | noticed | alone |", "|---|---:|---:|")
    for clause, count in clauses.most_common():
        yield f"| `{clause}` | {count} | {alone[clause]} |"
    others = Counter(clause for each in results for clause in each.not_gating)
    if others:
        yield from ("", "| clause that does not gate | turned red |", "|---|---:|")
        yield from (f"| `{clause}` | {count} |" for clause, count in others.most_common())
    missed = (
        ("Noticed only by cells that do not gate", "not_gated"),
        ("Reached and not noticed", "survived"),
        ("Not reached", "not_reached"),
    )
    for title, result in missed:
        chosen = [each for each in results if each.result == result]
        if chosen:
            yield from ("", f"{title}:", "")
            yield from (f"- `{r.id}` {r.op}, {r.axis}: {r.kind}{_because(r)}" for r in chosen)
    broken = [each for each in results if each.result == "broken"]
    yield from (f"- `{r.id}` {r.op}, {r.axis}: {r.kind}: {r.note}" for r in broken)


def _because(missed: Result) -> str:
    """What the probe says of a mutant that the gate missed."""
    return f" ({missed.note})" if missed.note else ""


def _family(each: Result) -> str:
    return each.family


def _table(title: str, results: Sequence[Result], key: Callable[[Result], str]) -> Iterator[str]:
    yield f"| {title} | gate | only cells | not noticed | not reached | score |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name in sorted({key(each) for each in live(results)}):
        chosen = [each for each in results if key(each) == name]
        counts = Counter(each.result for each in chosen)
        numbers = " | ".join(str(counts[each]) for each in LIVE)
        yield f"| {name} | {numbers} | {score(chosen):.0f} % |"
