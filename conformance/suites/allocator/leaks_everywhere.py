"""Cases of the clause allocator.steady for every op and every module of torch's databases.

The databases take seconds to load, and a plan is made without them. So a case takes every eighth op, or every second
module, by number.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.rnn import PackedSequence

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.allocator.leaks import judge_repeated
from devices.failure import Kind
from opinfo.compare import replace_tensors, tensors_of
from opinfo.database import DATABASE
from opinfo.module_catalog import ModuleEntry, module_entries
from opinfo.samples import Sample
from opinfo.subject import Subject

cases = Cases(Kind.MEMORY)

_PARTS = 8
_DTYPES = ("float32", "complex64", "int64", "bool")


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the databases' arguments cause warnings
        yield


def _gradients(result: Any, leaves: list[torch.Tensor]) -> None:
    """Computes the gradients of the leaves, if the result depends on any of them."""
    starts = [each for each in tensors_of(result) if each.requires_grad]
    if starts and leaves:
        ones = [torch.ones_like(each) for each in starts]
        torch.autograd.grad(starts, leaves, ones, allow_unused=True)


def _smallest(context: CaseContext, op: Subject) -> tuple[str, Sample] | None:
    """Returns the dtype and the sample with which an op is called: of the first of the dtypes float32, complex64, int64
    and bool that has one, the smallest sample of dense tensors with elements. Returns None if there is none."""
    for dtype in _DTYPES:
        if dtype not in op.dtypes or dtype not in context.descriptor.dtypes_of(op.id):
            continue
        fit = [
            each
            for each in DATABASE.samples(op, dtype)
            if each.tensors and all(t.layout == torch.strided and t.numel() for t in each.tensors)
        ]
        if fit:
            return dtype, min(fit, key=lambda sample: sample.numel)
    return None


def _op(context: CaseContext, op: Subject, dtype: str, sample: Sample) -> Callable[[], None]:
    differentiable = dtype in op.gradient_dtypes
    tensors = [context.to_device(each) for each in sample.tensors]
    leaves = [each for each in tensors if each.is_floating_point() or each.is_complex()]
    for each in leaves:
        each.requires_grad_(differentiable)
    args, kwargs = sample.call.on(tensors, context.device)

    def repeat() -> None:
        with _without_warnings():
            _gradients(op.function(*args, **kwargs), leaves)

    try:
        repeat()
    except RuntimeError:  # some tensors, such as running means, must not require gradients
        while leaves:
            leaves.pop().requires_grad_(False)
    return repeat


@cases(
    "allocator.steady",
    over={f"every_op_{part + 1}_of_{_PARTS}": (part,) for part in range(_PARTS)},
    more=True,
    slow=True,
)
def every_op(context: CaseContext, part: int) -> None:
    """Every op of torch's database is called repeatedly with its smallest sample, and with its backward if it has one.
    Neither device memory nor host memory grows. An op that raises an exception is left out, because other clauses judge
    that."""
    subjects, repeated = DATABASE.subjects(), {}
    for op_id in sorted(subjects)[part::_PARTS]:
        with _without_warnings():
            found = _smallest(context, subjects[op_id])
        if found is not None:
            repeated[op_id] = partial(_op, context, subjects[op_id], *found)
    judge_repeated(context, repeated, "an op of the database", spares_errors=True)


def _module(context: CaseContext, entry: ModuleEntry) -> Callable[[], None]:
    """Builds a module for the first sample whose arguments are tensors."""
    sample = next(
        each
        for each in entry.samples(training=True)
        if not any(isinstance(value, PackedSequence) for value in each.inputs)
    )
    with _without_warnings():
        module: Any = entry.build(*copy.deepcopy(sample.args), **copy.deepcopy(dict(sample.kwargs)))
        if issubclass(entry.build, LazyModuleMixin):
            module(*sample.inputs, **sample.named)
    module.to(context.device)

    def put(each: torch.Tensor) -> torch.Tensor:
        return context.to_device(each.detach()).requires_grad_(each.requires_grad)

    args, named = replace_tensors((tuple(sample.inputs), dict(sample.named)), put)
    leaves = [
        each for each in (*tensors_of((args, named)), *module.parameters()) if each.requires_grad
    ]

    def repeat() -> None:
        with _without_warnings():
            _gradients(module(*args, **named), leaves)

    return repeat


@cases(
    "allocator.steady",
    over={f"every_module_{part + 1}_of_2": (part,) for part in range(2)},
    more=True,
    slow=True,
)
def every_module(context: CaseContext, part: int) -> None:
    """The forward and the backward of every module of torch's database are run repeatedly. Neither device memory nor host
    memory grows. A module that raises an exception is left out, because other clauses judge that."""
    entries = list(module_entries().items())[part::2]
    repeated = {name: partial(_module, context, entry) for name, entry in entries}
    judge_repeated(context, repeated, "a module of the database", spares_errors=True)
