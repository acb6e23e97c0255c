"""Asking devices what they support, each in a subprocess: without torch here, and whatever the device does there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec

from conformance.checks import child

#: Seconds after which a device that does not answer is given up. Importing torch from a cold disk takes some.
PATIENCE = 120.0


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
    says which exception a capability, a dtype or ``device_count`` raised.
    """

    capabilities: dict[str, bool | None] = {}
    dtypes: list[str] = []
    facts: dict[str, str] = {}
    device_count: int = 1
    raised: dict[str, str] = {}


class Reply(Answers, frozen=True):
    """The answers, or in ``error`` why the device could not be asked."""

    error: str = ""


def ask(question: Question) -> Reply:
    """Ask one device. If that fails, the reply's ``error`` says why in one line."""
    target, orders = "conformance.onboarding.probing:serve", msgspec.to_builtins(question)
    limits, environment = child.Limits(start=PATIENCE), {"PYTHONFAULTHANDLER": "1"}
    message, ended = child.ask(child.Child(target, orders, limits, environment))
    if message is not None:
        return msgspec.convert(message, Reply)
    if ended.late:
        return Reply(error=f"it did not answer within {PATIENCE:g} s")
    return Reply(error=f"asking it ended the process, which {ended}")


def ask_all(questions: list[Question]) -> list[Reply]:
    """Ask several devices, two at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(ask, questions))
