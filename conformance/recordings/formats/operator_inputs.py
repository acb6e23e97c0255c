"""The logs of ``OperatorInputsMode`` (benchmarks/dynamo/microbenchmarks of PyTorch), which list for each op the
distinct arguments with their counts. PyTorch's repository has such logs of some 150 training runs."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Any, Final

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.wire import RecordedTensor, Recording

if TYPE_CHECKING:
    from conformance.recordings.formats.schemas import Schema

TITLE: Final = "a log of operator inputs (operator_inp_logs)"

_OPERATOR: Final = "Operator: "
_LINE: Final = re.compile(r"cnt: (\d{1,12}), (.*)$")
#: Overloads that torch has no more, and their successors.
_SUCCESSORS: Final = {"aten.sum.SymInt": "aten.sum.dim_IntList"}


def takes(file: SourceFile) -> bool:
    """Returns True if the first line of a file is the heading of an operator."""
    return file.beginning.startswith(_OPERATOR)


def read(file: SourceFile) -> Recording:
    """Returns the calls of a log. Raises RecordingError if a line is neither the heading of an operator nor a call."""
    from conformance.recordings.formats.collecting import CallCollector, Unknown
    from conformance.recordings.formats.decomposing import CallFacts, add_overload
    from conformance.recordings.formats.schemas import Unreadable

    calls = CallCollector(Unknown.RANGES, Unknown.OFFSETS, Unknown.SHARING)
    op = ""
    for number, line in enumerate(file.text.splitlines(), 1):
        if line.startswith(_OPERATOR):
            op = line.removeprefix(_OPERATOR).strip()
            continue
        if not line.strip():
            continue
        found = _LINE.match(line)
        if found is None or not op:
            raise file.damaged(
                f"line {number}: expected 'Operator: OP' or 'cnt: N, ARGUMENTS', found {line[:60]!r}"
            )
        count = int(found.group(1))
        try:
            schema = _schema(op)
            args, kwargs = _arguments(found.group(2))
            values = schema.bind(args, kwargs)
        except Unreadable as reason:
            calls.leave_out(f"{op}: {reason}", count)
            continue
        add_overload(calls, schema, values, CallFacts(count))
    return calls.recording(TITLE)


def _schema(op: str) -> Schema:
    from conformance.recordings.formats.schemas import Unreadable, schema_by_name

    space, _, rest = _SUCCESSORS.get(op, op).partition(".")
    packet, _, overload = rest.partition(".")
    names = [f"{space}::{packet}.{overload}"]
    if overload in ("default", "SymInt"):  # torch has no overloads SymInt any more
        names.append(f"{space}::{packet}")
    found = next((each for each in map(schema_by_name, names) if each is not None), None)
    if found is None:
        raise Unreadable("torch has no such overload")
    return found


def _arguments(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    from conformance.recordings.formats.literals import (
        device_or_text,
        parse_expression,
        read_literal,
        whole_numbers,
    )
    from conformance.recordings.formats.schemas import Constant, Unreadable

    numbers = itertools.count()

    def tensor(shape: Any, dtype: Any, stride: Any = None, **_: Any) -> RecordedTensor:
        if not isinstance(dtype, Constant):
            raise Unreadable(f"expected a dtype, found {dtype!r:.40}")
        sizes = whole_numbers(shape)
        # the writer leaves the strides of contiguous tensors out
        steps = contiguous(sizes) if stride is None else whole_numbers(stride)
        return RecordedTensor(dtype.name, sizes, steps, storage=next(numbers))

    def sparse(*_: Any, **__: Any) -> Any:
        raise Unreadable("a sparse tensor")

    node = parse_expression(text)
    found = read_literal(node, {"T": tensor, "ST": sparse})
    if not (isinstance(node, ast.Tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise Unreadable("expected ((ARGUMENTS), {KEYWORDS})")
    if not isinstance(found[0], tuple):
        raise Unreadable("expected a tuple of arguments")
    named = {
        name: device_or_text(value) if isinstance(value, str) else value
        for name, value in found[1].items()
    }
    return found[0], named


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor, as torch defines them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
