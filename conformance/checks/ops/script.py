"""Writes repro scripts for checks of ops.

A script begins with the inputs, the call and the judgement. Copies of the functions that made and judged the call in
the run follow.
"""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

import torch

from conformance.checks.clock import ends_within
from conformance.checks.repro.bundle import Bundle
from conformance.checks.repro.modules import Import, NotCarried
from conformance.checks.repro.script import script_text
from opinfo.compare import Arguments, Wrong, raised, replace_tensors
from opinfo.module_side_effects import LeftBehind
from opinfo.reference import IEEE
from opinfo.subject import DeterminatePart, Subject, loaded

#: Tensors up to this many elements are written as lists, larger ones compressed.
_READABLE = 24

_HELPERS = """\
def move(tensor):
    return tensor.to(DEVICE)


def back(tensor):
    return tensor.cpu()


def settle(result):
    wait = getattr(getattr(torch, torch.device(DEVICE).type, None), "synchronize", None)
    if wait is not None:
        wait()"""


# -- functions that every script has


def dense(data: Any, dtype: Any, size: Any) -> torch.Tensor:
    """Returns a contiguous CPU tensor. ``data`` is a list of values, or the compressed bytes of the tensor."""
    if isinstance(data, str):
        raw = bytearray(zlib.decompress(base64.b64decode(data)))
        if not raw:
            return torch.empty(size, dtype=dtype)
        return torch.frombuffer(raw, dtype=dtype).reshape(size)
    return torch.tensor(data, dtype=dtype).reshape(size)


def report(found: Iterable[Any]) -> None:
    """Prints the faults of a check and exits with status 1; without a fault, exits with status 0."""
    wrong = [each for each in found if isinstance(each, Wrong)]
    print("\n".join(f"FAIL: {each}" for each in wrong) or "PASS")
    sys.exit(1 if wrong else 0)


class NotApplicable(Exception):
    """The exception raised if the check does not apply to this op or dtype, so nothing was checked."""


class NotForThisDevice(NotApplicable):
    """The exception raised if the check needs something that the descriptor does not declare."""


class NotReturned(NotApplicable):
    """The exception raised if the checked call raised an exception (the ``__cause__``), which other clauses judge."""


class WrongAlready(NotApplicable):
    """The exception raised if a single call already gives wrong values. Other clauses judge a single call, so a check
    of several calls would add nothing."""


def report_check(check: Any, *given: Any, **parameters: Any) -> None:
    """Makes a directed check (a function that makes a whole check by itself) and reports its result. An exception
    counts as a fault."""
    try:
        found = check(*given, **parameters)
    except NotApplicable as reason:
        print(f"not applicable: {reason}")
        found = None
    except Exception as error:
        found = raised(error)
    report([getattr(found, "wrong", found)])


def report_end(seconds: Any) -> None:
    """Runs the call in a subprocess and reports how the process ended. The call may take ``seconds`` of running time."""
    child = subprocess.Popen([sys.executable, *sys.argv, "in this process"])
    fault = ""
    if not ends_within(child, seconds):
        child.kill()
        child.wait()
        fault = f"the call did not return within {seconds} seconds"
    elif child.returncode < 0:
        fault = f"the process was killed by {signal.Signals(-child.returncode).name}"
    elif child.returncode == 2:  # the call was not made, as the process has printed
        sys.exit(2)
    elif child.returncode:
        fault = f"the process ended with status {child.returncode}"
    print(f"FAIL: {fault}" if fault else "PASS: the call returned")
    sys.exit(1 if fault else 0)


# -- writing


def written(
    setting: Any,
    head: str,
    main: Sequence[str],
    functions: Iterable[Callable[..., Any]],
    *,
    bundle: Bundle | None = None,
    start: str = "main()",
) -> str:
    """Returns the text of a script. ``setting`` is the OpContext. ``main`` has the lines that create the inputs, make the
    call and judge the result; ``functions`` are the functions that these lines use."""
    descriptor, left = setting.device.descriptor, setting.device.left
    around, _, context = (descriptor.around or "").partition(":")
    apart = bool(around or (left and left.sorting))
    functions = [*functions]
    needs = ["the files from which it loads functions"] if loaded in functions else []
    needs += [descriptor.module] if descriptor.module else []
    bundle = (bundle or Bundle()).take([*functions, *([LeftBehind] if apart else [])])
    lines = ["torch.set_num_threads(1)", f"torch.set_grad_enabled({setting.grad})"]
    lines += [*IEEE, 'warnings.simplefilter("ignore")']
    needed = dict.fromkeys(filter(None, (descriptor.module, around)))
    of_torch = [each for each in needed if each.startswith("torch.")]
    bundle.add(
        Import(each, "", each.partition(".")[0]) for each in ("torch", "warnings", *of_torch)
    )
    if apart:
        lines.append(f"left = LeftBehind({descriptor.torch_type!r})")
    lines += [f"import {each}" for each in needed if each not in of_torch]
    if descriptor.init:
        lines.append(f"{descriptor.module}.{descriptor.init}()")
    if around:
        lines.append(f"with {around}.{context}():")
        main = textwrap.indent("\n".join(["left.look()", *main]), "    ").splitlines()
    elif apart:
        lines.append("left.look()  # keeps side effects of the imports above out of the check")
    lines += main
    return script_text(
        bundle,
        lines,
        head=head,
        needs=f", {needs[0]}, and {needs[1]}" if needs[1:] else "".join(f" and {n}" for n in needs),
        top=f"DEVICE = {str(setting.device.torch_device)!r}",
        below=_HELPERS,
        start=start,
    )


def inputs_source(call: Arguments, values: Sequence[torch.Tensor]) -> list[str]:
    """Returns the lines of a script that assign ``values``, the input tensors, and define ``arguments``, the function
    that inserts tensors into the call's arguments."""
    args, kwargs = with_names(call)
    return [
        "values = [",
        *(f"    {literal(tensor)}," for tensor in values),
        "]",
        "",
        "def arguments(t, device):",
        '    """Return the call\'s arguments, with the tensors ``t`` inserted."""',
        f"    return {literal(args)}, {literal(kwargs)}",
        "",
    ]


def with_names(call: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of a call with names in place of values: ``t[n]`` for each tensor, and ``device`` for a
    device argument."""
    numbering = iter(range(len(call.tensors)))
    args, kwargs = replace_tensors(
        (call.args, call.kwargs), lambda _: Named(f"t[{next(numbering)}]")
    )
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": Named("device")}
    return args, kwargs


class Named:
    """A placeholder whose repr is a name in a script."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def function_source(subject: Subject, function: Callable[..., Any], functions: list[Any]) -> str:
    """Returns the source by which a script refers to a function of an op: its public name in torch, or the expression
    that the ``subject`` gives for it. Adds the functions that the source uses to the list ``functions``. Raises
    NotCarried if the function has no source."""
    if name := public_name(function):
        return name
    if isinstance(function, DeterminatePart):
        process, used = function.source
        functions += (DeterminatePart, *used)
        return (
            f"DeterminatePart({function_source(subject, function.function, functions)}, {process})"
        )
    try:
        text, used = subject.source_of(function)
    except ValueError as error:
        raise NotCarried(str(error)) from error
    functions += used
    return text


_OVERLOAD = type(torch.ops.aten.add.Tensor)
_SPACES = (
    *("", "Tensor", "nn.functional", "linalg", "fft", "special", "masked", "signal.windows"),
    "ops.aten",
)


def public_name(function: Callable[..., Any]) -> str | None:
    """Returns the public name of a function, such as ``torch.nn.functional.relu``; None if the function has none."""
    if isinstance(function, _OVERLOAD):
        return f"torch.ops.{function}"  # such as torch.ops.aten.add.Tensor
    name = getattr(function, "__name__", "")
    short = name.removeprefix("linalg_").removeprefix("fft_").removeprefix("special_")
    for space in _SPACES:
        holder = attrgetter(space)(torch) if space else torch
        for each in filter(str.isidentifier, (name, short)):
            if getattr(holder, each, None) is function:
                return ".".join(filter(None, ("torch", space, each)))
    return None


def literal(value: Any) -> str:
    """Returns the Python source of an argument."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            kind = str(value.layout).removeprefix("torch.").removeprefix("_")
            return f"{literal(value.to_dense())}.to_{kind}()"
        return f"dense({_data(value)}, {value.dtype}, {tuple(value.shape)})"
    if type(value) is tuple:
        inner = ", ".join(map(literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, complex) and not (value.real - value.real == 0 == value.imag - value.imag):
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if value is Ellipsis:
        return "..."
    if isinstance(value, torch.device):
        return "torch.device(DEVICE)"
    if isinstance(value, torch.nn.Module):
        return f"torch.nn.{value!r}"
    made = type(value)
    if is_dataclass(made) and made.__module__.startswith("torch."):  # an options object
        given = [f"{each.name}={literal(getattr(value, each.name))}" for each in fields(value)]
        return (
            f'__import__("{made.__module__}", fromlist=["_"]).{made.__name__}({", ".join(given)})'
        )
    return repr(value)


def _data(tensor: torch.Tensor) -> str:
    flat = tensor.contiguous().view(-1)
    small = flat.numel() <= _READABLE and flat.dtype.itemsize > 1
    if small or flat.dtype in (torch.bool, torch.int8):
        values = flat.tolist()
        if all(v == v and v not in (float("inf"), float("-inf")) for v in values):
            return repr(values)
    raw = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
    return repr(base64.b64encode(zlib.compress(raw)).decode())
