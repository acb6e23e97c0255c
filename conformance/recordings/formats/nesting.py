"""Selects, from a tree of nested calls, those that the recorder of ``conform record`` would see. It sees the calls
below autograd, autocast and composite ops, and does not see the calls that kernels make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from conformance.recordings.formats.schemas import Schema

#: The names of regions begin with these words.
_BACKWARD: Final = "autograd::engine::evaluate_function"
_OPTIMIZER: Final = "Optimizer.step#"


@dataclass
class Nested:
    """A call of an op, or a region of the program (without a schema), with the calls inside it as ``children``.
    ``content`` is the entry in the file from which it was read."""

    name: str
    content: Any
    schema: Schema | None = None
    children: list[Nested] = field(default_factory=list)


def visible(roots: Sequence[Nested]) -> Iterator[tuple[Nested, str]]:
    """Yields the calls that the recorder would see, in the order in which they start, each with its phase: forward,
    backward or optimizer."""
    waiting = [(each, "forward") for each in reversed(roots)]
    while waiting:  # no recursion: a file decides how deep the tree is
        node, phase = waiting.pop()
        if node.name.startswith(_BACKWARD):
            phase = "backward"
        elif node.name.startswith(_OPTIMIZER):
            phase = "optimizer"
        if node.schema is not None and not _passes_on(node):
            yield node, phase
        else:
            waiting += ((each, phase) for each in reversed(node.children))


def _passes_on(node: Nested) -> bool:
    """Returns True if the recorder sees the calls inside this call instead of the call itself: because the op is
    composite, or because the same op is called again inside it, after autocast or conjugation has changed the
    operands."""
    assert node.schema is not None
    if node.schema.is_composite:
        return True
    return any(
        child.schema is not None and child.schema.name == node.schema.name
        for child in node.children
    )
