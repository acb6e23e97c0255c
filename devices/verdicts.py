"""The verdict on a cell: what was observed, held against what the manifest expects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from devices.block import Block, ExpectedOutcome
from devices.cell import Observed, Outcome, Verdict
from devices.matching import Expectation


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, why it came to that (for people; empty where there is nothing to say), and the
    blocks of the manifest that it rests on."""

    verdict: Verdict
    why: str = ""
    blocks: tuple[Block, ...] = ()


_OK: Final = Judgement(Verdict.OK)
_AMBIGUOUS: Final = Judgement(Verdict.OK, "ambiguous reference: in no numerator")
_DECLARED: Final = Judgement(Verdict.OK, "unsupported by declaration: never a pass")
_MISSING: Final = Judgement(Verdict.MISSING, "planned, and has no outcome: the run is incomplete")
_RECORD: Final = "`conform manifest update RUN` narrows or removes the block"


def judge(
    expectation: Expectation | None,
    observed: Observed,
    *,
    ran: frozenset[str] | None = None,
    expired: bool = False,
) -> Judgement:
    """Judge a cell, strictly both ways and by the exact outcome.

    ``ran`` are the layouts that were run: an expected layout among them that did not fail is an
    improvement. Without it no layout is held to have passed. ``expired`` says that the
    expectation's last day is over: it ends what a flaky block allows; of any other block it is
    lint's to complain.

    ============  ==========  ===========  ===========  ===========  ===========  ==========
    observed      no block    fail         crash        hang         unsupported  flaky
    ============  ==========  ===========  ===========  ===========  ===========  ==========
    pass          ok          improvement  improvement  improvement  improvement  flaky
    fail          regression  expected*    improvement  regression   regression   flaky*
    unsupported   regression  regression   regression   regression   expected*    regression
    crash         regression  regression   expected*    regression   regression   regression
    hang          regression  regression   regression   expected*    regression   regression
    ambiguous     ok          regression   regression   regression   regression   regression
    error         regression  regression   regression   regression   regression   regression
    not-run       missing     missing      missing      missing      missing      missing
    ============  ==========  ===========  ===========  ===========  ===========  ==========

    ``*``: a regression instead where a layout failed that is not listed, where layouts are listed
    and it failed in none, or where no block has this exception type and message; an improvement
    instead (not for flaky) where a listed layout passed. An expired flaky expectation counts as
    no block.

    A cell that is unsupported by declaration is ``ok`` without a block and counted apart, never as
    a pass. A block that covers it is an ``improvement``, whatever it expects: what a device does
    not support is said in its descriptor, so the block goes.
    """
    outcome = observed.outcome
    if outcome is Outcome.NOT_RUN:
        return _MISSING
    if outcome is Outcome.UNSUPPORTED and observed.declared:
        return _declared(expectation)
    if expectation is None:
        return _without_block(observed)
    if outcome is Outcome.ERROR:
        why = f"the check could not be made{_details(observed)}; the manifest cannot expect that"
        return Judgement(Verdict.REGRESSION, why, expectation.blocks)
    if expectation.outcome is ExpectedOutcome.FLAKY:
        return _flaky(expectation, observed, expired)
    if outcome.value == expectation.outcome.value:
        return _as_expected(expectation, observed, ran)
    if outcome is Outcome.PASS:
        why = f"passes, expected {_expected(expectation)}: {_RECORD}"
        return Judgement(Verdict.IMPROVEMENT, why, expectation.blocks)
    if expectation.outcome is ExpectedOutcome.CRASH and outcome is Outcome.FAIL:
        why = (
            f"fails and no longer crashes, expected {_expected(expectation)}: `conform manifest"
            " update --reason TEXT RUN RUN` records how"
        )
        return Judgement(Verdict.IMPROVEMENT, why, expectation.blocks)
    why = f"{outcome}{_details(observed)}, expected {_expected(expectation)}"
    return Judgement(Verdict.REGRESSION, why, expectation.blocks)


def _without_block(observed: Observed) -> Judgement:
    if observed.outcome is Outcome.PASS:
        return _OK
    if observed.outcome is Outcome.AMBIGUOUS:
        return _AMBIGUOUS
    why = f"{observed.outcome}{_details(observed)}, and no block of the manifest expects it"
    return Judgement(Verdict.REGRESSION, why)


def _declared(expectation: Expectation | None) -> Judgement:
    if expectation is None:
        return _DECLARED
    why = f"unsupported by declaration, expected {_expected(expectation)}: {_RECORD}"
    return Judgement(Verdict.IMPROVEMENT, why, expectation.blocks)


def _flaky(expectation: Expectation, observed: Observed, expired: bool) -> Judgement:
    if expired:
        plain = _without_block(observed)
        over = f"the time is over in which it may be flaky ({_places(expectation.blocks)})"
        return Judgement(plain.verdict, f"{plain.why or 'passes'}; {over}", expectation.blocks)
    why = f"{observed.outcome}, expected {_expected(expectation)}"
    if observed.outcome is Outcome.PASS:
        return Judgement(Verdict.FLAKY, why, expectation.blocks)
    if observed.outcome is not Outcome.FAIL:
        why = f"{observed.outcome}{_details(observed)}, expected {_expected(expectation)}"
        return Judgement(Verdict.REGRESSION, why, expectation.blocks)
    differs = _differs(expectation, observed)
    if differs:
        return Judgement(Verdict.REGRESSION, differs, expectation.blocks)
    return Judgement(Verdict.FLAKY, why, expectation.blocks)


def judge_flaky(
    expectation: Expectation, seen: Sequence[Observed], *, expired: bool = False
) -> Judgement:
    """Judge what several runs saw of a flaky cell: each of them, and the share of them that passed.

    A single run says nothing about a rate, so it is judged as ``judge`` does. Outcomes that are
    missing count for nothing.
    """
    judgements = [judge(expectation, each, expired=expired) for each in seen]
    for each in judgements:
        if each.verdict is Verdict.REGRESSION:
            return each
    made = [each for each in seen if each.outcome is not Outcome.NOT_RUN]
    floor = expectation.min_pass_rate
    if len(made) < 2 or floor is None or expired:
        return judge(expectation, (made or seen)[0], expired=expired)
    passed = sum(each.outcome is Outcome.PASS for each in made)
    share = f"passes in {passed} of {len(made)} runs"
    if passed / len(made) < floor:
        why = f"{share}, expected at least {floor:g} of them ({_places(expectation.blocks)})"
        return Judgement(Verdict.REGRESSION, why, expectation.blocks)
    return Judgement(
        Verdict.FLAKY, f"{share}, expected {_expected(expectation)}", expectation.blocks
    )


def _as_expected(
    expectation: Expectation, observed: Observed, ran: frozenset[str] | None
) -> Judgement:
    differs = _differs(expectation, observed)
    if differs:
        return Judgement(Verdict.REGRESSION, differs, expectation.blocks)
    if expectation.layouts is not None and ran is not None:
        passed = (expectation.layouts & ran) - observed.layouts
        if passed:
            blocks = tuple(
                each for each in expectation.blocks if each.layouts and each.layouts & passed
            )
            why = (
                f"the layouts {_names(passed)} pass, and are listed at {_places(blocks)}: {_RECORD}"
            )
            return Judgement(Verdict.IMPROVEMENT, why, blocks)
    return Judgement(Verdict.EXPECTED, f"expected {_expected(expectation)}", expectation.blocks)


def _differs(expectation: Expectation, observed: Observed) -> str:
    """How a cell with the expected outcome is not as the blocks describe it; empty where it is."""
    outcome = observed.outcome
    if expectation.layouts is not None:
        outside = observed.layouts - expectation.layouts
        if outside:
            return (
                f"{outcome} in the layouts {_names(outside)} too,"
                f" which are not listed at {_places(expectation.blocks)}"
            )
        # A crash or a hang may have been in any layout; a failure knows its own.
        if outcome is Outcome.FAIL and not observed.layouts:
            return (
                f"{outcome}{_details(observed)} in no layout, expected in"
                f" {_names(expectation.layouts)} ({_places(expectation.blocks)})"
            )
    if not any(describes(block, observed) for block in expectation.blocks):
        wanted = " or ".join(dict.fromkeys(map(_exception, expectation.blocks)))
        return (
            f"{outcome}{_details(observed)}, expected with {wanted} ({_places(expectation.blocks)})"
        )
    return ""


def describes(block: Block, observed: Observed) -> bool:
    """Whether a block expects the exception type and the message that were seen."""
    if block.raises is not None and block.raises != observed.raises:
        return False
    return block.match is None or block.match.search(observed.message) is not None


def _exception(block: Block) -> str:
    parts = [block.raises] if block.raises else []
    if block.match:
        parts.append(f"a message that matches {block.match.pattern!r}")
    return " and ".join(parts)


def _details(observed: Observed) -> str:
    """The exception and the first line of its message, as " (RuntimeError: …)"."""
    message = observed.message.strip().partition("\n")[0]
    if len(message) > 120:
        message = f"{message[:117]}..."
    text = ": ".join(part for part in (observed.raises, message) if part)
    return f" ({text})" if text else ""


def _expected(expectation: Expectation) -> str:
    return f"'{expectation.outcome}' ({_places(expectation.blocks)})"


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _places(blocks: Iterable[Block]) -> str:
    return ", ".join(block.where for block in blocks)
