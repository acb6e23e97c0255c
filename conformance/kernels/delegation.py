"""Finds out whether a kernel leaves its work to the op that it replaces, or to the only op that its reference calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.kernels.observation import Observer
from opinfo.samples import Sample
from opinfo.subject import Subject

#: Ops that compute nothing, besides those that return a view of their argument.
_MOVING = frozenset(
    {"aten::clone", "aten::copy_", "aten::empty", "aten::empty_like", "aten::empty_strided"}
)


@dataclass(frozen=True)
class ReferenceOp:
    """The only op that a reference calls, such as "aten::scaled_dot_product_attention". ``parts`` are the ops that torch
    calls for it, and the op itself."""

    name: str
    parts: frozenset[str]

    def does_all(self, names: Collection[str]) -> bool:
        """Returns True if a kernel that called the ops of these names left all its work to this op."""
        return self.name in names and all(n in self.parts or _moves_only(n) for n in names)


def op_of_reference(base: Subject, samples: list[Sample]) -> ReferenceOp | None:
    """Returns the only op that a reference calls for each sample, not counting ops that only move data; None if it calls
    several, or none."""
    observer = Observer(None)
    outermost, parts = set[str](), set[str]()
    for sample in _with_elements(samples):
        args, kwargs = sample.call.bind([each.clone() for each in sample.tensors])
        with torch.no_grad():
            observer.observed(lambda: base.reference(*args, **dict(kwargs)))  # noqa: B023
        outermost |= {name for name in observer.outermost if not _moves_only(name)}
        parts |= {*observer.calls}
    if len(outermost) != 1:
        return None
    return ReferenceOp(outermost.pop(), frozenset(parts))


@cache
def _moves_only(name: str) -> bool:
    """Returns True if an op of this name computes nothing: it returns a view, or copies or allocates memory."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    overloads = [] if packet is None else packet.overloads()
    results = [r for each in overloads for r in getattr(packet, each)._schema.returns]
    views = (r.alias_info is not None and not r.alias_info.is_write for r in results)
    return name in _MOVING or any(views)


class _Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computing = set[str]()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        views = any(r.alias_info is not None for r in function._schema.returns)
        if not views:
            self.computing.add(function._schema.name)
        return function(*args, **(kwargs or {}))


def replaced_ops(base: Subject, samples: list[Sample]) -> frozenset[str]:
    """Returns the names of the aten ops that do the work of a kernel that calls one of them, such as "aten::softmax": the
    op that it replaces, the op that returns its results if it writes them to its arguments, and the only op that its
    reference calls, not counting views, if there is one."""
    names = {each.name for each in base.schemas}
    if (plain := getattr(base, "plain", None)) is not None:
        names.add(plain._schema.name)
    used: set[frozenset[str]] = set()
    for sample in _with_elements(samples):
        args, kwargs = sample.call.bind([each.clone() for each in sample.tensors])
        with torch.no_grad(), _Ops() as ops:
            base.reference(*args, **dict(kwargs))
        used.add(frozenset(ops.computing))
    if all(len(each) == 1 for each in used):
        names.update(*used)
    return frozenset(names)


def _with_elements(samples: list[Sample]) -> Iterator[Sample]:
    fitting = [s for s in samples if s.tensors and all(t.numel() for t in s.tensors)]
    yield from fitting[:3]
