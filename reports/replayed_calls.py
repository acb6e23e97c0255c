"""The calls of a replayed recording with their outcomes: decides the outcome of a call from the results of its cells, and writes
and reads the file of a results folder that lists the calls."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from devices.cell import Outcome
from devices.files import MOST_RECORD, read_regular, write_whole
from reports.folder import CALLS_FILE
from reports.model import CellResult, RunError, by_declaration

#: The clause that a call breaks which runs on the CPU instead of the device.
_FALLBACK: Final = "dispatch.no_silent_fallback"


class CallOutcome(str, Enum):
    """The outcome of a recorded call on a device. The members are ordered from the worst to the best."""

    CRASHED = "crashed"  # the process ended, or the call did not end
    WRONG = "wrong"
    MISSING = "missing"  # the device does not implement the call
    FELL_BACK = "fell back"  # it ran on the CPU
    NOT_JUDGED = "not judged"
    LEFT_OUT = "left out"  # by --max-elements
    NOT_BY_VALUE = "not judged by value"  # dtypes, strides and memory are right
    RIGHT = "right"


#: The outcomes of calls in whose cells no check fails.
PASSING: Final = (CallOutcome.RIGHT, CallOutcome.NOT_BY_VALUE)


class JudgedCall(msgspec.Struct, frozen=True):
    """A recorded call with its outcome. ``count`` is the number of times that the program makes the call. ``cells``
    are the cells that decided the outcome, and ``why`` is the message of the first of them. ``expected`` is True if
    the manifest lists all of these cells as failing. ``line`` (``file.py:12``) and ``module`` (the path of the
    innermost module) say where the program makes the call most often, and are empty if that is unknown; ``where``
    has both in one text."""

    call: str
    op: str
    dtype: str
    outcome: CallOutcome
    count: int
    where: str
    why: str = ""
    cells: tuple[str, ...] = ()
    repro: str = ""
    expected: bool = False
    line: str = ""
    module: str = ""


class JudgedCalls(msgspec.Struct, frozen=True):
    """The content of ``calls.json``. ``program`` is the command that was recorded, or the name of the recording's
    file if the recording does not name a command."""

    calls: tuple[JudgedCall, ...]
    program: str = ""
    format: int = 1


def outcome_of(results: Iterable[CellResult]) -> tuple[CallOutcome, list[CellResult]]:
    """Returns the outcome of a call, which is that of the worst of its cells' ``results``, and the results that have
    this outcome. The results do not say whether the inputs determine the values, so NOT_BY_VALUE is never returned."""
    grouped: dict[CallOutcome, list[CellResult]] = {}
    for each in results:
        if not by_declaration(each):
            grouped.setdefault(_of_cell(each), []).append(each)
    outcome = next((each for each in CallOutcome if each in grouped), CallOutcome.NOT_JUDGED)
    if outcome is CallOutcome.NOT_JUDGED and CallOutcome.RIGHT in grouped:
        outcome = CallOutcome.RIGHT  # the results are right; a clause could not be checked
    return outcome, grouped.get(outcome, [])


def _of_cell(result: CellResult) -> CallOutcome:
    if result.outcome in (Outcome.CRASH, Outcome.HANG):
        return CallOutcome.CRASHED
    if result.outcome is Outcome.FAIL:
        fell = result.key.clause == _FALLBACK
        return CallOutcome.FELL_BACK if fell else CallOutcome.WRONG
    if result.outcome is Outcome.UNSUPPORTED:
        return CallOutcome.MISSING
    return CallOutcome.RIGHT if result.outcome is Outcome.PASS else CallOutcome.NOT_JUDGED


def write_calls(folder: Path, judged: Iterable[JudgedCall], program: str = "") -> None:
    """Writes the outcomes of the recorded calls to a file in a results folder. Raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(JudgedCalls(tuple(judged), program)), indent=1)
    write_whole(folder / CALLS_FILE, data + b"\n")


def read_calls(folder: Path) -> JudgedCalls | None:
    """Reads the calls of a results folder; None if the run was no replay. Raises RunError if the file is damaged."""
    path = folder / CALLS_FILE
    try:
        return msgspec.json.decode(read_regular(path, MOST_RECORD), type=JudgedCalls)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path}: expected the calls of a replay, found something else ({error}). Replay the recording again"
        ) from None
