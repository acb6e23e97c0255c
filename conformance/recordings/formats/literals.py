"""Evaluates the Python literals in files of other formats. The text is parsed and never run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

from conformance.recordings.formats.schemas import Constant, Unreadable

#: The dtypes by the abbreviations of torch.utils._dtype_abbrs.
ABBREVIATIONS: Final = {
    "bf16": "bfloat16",
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "b8": "bool",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
}
_NAMES: Final[Mapping[str, Any]] = {
    "inf": float("inf"),
    "nan": float("nan"),
    **{short: Constant(name) for short, name in ABBREVIATIONS.items()},
}

#: Reads a call of a function with a given name, from its arguments.
Reader = Callable[..., Any]


def parse_expression(text: str) -> ast.expr:
    """Returns the syntax tree of an expression. Raises Unreadable if the text is not an expression."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unreadable(f"not a Python expression: {text!r:.60}") from None


def read_literal(
    node: ast.expr, readers: Mapping[str, Reader] | None = None, names: Mapping[str, Any] = _NAMES
) -> Any:
    """Returns the value of an expression that consists of numbers, strings, lists, tuples, dicts, the keys of
    ``names``, constants of torch such as ``torch.float32``, and calls of the functions named in ``readers``. Raises
    Unreadable for other expressions."""
    readers = readers or {}

    def read(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            return tuple(map(read, node.elts))
        if isinstance(node, ast.List):
            return list(map(read, node.elts))
        if isinstance(node, ast.Dict):
            keys = (None if key is None else read(key) for key in node.keys)
            return dict(zip(keys, map(read, node.values)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            value = read(node.operand)
            if isinstance(value, (int, float, complex)):
                return -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            return _complex(read(node.left), read(node.right), isinstance(node.op, ast.Sub))
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("torch", "th"):
            return Constant(node.attr)
        reader = readers.get(ast.unparse(node.func)) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and reader is not None:
            given = {each.arg: read(each.value) for each in node.keywords if each.arg}
            return _called(reader, list(map(read, node.args)), given)
        raise Unreadable(f"unexpected expression {ast.unparse(node)!r:.60}")

    try:
        return read(node)
    except RecursionError:
        raise Unreadable("the expression is nested too deeply") from None


def _complex(left: Any, right: Any, minus: bool) -> complex:
    if isinstance(left, (int, float)) and isinstance(right, complex):
        return left - right if minus else left + right
    raise Unreadable("a sum is only allowed as a complex number, such as 1+2j")


def _called(reader: Reader, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return reader(*args, **kwargs)
    except TypeError as error:
        raise Unreadable(str(error)) from None


def whole_numbers(value: Any) -> tuple[int, ...]:
    """Returns a list or tuple of whole numbers as a tuple. Raises Unreadable for other values."""
    if isinstance(value, (list, tuple)) and all(type(each) is int for each in value):
        return tuple(value)
    raise Unreadable(f"expected a list of whole numbers, found {value!r:.60}")


def device_or_text(text: str) -> Any:
    """Returns the Constant of a device if the text names one, such as ``cuda:0``; otherwise returns the text."""
    kind, _, index = text.partition(":")
    known = (
        "cpu",
        "cuda",
        "xpu",
        "mps",
        "meta",
        "npu",
        "hpu",
        "xla",
        "mtia",
        "spyre",
        "privateuseone",
    )
    return Constant("device") if kind in known and (not index or index.isdigit()) else text
