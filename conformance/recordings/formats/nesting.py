"""Finds, in a tree of nested calls, the calls that a recorder of torch's dispatch modes would see: those below autograd,
autocast and composite ops, and above the kernels, which call other ops of their own."""

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
    """A call of an op, or a region without a schema, with what is called inside. ``content`` is the entry of the file."""

    name: str
    content: Any
    schema: Schema | None = None
    children: list[Nested] = field(default_factory=list)


def visible(roots: Sequence[Nested]) -> Iterator[tuple[Nested, str]]:
    """Yields the calls that a recorder would see, in the order of their start, each with its phase."""
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
    """Returns True if a call only leads to other calls that the recorder sees: the op is composite, or is called once more
    after autocast or conjugation has changed the operands."""
    assert node.schema is not None
    if node.schema.is_composite:
        return True
    return any(
        child.schema is not None and child.schema.name == node.schema.name
        for child in node.children
    )
