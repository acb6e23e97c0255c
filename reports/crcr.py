"""Writes a run as the inputs of the callback action of PyTorch's Cross-Repository CI Relay.

The inputs are those of pytorch/test-infra, .github/actions/cross-repo-ci-relay-callback/action.yml. The relay sends
``test-results`` on as ``workflow.test_results``; PyTorch's HUD reads ``passed``, ``failed``, ``skipped`` and ``total``
(torchci/lib/crcr/crcrUtils.ts) and refuses a payload above 2 MiB. ``failed-tests-detail`` has at most 1,000 entries, with
messages of at most 1,024 and stack traces of at most 4,096 characters. The action passes each input in an environment
variable, which on Linux holds at most 128 KiB, so each text stays below that size for any run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import msgspec

from devices.cell import CellKey
from reports.causes import causes_of, unexpected
from reports.gate import GateResult
from reports.junit import MISSING, clean, element_of, explain, headline
from reports.model import CellResult, Run
from reports.triage import TriageVerdict

#: The largest sizes of the texts of ``test-results`` and of ``failed-tests-detail``, in bytes.
LIMIT: Final = 100 * 1024
DETAIL_LIMIT: Final = 120 * 1024
#: Further entries, and longer texts, are cut by the relay. The lengths are in characters.
MOST_DETAILS: Final = 1000
LONGEST_MESSAGE: Final = 1024
LONGEST_TRACE: Final = 4096
_LONGEST: Final = 300  # characters of a message
_SHORTEST: Final = 80  # a shorter part of a message says nothing
_FORMAT: Final = 1


class NewFailure(msgspec.Struct):
    """A cell that fails the gate and that the manifest does not list."""

    cell: str
    verdict: str
    outcome: str
    message: str


class Conformance(msgspec.Struct):
    """The part of the payload that only this project defines. The HUD passes that part on without reading it."""

    format: int
    exit_code: int
    verdict: str
    problems: list[str]
    clauses: dict[str, dict[str, int]]
    environment: dict[str, str | int | bool]
    new: list[NewFailure]
    new_left_out: int


class Payload(msgspec.Struct):
    """The object that is sent to the relay. It contains neither the name of the host nor the uuid of the device."""

    passed: int
    failed: int
    skipped: int
    total: int
    conclusion: str
    conformance: Conformance


class FailedTest(msgspec.Struct, omit_defaults=True):
    """A failing cell as ``failed-tests-detail`` states it: ``name`` is the name of the cell within its clause,
    ``classname`` the clause, as in the JUnit files. ``stacktrace`` has everything that is known of the failure, with the
    minimised call and the command that reproduces it. ``duration`` is in seconds."""

    name: str
    classname: str
    duration: float = 0.0
    message: str = ""
    stacktrace: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of the callback action that are about one run. An input that is left out has an empty text.

    ``event`` is empty for a run that the relay has started; for a run of a schedule it is ``nightly`` or ``periodic``,
    and ``delivery`` is the tested commit of PyTorch.
    """

    conclusion: str
    results: str = ""
    details: str = ""
    triage: str = ""
    artifacts: str = ""
    event: str = ""
    delivery: str = ""

    def by_name(self) -> dict[str, str]:
        """Returns the inputs by the names that the action gives them."""
        return {
            "status": "completed",
            "conclusion": self.conclusion,
            "test-results": self.results,
            "failed-tests-detail": self.details,
            "triage-verdict": self.triage,
            "artifact-url": self.artifacts,
            "event-type": self.event,
            "delivery-id": self.delivery,
        }


def _elements(run: Run) -> Iterator[tuple[CellKey, str]]:
    """Yields the cells that the run had to run, each with ``passed``, ``skipped`` or ``failed``, as in the JUnit files.
    The cells of other shards are left out. A cell without an outcome has failed."""
    clauses, selected = run.parsed.clauses, run.parsed.selected
    cells = selected if run.provenance.is_shard else run.parsed.cells
    shown = {None: "passed", "skipped": "skipped"}
    for cell in cells:
        result = run.results.get(cell)
        if result is None:
            element: tuple[str, str] | None = MISSING
        else:
            element = element_of(result, gates=not clauses[cell.clause].provisional)
        yield cell, shown.get(element and element[0], "failed")


def counts(run: Run) -> Counter[str]:
    """Returns the number of cells that ``passed``, ``failed`` and were ``skipped``, as in the JUnit files.

    A failure that does not gate counts as skipped, and a planned cell without an outcome counts as failed. Of a shard,
    only the cells of the shard count.
    """
    return Counter(how for _, how in _elements(run))


def details(run: Run) -> list[FailedTest]:
    """Returns the failing cells of a run, at most 1,000, as much of each as fits into the size limit.

    The example of each cause comes first, with its whole failure; then all other failing cells; then cells without an
    outcome. If there is not enough room, messages of other cells are shortened and left out before those of examples.
    """
    failing = [cell for cell, how in _elements(run) if how == "failed"]
    counted = frozenset(failing)
    ran = [result for result in unexpected(run) if result.key in counted]
    examples = [cause.example.key for cause in causes_of(run, ran)]
    red = [result.key for result in ran]
    order = list(dict.fromkeys(examples + red + failing))
    made: list[FailedTest] = []
    room = DETAIL_LIMIT - 2
    for cell in order[:MOST_DETAILS]:
        result = run.results.get(cell)
        seconds = max(round(result.seconds, 3), 0.0) if result is not None else 0.0
        one = FailedTest(clean(cell.name), clean(cell.clause), seconds)
        room -= len(text_of(one)) + 1
        if room < 0:
            break
        made.append(one)
    texts = [(run.results.get(cell), one) for cell, one in zip(order, made)]
    shown, others = texts[: len(examples)], texts[len(examples) :]
    room = _fill_messages(shown, LONGEST_MESSAGE, room)
    # Half of the room is for the examples' failures, so that other cells have a message.
    room = room // 2 + _fill_traces(shown, room - room // 2)
    each = room // max(len(others), 1) - len('"message": ,')
    room = _fill_messages(others, min(max(each, _SHORTEST), _LONGEST), room)
    _fill_traces(texts, room)
    return made


def _fill_messages(
    texts: Sequence[tuple[CellResult | None, FailedTest]], longest: int, room: int
) -> int:
    for result, one in texts:
        said = "the run has no outcome for this cell" if result is None else headline(result)
        room = _fit(one, "message", said, longest, room)
    return room


def _fill_traces(texts: Sequence[tuple[CellResult | None, FailedTest]], room: int) -> int:
    for result, one in texts:
        if result is not None and not one.stacktrace and room > _LONGEST:
            room = _fit(one, "stacktrace", explain(result), LONGEST_TRACE, room)
    return room


def _fit(one: FailedTest, field: str, text: str, longest: int, room: int) -> int:
    """Sets a text of an entry, at most ``longest`` characters of it, if it fits. Returns the room that is left, in
    bytes."""
    text = clean(text)
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    needed = len(json.dumps(text)) + len(field) + 4
    if text and needed <= room:
        setattr(one, field, text)
        return room - needed
    return room


def inputs(
    judged: GateResult,
    verdict: TriageVerdict | None,
    artifacts: str = "",
    event: str = "",
    delivery: str = "",
) -> Inputs:
    """Returns all inputs of the action for a judged run and the verdict on why it is not green."""
    made = payload(judged)
    failing = details(judged.run)
    return Inputs(
        made.conclusion,
        text_of(made),
        text_of(failing) if failing else "",
        text_of(verdict) if verdict is not None else "",
        artifacts,
        event,
        delivery,
    )


def payload(judged: GateResult) -> Payload:
    """Returns the payload for a judged run: the counts, the exit code, the counts by clause, the environment, and as
    many new failures as fit."""
    run, code = judged.run, judged.exit_code
    found = counts(run)
    environment = {
        name: value
        for name, value in asdict(run.provenance).items()
        if name not in ("host", "device_uuid", "expectations") and value != ""
    }
    problems = [problem[:_LONGEST] for problem in judged.problems[:20]]
    ours = Conformance(
        _FORMAT, int(code), code.label, problems, _by_clause(judged), environment, [], 0
    )
    made = Payload(
        found["passed"], found["failed"], found["skipped"], found.total(),
        "success" if judged.green else "failure", ours,
    )  # fmt: skip
    _fill(made, judged.new)
    return made


def text_of(found: msgspec.Struct | Sequence[msgspec.Struct]) -> str:
    """Returns an object, or a list of objects, as one line of ASCII JSON, for shells and environment variables."""
    return json.dumps(msgspec.to_builtins(found), separators=(",", ":"))


def _by_clause(judged: GateResult) -> dict[str, dict[str, int]]:
    """Returns for each clause the number of judged cells, the number of cells that passed, and the other counts that
    are not zero."""
    rare = ("expected", "regressions", "improvements", "not_gating", "crashes", "hangs", "missing")
    return {
        clause: {"passed": tally.passed, "judged": tally.judged}
        | {name: value for name in rare if (value := getattr(tally, name))}
        for clause, tally in judged.tallies.items()
    }


def _fill(found: Payload, new: Sequence[CellResult]) -> None:
    """Adds as many of the new failures to the payload as the size limit allows."""
    ours = found.conformance
    ours.new_left_out = len(new)
    room = LIMIT - len(text_of(found))
    for result in new:
        message = clean(headline(result))[:_LONGEST]
        one = NewFailure(str(result.key), str(result.verdict), str(result.outcome), message)
        room -= len(text_of(one)) + 1
        if room < 0:
            break
        ours.new.append(one)
        ours.new_left_out -= 1
