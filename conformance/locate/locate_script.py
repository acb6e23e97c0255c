"""Writes the repro script of a wrong call, and beside it a file with the inputs of the call."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import torch

from conformance.checks.ops.script import literal, report
from conformance.checks.repro.bundle import Bundle
from conformance.checks.repro.modules import Import
from conformance.checks.repro.script import in_docstring, script_text
from conformance.locate.repeat import wrong_in
from conformance.locate.steps import Operand, Step, operands_of, substitute
from conformance.locate.wire import LocatedCall, LocateError
from devices.files import why_not_writable, write_whole
from opinfo.device import Device
from opinfo.reference import IEEE

SCRIPT, INPUTS = "call.py", "inputs.pt"
#: The width of the docstring.
_WIDTH = 100


class _Source:
    """A placeholder whose repr is Python source."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def check_folder(folder: Path) -> None:
    """Raises LocateError if the repro script cannot be written into a folder."""
    if why := why_not_writable(folder / SCRIPT):
        raise LocateError(f"{folder} cannot be written: {why}")


def write_repro(
    folder: Path,
    device: Device,
    call: LocatedCall,
    message: str,
    steps: Sequence[Step],
    contents: Mapping[int, torch.Tensor],
) -> str:
    """Writes the repro script ``call.py`` and its data ``inputs.pt`` into a folder, and returns the path of the script.
    The script makes the calls ``steps``, of which ``call`` is the wrong one and ``message`` says what is wrong.
    ``contents`` has the bytes of the tensors' storages before the calls, by the number of the storage. Raises
    LocateError if the folder cannot be written."""
    needed = sorted({each.storage for step in steps for each in step.inputs} & contents.keys())
    stream = BytesIO()
    torch.save([(number, contents[number]) for number in needed], stream)
    try:
        write_whole(folder / INPUTS, stream.getvalue())
        write_whole(folder / SCRIPT, _script(device, call, message, steps))
    except OSError as error:
        raise LocateError(f"{folder} cannot be written: {error.strerror or error}") from None
    return str(folder / SCRIPT)


def _script(device: Device, call: LocatedCall, message: str, steps: Sequence[Step]) -> str:
    descriptor = device.descriptor
    bundle = Bundle().take([wrong_in, report, Step, Operand])
    bundle.add(Import(each, "", each) for each in ("torch", "warnings", "os"))
    lines = ["torch.set_num_threads(1)", "torch.set_grad_enabled(False)", *IEEE]
    lines.append('warnings.simplefilter("ignore")')
    if descriptor.module:
        lines.append(f"import {descriptor.module}")
    if descriptor.init:
        lines.append(f"{descriptor.module}.{descriptor.init}()")
    lines += [
        "",
        "# The bytes of the inputs, by the number of their storage",
        f'inputs = torch.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "{INPUTS}"))',
        "",
        "# The calls" if len(steps) > 1 else "# The call",
        "steps = [",
        *(f"    {_source(each)}," for each in steps),
        "]",
        "",
        "# The judgement",
        "report(wrong_in(steps, inputs, DEVICE))",
    ]
    return script_text(
        bundle,
        lines,
        head=_head(call, message, len(steps)),
        needs=f", {INPUTS} beside it, and {descriptor.module}"
        if descriptor.module
        else f" and {INPUTS} beside it",
        top=f"DEVICE = {str(device.torch_device)!r}",
    )


def _head(call: LocatedCall, message: str, count: int) -> str:
    lines = [f"{call.op}: call {call.number} of the program, at {call.where}", ""]
    lines += [
        f"    {call.call}",
        *(f"    t[{n}]: {each}" for n, each in enumerate(call.inputs)),
        "",
    ]
    if count > 1:
        lines += [
            f"The call is the last of {count} that are made without reading back, or before.",
            "",
        ]
    lines += textwrap.wrap(message, _WIDTH, max_lines=6, placeholder=" …")
    return "\n".join(map(in_docstring, lines))


def call_text(step: Step) -> str:
    """Returns a call as a line of Python for a report, such as ``torch.ops.aten.add.Tensor(t[0], t[1])``: ``t[N]`` is
    its input tensor N."""
    numbers = iter(range(len(step.inputs)))
    args, kwargs = substitute(
        (step.args, step.kwargs), Operand, lambda _: _Source(f"t[{next(numbers)}]")
    )
    given = [*map(literal, args), *(f"{name}={literal(each)}" for name, each in kwargs.items())]
    return f"torch.ops.{step.op}({', '.join(given)})"


def _source(step: Step) -> str:
    """Returns the Python expression of a repro script that creates a ``Step``."""
    used = {str(each.dtype)[6:] for each in (*step.inputs, *operands_of(step.results))}

    def sourced(value: object) -> str:
        return literal(substitute(value, Operand, lambda each: _Source(repr(each))))

    known = replace(step, bounds={k: v for k, v in step.bounds.items() if k in used})
    given = [repr(known.op), sourced(known.args), sourced(known.kwargs)]
    given += [f"frozenset({sorted(known.traits)!r})", repr(known.bounds), repr(known.stream)]
    given.append(sourced(known.results))
    return f"Step({', '.join(given)})"
