"""The subprocess that probes a device. It reports each step before the step begins, because a step may end the process."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec

from conformance.checks.child import Tell
from conformance.onboarding.questions import Question, Said
from devices.errors import ConformError, with_cause


def serve(orders: Any, tell: Tell) -> None:
    """Runs the probes that have no answer yet, and sends the answers by calling ``tell``. If a ConformError is raised,
    the last message contains its text."""

    def say(said: Said) -> None:
        tell(msgspec.to_builtins(said))

    say(Said(step="importing torch"))
    try:
        importlib.import_module("torch")
    except Exception as error:  # with torch, the modules are imported that extend it
        say(Said(over=True, raised=f"importing 'torch' failed: {with_cause(error)}"))
        return
    from conformance.onboarding.probing import described, probe, try_primitives
    from opinfo.device import open_device

    try:
        question = msgspec.convert(orders["question"], Question)
        descriptor = described(question)
        device = open_device(descriptor, say=lambda step: say(Said(step=step)))
        say(Said("left_behind", over=True, answer=device.left_behind))
        say(Said())  # from now on each question has its own limit
        probe(device, orders["answered"], say)
        if question.torch_type:  # without a descriptor, which would say how to keep a stream busy
            try_primitives(device, orders["answered"], say)
    except ConformError as error:
        say(Said(over=True, raised=str(error)))
    else:
        say(Said(over=True))
