"""A cause in the vendor's terms: a sentence that says what is wrong, and what to do about it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from devices.cell import CellKey, Verdict
from devices.failure import Failure, Kind
from devices.failure import sentence as spell
from reports.causes import PLAIN, Cause
from reports.gate import number
from reports.junit import one_line
from reports.model import Clause

#: The reason of a block begins with this word until a person has found it to be true.
TRIAGE: Final = "triage:"

#: Ops that a sentence or a line of a descriptor names; more are counted.
_NAMED: Final = 4
_LISTED: Final = 12

_WHERE: Final = {
    "offset": "begins at a storage offset",
    "strides": "is not contiguous",
    "channels_last": "is channels_last",
    "expand": "is expanded",
}
_WRONG: Final = {
    "values": "wrong values",
    Kind.BYTES.value: "bytes are written that must not change",
    Kind.STRIDES.value: "an output has the wrong strides",
    Kind.NOT_DETERMINISTIC.value: "two equal calls differ",
    Kind.NOT_ALIASED.value: "a result that must share memory does not",
    Kind.MOVED.value: "a tensor moves that must stay in place",
    Kind.NOT_RAISED.value: "no error where one is documented",
    Kind.NOT_WARNED.value: "no warning where one is documented",
    Kind.RAISED.value: "an exception where there must be none",
    Kind.ALIAS.value: "a result shares memory that it must not share",
}


#: What torch says where a hook of a PrivateUse1 backend is missing (ATen/detail/PrivateUse1HooksInterface.h).
_HOOK: Final = re.compile(r"and implement `(\w+)`|register a generator")
_ATTRIBUTE: Final = re.compile(
    r"(?:module '[\w.]+'|'\w*[Mm]od\w*' object) has no attribute '(\w+)'"
)


def sentence(cause: Cause) -> str:
    """What is wrong, without the number of cells."""
    rule, about, shown = cause.key.rule, cause.key.about, cause.example
    if shown.verdict is Verdict.IMPROVEMENT:
        return f"passes, and is expected to fail ({ops_of(cause)})"
    if rule == "error":
        return f"the check could not be made: {shown.note}"
    if rule == "fallback":
        return f"{ops_of(cause)} run on the CPU"
    if rule == "kernel":
        return f"{about[0]} has no kernel"
    if rule == "dtype":
        return f"kernels are not implemented for {about[0]} ({ops_of(cause)})"
    if rule == "raised":
        line = (_text(cause).strip().splitlines() or [""])[0][:200]
        told = f"{about[0]} is raised: {line}" if line else f"{about[0]} is raised"
        return f"{told} ({ops_of(cause)})" if shown.key.dtype else told
    if rule == "blocked":
        return f"nothing can be judged before {about[0]} holds"
    if rule == "ended":
        outcome, how, form, place, _ = about
        form = {"out=": " with out=", "in-place": " in place"}.get(form, "")
        where = f" on a tensor in the layout {place}" if place not in ("", PLAIN) else ""
        ends = "never return" if outcome == "hang" else "end the process"
        return f"calls{form}{where} {ends}: {how} ({ops_of(cause)})"
    if rule == "check":
        failure = shown.failure or Failure(kind=Kind.STATE)
        told = f": {spell('', failure.expected, failure.found, failure.detail, 0, 0, ())}"
        return f"{about[0]}{told if about[0] == shown.key.clause else ''} ({ops_of(cause)})"
    if rule in ("case", "other"):
        others = len({result.key.clause for result in cause.results} - {about[0]})
        more = f"; cells of {number(others, 'other clause')} follow from it" if others else ""
        return f"{about[0]} does not hold{more}"
    wrong, form, place, *_ = about
    said = _WRONG.get(wrong, f"wrong {wrong.replace('_', ' ')}")
    if place == PLAIN:
        plain = {"out=": " in out=", "in-place": " of in-place calls"}.get(form, "")
        return f"{said}{plain} ({ops_of(cause)})"
    subject = {"out=": "the target of out=", "in-place": "self of an in-place call"}
    where = " and ".join(_WHERE[each] for each in place.split("+"))
    return f"{said} where {subject.get(form, 'an input')} {where} ({ops_of(cause)})"


def _text(cause: Cause) -> str:
    """What the device said where the cause is an exception: the example's own words, if they are kept."""
    shown = cause.example
    known = shown.said if shown.failure is None else shown.failure.said
    return known or cause.key.about[1]


def todo(cause: Cause, clauses: Mapping[str, Clause]) -> str:
    """What to do about it; ``clauses`` are those of the run's plan."""
    rule, about = cause.key.rule, cause.key.about
    if cause.example.verdict is Verdict.IMPROVEMENT:
        return "`conform manifest update RUN` narrows or removes the blocks"
    if rule == "error":
        return "please report it: an error is a mistake of torch-conformance, not of the device"
    if rule == "fallback":
        names = sorted({result.key.op for result in cause.results})
        listed = names if len(names) <= _LISTED else ["*"]
        return f"if that is meant, descriptor: permitted_fallbacks=frozenset({json.dumps(listed)})"
    if rule == "kernel":
        return f"register {about[0]}, or state in the descriptor's dtypes_by_op which ops lack it"
    if rule == "dtype":
        return f"implement them, or take {about[0]} out of the descriptor's dtypes (dtypes_by_op for single ops)"
    if rule == "blocked":
        return f"mend {about[0]} first"
    if rule == "ended":
        return "run the repro: it makes the call in a process of its own"
    mend = (
        "add what is missing"
        if about[0] == "AttributeError"
        else "run the repro, and mend what it shows"
    )
    text = _text(cause) if rule == "raised" else ""
    if "PrivateUse1" in text and (hook := _HOOK.search(text)):
        what = hook[1] or "getNewGenerator"
        return f"implement {what} of PrivateUse1HooksInterface, and register it"
    if missing := _ATTRIBUTE.search(text):
        return f"add {missing[1]}, or raise NotImplementedError where the device cannot have it"
    if rule in ("raised", "case"):
        required = ({*clauses[result.key.clause].requires} for result in cause.results)
        if names := sorted(set.intersection(*required)):
            return f"{mend}; a device that lacks it does not declare {' and '.join(names)}"
    return mend


def sentences(causes: Iterable[Cause]) -> dict[CellKey, str]:
    """For each cell of the causes what is wrong, in one line."""
    told = ((one_line(sentence(cause)), cause) for cause in causes)
    return {result.key: said for said, cause in told for result in cause.results}


def drafts(causes: Iterable[Cause]) -> dict[CellKey, str]:
    """For each cell of the causes a reason that a manifest can give until a person has found a better one."""
    return {cell: f"{TRIAGE} {said}" for cell, said in sentences(causes).items()}


def ops_of(cause: Cause) -> str:
    """The ops of a cause: their names if they are few, and their family if the cause is one of a family."""
    names = list(dict.fromkeys(result.key.op for result in cause.results))
    if len(names) <= _NAMED:
        return ", ".join(names)
    family = cause.key.about[3] if cause.key.rule == "layout" else ""
    return f"{number(len(names), 'op')}, {family}" if family else number(len(names), "op")
