"""Collects the calls that a file of another format describes into a recording: the distinct calls with their counts,
and a list of the properties of the calls that the file does not store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec
import torch

from conformance.recordings.formats.schemas import (
    UNKNOWN,
    Argument,
    Constant,
    Schema,
    Unreadable,
    tag_of,
    to_argument,
)
from conformance.recordings.wire import (
    FORMAT,
    VERSION,
    Header,
    Place,
    RecordedCall,
    RecordedTensor,
    Recording,
    geometry_fault,
    number_key,
)
from opinfo.encoding import ARGUMENTS, NotEncodable, write_value

NOWHERE: Final = Place()

#: The beginnings of the names of ops that compute nothing: markers of the profiler, of new constants and of assertions.
_NO_COMPUTATION: Final = ("profiler.", "aten.lift_fresh.", "aten._assert")


class Unknown(str, Enum):
    """A property of a call that a file does not store, and after ``|`` what a replay assumes instead."""

    OVERLOADS = "overloads unknown|chosen by the types of the arguments"
    DTYPES = "dtypes of the tensors in a list unknown|float32 or the dtype of another tensor of the call assumed"
    STRIDES = "strides unknown|contiguous assumed"
    OFFSETS = "storage offsets unknown|0 assumed"
    SHARING = "unknown which tensors share memory|none assumed"
    NUMBERS = "values of numbers passed as tensors of no dimension unknown|drawn"
    TEXTS = "text arguments unknown|their default assumed"
    DECIMALS = "numbers have only six decimals|taken as they are"
    RANGES = "ranges of the elements unknown|elements from -2 to 2 drawn, integers 0 and 1"
    SIZES = "sizes are symbolic|those of the example with which the program was exported assumed"
    COMPOSITES = (
        "the file has composite ops instead|divided into the ops that torch calls for fake tensors"
    )


class CallCollector:
    """Builds a recording from calls that are added one by one. ``unknown`` lists the properties that the file's format
    does not store for any call with a tensor."""

    def __init__(self, *unknown: Unknown) -> None:
        self._unknown = frozenset(unknown)
        self._calls: dict[Any, RecordedCall] = {}
        self._lacking: dict[Any, frozenset[Unknown]] = {}
        self._places: dict[Any, Counter[Place]] = {}
        self._left_out: Counter[str] = Counter()

    def add(
        self,
        schema: Schema,
        arguments: Mapping[str, Any],
        *,
        count: int = 1,
        phase: str = "",
        autocast: str = "",
        place: Place = NOWHERE,
        unknown: Iterable[Unknown] = (),
    ) -> None:
        """Adds ``count`` calls of an overload to the recording. ``arguments`` maps the schema's argument names to
        values: numbers, strings, lists, None, Constant, UNKNOWN and RecordedTensor. Tensors of the call that share
        memory must have the same ``storage`` number. ``unknown`` lists the properties of this call that the file does
        not store. If the values do not make a valid call, it is counted as left out. Calls of ops that compute nothing
        are ignored."""
        if schema.op.startswith(_NO_COMPUTATION):
            return
        try:
            call = _call(schema, arguments)
        except (Unreadable, NotEncodable) as reason:
            self.leave_out(f"{schema.op}: {reason}", count)
            return
        call = msgspec.structs.replace(call, count=count, phase=phase, autocast=autocast)
        key = _key(call)
        before = self._calls.get(key)
        if before is None:
            self._calls[key] = call
            lacking = self._unknown if call.tensors else frozenset()
            self._lacking[key] = lacking.union(unknown)
            self._places[key] = Counter()
        else:
            self._calls[key] = msgspec.structs.replace(before, count=before.count + count)
        if place != NOWHERE:
            self._places[key][place] += count

    def leave_out(self, why: str, count: int = 1) -> None:
        """Counts ``count`` calls of the file that are not added to the recording, for the reason ``why``."""
        self._left_out[why] += count

    def recording(self, source: str) -> Recording:
        """Returns the recording of the calls that were added. ``source`` describes the file, and is stored as the
        command of the recording."""
        calls = tuple(
            msgspec.structs.replace(call, places=tuple(self._places[key].most_common()))
            for key, call in self._calls.items()
        )
        return Recording(
            Header(FORMAT, VERSION, str(torch.__version__), source, tuple(self._lacks())), calls
        )

    def _lacks(self) -> Iterable[str]:
        total = sum(bool(call.tensors) for call in self._calls.values())
        for each in Unknown:
            count = sum(each in lacking for lacking in self._lacking.values())
            if count:
                what, _, instead = each.value.partition("|")
                yield f"{what} of {count:,} of {max(total, count):,} calls: {instead}"
        for why, count in self._left_out.items():
            yield f"not read: {count:,} x {why}"


def _call(schema: Schema, arguments: Mapping[str, Any]) -> RecordedCall:
    """Returns a call in the form that the recorder stores: without arguments that equal their defaults. Raises
    Unreadable if a value does not fit the schema."""
    values = {
        each.name: to_argument(arguments.get(each.name, UNKNOWN), each) for each in schema.arguments
    }
    positional = [each for each in schema.arguments if not each.is_keyword]
    while positional and _is_default(values[positional[-1].name], positional[-1]):
        positional.pop()
    keywords = [
        each
        for each in schema.arguments
        if each.is_keyword and not _is_default(values[each.name], each)
    ]
    tensors: list[RecordedTensor] = []
    args = [_written(values[each.name], each, tensors) for each in positional]
    kwargs = {each.name: _written(values[each.name], each, tensors) for each in keywords}
    return RecordedCall(schema.op, args, kwargs, _numbered(tensors))


def _is_default(value: Any, argument: Argument) -> bool:
    default = argument.default
    if default is UNKNOWN:
        return False
    if isinstance(value, Constant):
        tag = tag_of(argument)
        return default is not None and tag != "device" and value.name == _name(default, argument)
    if isinstance(value, list) and any(isinstance(each, RecordedTensor) for each in value):
        return False
    return type(value) is type(default) and bool(value == default)


def _name(default: Any, argument: Argument) -> str:
    """Returns the name of an argument's default, such as that of a dtype, for which torch's schemas have only a
    number."""
    found = to_argument(default, argument)
    return found.name if isinstance(found, Constant) else ""


def _written(value: Any, argument: Argument, tensors: list[RecordedTensor]) -> Any:
    """Returns a value encoded as in :mod:`opinfo.encoding`. The tensors in it are appended to ``tensors``."""
    if isinstance(value, list):
        return [_written(each, argument, tensors) for each in value]
    if isinstance(value, RecordedTensor):
        tensors.append(_checked(value))
        return {"tensor": len(tensors) - 1}
    if isinstance(value, Constant):
        tag = tag_of(argument)
        return {tag: True if tag == "device" else value.name}
    return write_value(value, ARGUMENTS)


def _checked(tensor: RecordedTensor) -> RecordedTensor:
    """Returns the tensor unchanged. Raises Unreadable if its dtype or its geometry is not valid."""
    if not isinstance(getattr(torch, tensor.dtype, None), torch.dtype):
        raise Unreadable(f"torch has no dtype {tensor.dtype!r:.40}")
    if why := geometry_fault(tensor):
        raise Unreadable(why)
    return tensor


def _numbered(tensors: Sequence[RecordedTensor]) -> tuple[RecordedTensor, ...]:
    """Returns the tensors with new storage numbers, which count from 0 in the order in which the storages first
    occur."""
    numbers: dict[int, int] = {}
    return tuple(
        msgspec.structs.replace(each, storage=numbers.setdefault(each.storage, len(numbers)))
        for each in tensors
    )


def _key(call: RecordedCall) -> Any:
    """Returns a key that two calls share if the recorder counts them as the same call, see
    :func:`conformance.recordings.wire.number_key`."""
    known = tuple(
        (each.dtype, each.shape, each.stride, each.offset, each.storage, each.requires_grad)
        for each in call.tensors
    )
    return (call.op, _form(call.args), _form(call.kwargs), known, call.phase, call.autocast)


def _form(document: Any) -> Any:
    if isinstance(document, list):
        return tuple(map(_form, document))
    if isinstance(document, dict):
        if "float" in document:
            return number_key(float(document["float"]))
        return tuple((name, _form(each)) for name, each in document.items())
    return type(document), document
