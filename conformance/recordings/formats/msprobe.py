"""The dump of msprobe (Ascend): calls of torch's Python functions with the dtypes, shapes and value ranges of their
tensors, without strides. Each call is replaced by the calls of aten ops that it leads to, forward and backward."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final

import msgspec

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.formats.wire import Dump, DumpedCall
from conformance.recordings.wire import Place, RecordedTensor, Recording, RecordingError, Values

TITLE: Final = "a dump.json of msprobe"

_KEYS: Final = (b'"task"', b'"level"')
_NAME: Final = re.compile(r"(\w+)\.(\w+)\.(\d+)\.(forward|backward)$")
_FRAME: Final = re.compile(r"File \"?([^\",\n]+)\"?, line (\d+)")
_TORCH: Final = re.compile(r"(^|/)(torch|torch_npu|msprobe)/")


def takes(file: SourceFile) -> bool:
    """Returns True if a file begins like the JSON object of a dump."""
    return file.beginning.startswith("{") and all(key in file.head[:512] for key in _KEYS)


def read(file: SourceFile) -> Recording:
    """Returns the calls of a dump. Raises RecordingError if the file is damaged."""
    from conformance.recordings.formats.collecting import CallCollector, Unknown
    from conformance.recordings.formats.decomposing import CallFacts, add_function
    from conformance.recordings.formats.schemas import Unreadable

    dump = file.json(Dump, TITLE)
    places = _places(file)
    calls = CallCollector(Unknown.STRIDES, Unknown.OFFSETS, Unknown.SHARING)
    for name, call in dump.data.items():
        found = _NAME.match(name)
        if found is None or found.group(1) == "Module":
            calls.leave_out("entries of modules and others that are no calls of functions")
            continue
        space, function_name, _, direction = found.groups()
        if direction == "backward":
            continue  # read with its forward
        values = _Values()
        try:
            function = _function(space, function_name)
            args = [values.read(each) for each in call.input_args or ()]
            kwargs = {key: values.read(each) for key, each in (call.input_kwargs or {}).items()}
            gradients = _gradients(dump.data.get(f"{name.removesuffix('forward')}backward"), values)
        except Unreadable as reason:
            calls.leave_out(f"{space}.{function_name}: {reason}")
            continue
        unknown = frozenset() if values.ranges_known else frozenset({Unknown.RANGES})
        facts = CallFacts(1, places.get(name, Place()), unknown)
        title = f"{space}.{function_name}"
        add_function(calls, title, function, args, kwargs, facts, gradients)
    return calls.recording(TITLE)


def _function(space: str, name: str) -> Any:
    import torch

    from conformance.recordings.formats.decomposing import NoFunction, function_of

    spaces = {
        "Torch": (torch, torch.functional),
        "Tensor": (torch.Tensor,),
        "Functional": (torch.nn.functional,),
    }
    if space not in spaces:
        raise NoFunction(f"functions of {space} are not of torch")
    return function_of(spaces[space], name)


def _gradients(call: DumpedCall | None, values: _Values) -> list[RecordedTensor] | None:
    """Returns the gradients of the outputs of a call, from the dump's entry for its backward pass; None if there is no
    such entry."""
    if call is None or not call.input:
        return None
    found = [values.read(each) for each in call.input]
    return [each for each in found if isinstance(each, RecordedTensor)]


class _Values:
    """Reads the arguments and results of one call of a dump, and remembers which properties of them the dump does not
    store."""

    def __init__(self) -> None:
        self.ranges_known = True
        self._numbers = itertools.count()

    def read(self, document: Any) -> Any:
        """Returns the argument or result that a JSON value describes. Raises Unreadable if it cannot be an argument."""
        from conformance.recordings.formats.schemas import Unreadable

        if document is None:
            return None
        if isinstance(document, list):
            return [self.read(each) for each in document]
        if not isinstance(document, dict):
            raise Unreadable(f"an argument cannot be read: {document!r:.60}")
        kind = document.get("type")
        if isinstance(kind, str) and ("shape" in document or kind == "torch.Tensor"):
            return self._tensor(document)
        return _plain(kind, document)

    def _tensor(self, document: Mapping[str, Any]) -> RecordedTensor:
        from conformance.recordings.formats.literals import whole_numbers
        from conformance.recordings.formats.schemas import Unreadable

        dtype, shape = document.get("dtype"), whole_numbers(document.get("shape"))
        if not isinstance(dtype, str):
            raise Unreadable(f"expected a dtype, found {dtype!r:.40}")
        low, high = _number(document.get("Min")), _number(document.get("Max"))
        self.ranges_known &= low is not None and high is not None
        ordered = low is not None and high is not None and low <= high
        return RecordedTensor(
            dtype=dtype.removeprefix("torch."),
            shape=shape,
            storage=next(self._numbers),
            requires_grad=document.get("requires_grad") is True,
            values=Values(low, high) if ordered else Values(),
        )


def _number(value: Any) -> float | None:
    """Returns the value if it is a finite number, otherwise None."""
    if isinstance(value, (bool, int, float)) and isfinite(value):
        return float(value)
    return None


def _plain(kind: Any, document: Mapping[str, Any]) -> Any:
    """Returns the value of an argument that is not a tensor. ``kind`` is its type in the dump. Raises Unreadable if it
    cannot be read."""
    import torch

    from conformance.recordings.formats.schemas import Unreadable

    value = document.get("value")
    if kind == "float" and isinstance(value, (int, float, str)):
        return _to_float(value)
    if kind in ("int", "bool", "str", "NoneType"):
        if value is None or isinstance(value, (int, str)):
            return value
        raise Unreadable(f"expected a value of type {kind}, found {value!r:.40}")
    if kind in ("torch.Size", "tuple", "list") and isinstance(value, list):
        return tuple(value) if kind != "list" else value
    if kind == "slice" and isinstance(value, list) and len(value) == 3:
        return slice(*value)
    if kind in ("ellipsis", "Ellipsis"):
        return ...
    if kind == "torch.device":
        return torch.device("cpu")
    if kind in ("torch.dtype", "torch.layout", "torch.memory_format"):
        name = str(document.get("format", value)).removeprefix("torch.")
        found = getattr(torch, name, None)
        if type(found) in (torch.dtype, torch.layout, torch.memory_format):
            return found
    raise Unreadable(f"an argument of type {kind!r:.40} cannot be read")


def _to_float(value: int | float | str) -> float:
    from conformance.recordings.formats.schemas import Unreadable

    try:
        return float(value)  # inf and nan are texts
    except (ValueError, OverflowError):
        raise Unreadable(f"expected a number, found {value!r:.40}") from None


# -- the places of calls, in stack.json


def _places(file: SourceFile) -> dict[str, Place]:
    """Returns, by the name of the call, where in the program each call is made. This is read from the file of stacks
    beside the dump; the result is empty without that file. The file has either a stack for each call, or groups of
    calls with a common stack."""
    stacks = SourceFile(file.path.with_name("stack.json"))
    if not stacks.path.is_file():
        return {}
    try:
        document: dict[str, Any] = msgspec.json.decode(stacks.content, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecordingError(f"{stacks.path} is damaged or incomplete: {error}") from None
    found: dict[str, Place] = {}
    for name, value in document.items():
        is_group = isinstance(value, list) and len(value) == 2 and isinstance(value[0], list)
        names, stack = value if is_group else ([name], value)
        if isinstance(stack, list) and isinstance(names, list):
            line = _line(stack)
            found |= {str(each): Place("", line) for each in names if line}
    return found


def _line(stack: Sequence[Any]) -> str:
    frames = [found for each in stack if (found := _FRAME.search(str(each))) is not None]
    own = [each for each in frames if not _TORCH.search(each.group(1))]
    return f"{own[0].group(1)}:{own[0].group(2)}" if own else ""
