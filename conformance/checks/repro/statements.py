"""Statements of modules in pieces: what each piece uses, and copies of their text."""

from __future__ import annotations

import ast
import builtins
import importlib
import pprint
import re
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from conformance.checks.repro import stand_ins
from conformance.checks.repro.modules import (
    Import,
    Module,
    NotCarried,
    attributes_in,
    bound_in,
    globals_in,
    imports_of,
    is_module,
    read_module,
)

_OURS = ("conformance", "opinfo", "devices", "reports", "tests")
#: What a script carries in the place of a module or a function.
_STAND_INS = {"msgspec": "msgspec", "devices.descriptor.check": "unchecked"}


#: What stands before the name of a definition.
_KEYWORD = re.compile(rb"(async\s+)?(def|class)\s+")


class Definition(NamedTuple):
    """What a module defines under a name."""

    module: Module
    name: str


Thing: TypeAlias = Definition | Import


class Use(NamedTuple):
    """A place in which a statement uses a definition or an import."""

    node: ast.expr
    thing: Thing


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A statement without those methods that are copied only if they are used, or such a ``method``. ``attributes`` are
    the names of the attributes that it mentions."""

    node: ast.stmt
    uses: tuple[Use, ...]
    attributes: frozenset[str]
    method: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement of a module, in pieces."""

    module: Module
    node: ast.stmt
    pieces: tuple[Piece, ...]


# -- what a name refers to


def defined_as(module: Module, name: str) -> Iterator[Thing]:
    """Yields what a name of a module refers to; nothing for a builtin."""
    if stand_in := _STAND_INS.get(f"{module.name}.{name}"):
        yield Definition(read_module(stand_ins.__name__), stand_in)
    elif name in module.defined:
        yield Definition(module, name)
    for each in module.imported.get(name, ()):
        yield from _imported(each)


def _imported(each: Import) -> Iterator[Thing]:
    if each.module in _STAND_INS and not each.original:
        yield Definition(read_module(stand_ins.__name__), _STAND_INS[each.module])
    elif each.package not in (*_OURS, *_STAND_INS, "") or not each.original:
        yield each
    elif each.package in (*_STAND_INS, ""):
        raise NotCarried(
            f"{each.original} is imported from {each.module}: import a module by its full name"
        )
    elif is_module(inner := f"{each.module}.{each.original}"):
        yield Import(inner, "", each.name)
    else:
        yield from defined_as(read_module(each.module), each.original)


def _uses_in(module: Module, node: ast.AST) -> Iterator[Use]:
    for each in (each for inner in ast.walk(node) for each in imports_of(inner)):
        if each.package in _OURS:
            raise NotCarried(f"{module.name} imports {each.module}, but not at its top")
    holders = {id(each.value): each for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    for name in globals_in(node):
        for thing in defined_as(module, name.id):
            yield from _followed(Use(name, thing), holders)


def _followed(use: Use, holders: Mapping[int, ast.Attribute]) -> Iterator[Use]:
    """Yields what is used of a module of this project, such as ``failure.Kind``."""
    if not isinstance(use.thing, Import) or use.thing.package not in _OURS:
        yield use
        return
    holder, module = holders.get(id(use.node)), use.thing.value[0]
    if holder is None:
        raise NotCarried(f"the module {module} is used as a value")
    things: Iterator[Thing]
    if is_module(inner := f"{module}.{holder.attr}"):
        things = iter([Import(inner, "", inner)])
    else:
        things = defined_as(read_module(module), holder.attr)
    for thing in things:
        yield from _followed(Use(holder, thing), holders)


# -- statements in pieces


@cache
def statements_of(definition: Definition) -> tuple[Statement, ...]:
    """Returns the statements that bind a name of a module: mostly one."""
    return tuple(
        statement_of(definition.module, each) for each in definition.module.defined[definition.name]
    )


@cache
def statement_of(module: Module, node: ast.stmt) -> Statement:
    if _is_read_from_file(module, node):
        return Statement(module, node, (Piece(node, (), frozenset()),))
    rest: Any = copy(node)
    methods: list[ast.FunctionDef] = []
    if isinstance(node, ast.FunctionDef):
        rest.decorator_list = [each for each in node.decorator_list if not _is_case(each)]
    elif isinstance(node, ast.ClassDef) and _may_shrink(module, node):
        methods = [
            each
            for each in node.body
            if isinstance(each, ast.FunctionDef) and not re.fullmatch("_.*_", each.name)
        ]
        rest.body = [each for each in node.body if each not in methods] or node.body
        methods = [each for each in methods if each not in rest.body]
    pieces = [_piece(module, node, rest), *(_piece(module, each, each) for each in methods)]
    return Statement(module, node, tuple(pieces))


def _piece(module: Module, node: ast.stmt, part: ast.stmt) -> Piece:
    uses, attributes = tuple(_uses_in(module, part)), frozenset(attributes_in(part))
    method = node.name if node is part and isinstance(node, ast.FunctionDef) else ""
    return Piece(node, uses, attributes, method)


def evaluated_first(node: ast.FunctionDef) -> list[ast.Name]:
    """Returns the names of the module that are evaluated when a function is defined."""
    head = copy(node)
    head.body = []
    head.decorator_list = [each for each in node.decorator_list if not _is_case(each)]
    return globals_in(head)


def _is_case(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith("cases(")


def _may_shrink(module: Module, node: ast.ClassDef) -> bool:
    """Returns True if no base of a class is of another project, which may call any of its methods."""
    return module.shared and all(_is_plain_base(module, each) for each in node.bases)


def _is_plain_base(module: Module, base: ast.expr) -> bool:
    uses = [*_uses_in(module, base)]
    if not uses:
        return issubclass(getattr(builtins, ast.unparse(base), object), BaseException)
    return all(
        isinstance(use.thing, Definition)
        and all(
            isinstance(each, ast.ClassDef) and _may_shrink(use.thing.module, each)
            for each in use.thing.module.defined[use.thing.name]
        )
        for use in uses
    )


# -- text


def text_of(statement: Statement, kept: Collection[Piece], names: Mapping[Thing, str]) -> str:
    """Returns the source of a statement with these pieces only, and with the names that definitions have in the script."""
    node, module = statement.node, statement.module
    if _is_read_from_file(module, node):
        return "\n".join(_values(module, node, names))
    first = _first_line(module, node)
    edits = _Edits(module.lines[first - 1 : node.end_lineno], first)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        edits.rename(node, names[Definition(module, node.name)])
        for decorator in filter(_is_case, node.decorator_list):
            edits.drop(decorator.lineno, decorator)
    for inner in ast.walk(node):
        for name in inner.names if isinstance(inner, ast.Global) else ():
            if names.get(Definition(module, name), name) != name:
                raise NotCarried(f"{name} of {module.name} means something else in a script")
    for use in (use for piece in kept for use in piece.uses):
        edits.replace(use.node, names[use.thing])
    left_out = {piece.node for piece in statement.pieces if piece not in kept}
    if isinstance(node, ast.ClassDef):
        for before, each in zip([None, *node.body], node.body):
            if each in left_out:
                start = (before.end_lineno or 0) + 1 if before else _first_line(module, each)
                edits.drop(start, each)
    return edits.applied()


def _first_line(module: Module, node: ast.stmt) -> int:
    """Returns the line in which a definition begins with its decorators, or an assignment with the comment above."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return min([node.lineno, *(each.lineno for each in node.decorator_list)])
    first = node.lineno
    while first > 1 and module.lines[first - 2].startswith(b"#"):
        first -= 1
    return first


class _Edits:
    """Changes of a text of several lines, of which the first has the number ``first``."""

    def __init__(self, lines: list[bytes], first: int) -> None:
        self._text = b"\n".join(lines)
        self._starts = [0, *accumulate(len(line) + 1 for line in lines)]
        self._first = first
        self._changes: set[tuple[int, int, bytes]] = set()

    def _place(self, line: int, column: int) -> int:
        return self._starts[line - self._first] + column

    def replace(self, node: ast.expr, text: str) -> None:
        start = self._place(node.lineno, node.col_offset)
        end = self._place(node.end_lineno or 0, node.end_col_offset or 0)
        self._changes.add((start, end, text.encode()))

    def rename(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str
    ) -> None:
        keyword = _KEYWORD.match(self._text, self._place(node.lineno, node.col_offset))
        start = keyword.end() if keyword else 0
        self._changes.add((start, start + len(node.name.encode()), name.encode()))

    def drop(self, first: int, last: ast.stmt | ast.expr) -> None:
        """Removes the lines from the number ``first`` to the end of a node."""
        end = self._place((last.end_lineno or 0) + 1, 0)
        self._changes.add((self._place(first, 0), end, b""))

    def applied(self) -> str:
        text = self._text + b"\n"
        for start, end, new in sorted(self._changes, reverse=True):
            text = text[:start] + new + text[end:]
        return text.decode().rstrip()


# -- constants that are read from a file, which a script does not have


@cache
def _is_read_from_file(module: Module, node: ast.stmt) -> bool:
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return False
    return any(
        name.id == "__file__"
        or any(
            _is_read_from_file(module, each)
            for each in module.defined.get(name.id, ())
            if each is not node
        )
        for name in globals_in(node)
    )


def _values(module: Module, node: ast.stmt, names: Mapping[Thing, str]) -> Iterator[str]:
    """Yields assignments of the values that names of a module have now."""
    for name in bound_in([node]):
        value = getattr(importlib.import_module(module.name), name)
        value = dict(value) if isinstance(value, MappingProxyType) else value
        text = pprint.pformat(value, width=100, compact=True)
        try:
            ast.literal_eval(re.sub(r"^frozenset\((.*)\)$", r"\1", text, flags=re.DOTALL))
        except ValueError as error:
            raise NotCarried(f"{name} of {module.name} is read from a file: {error}") from error
        yield f"{names[Definition(module, name)]} = {text}"
