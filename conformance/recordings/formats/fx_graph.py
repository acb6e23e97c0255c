"""The text of a torch.fx graph whose nodes are calls of aten ops, as ``GraphModule.print_readable`` and
``TORCH_LOGS=aot_graphs`` print it. The text is parsed as Python, and never run."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.wire import Place, RecordedTensor, Recording

if TYPE_CHECKING:
    from conformance.recordings.formats.collecting import CallCollector
    from conformance.recordings.formats.schemas import Schema

TITLE: Final = "the text of a graph of torch.fx (print_readable, aot_graphs)"

_GRAPH: Final = re.compile(r"^class \w+\(torch\.nn\.Module\):|^def forward\(self", re.MULTILINE)
_ANNOTATION: Final = re.compile(r"(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?(\w*)")
_FILE: Final = re.compile(r"# File: (.+?):(\d+) in ")


def takes(file: SourceFile) -> bool:
    """Returns True if a file looks like Python text with the ``forward`` method of a graph."""
    return _GRAPH.search(file.beginning) is not None and "torch.ops." in file.text


def read(file: SourceFile) -> Recording:
    """Returns the calls of the graphs in a text. Raises RecordingError if the text is not Python."""
    from conformance.recordings.formats.collecting import CallCollector, Unknown

    text = file.text
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise file.damaged(f"expected {TITLE}; the text is not Python: {error}") from None
    places = _places(text)
    calls = CallCollector(Unknown.RANGES, Unknown.OFFSETS)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            _Graph(calls, places).read(node)
    return calls.recording(TITLE)


def _places(text: str) -> list[tuple[int, Place]]:
    """Returns the source lines of the program that comments in the text name, each with the line number of its
    comment."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        comment = _FILE.search(line)
        if comment is not None:
            found.append((number, Place("", f"{comment.group(1)}:{comment.group(2)}")))
    return found


class _Graph:
    """Reads the statements of a graph in order, and adds their calls to a recording. Remembers the tensor that each
    variable of the graph stands for."""

    def __init__(self, calls: CallCollector, places: list[tuple[int, Place]]) -> None:
        self._calls, self._places = calls, places
        self._values: dict[str, Any] = {}
        self._parts: dict[str, int | None] = {}  # the storage of tuples of views
        self._numbers = itertools.count()

    def read(self, function: ast.FunctionDef) -> None:
        """Adds the calls in the body of a function to the recording."""
        for each in function.args.args:
            self._values[each.arg] = self._described(each.annotation, None)
        for statement in function.body:
            for name, annotation, value in _assigned(statement):
                self._assign(name, annotation, value)

    def _assign(self, name: str, annotation: ast.expr | None, value: ast.expr) -> None:
        if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name):
            self._values[name] = self._described(annotation, self._parts.get(value.value.id))
        elif isinstance(value, ast.Call):
            storage = self._call(value)
            self._parts[name] = storage
            self._values[name] = self._described(annotation, storage)
        elif isinstance(value, ast.Name) and value.id in self._values:
            self._values[name] = self._values[value.id]
        else:  # an attribute such as self.weight
            self._values[name] = self._described(annotation, None)

    def _call(self, node: ast.Call) -> int | None:
        """Adds a call to the recording. If its result is a view of an argument, returns the argument's storage number,
        otherwise None."""
        from conformance.recordings.formats.collecting import Unknown
        from conformance.recordings.formats.decomposing import CallFacts, add_overload
        from conformance.recordings.formats.literals import read_literal
        from conformance.recordings.formats.schemas import Unreadable, schema_by_name

        target = ast.unparse(node.func)
        parts = target.removeprefix("torch.ops.").split(".")
        schema = None
        if target.startswith("torch.ops.") and len(parts) == 3:
            overload = f".{parts[2]}" if parts[2] != "default" else ""
            schema = schema_by_name(f"{parts[0]}::{parts[1]}{overload}")
        if schema is None:
            self._calls.leave_out(f"{target[:60]}: not an overload that torch has")
            return None
        readers = {"device": _device}
        names = {**_NAMES, **self._values}
        try:
            args = [read_literal(each, readers, names) for each in node.args]
            named = {e.arg: read_literal(e.value, readers, names) for e in node.keywords if e.arg}
            arguments = schema.bind(args, named)
            tensors = list(_tensors(arguments.values()))
        except Unreadable as reason:
            self._calls.leave_out(f"{schema.op}: {reason}")
            return None
        strides = any(each.stride is None for each in tensors)
        unknown = frozenset({Unknown.STRIDES} if strides else ())
        add_overload(self._calls, schema, arguments, CallFacts(1, self._place(node), unknown))
        return _viewed(schema, arguments)

    def _place(self, node: ast.Call) -> Place:
        before = [place for number, place in self._places if number < node.lineno]
        return before[-1] if before else Place()

    def _described(self, annotation: ast.expr | None, storage: int | None) -> Any:
        """Returns the tensor that an annotation such as ``"f32[3, 4][4, 1]cpu"`` describes. Returns UNKNOWN if it does
        not describe a tensor, or one with symbolic sizes. ``storage`` is the tensor's storage number; None gives it a
        new one."""
        from conformance.recordings.formats.literals import ABBREVIATIONS
        from conformance.recordings.formats.schemas import UNKNOWN

        text = annotation.value if isinstance(annotation, ast.Constant) else None
        found = _ANNOTATION.match(text) if isinstance(text, str) else None
        if found is None or found.group(1) not in ABBREVIATIONS:
            return UNKNOWN
        shape = _numbers(found.group(2))
        stride = _numbers(found.group(3)) if found.group(3) is not None else None
        if shape is None or (found.group(3) is not None and stride is None):
            return UNKNOWN
        number = next(self._numbers) if storage is None else storage
        return RecordedTensor(
            ABBREVIATIONS[found.group(1)], shape, stride, storage=number, device=found.group(4)
        )


_NAMES: Final[Mapping[str, Any]] = {"inf": float("inf"), "nan": float("nan")}


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None, ast.expr]]:
    """Yields the variable's name, the annotation and the value of a statement in a graph, which is an assignment, or a
    call without one (then the name is empty). Assignments of constants are skipped: ``a = b = None`` frees
    variables."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        if isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.annotation, statement.value
    elif isinstance(statement, ast.Assign) and not isinstance(statement.value, ast.Constant):
        if isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, None, statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield "", None, statement.value


def _numbers(text: str) -> tuple[int, ...] | None:
    parts = [each.strip() for each in text.split(",") if each.strip()]
    return tuple(map(int, parts)) if all(each.isdigit() for each in parts) else None


def _device(*_: Any, **__: Any) -> Any:
    from conformance.recordings.formats.schemas import Constant

    return Constant("device")


def _tensors(values: Any) -> Iterator[RecordedTensor]:
    for each in values:
        if isinstance(each, (list, tuple)):
            yield from _tensors(each)
        elif isinstance(each, RecordedTensor):
            yield each


def _viewed(schema: Schema, arguments: Mapping[str, Any]) -> int | None:
    for aliases in schema.returned_aliases:
        for each in schema.arguments:
            value = arguments.get(each.name)
            if each.aliases & aliases and isinstance(value, RecordedTensor):
                return value.storage
    return None
