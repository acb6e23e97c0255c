"""Describes a cause in words: a sentence that says what fails, and advice if the project has any.

Names and texts that come from the run are passed through the function ``quote``. The markdown reports use it to show
these texts as code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Failure, Kind
from devices.failure import sentence as spell
from reports.causes import BATCHED, DERIVATIVE, PLAIN, SAVED, SLICED, Cause
from reports.gate import number
from reports.junit import one_line
from reports.model import Clause
from reports.plain import without_boilerplate

#: The reason of a block begins with this word until a person has replaced the draft.
TRIAGE: Final = "triage:"

#: The number of ops that a sentence names, and that a line of a descriptor lists; more are counted.
_NAMED: Final = 4
_LISTED: Final = 12
#: The longest text of a failure or exception in a sentence.
_LONGEST: Final = 200

_WHERE: Final = {
    "offset": "has a storage offset",
    "strides": "is not contiguous",
    "channels_last": "is channels_last",
    "expand": "is expanded",
    "conj": "is lazily conjugated",
    "neg": "is lazily negated",
}
_WRONG: Final = {
    "values": "wrong values",
    Kind.BYTES.value: "the call overwrites bytes that it must not change",
    Kind.STRIDES.value: "an output has the wrong strides",
    Kind.NOT_DETERMINISTIC.value: "two equal calls give different results",
    Kind.NOT_ALIASED.value: "a result does not share the memory that it must share",
    Kind.MOVED.value: "a tensor that must stay in place gets new strides or a new address",
    Kind.NOT_RAISED.value: "no error is raised, but one is documented",
    Kind.NOT_WARNED.value: "no warning is given, but one is documented",
    Kind.RAISED.value: "an unexpected exception is raised",
    Kind.ALIAS.value: "a result shares memory that it must not share",
}

#: The words with which torch asks for a hook of a PrivateUse1 backend (ATen/detail/PrivateUse1HooksInterface.h).
_HOOK: Final = re.compile(r"and implement `(\w+)`|register a generator")
_ATTRIBUTE: Final = re.compile(
    r"(?:module '[\w.]+'|'\w*[Mm]od\w*' object) has no attribute '(\w+)'"
)

Quote = Callable[[str], str]


def sentence(cause: Cause, quote: Quote = str) -> str:
    """Returns the sentence that says what fails, without the number of cells."""
    rule, about, shown = cause.key.rule, cause.key.about, cause.example
    ops = ops_of(cause, quote)
    if shown.verdict is Verdict.IMPROVEMENT:
        passes = all(result.outcome is Outcome.PASS for result in cause.results)
        return f"{'passes, but the manifest lists a failure' if passes else 'does better than the manifest says'} ({ops})"
    if rule == "error":
        return f"the check could not be made: {quote(_first_line(shown.note))}"
    if rule == "cpu":
        return f"the CPU does the same: {quote(_first_line(about[0]))} ({ops})"
    if rule == "fallback":
        return f"{ops} run on the CPU instead of the device"
    if rule == "kernel":
        return f"{quote(about[0])} has no kernel"
    if rule == "dtype":
        return f"kernels are not implemented for {quote(about[0])} ({ops})"
    if rule == "raised":
        line = _first_line(_text(cause))
        raised = quote(f"{about[0]}: {line}" if line else about[0])
        return f"raises {raised} ({ops})" if shown.key.dtype else f"raises {raised}"
    if rule == "blocked":
        return f"cannot be checked, because {quote(about[0])} fails"
    if rule == "ended":
        outcome, how, form, place, frame, _ = about
        calls = {"out=": "calls with out=", "in-place": "calls in place"}.get(form, "calls")
        ends = "hang" if outcome == Outcome.HANG.value else "crash"
        where = f" if an input {_where(place)}" if place not in ("", PLAIN) else ""
        code = f" in {quote(frame)}" if frame else ""
        return f"{calls} {ends}{where}: {quote(how)}{code} ({ops})"
    if rule == "check":
        failure = shown.failure or Failure(kind=Kind.STATE)
        how = spell("", failure.expected, failure.found, failure.detail, 0, 0, ())
        said = f": {quote(_first_line(how))}" if about[0] == shown.key.clause and how else ""
        return f"{about[0]}{said} ({ops})"
    if rule in ("case", "other"):
        return _of_case(cause, quote)
    return f"{_of_layout(about)} ({ops})"


def _of_case(cause: Cause, quote: Quote) -> str:
    """Returns the sentence for a clause whose cases fail: it has the failure of the cause's first case, and the
    number of other clauses that fail because this clause fails."""
    clause, shown = cause.key.about[0], cause.example
    how = shown.failure.message if shown.failure is not None else shown.message
    failed = f": {quote(_first_line(how))}" if how else ""
    others = len({result.key.clause for result in cause.results} - {clause})
    more = number(
        others,
        "other clause that rests on this clause fails too",
        "other clauses that rest on this clause fail too",
    )
    return f"{quote(clause)} fails{failed}{f'; {more}' if others else ''}"


def _of_layout(about: tuple[str, ...]) -> str:
    """Returns the sentence for results that are wrong in some layout."""
    wrong, form, place, *_ = about
    said = _WRONG.get(wrong, f"wrong {wrong.replace('_', ' ')}")
    if form in (DERIVATIVE, SAVED):
        said = f"{said} of derivatives"
    if place == BATCHED:
        return f"{said} that are computed in one batch"
    if place == SLICED:
        return f"{said} of in-place calls on a part of a larger tensor"
    if place == PLAIN:
        plain = {"out=": f"{said} in out=", "in-place": f"{said} of in-place calls"}
        return plain.get(form, said)
    subject = {"out=": "the out= tensor", "in-place": "self of an in-place call"}
    subject[DERIVATIVE] = "an input or the incoming gradient"
    subject[SAVED] = "a tensor that backward needs"
    return f"{said} if {subject.get(form, 'an input')} {_where(place)}"


def _where(place: str) -> str:
    """Returns the words for the layout of a tensor, such as ``is not contiguous and is expanded``."""
    return " and ".join(_WHERE[each] for each in place.split("+"))


def _first_line(text: str) -> str:
    line = (without_boilerplate(text).strip().splitlines() or [""])[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _text(cause: Cause) -> str:
    """Returns the text of the exception of a cause: the full text that the run stored for the example, otherwise the
    normalised text."""
    shown = cause.example
    known = shown.said if shown.failure is None else shown.failure.said
    return known or cause.key.about[1]


def todo(cause: Cause, clauses: Mapping[str, Clause], quote: Quote = str) -> str:
    """Returns advice for a cause; an empty text if the only advice is to read the failure. ``clauses`` are the clauses
    of the plan."""
    rule, about = cause.key.rule, cause.key.about
    if cause.example.verdict is Verdict.IMPROVEMENT:
        return ""  # the end of the run says it once for all of them
    if rule == "error":
        return "please report this: it is a bug in torch-conformance, not a fault of the device"
    if rule == "cpu":
        return 'torch itself has this fault; a block of the manifest with kind = "upstream-bug" accepts it'
    if rule == "fallback":
        names = sorted({result.key.unit for result in cause.results})
        listed = names if len(names) <= _LISTED else ["*"]
        line = quote(f"permitted_fallbacks=frozenset({json.dumps(listed)})")
        return f"if the fallback is intended, add to the descriptor: {line}"
    if rule == "kernel":
        return f"register a kernel for {quote(about[0])}, or list the dtypes of the ops that need it in the descriptor's dtypes_by_op"
    if rule == "dtype":
        return f"implement the kernels, or remove {quote(about[0])} from the descriptor's dtypes (for single ops: dtypes_by_op)"
    if rule == "blocked":
        return f"fix {quote(about[0])} first"
    text = _text(cause) if rule == "raised" else ""
    if "PrivateUse1" in text and (hook := _HOOK.search(text)):
        what = quote(hook[1] or "getNewGenerator")
        return f"implement {what} of PrivateUse1HooksInterface and register it"
    if missing := _ATTRIBUTE.search(text):
        what = quote(missing[1])
        return f"add {what}; if the device cannot support {what}, let it raise NotImplementedError"
    return _not_declared(cause, clauses, quote) if rule in ("raised", "case") else ""


def _not_declared(cause: Cause, clauses: Mapping[str, Clause], quote: Quote) -> str:
    """Returns advice to remove a capability from the descriptor, if the failures show that the device lacks a
    capability that all clauses of the cause require; an empty text if they do not."""
    required = ({*clauses[result.key.clause].requires} for result in cause.results)
    if not (names := sorted(set.intersection(*required))):
        return ""
    listed = " and ".join(quote(f'"{name}"') for name in names)
    verb, pronoun = ("is", "it") if len(names) == 1 else ("are", "them")
    return f"if {listed} {verb} not supported, remove {pronoun} from capabilities in descriptor.py"


def use_of(cause: Cause, quote: Quote = str) -> str:
    """Returns how many public models call the most used op of a cause; an empty text if no model calls any."""
    used = cause.most_used
    return "" if used is None else f"{quote(used.key.unit)} is called by {used.called_by}"


def sentences(causes: Iterable[Cause]) -> dict[CellKey, str]:
    """Returns for each cell a sentence that describes the cause of its failure, on one line."""
    lines = ((one_line(sentence(cause)), cause) for cause in causes)
    return {result.key: line for line, cause in lines for result in cause.results}


def drafts(causes: Iterable[Cause]) -> dict[CellKey, str]:
    """Returns for each cell a draft of the reason in a manifest. A person should replace the draft by a better
    reason."""
    return {cell: f"{TRIAGE} {line}" for cell, line in sentences(causes).items()}


def ops_of(cause: Cause, quote: Quote = str) -> str:
    """Returns the ops of a cause in words: their names if they are few, otherwise their number, and the op family
    if the cause concerns only one family."""
    names = list(dict.fromkeys(result.key.unit for result in cause.results))
    if len(names) <= _NAMED:
        return ", ".join(map(quote, names))
    family = cause.key.about[-1] if cause.key.rule in ("layout", "ended") else ""
    count = number(len(names), "op")
    return f"{count}, family {quote(family)}" if family else count
