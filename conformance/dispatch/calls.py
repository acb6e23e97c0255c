"""Checks of single calls: run here, and written down as a script that runs them again.

Such a check is a function of its module that names nothing but torch, builtins and its ``HELPERS``. It takes the op, ``move``
(CPU tensor to device), ``back`` (device tensor to CPU), for a call of the database ``tensors`` (CPU) and
``arguments`` (tensors to arguments), and literals; it returns what is wrong, or None.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from conformance.cells import CellRecord, Failure
from conformance.layout import repro
from conformance.layout.context import ItemContext
from conformance.layout.directed import NOT_APPLICABLE
from opinfo.catalog import catalogue
from opinfo.reference import on_device
from opinfo.samples import Sample
from opinfo.traits import Traits

Check = Callable[..., str | None]

#: Functions that a check calls by name: its script takes them along. A text stands in a script for one that needs
#: more than torch.
HELPERS: dict[Check, tuple[Callable[..., Any] | str, ...]] = {}

#: Which dtype stands for an op where nothing depends on it: the first that it takes.
_FIRST = ("float32", "int64", "bool", "complex64")


def once(traits: Traits) -> bool:
    """Whether this dtype is the one that stands for the op."""
    dtypes = catalogue()[traits.op].dtypes
    first = next((name for name in _FIRST if name in dtypes), min(dtypes))
    return traits.dtype == first


def dense_samples(ctx: ItemContext) -> list[Sample]:
    """The samples whose tensors are all strided."""
    return [s for s in ctx.samples if all(t.layout == torch.strided for t in s.tensors)]


def judge(
    ctx: ItemContext, record: CellRecord, check: Check, sample: Sample | None = None, **given: Any
) -> bool:
    """Make a check, of a call of the sample where one is given. Whether it could be made.

    NotImplementedError says that the device has not the op: the cell is unsupported then.
    """
    raises = None
    try:
        problem = check(*place(ctx, sample), **given)
    except NotImplementedError as exc:
        record.refuse(exc)
        return False
    except Exception as exc:  # judged: a check that expects an exception catches it itself
        line = (str(exc).strip().splitlines() or [""])[0][:300]
        problem, raises = f"raised {type(exc).__name__}: {line}", type(exc).__name__
    finally:
        let_go(ctx)
    if problem == NOT_APPLICABLE:
        return False
    told(ctx, record, check, sample, problem, raises=raises, **given)
    return True


def let_go(ctx: ItemContext) -> None:
    """Take what a refused call left behind: a device may raise a late error twice (lazy does), and the
    second time would blame whatever is called next. What has not been raised yet is not lost by this: the
    checks here read their results back."""
    if ctx.device.descriptor.settle is not None:
        with suppress(Exception):
            ctx.device.settle(())


def place(ctx: ItemContext, sample: Sample | None) -> tuple[Any, ...]:
    """What every check takes first: the op, ``move``, ``back``, and the sample's tensors and arguments."""
    shared = (ctx.op.function, ctx.device.to_device, ctx.device.from_device)
    if sample is None:
        return shared

    def arguments(tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = sample.call.bind(tensors)
        return args, on_device(kwargs, ctx.device.torch_device)

    return (*shared, [tensor.clone() for tensor in sample.tensors], arguments)


def told(
    ctx: ItemContext,
    record: CellRecord,
    check: Check,
    sample: Sample | None,
    problem: str | None,
    *,
    raises: str | None = None,
    **given: Any,
) -> None:
    """Record what a check has told: what is wrong, or None."""
    record.count(1)
    if sample is not None:
        record.samples.add(sample.index)
    if problem is not None:
        size = sample.numel if sample is not None else 0
        script = CallScript(ctx, record.key.clause, check, sample, given)
        record.fail(Failure("", problem, raises=raises, size=size, repro=script))


@dataclass(frozen=True, slots=True)
class CallScript:
    """Writes the script of one failing check when it is called."""

    ctx: ItemContext
    clause: str
    check: Check
    sample: Sample | None
    given: dict[str, Any]

    def __call__(self) -> str:
        ctx = self.ctx
        body: list[str] = []
        names = [f"{name}={value!r}" for name, value in self.given.items()]
        if self.sample is not None:
            args, kwargs = repro.placed(self.sample.call)
            body += [
                "tensors = [",
                *(f"    {repro.on_host(tensor)}," for tensor in self.sample.tensors),
                "]",
                "",
                "",
                "def arguments(t):",
                '    """The call\'s arguments with the tensors ``t`` in their places."""',
                f"    return {repro.literal(args, ctx)}, "
                f"{repro.literal(on_device(kwargs, ctx.device.torch_device), ctx)}",
                "",
                "",
            ]
            names = ["tensors", "arguments", *names]
        body += [
            "from functools import cache\n\n",
            *(f"{_source(helper)}\n" for helper in HELPERS.get(self.check, ())),
            "def move(tensor):\n    return tensor.to(DEVICE)\n\n",
            "def back(tensor):\n    return tensor.cpu()\n\n",
            _source(self.check),
            "",
            f"CHECK = lambda: {self.check.__name__}(op, move, back, {', '.join(names)})",
        ]
        return repro.script(ctx, "contiguous", "directed", body, clause=self.clause)


def _source(function: Callable[..., Any] | str) -> str:
    """The text of a function, without annotations."""
    if isinstance(function, str):
        return function
    text = textwrap.dedent(inspect.getsource(function))
    return re.sub(r" -> (str \| None|bool|Any):", ":", text.replace(": Any", ""))
