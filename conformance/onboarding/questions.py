"""Functions that find out what devices support. Each device is probed in a subprocess, which may crash or hang; the
calling process needs no torch."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from conformance.checks.child import Child, ChildLimits
from conformance.onboarding.primitives import CANDIDATES, BusyTry
from devices.descriptor import CAPABILITIES, DTYPES, common_facts
from devices.torch_version import NoTorch, require_torch

#: Seconds for opening the device. Importing torch from a cold disk takes some of them.
PATIENCE = 180.0
#: Seconds for one question.
EACH = 20.0
#: The name of the probe for how much longer the first call of an op takes than the second.
FIRST_USE = "first_use"
#: The name of the probe for the bytes by which the allocator's statistics rise for a tensor of one byte.
GRANULARITY = "granularity"
#: The name of the probe for whether tensors of the device lie in the memory of the host.
HOST_MEMORY = "host_memory"
#: The name of the probe for the dtypes in which the device treats subnormal numbers as zeros.
SUBNORMALS = "flushes_subnormals"
#: The name of the probe for the ops for which autocast differs from torch's common lists.
AUTOCAST = "autocast_lists"


def allowance(longer: float) -> float:
    """Returns the number of seconds to allow for the first use of any op. ``longer`` is the number of seconds by which
    the first call of a small op took longer than the second call.

    A large op may take ten times as long to compile as a small op. The result is a multiple of ten. It is 0 if
    ``longer`` is below 0.1, because nothing was compiled in that case.
    """
    return 10.0 * math.ceil(longer) if longer >= 0.1 else 0.0


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """The device to probe: a registered device (``name``), a device with a descriptor file (``path``), or a device
    without a descriptor (``torch_type``, and if needed ``module`` and ``init``; in this case ``name`` is the name that
    the new device gets)."""

    name: str = ""
    path: str = ""
    torch_type: str = ""
    module: str = ""
    init: str = ""


class Answers(msgspec.Struct, frozen=True):
    """The results of the probes of a device.

    ``capabilities`` maps each capability to True, False, or None if no probe exists. ``facts`` are the facts that the
    descriptor returns. ``raised`` maps a capability, a dtype or ``device_count`` to the exception that its probe
    raised, or says that the process ended or hung. ``broken`` are those of ``raised`` whose API exists: what they did is a
    fault and not a missing feature. ``wrong`` describes the wrong result of an API that exists. ``left_behind`` lists
    the side effects of importing the device's module.
    """

    capabilities: dict[str, bool | None] = {}
    dtypes: list[str] = []
    facts: dict[str, str] = {}
    device_count: int = 1
    raised: dict[str, str] = {}
    broken: dict[str, str] = {}
    wrong: dict[str, str] = {}
    left_behind: list[str] = []
    first_use: float = 0.0  # seconds by which the first call of an op took longer than the second
    granularity: int = (
        0  # bytes by which a tensor of one byte raises memory_allocated(); 0 if that is not known
    )
    host_memory: bool = False  # a large tensor raised the resident memory of the process
    flushes_subnormals: list[str] = []  # dtypes in which a subnormal number times 1 is 0
    autocast: dict[
        str, list[str]
    ] = {}  # by what autocast does, ops of which torch's lists say another thing
    busy: list[
        BusyTry
    ] = []  # the drafts of `busy` that were tried, for a device without a descriptor


class Reply(Answers, frozen=True):
    """The results of the probes of a device. If the device could not be probed, ``error`` says why."""

    error: str = ""


class Said(msgspec.Struct, frozen=True):
    """A message of the subprocess: a probe begins, or a probe has ended (``over``) with an ``answer``, an exception
    (``raised``) or a ``wrong`` result. With ``broken``, the API that raised exists.

    A message with an empty name and ``over`` is the last one; its ``raised`` then says why the device cannot be opened.
    Before the first probe, ``step`` names the step that the subprocess is about to take.
    """

    name: str = ""
    step: str = ""
    over: bool = False
    answer: Any = None
    raised: str = ""
    broken: bool = False
    wrong: str = ""


def ask(question: Question, each: float = EACH) -> Reply:
    """Runs the probes of one device in a subprocess and returns the results. Each probe has ``each`` seconds, and more
    if the device compiles kernels.

    If a probe ends the process or hangs, the reply says so, and a new process runs the remaining probes. If the device
    cannot be probed at all, the reply's ``error`` says why.
    """
    try:
        require_torch()
    except NoTorch as error:
        return Reply(error=str(error))
    answers: dict[str, Said] = {}
    opening = ChildLimits(start=PATIENCE, silence=PATIENCE)
    while "" not in answers:
        orders = {"question": msgspec.to_builtins(question), "answered": list(answers)}
        asking, step = Said(), "starting Python"
        target = "conformance.onboarding.probe_subprocess:serve"
        with Child(target, orders, opening, {"PYTHONFAULTHANDLER": "1"}) as process:
            for message in process:
                asking = msgspec.convert(message, Said)
                step = asking.step or step
                if asking.over:
                    answers[asking.name] = asking
                slow = asking.step or (asking.name == FIRST_USE and not asking.over)
                limit = each + allowance(answers.get(FIRST_USE, Said()).answer or 0.0)
                process.limits = opening if slow else ChildLimits(PATIENCE, limit)
            ended = process.wait()
        if not asking.name and not asking.over:  # before the first question
            how = (
                f"{step} had not ended after {PATIENCE:g} s"
                if ended.late
                else f"{step} ended the process, which {ended}"
            )
            return Reply(error=how)
        if not asking.over:
            how = (
                f"the probe gave no answer within {process.limits.silence:g} s"
                if ended.late
                else f"the process {ended.how}"
            )
            # A cell that hangs waits for its time limit, so an API that hangs is not declared.
            broken = not ended.late and asking.name in CAPABILITIES
            answers[asking.name] = Said(asking.name, over=True, raised=how, broken=broken)
    return _reply(answers)


def _reply(given: dict[str, Said]) -> Reply:
    answers = {name: said for name, said in given.items() if name not in CANDIDATES}
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
        broken={name: said.raised for name, said in answers.items() if said.broken},
        left_behind=list(left.answer or ()),
        wrong={name: said.wrong for name, said in answers.items() if said.wrong},
        first_use=float(answers.get(FIRST_USE, Said()).answer or 0.0),
        granularity=int(answers.get(GRANULARITY, Said()).answer or 0),
        host_memory=bool(answers.get(HOST_MEMORY, Said()).answer),
        flushes_subnormals=list(answers.get(SUBNORMALS, Said()).answer or ()),
        autocast=dict(answers.get(AUTOCAST, Said()).answer or {}),
        busy=[
            _tried(name, said)
            for name in CANDIDATES
            if (said := given.get(name, Said())).answer or said.raised
        ],
        error=answers[""].raised,
    )


def _tried(candidate: str, said: Said) -> BusyTry:
    """Returns the result of trying a draft of ``busy``, which may have raised an exception or ended the process."""
    if said.answer is not None:
        return msgspec.convert(said.answer, BusyTry)
    return BusyTry(candidate, works=False, found=said.raised)


def ask_all(questions: list[Question]) -> list[Reply]:
    """Runs the probes of several devices, at most two devices in parallel, and returns one reply for each."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(ask, questions))
