"""Asking devices what they support, each in a subprocess: without torch here, and whatever the device does there."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from conformance.checks.child import Child, Limits
from devices.descriptor import CAPABILITIES, DTYPES, common_facts
from devices.torch_version import NoTorch, require_torch

#: Seconds after which a device that cannot be opened is given up. Importing torch from a cold disk takes some.
PATIENCE = 180.0
#: Seconds for one question.
EACH = 20.0
#: The question how much longer the first call of an op takes than the second.
FIRST_USE = "first_use"
#: The question by how many bytes the statistics of the allocator rise for a tensor of one byte.
GRANULARITY = "granularity"
#: The question in which dtypes numbers below the smallest normal one count as zeros.
SUBNORMALS = "flushes_subnormals"
#: The question in which ops the lists of autocast differ from torch's common ones.
AUTOCAST = "autocast_lists"


def allowance(longer: float) -> float:
    """What to allow for first uses (seconds) where one of a few small ops took so much longer: a larger one may take ten
    times that. Rounded up to tens; 0 for less than a tenth of a second, which is no compiler's."""
    return 10.0 * math.ceil(longer) if longer >= 0.1 else 0.0


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which device is asked: a registered one by ``name``, a descriptor by ``path``, or one without a descriptor
    by ``torch_type`` (and ``module`` and ``init``, if needed), which ``name`` calls by name."""

    name: str = ""
    path: str = ""
    torch_type: str = ""
    module: str = ""
    init: str = ""


class Answers(msgspec.Struct, frozen=True):
    """What the device answered.

    ``capabilities`` are True, False, or None if there is no way to ask. ``facts`` are the descriptor's. ``raised``
    says which exception a capability, a dtype or ``device_count`` raised; ``wrong`` what was seen of a capability
    that is there and does not work. ``left_behind`` is what its module changes in its process.
    """

    capabilities: dict[str, bool | None] = {}
    dtypes: list[str] = []
    facts: dict[str, str] = {}
    device_count: int = 1
    raised: dict[str, str] = {}
    wrong: dict[str, str] = {}
    left_behind: list[str] = []
    first_use: float = 0.0  # seconds by which the first call of an op took longer than the second
    granularity: int = (
        0  # bytes by which a tensor of one byte raises memory_allocated(); 0 if that is not known
    )
    flushes_subnormals: list[str] = []  # dtypes in which a subnormal number times 1 is 0
    autocast: dict[
        str, list[str]
    ] = {}  # by what autocast does, ops of which torch's lists say another thing


class Reply(Answers, frozen=True):
    """The answers, or in ``error`` why the device could not be asked."""

    error: str = ""


class Said(msgspec.Struct, frozen=True):
    """What the subprocess says of a question: that it asks it now, or the ``answer``, or what was ``raised``, or what
    was seen that is ``wrong``.

    The empty name is the end of all questions; ``raised`` then says that the device cannot be opened. Before the first
    question it says what it does, in ``step``.
    """

    name: str = ""
    step: str = ""
    over: bool = False
    answer: Any = None
    raised: str = ""
    wrong: str = ""


def ask(question: Question, each: float = EACH) -> Reply:
    """Ask one device, with a limit of ``each`` second(s) for a question, and more where it compiles. One that ends the
    process or does not come back is noted, and the others are asked in another process. If nothing can be asked, the
    reply's ``error`` says why.
    """
    try:
        require_torch()
    except NoTorch as error:
        return Reply(error=str(error))
    answers: dict[str, Said] = {}
    opening = Limits(start=PATIENCE, silence=PATIENCE)
    while "" not in answers:
        orders = {"question": msgspec.to_builtins(question), "answered": list(answers)}
        asking, step = Said(), "starting Python"
        target = "conformance.onboarding.respondent:serve"
        with Child(target, orders, opening, {"PYTHONFAULTHANDLER": "1"}) as process:
            for message in process:
                asking = msgspec.convert(message, Said)
                step = asking.step or step
                if asking.over:
                    answers[asking.name] = asking
                slow = asking.step or (asking.name == FIRST_USE and not asking.over)
                limit = each + allowance(answers.get(FIRST_USE, Said()).answer or 0.0)
                process.limits = opening if slow else Limits(PATIENCE, limit)
            ended = process.wait()
        if not asking.name and not asking.over:  # before the first question
            how = (
                f"had not ended after {PATIENCE:g} s"
                if ended.late
                else f"ended the process, which {ended}"
            )
            return Reply(error=f"{step} {how}")
        if not asking.over:
            how = (
                f"no answer within {process.limits.silence:g} s"
                if ended.late
                else f"the process {ended.how}"
            )
            answers[asking.name] = Said(asking.name, over=True, raised=how)
    return _reply(answers)


def _reply(answers: dict[str, Said]) -> Reply:
    asked = ("facts", "device_count", "left_behind")
    facts, count, left = (answers.get(name, Said()) for name in asked)
    return Reply(
        capabilities={
            name: bool(answers[name].answer) if name in answers else None for name in CAPABILITIES
        },
        dtypes=sorted(name for name in DTYPES if name in answers and answers[name].answer),
        facts=dict(facts.answer or common_facts()),
        device_count=int(count.answer or 1),
        raised={name: said.raised for name, said in answers.items() if said.raised},
        left_behind=list(left.answer or ()),
        wrong={name: said.wrong for name, said in answers.items() if said.wrong},
        first_use=float(answers.get(FIRST_USE, Said()).answer or 0.0),
        granularity=int(answers.get(GRANULARITY, Said()).answer or 0),
        flushes_subnormals=list(answers.get(SUBNORMALS, Said()).answer or ()),
        autocast=dict(answers.get(AUTOCAST, Said()).answer or {}),
        error=answers[""].raised,
    )


def ask_all(questions: list[Question]) -> list[Reply]:
    """Ask several devices, two at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(ask, questions))
