"""The test configurations of torch-spyre (YAML): calls of torch's Python functions in models, with the geometry of each
tensor. Each call is replaced by the calls of aten ops that it leads to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.formats.wire import SpyreArguments, SpyreCall, SpyreTensor
from conformance.recordings.wire import Place, RecordedTensor, Recording, RecordingError, Values

TITLE: Final = "a test configuration of torch-spyre (YAML)"

_CONFIGURATION: Final = re.compile(r"^test_suite_config\s*:", re.MULTILINE)
#: ``https://…/modeling_bert.py#L84 in forward, code: …``
_PLACE: Final = re.compile(r"([\w.-]+\.py)#L(\d+)")
#: How deep lists and mappings are searched for calls.
_DEPTH: Final = 20


def takes(file: SourceFile) -> bool:
    """Returns True if a file begins like a YAML text with the first key of a test configuration."""
    return _CONFIGURATION.search(file.beginning) is not None


def read(file: SourceFile) -> Recording:
    """Returns the calls of a configuration. Raises RecordingError if the file is damaged, or PyYAML is not installed."""
    from conformance.recordings.formats.collecting import CallCollector, Unknown
    from conformance.recordings.formats.decomposing import CallFacts, add_function
    from conformance.recordings.formats.schemas import Unreadable

    calls = CallCollector(Unknown.SHARING)
    for call in _calls(file, _loaded(file)):
        given = call.sample_inputs_func or call.inputs or SpyreArguments()
        values = _Values()
        try:
            function = _function(call.name)
            args = [values.read(each) for each in given.args]
            kwargs = {name: _value(each) for name, each in given.kwargs.items()}
        except (Unreadable, msgspec.ValidationError) as reason:
            calls.leave_out(f"{call.name}: {reason}")
            continue
        add_function(
            calls,
            call.name,
            function,
            args,
            kwargs,
            CallFacts(1, _place(call.description), values.unknown()),
        )
    return calls.recording(TITLE)


def _loaded(file: SourceFile) -> Any:
    try:
        import yaml
    except ImportError:
        raise RecordingError(
            f"{file.path} is YAML, which needs the package PyYAML: pip install pyyaml"
        ) from None
    try:
        return yaml.load(file.text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise file.damaged(f"the YAML is damaged or incomplete: {why:.200}") from None


def _calls(file: SourceFile, document: Any, depth: int = 0) -> Iterator[SpyreCall]:
    """Yields all calls in a document, at any level of nesting."""
    if depth > _DEPTH:
        raise file.damaged("the YAML is nested too deeply")
    if isinstance(document, list):
        for each in document:
            yield from _calls(file, each, depth + 1)
    elif isinstance(document, dict):
        if "name" in document and ({"sample_inputs_func", "inputs"} & {*map(str, document)}):
            try:
                yield msgspec.convert(document, SpyreCall)
            except msgspec.ValidationError as error:
                name = str(document["name"])
                raise file.damaged(f"the call of {name:.60}: {error}") from None
            return
        for each in document.values():
            yield from _calls(file, each, depth + 1)


def _function(name: str) -> Any:
    """Returns the function that the file calls ``name``, such as ``torch.nn.functional.embedding``. Methods and
    operators of tensors have such names too: ``torch.to``, ``torch.getitem`` and ``torch.or_``. Raises NoFunction if
    there is none."""
    import torch

    from conformance.recordings.formats.decomposing import NoFunction, function_of

    spaces = {
        "torch": torch,
        "torch.functional": torch.functional,
        "torch.nn.functional": torch.nn.functional,
        "torch.Tensor": torch.Tensor,
        "torch.linalg": torch.linalg,
        "torch.fft": torch.fft,
        "torch.special": torch.special,
    }
    space, _, last = name.rpartition(".")
    if space not in spaces:
        raise NoFunction(f"{name!r:.60} is not a function of torch for tensors")
    if space != "torch":
        return function_of((spaces[space],), last)
    try:
        return function_of((torch, torch.functional, torch.Tensor), last)
    except NoFunction:
        # an operator, such as getitem and or_, is a method of tensors with another name
        operator = f"__{last.rstrip('_')}__"
        if not hasattr(torch.Tensor, operator):
            raise
        return function_of((torch.Tensor,), operator)


class _Values:
    """Reads the arguments of one call, and remembers which properties of its tensors the file does not store."""

    def __init__(self) -> None:
        self._tensors: list[RecordedTensor] = []
        self._without_strides = self._without_range = False
        self._numbers = itertools.count()

    def unknown(self) -> frozenset[Any]:
        """Returns the properties that the file does not store for the tensors read so far."""
        from conformance.recordings.formats.collecting import Unknown

        found = {Unknown.STRIDES} if self._without_strides else set()
        return frozenset(found | ({Unknown.RANGES} if self._without_range else set()))

    def read(self, document: Mapping[str, Any]) -> Any:
        """Returns the argument that an entry of the file describes. Raises Unreadable or msgspec.ValidationError if it
        cannot be read."""
        from conformance.recordings.formats.schemas import Unreadable

        if len(document) != 1:
            raise Unreadable("expected one of tensor, tensor_list, value and py")
        ((kind, value),) = document.items()
        if kind == "tensor":
            return self._tensor(value)
        if kind == "tensor_list" and isinstance(value, list):
            return [self._tensor(each) for each in value]
        if kind == "py":
            return _python(str(value))
        if kind == "value":
            return _value(value)
        raise Unreadable(f"unknown kind of argument {kind!r:.40}")

    def _tensor(self, document: Any) -> RecordedTensor:
        found = msgspec.convert(document, SpyreTensor)
        values = _range(found)
        self._without_strides |= found.stride is None
        self._without_range |= values == Values()
        return RecordedTensor(
            dtype=found.dtype.removeprefix("torch."),
            shape=tuple(found.shape),
            stride=None if found.stride is None else tuple(found.stride),
            offset=found.storage_offset,
            storage=next(self._numbers),
            device=found.device.partition(":")[0],
            values=values,
        )


def _range(tensor: SpyreTensor) -> Values:
    """Returns the range of the elements of a tensor, if the file names a known method by which they are created;
    otherwise a default range."""
    low, high = tensor.init_args.get("low", 0), tensor.init_args.get("high")
    if tensor.init == "randint" and isinstance(low, int) and isinstance(high, int) and low < high:
        return Values(low, high - 1)
    if tensor.init in ("rand", "zeros", "ones"):
        return {"rand": Values(0.0, 1.0), "zeros": Values(0.0, 0.0), "ones": Values(1.0, 1.0)}[
            tensor.init
        ]
    return Values()


def _value(value: Any) -> Any:
    """Returns the value of an argument that is not a tensor. A string may be an expression such as ``(768,)`` or
    ``torch.float32``, or the name of a device."""
    if isinstance(value, list):
        return [_value(each) for each in value]
    if not isinstance(value, str):
        return value
    if value[:1] in ("(", "[") or value.startswith("torch."):
        return _python(value)
    from conformance.recordings.formats.literals import device_or_text

    return _constant(device_or_text(value))


def _python(text: str) -> Any:
    from conformance.recordings.formats.literals import parse_expression, read_literal

    def part(*given: Any) -> slice:
        return slice(*given)

    return _constant(read_literal(parse_expression(text), {"slice": part}))


def _constant(value: Any) -> Any:
    """Returns a value in which Constants are replaced by the constants of torch that they name. Raises Unreadable if
    torch does not have one."""
    import torch

    from conformance.recordings.formats.schemas import Constant, Unreadable

    if isinstance(value, (list, tuple)):
        return type(value)(map(_constant, value))
    if not isinstance(value, Constant):
        return value
    if value == Constant("device"):
        return torch.device("cpu")
    found = getattr(torch, value.name, None)
    if type(found) in (torch.dtype, torch.layout, torch.memory_format):
        return found
    raise Unreadable(f"torch has no constant {value.name!r:.40}")


def _place(description: str) -> Place:
    found = _PLACE.search(description)
    return Place("", f"{found.group(1)}:{found.group(2)}") if found else Place()
