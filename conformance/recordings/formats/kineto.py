"""The Chrome trace that ``torch.profiler.profile(record_shapes=True)`` exports. It names ops without their overloads;
the overload of a call is found by the types of its arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.formats.wire import CPP_TYPES, ChromeTrace, OpArguments, TraceEvent
from conformance.recordings.wire import RecordedTensor, Recording

if TYPE_CHECKING:
    from conformance.recordings.formats.nesting import Nested
    from conformance.recordings.formats.schemas import Argument, Schema

TITLE: Final = "a Chrome trace of torch.profiler with record_shapes=True"

_EVENTS: Final = re.compile(rb'"traceEvents"\s*:|"deviceProperties"\s*:')
_CATEGORIES: Final = ("cpu_op", "user_annotation")
_SCALAR: Final = "Scalar"
_SCALARS: Final = "ScalarList"
_TENSORS: Final = "TensorList"
#: The dtype of a tensor in a list, if no other tensor of the call says it.
_ASSUMED: Final = "float32"


def takes(file: SourceFile) -> bool:
    """Returns True if a file begins with keys of a Chrome trace."""
    return _EVENTS.search(file.head) is not None


def read(file: SourceFile) -> Recording:
    """Returns the calls of a trace. Raises RecordingError if the file is damaged, or was recorded without shapes."""
    from conformance.recordings.formats.collecting import CallCollector, Unknown
    from conformance.recordings.formats.nesting import visible

    trace = file.json(ChromeTrace, TITLE)
    events = [each for each in trace.traceEvents if each.ph == "X" and each.cat in _CATEGORIES]
    ops = [each for each in events if "::" in each.name and each.cat == "cpu_op"]
    if not ops:
        raise file.damaged("the trace has no ops: record with ProfilerActivity.CPU")
    if not any(isinstance(each.args, dict) and "Input Dims" in each.args for each in ops):
        raise file.damaged("the trace has no shapes: record with record_shapes=True")
    calls = CallCollector(Unknown.RANGES, Unknown.OFFSETS, Unknown.SHARING)
    resolver = _Resolver(file)
    for nested, phase in visible(_tree(events, resolver)):
        assert nested.schema is not None
        facts = resolver.arguments(nested.content)
        try:
            values = _values(nested.schema, facts)
        except (ValueError, LookupError, TypeError) as error:
            raise file.damaged(f"the arguments of {nested.name}: {error}") from None
        unknown = set(_unknown(nested.schema, facts, values))
        if resolver.candidates(nested.content) > 1:
            unknown.add(Unknown.OVERLOADS)
        calls.add(nested.schema, values, phase=phase, unknown=unknown)
    for name, count in resolver.unresolved.items():
        calls.leave_out(f"{name}: no overload takes the recorded arguments", count)
    return calls.recording(TITLE)


def _tree(events: Iterable[TraceEvent], resolver: _Resolver) -> list[Nested]:
    """Returns the outermost events, each with the events inside it as its children. An event is inside another event of
    the same thread if it lies within that event's time span."""
    from conformance.recordings.formats.nesting import Nested

    roots: list[Nested] = []
    open_in: dict[Any, list[Nested]] = {}
    for event in sorted(events, key=lambda each: (each.ts, -each.dur)):
        waiting = open_in.setdefault((str(event.pid), str(event.tid)), [])
        while waiting and not _contains(waiting[-1].content, event):
            waiting.pop()
        nested = Nested(event.name, event, resolver.schema(event))
        (waiting[-1].children if waiting else roots).append(nested)
        waiting.append(nested)
    return roots


def _contains(outer: TraceEvent, inner: TraceEvent) -> bool:
    # times are rounded to nanoseconds
    return inner.ts + inner.dur <= outer.ts + outer.dur + 0.002 and inner.ts < outer.ts + outer.dur


class _Resolver:
    """Finds the op overload that an event of the trace calls."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._found: dict[Any, tuple[Schema | None, int]] = {}
        self.unresolved: dict[str, int] = {}

    def arguments(self, event: TraceEvent) -> OpArguments:
        """Returns the types, shapes and values of the arguments that an event records. Raises RecordingError if they
        are damaged."""
        try:
            found = msgspec.convert(event.args or {}, OpArguments)
        except msgspec.ValidationError as error:
            raise self._file.damaged(f"the arguments of {event.name}: {error}") from None
        lists = (found.dims, found.strides, found.types, found.values)
        if len({len(each) for each in lists if each is not None}) > 1:
            raise self._file.damaged(f"the lists of arguments of {event.name} differ in length")
        return found

    def schema(self, event: TraceEvent) -> Schema | None:
        """Returns the schema of the overload that an event calls. Returns None if the event is not a call of an op, or
        if no overload of the op accepts its arguments."""
        if event.cat != "cpu_op" or "::" not in event.name:
            return None
        schema, _ = self._resolve(event)
        if schema is None and _is_op(event.name):
            self.unresolved[event.name] = self.unresolved.get(event.name, 0) + 1
        return schema

    def candidates(self, event: TraceEvent) -> int:
        """Returns the number of overloads of the event's op that accept its arguments."""
        return self._resolve(event)[1]

    def _resolve(self, event: TraceEvent) -> tuple[Schema | None, int]:
        facts = self.arguments(event)
        key = event.name, tuple(facts.types or ()), tuple(facts.values or ())
        if key not in self._found:
            self._found[key] = _overload(event.name, facts)
        return self._found[key]


def _is_op(name: str) -> bool:
    """Returns True if torch has an op with this name. (Events that are not calls of ops may also have names with
    colons.)"""
    from conformance.recordings.formats.schemas import overloads_of

    return bool(overloads_of(name))


def _overload(name: str, facts: OpArguments) -> tuple[Schema | None, int]:
    from conformance.recordings.formats.schemas import overloads_of

    types = facts.types or []
    fitting = [
        each
        for each in overloads_of(name)
        if len(each.arguments) == len(types)
        and all(map(_fits, each.arguments, types, _texts(facts)))
    ]
    # a value that the trace does not have is hardly ever a list of names of dimensions
    fitting.sort(key=lambda each: any(arg.kind == "Dimname" for arg in each.arguments))
    return (fitting[0], len(fitting)) if fitting else (None, 0)


def _texts(facts: OpArguments) -> Sequence[str]:
    return facts.values if facts.values is not None else [""] * len(facts.types or ())


def _fits(argument: Argument, kind: str, text: str) -> bool:
    """Returns True if an argument of a schema can have a value of the recorded type ``kind``. ``text`` is the recorded
    value."""
    if (
        kind == ""
    ):  # None, a device, a text, a generator, an undefined tensor, or a list that is empty or begins with None
        if argument.kind in ("Device", "str", "Generator") or argument.is_optional:
            return True
        return argument.is_list or argument.kind == "Tensor"
    if kind == _TENSORS:
        return argument.is_list and argument.kind in ("Tensor", "Optional[Tensor]")
    if kind == _SCALARS:
        return argument.is_list and argument.kind in ("int", "float", "bool", "number")
    if kind == _SCALAR:
        return not argument.is_list and _fits_scalar(argument.kind, text)
    return argument.kind == "Tensor" and not argument.is_list


def _fits_scalar(kind: str, text: str) -> bool:
    number = _literal(text)
    if kind == "number":
        return number is not None
    if kind == "float":
        return isinstance(number, float)
    if kind == "bool":
        return isinstance(number, bool)
    if kind in ("int", "ScalarType", "Layout", "MemoryFormat"):
        return isinstance(number, int) and not isinstance(number, bool)
    return False


def _literal(text: str) -> Any:
    """Parses a number or a list of numbers. Returns None if the text is neither."""
    if text in ("inf", "-inf", "nan", "-nan"):
        return float(text)
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, (bool, int, float, complex, list)) else None


# -- the arguments of an event


def _values(schema: Schema, facts: OpArguments) -> dict[str, Any]:
    """Returns the values of the arguments by name, with UNKNOWN for values that the trace does not store."""
    from conformance.recordings.formats.schemas import UNKNOWN, Constant

    types = facts.types or []
    dims = facts.dims or [[]] * len(types)
    strides = facts.strides or [None] * len(types)
    single = (CPP_TYPES.get(each, each) for each in types if each and each not in _NO_TENSOR)
    dtype = next(single, _ASSUMED)
    numbers = iter(range(len(types) + sum(len(each) for each in dims if isinstance(each, list))))

    def tensor(shape: Any, stride: Any, dtype: str) -> RecordedTensor:
        steps = None if stride is None else tuple(stride)
        return RecordedTensor(dtype, tuple(shape), steps, storage=next(numbers))

    found: dict[str, Any] = {}
    for argument, kind, shape, stride, text in zip(
        schema.arguments, types, dims, strides, _texts(facts)
    ):
        value: Any = UNKNOWN
        if kind == _TENSORS:
            steps = stride if stride is not None else [None] * len(shape)
            value = [tensor(*each, dtype) for each in zip(shape, steps)]
        elif kind in (_SCALAR, _SCALARS):
            value = _literal(text)
        elif kind:
            value = tensor(shape, stride, CPP_TYPES.get(kind, kind))
        elif argument.kind in ("Tensor", "Generator") and not argument.is_list:
            value = None
        elif argument.kind == "Device" and schema.is_factory:
            value = Constant("device")
        found[argument.name] = value
    return found


_NO_TENSOR: Final = (_SCALAR, _SCALARS, _TENSORS)


def _unknown(schema: Schema, facts: OpArguments, values: dict[str, Any]) -> Iterator[Any]:
    from conformance.recordings.formats.collecting import Unknown

    types = facts.types or []
    if _TENSORS in types:
        yield Unknown.DTYPES
    if facts.strides is None:
        yield Unknown.STRIDES
    if any(not kind and each.kind == "str" for kind, each in zip(types, schema.arguments)):
        yield Unknown.TEXTS
    tensors = [each for each in values.values() if isinstance(each, RecordedTensor)]
    numbers = ("float64", "int64", "bool", "complex128")
    if len(tensors) > 1 and any(each.shape == () and each.dtype in numbers for each in tensors):
        yield Unknown.NUMBERS
