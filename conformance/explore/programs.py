"""Random search in programs: the cases that draw them in a plan draw more, of other seeds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

from conformance.behaviour import attempts
from conformance.behaviour.attempts import Attempt
from conformance.behaviour.cases import Case
from conformance.behaviour.drawing import Program, Search
from conformance.behaviour.judging import CheckFailed
from conformance.behaviour.process import Where
from conformance.contract import Contract
from conformance.explore.encoding import NotEncodable, NotRebuilt
from conformance.items import is_case
from conformance.planner import undeclared_clauses, untried
from conformance.suites import find_case
from devices.cell import CellKey
from devices.descriptor import Descriptor
from opinfo.device import Device, first_index

#: Programs of one case before the next one's turn.
BATCH = 20
#: Characters of a kind.
_LONGEST = 80


def drawing_cells(
    cells: Iterable[CellKey], descriptor: Descriptor, contract: Contract
) -> Iterator[CellKey]:
    """Those whose cases draw programs and are tried on this device. Of a case that draws more of what
    another one does there is nothing else to search."""
    undeclared, left_out = undeclared_clauses(descriptor, contract), untried(descriptor, contract)
    for cell in cells:
        case = find_case(cell) if is_case(cell) else None
        if case is None or case.drawn is None or case.more:
            continue
        if cell.clause not in undeclared and case.name not in left_out.get(cell.clause, {}):
            yield cell


def kind_of(error: BaseException) -> str:
    """In which way a program failed: what it says, without its numbers."""
    if not isinstance(error, CheckFailed):
        return f"raised {type(error).__name__}"
    return kind_of_text(str(error))


def kind_of_text(text: str) -> str:
    """What a failed check says, without its numbers and without what stands in brackets."""
    text = re.split(r": (?:element|expected|got) ", text, maxsplit=1)[0]
    text = re.sub(r" \([^()]*\)", "", text)
    return re.sub(r"-?\d[\d.e+-]*", "#", text)[:_LONGEST].rstrip() or "a check failed"


def batch_seed(seed: int, visit: int, cell: CellKey) -> int:
    """The seed of a case's programs in a pass."""
    return Random(f"{seed}:{visit}:{cell.clause}:{cell.op}").getrandbits(63)


def searched(
    case: Case,
    device: Device,
    where: Where,
    seed: int,
    known: Iterable[str],
    seconds: float,
    begun: Callable[[], None],
    failing: Callable[[Program, BaseException], None],
) -> tuple[Attempt, Search]:
    """A batch of programs of a case: what became of it, and how many they were.

    ``known`` are kinds of failures that are passed over. ``begun`` is told before every program,
    ``failing`` of the first that fails.
    """
    search = Search(kind_of, frozenset(known), time.monotonic() + seconds, begun, failing)
    with first_index(device) as opened:  # cases name indices, from 0 up
        attempt = attempts.here(
            *(case.check, case.anew(seed, BATCH).arguments, opened),
            *(f"{case.clause}::{case.name}", where, search),
        )
    return attempt, search


def encode(program: Sequence[Any]) -> list[Any]:
    """A program as plain JSON data. Raises NotEncodable."""
    return [_plain(each) for each in program]


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if type(value) in (int, bool, str):
        return value
    raise NotEncodable(f"a {type(value).__name__} in a program cannot be written down: {value!r}")


def decode(case: Case, program: Sequence[Any]) -> Program:
    """The program back. Raises NotRebuilt where it is none of the case's."""
    if case.drawn is None:
        raise NotRebuilt(f"{case.clause}::{case.name} draws no programs any more")
    found = tuple(_literal(each) for each in program)
    try:
        case.drawn.validate(*found)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        raise NotRebuilt(f"{type(error).__name__}: {error}") from None
    return found


def _literal(value: Any) -> Any:
    return tuple(map(_literal, value)) if isinstance(value, list) else value
