"""Makes recorded calls a second time on a device, without the program that made them, and judges them.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from conformance.locate.step_judge import judge_steps
from conformance.locate.steps import (
    Numbering,
    Operand,
    Step,
    bytes_on_device,
    operands_of,
    read_bytes,
    substitute,
    written_arguments,
)
from opinfo.compare import Wrong, tensors_of

#: How often calls are made together: a fault that depends on time does not show each time.
_TRIES = 20


def wrong_in(
    steps: Sequence[Step], contents: Sequence[tuple[int, Any]], device: Any
) -> list[Wrong]:
    """Makes recorded calls again on ``device``, and returns what is wrong with their results; an empty list if all are
    right. ``contents`` has pairs of a storage's number and its bytes before the first call. A sequence of several calls
    is repeated until a call is wrong, at most twenty times. Raises RuntimeError if no call could be judged."""
    for _ in range(_TRIES if len(steps) > 1 else 1):
        verdicts = judge_steps(*make_again(steps, dict(contents), torch.device(device)))
        wrong = [each.wrong for each in verdicts if each.wrong is not None]
        if wrong:
            return wrong
        if all(each.unjudged for each in verdicts):
            raise RuntimeError(verdicts[0].unjudged)
    return []


def make_again(
    steps: Sequence[Step], contents: Mapping[int, torch.Tensor], device: torch.device
) -> tuple[list[Step], dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Makes recorded calls again on ``device``, without reading results back between them. Returns the calls with their
    new results, the bytes of the storages before the calls, and those after the calls, both by storage number."""
    numbering, made, streams = Numbering(), list[Step](), dict[int, Any]()
    memory = {number: data.to(device, copy=True) for number, data in contents.items()}
    before = {numbering.number(memory[number]): data for number, data in contents.items()}
    wait = getattr(getattr(torch, device.type, None), "synchronize", lambda: None)
    wait()
    for place, step in enumerate(steps):
        last = steps[place - 1].stream if place else step.stream
        with on_stream(step.stream, last, streams, device):
            given = substitute(
                (step.args, step.kwargs), Operand, lambda each: each.view(memory[each.storage])
            )
            args, kwargs = substitute(given, torch.device, lambda _: device)
            args_as, kwargs_as = numbering.describe(args), numbering.describe(kwargs)
            try:
                result, raised = step.overload(*args, **kwargs), ""
            except Exception as error:  # the judge compares it
                result, raised = None, f"{type(error).__name__}: {error}".splitlines()[0]
        for each, tensor in zip(operands_of(step.results), tensors_of(result)):
            memory.setdefault(each.storage, bytes_on_device(tensor.untyped_storage()))
        results = numbering.describe(result)
        targets = numbering.describe(written_arguments(step.overload, args, kwargs))
        known = replace(step, args=args_as, kwargs=kwargs_as, results=results, targets=targets)
        made.append(replace(known, raised=raised))
        if raised:
            break
    wait()
    after = {number: read_bytes(storage) for number, storage in enumerate(numbering.storages)}
    return made, before, after


@contextmanager
def on_stream(
    number: int, last: int, streams: dict[int, Any], device: torch.device
) -> Iterator[None]:
    """Within the context, the current stream is that of ``number``, which is created in ``streams`` if needed. If
    ``last``, the number of the previous call's stream, is another one, the stream first waits for it, as a correct
    program would make it do."""
    module: Any = getattr(torch, device.type, None)
    if not number and not last:
        yield
        return
    for each in (number, last):
        if each not in streams:
            streams[each] = module.Stream() if each else module.current_stream()
    if number != last:
        streams[number].wait_stream(streams[last])
    with module.stream(streams[number]):
        yield
