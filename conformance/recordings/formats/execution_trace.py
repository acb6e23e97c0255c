"""The execution trace of PyTorch (``torch.profiler.ExecutionTraceObserver``), also known as Chakra. It lists each call
of an op with its schema, and the geometry, storage and device of each tensor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.formats.wire import CPP_TYPES, ExecutionTrace, TraceNode
from conformance.recordings.wire import RecordedTensor, Recording, Values

if TYPE_CHECKING:
    from conformance.recordings.formats.nesting import Nested

TITLE: Final = "an execution trace of torch.profiler.ExecutionTraceObserver"

_SCHEMA: Final = re.compile(rb'"schema"\s*:\s*"[\d.]+-chakra')
#: The writer's number for the storage of a tensor of which it knows none. Its numbers of objects begin with 2.
_NO_STORAGE: Final = 0
_TENSOR: Final = re.compile(r"Tensor\((.*)\)$")


def takes(file: SourceFile) -> bool:
    """Returns True if a file begins like an execution trace: with the name of that schema."""
    return _SCHEMA.search(file.head) is not None


def read(file: SourceFile) -> Recording:
    """Returns the calls of an execution trace. Raises RecordingError if the file is damaged."""
    from conformance.recordings.formats.collecting import CallCollector, Unknown
    from conformance.recordings.formats.nesting import visible

    trace = file.json(ExecutionTrace, TITLE)
    calls = CallCollector(Unknown.RANGES)
    for nested, phase in visible(_tree(file, trace)):
        assert nested.schema is not None
        node: TraceNode = nested.content
        try:
            values = _arguments(node)
        except (ValueError, LookupError, TypeError) as error:
            raise file.damaged(f"the arguments of node {node.id} ({node.name}): {error}") from None
        unknown = []
        if any(each.dtype and each.stride is None for each in _tensors(values)):
            unknown.append(Unknown.STRIDES)
        if any(_is_number(each) for each in _tensors(values)) and len(_tensors(values)) > 1:
            unknown.append(Unknown.NUMBERS)
        if any(map(_is_rounded, values)):
            unknown.append(Unknown.DECIMALS)
        if any(each.storage < 0 for each in _tensors(values)):
            unknown += [Unknown.OFFSETS, Unknown.SHARING]
        given = {
            each.name: _unrounded(value, each.default)
            for each, value in zip(nested.schema.arguments, values)
        }
        calls.add(nested.schema, given, phase=phase, unknown=unknown)
    return calls.recording(TITLE)


def _tree(file: SourceFile, trace: ExecutionTrace) -> list[Nested]:
    """Returns the outermost nodes of a trace, each with the nodes inside it as its children. Raises RecordingError for
    a cycle."""
    from conformance.recordings.formats.nesting import Nested
    from conformance.recordings.formats.schemas import parsed

    nodes: dict[int, Nested] = {}
    for node in sorted(trace.nodes, key=lambda each: each.id):
        text = node.attribute("op_schema")
        schema = parsed(text) if isinstance(text, str) and text else None
        nodes[node.id] = Nested(node.name, node, schema)
    roots = []
    for number, nested in nodes.items():
        parent = nested.content.ctrl_deps
        if parent in nodes and parent != number:
            nodes[parent].children.append(nested)
        else:
            roots.append(nested)
    if (reached := _count(roots)) != len(nodes):
        raise file.damaged(f"{len(nodes) - reached:,} nodes are in a cycle of ctrl_deps")
    return roots


def _count(roots: list[Nested]) -> int:
    waiting, found = [*roots], 0
    while waiting:
        found += 1
        waiting += waiting.pop().children
    return found


# -- the arguments of a node


def _arguments(node: TraceNode) -> list[Any]:
    """Returns the arguments of the call that a node describes: numbers, strings, lists and RecordedTensor. Raises
    ValueError, LookupError or TypeError if the node is damaged."""
    found = node.inputs
    strides = found.strides if found.strides is not None else [None] * len(found.values)
    parts = zip(found.values, found.shapes, found.types, strides, strict=True)
    values = [_value(*each) for each in parts]
    ranges = node.attribute("tensor_range")
    if isinstance(ranges, str) and ranges:
        _add_ranges(values, ranges)
    return values


def _value(value: Any, shape: Any, kind: str, stride: Any) -> Any:
    if kind in ("None", "Generator") or value == "<None>":
        return None
    tensor = _TENSOR.match(kind)
    if tensor is not None:
        return _tensor(value, shape, tensor.group(1), stride)
    if kind.startswith("GenericList["):
        inner = _split(kind[len("GenericList[") : -1])
        count = len(value)
        shapes = shape if isinstance(shape, list) and len(shape) == count else [[]] * count
        steps = stride if isinstance(stride, list) and len(stride) == count else [None] * count
        if count > len(inner):
            raise ValueError(f"{count} values of {len(inner)} types")
        return [_value(*each) for each in zip(value, shapes, inner, steps)]
    return value


def _tensor(value: Any, shape: Any, cpp_type: str, stride: Any) -> RecordedTensor | None:
    if "uninitialized" in cpp_type:
        return None  # an undefined tensor, which Python sees as None
    number, storage, offset, _, _, device = value
    if storage == _NO_STORAGE:  # each tensor is taken for one with a storage of its own
        storage, offset = -1 - number, 0
    return RecordedTensor(
        dtype=CPP_TYPES.get(cpp_type, cpp_type),
        shape=tuple(shape),
        stride=None if stride is None else tuple(stride),
        offset=offset,
        storage=storage,
        device=str(device).partition(":")[0],
    )


def _split(text: str) -> list[str]:
    """Splits a text at the commas that are outside of brackets."""
    parts, depth = [""], 0
    for each in text:
        depth += (each in "[(<") - (each in "])>")
        if each == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += each
    return parts if text else []


def _add_ranges(values: list[Any], text: str) -> None:
    """Adds to ``values`` the ranges of elements in integer tensors, given as text such as ``{"1":[0,49]}``, where 1 is
    the index of an argument."""
    for position, (low, high) in msgspec.json.decode(text, type=dict[str, tuple[int, int]]).items():
        tensor = values[int(position)]
        if isinstance(tensor, RecordedTensor):
            values[int(position)] = msgspec.structs.replace(tensor, values=Values(low, high))


def _tensors(values: list[Any]) -> list[RecordedTensor]:
    found: list[RecordedTensor] = []
    for each in values:
        found += _tensors(each) if isinstance(each, list) else ()
        found += (each,) if isinstance(each, RecordedTensor) else ()
    return found


def _is_number(tensor: RecordedTensor) -> bool:
    """Returns True if torch may have passed a Python number as this tensor: a tensor without dimensions."""
    return tensor.shape == () and tensor.dtype in ("float64", "int64", "bool", "complex128")


def _unrounded(value: Any, default: Any) -> Any:
    """Returns a number in an argument, before its rounding to the six decimals that the file has: a value that equals
    the rounded default of the argument is taken for the default, such as 0 for 1e-8."""
    both = isinstance(value, float) and isinstance(default, float)
    return default if both and value == round(default, 6) else value


def _is_rounded(value: Any) -> bool:
    """Returns True for a number that the file may have only rounded to six decimals: 0, for example, may stand for
    1e-8."""
    if isinstance(value, list):
        return any(map(_is_rounded, value))
    return isinstance(value, float) and (value == 0 or not value.is_integer())
