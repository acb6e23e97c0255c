"""The schemas of ops: the arguments that an overload has, and the conversion of values from a file into arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from conformance.recordings.formats.wire import LAYOUTS, MEMORY_FORMATS, SCALAR_TYPES
from conformance.recordings.wire import RecordedTensor
from opinfo.torch_private import (
    all_overloads,
    is_composite,
    parse_schema,
    schema_of,
    type_of_argument,
)

#: What stands for a value that a file does not contain.
UNKNOWN: Final = object()

#: The constants that a file may write as a number, by the type of the argument.
_CODES: Final[Mapping[str, Sequence[str]]] = {
    "ScalarType": SCALAR_TYPES,
    "Layout": LAYOUTS,
    "MemoryFormat": MEMORY_FORMATS,
}
_TAGS: Final = {"ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "memory_format"}


class Unreadable(ValueError):
    """The error for a value that cannot be an argument of an op."""


@dataclass(frozen=True)
class Constant:
    """A dtype, layout, memory format or device that a file gives by its name."""

    name: str


@dataclass(frozen=True)
class Argument:
    """An argument in the schema of an overload."""

    name: str
    kind: str  # the type without "Optional" and "List", such as "Tensor"
    is_list: bool
    is_optional: bool
    is_keyword: bool  # it can be passed by its name alone
    default: Any  # UNKNOWN if it has none
    aliases: frozenset[str]  # the sets of aliases that the tensor belongs to

    @property
    def has_default(self) -> bool:
        """True if the argument may be left out."""
        return self.default is not UNKNOWN


@dataclass(frozen=True)
class Schema:
    """The schema of an op's overload: its name, arguments and results."""

    name: str  # such as ``aten::add.Tensor``; ``aten::relu`` for the overload ``default``
    arguments: tuple[Argument, ...]
    returned_aliases: tuple[frozenset[str], ...]

    @property
    def op(self) -> str:
        """The name of the overload in the notation of recordings, such as ``aten.add.Tensor``."""
        space, _, rest = self.name.partition("::")
        packet, _, overload = rest.partition(".")
        return f"{space}.{packet}.{overload or 'default'}"

    @property
    def is_composite(self) -> bool:
        """True if torch computes the op, above autograd, by calling other ops."""
        return is_composite(self.name)

    @property
    def is_factory(self) -> bool:
        """True if no argument is a tensor, and one argument is the device of the result, as for ``torch.arange``."""
        kinds = {each.kind for each in self.arguments}
        return "Tensor" not in kinds and "Device" in kinds

    @property
    def makes_tensors(self) -> bool:
        """True if an argument is the device of the result, as for ``torch.arange`` and ``Tensor.new_ones``."""
        kinds = {each.kind for each in self.arguments}
        return "Device" in kinds and not any(each.name == "out" for each in self.arguments)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns positional and keyword arguments as one dict by the argument names of the schema. Raises Unreadable
        if the schema does not have such an argument."""
        if len(args) > len(self.arguments):
            raise Unreadable(f"{self.op} has {len(self.arguments)} arguments, not {len(args)}")
        found = {each.name: value for each, value in zip(self.arguments, args)}
        if more := {*kwargs} - {each.name for each in self.arguments}:
            raise Unreadable(f"{self.op} has no argument {sorted(more)[0]!r}")
        return found | dict(kwargs)


@cache
def parsed(text: str) -> Schema | None:
    """Parses a schema in torch's notation. Returns None if the text is not a schema."""
    try:
        return _schema(parse_schema(text))
    except RuntimeError:
        return None


@cache
def overloads_of(packet: str) -> tuple[Schema, ...]:
    """Returns the schemas of the overloads of an op such as ``aten::add``; none if torch does not know the op."""
    found = (schema_by_name(name) for name in all_overloads().get(packet, ()))
    return tuple(each for each in found if each is not None)


@cache
def schema_by_name(name: str) -> Schema | None:
    """Returns the schema of an overload such as ``aten::add.Tensor``; None if torch does not know the overload."""
    import torch

    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        return _schema(schema_of(found))
    except (AttributeError, RuntimeError):
        return None


def _schema(schema: Any) -> Schema:
    overload = f".{schema.overload_name}" if schema.overload_name else ""
    return Schema(
        f"{schema.name}{overload}",
        tuple(map(_argument, schema.arguments)),
        tuple(_aliases(each) for each in schema.returns),
    )


def _argument(argument: Any) -> Argument:
    text = type_of_argument(argument)
    is_optional, text = _without("Optional", text)
    is_list, text = _without("List", text)
    return Argument(
        name=argument.name,
        kind=_without("Optional", text)[1],
        is_list=is_list,
        is_optional=is_optional,
        is_keyword=bool(argument.kwarg_only),
        default=argument.default_value if argument.has_default_value() else UNKNOWN,
        aliases=_aliases(argument),
    )


def _without(generic: str, text: str) -> tuple[bool, str]:
    """If a type is written as ``generic`` with a parameter, such as ``List[int]``, returns True and the parameter
    (``int``); otherwise returns False and the text."""
    if text.startswith(f"{generic}["):
        return True, text[len(generic) + 1 : -1]
    return False, text


def _aliases(argument: Any) -> frozenset[str]:
    alias = argument.alias_info
    return frozenset() if alias is None else frozenset(alias.before_set)


# -- values


def to_argument(value: Any, argument: Argument) -> Any:
    """Converts a value from a file into an argument: a number, string, list, RecordedTensor or Constant. Raises
    Unreadable if the argument's type does not allow the value."""
    if value is UNKNOWN:
        if argument.default is not UNKNOWN:
            return argument.default
        raise Unreadable(f"the file does not contain the argument {argument.name!r}")
    if value is None:
        if argument.is_optional or argument.kind in ("Tensor", "Generator"):
            return None
        raise Unreadable(f"the argument {argument.name!r} is None")
    if argument.is_list:
        if not isinstance(value, (list, tuple)):
            if argument.kind in ("int", "float", "bool"):  # one number stands for all of a list
                return [_single(value, argument)]
            raise Unreadable(f"the argument {argument.name!r} is not a list")
        return [None if each is None else _single(each, argument) for each in value]
    return _single(value, argument)


def _single(value: Any, argument: Argument) -> Any:
    found = _converted(value, argument.kind)
    if found is UNKNOWN:
        raise Unreadable(f"the argument {argument.name!r} cannot be read: {value!r:.60}")
    return found


def _converted(value: Any, kind: str) -> Any:
    if kind == "Generator":
        return None
    if kind == "Device":
        return Constant("device")
    if kind in _CODES:
        return _constant(value, kind)
    if isinstance(value, Constant):
        return UNKNOWN
    if kind == "Tensor":
        is_number = isinstance(value, (bool, int, float, complex))
        return value if is_number or isinstance(value, RecordedTensor) else UNKNOWN
    if kind == "float":
        return _float(value)
    if kind == "int":
        return int(value) if isinstance(value, int) else UNKNOWN
    if kind == "bool":
        return bool(value) if isinstance(value, int) else UNKNOWN
    if kind == "str":
        return value if isinstance(value, str) else UNKNOWN
    if kind == "number":
        if isinstance(value, (bool, int, float, complex)):
            return value
        return _float(value)
    return UNKNOWN


def _float(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return float(value) if value in ("inf", "-inf", "nan", "-nan") else UNKNOWN


def _constant(value: Any, kind: str) -> Any:
    names = _CODES[kind]
    if isinstance(value, Constant):
        return value if value.name in names else UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(names):
        return UNKNOWN
    return Constant(names[value])


def tag_of(argument: Argument) -> str:
    """Returns the tag that :mod:`opinfo.encoding` uses for the constants that an argument takes, such as dtypes."""
    return _TAGS.get(argument.kind, "device")
