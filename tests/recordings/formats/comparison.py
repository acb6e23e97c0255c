"""Compares recordings of one program in several formats, as far as each format describes a call.

``python -m tests.recordings.formats.comparison`` prints the table of docs/models.md.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.recordings.formats import read
from conformance.recordings.formats.collecting import Unknown
from conformance.recordings.formats.schemas import schema_by_name
from conformance.recordings.wire import RecordedCall, RecordedTensor, Recording
from tests.recordings.formats.writers import Program, example, execution_trace, kineto, recorded

#: What each format does not know of a call.
LACKS: Mapping[str, frozenset[Unknown]] = {
    "execution_trace": frozenset({Unknown.NUMBERS, Unknown.DECIMALS}),
    "kineto": frozenset(
        {*(Unknown.NUMBERS, Unknown.OFFSETS, Unknown.SHARING), *(Unknown.TEXTS, Unknown.DTYPES)}
    ),
}
WRITERS = {"execution_trace": execution_trace, "kineto": kineto}
#: The programs of the table, in examples/recordings.
PROGRAMS = ("mlp_adam", "convnet_autocast")


@dataclass(frozen=True)
class Compared:
    """The distinct calls of a program, counted by what a format knows of them: those in both recordings, and the ops of
    those in one of them alone."""

    both: int
    ours_alone: Counter[str]
    theirs_alone: Counter[str]


def compare(ours: Recording, theirs: Recording, lacks: frozenset[Unknown]) -> Compared:
    """Compares the distinct calls of two recordings without the parts that the format of the second does not know."""
    one = {known_of(call, lacks) for call in ours.calls}
    other = {known_of(call, lacks) for call in theirs.calls}

    def ops(keys: Iterable[Any]) -> Counter[str]:
        return Counter(op for op, *_ in keys)

    return Compared(len(one & other), ops(one - other), ops(other - one))


def known_of(call: RecordedCall, lacks: frozenset[Unknown]) -> Any:
    """Returns what a format that lacks the given parts knows of a call."""
    numbers: dict[int, int] = {}  # of the storages
    space, packet, overload = call.op.split(".")
    name = f"{space}::{packet}" + (f".{overload}" if overload != "default" else "")
    schema = schema_by_name(name)
    kinds = {} if schema is None else {each.name: each.kind for each in schema.arguments}

    def known(document: Any, kind: str, in_list: bool = False) -> Any:
        if isinstance(document, list):
            return tuple(known(each, kind, True) for each in document)
        if kind == "Tensor" and Unknown.NUMBERS in lacks and _is_number(document, call.tensors):
            return "a number"
        if isinstance(document, dict):
            ((tag, value),) = document.items()
            if tag == "tensor":
                return _tensor(call.tensors[value], numbers, lacks, in_list)
            if tag == "float" and Unknown.DECIMALS in lacks:
                return float(f"{float(value):.6f}")
            return tag, str(value)
        return document

    positional = dict(zip(kinds, call.args))
    given = [
        (name, known(value, kinds.get(name, "")))
        for name, value in {**positional, **call.kwargs}.items()
        if not (Unknown.TEXTS in lacks and kinds.get(name) == "Device")
    ]
    return call.op, *given


def _is_number(document: Any, tensors: tuple[RecordedTensor, ...]) -> bool:
    if isinstance(document, dict) and "tensor" in document:
        tensor = tensors[document["tensor"]]
        return tensor.shape == () and tensor.dtype in ("float64", "int64", "bool", "complex128")
    return document is not None


def _tensor(
    tensor: RecordedTensor, numbers: dict[int, int], lacks: frozenset[Unknown], in_list: bool
) -> Any:
    return (
        "" if in_list and Unknown.DTYPES in lacks else tensor.dtype,
        tensor.shape,
        None if Unknown.STRIDES in lacks else tensor.stride,
        0 if Unknown.OFFSETS in lacks else tensor.offset,
        0 if Unknown.SHARING in lacks else numbers.setdefault(tensor.storage, len(numbers)),
    )


def comparisons(folder: Path) -> Iterator[tuple[str, str, Recording, Recording, Compared]]:
    """Yields program, format, both recordings and their comparison."""
    for name in PROGRAMS:
        program: Program = example(name)
        ours = recorded(program)
        for kind, write in WRITERS.items():
            theirs = read(write(program, folder / f"{name}.{kind}.json"))
            yield name, kind, ours, theirs, compare(ours, theirs, LACKS[kind])


def table(folder: Path) -> Iterator[str]:
    """Yields the lines of the table of docs/models.md."""
    yield "| program | format | distinct calls | the same | only in the recording | only in the other file |"
    yield "|---|---|---|---|---|---|"
    for name, kind, _, theirs, found in comparisons(folder):
        parts = (name, kind, len(theirs.calls), found.both)
        yield f"| {' | '.join(map(str, parts))} | {_ops(found.ours_alone)} | {_ops(found.theirs_alone)} |"


def _ops(counts: Counter[str]) -> str:
    return ", ".join(f"{count} × `{op}`" for op, count in sorted(counts.items())) or "–"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print("\n".join(table(Path(made))))
