"""Splits the statements of a module into pieces, finds what each piece uses, and copies the text of the pieces that a
script needs."""

from __future__ import annotations

import ast
import importlib
import pprint
import re
from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
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


_Named: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Definition(NamedTuple):
    """A name and the module that defines it."""

    module: Module
    name: str


Thing: TypeAlias = Definition | Import


class Use(NamedTuple):
    """An expression in a statement that refers to a definition or an import."""

    node: ast.expr
    thing: Thing


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of a statement that is copied as a whole: a method that is copied only if it is used (``method`` is its
    name), or the rest of the statement. ``attributes`` are the names of the attributes that the piece mentions."""

    node: ast.stmt
    uses: tuple[Use, ...]
    attributes: frozenset[str]
    method: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement of a module and its pieces."""

    module: Module
    node: ast.stmt
    pieces: tuple[Piece, ...]


# -- what a name refers to


def defined_as(module: Module, name: str) -> Iterator[Thing]:
    """Yields the definitions and imports to which a name refers in a module; nothing for a builtin."""
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
            raise NotCarried(
                f"{module.name} imports {each.module} below the top level of the module"
            )
    holders = {id(each.value): each for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    for name in globals_in(node):
        for thing in defined_as(module, name.id):
            yield from _followed(Use(name, thing), holders)


def _followed(use: Use, holders: Mapping[int, ast.Attribute]) -> Iterator[Use]:
    """Yields the given use. If it uses a module of this project, yields instead a use of the object that is read from
    that module, such as ``failure.Kind``."""
    if not isinstance(use.thing, Import) or use.thing.package not in _OURS:
        yield use
        return
    holder, module = holders.get(id(use.node)), use.thing.value[0]
    if holder is None:
        raise NotCarried(f"the module {module} is used as a value, which a script cannot do")
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
    """Returns the statements that bind the name of a definition in its module; usually one."""
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


def evaluates(node: ast.FunctionDef) -> bool:
    """Returns True if a function definition evaluates names of its module when it is executed, for example in a
    decorator or a default value."""
    head = copy(node)
    head.body = []
    head.decorator_list = [each for each in node.decorator_list if not _is_case(each)]
    return any(True for _ in globals_in(head))


def _is_case(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith("cases(")


def _may_shrink(module: Module, node: ast.ClassDef) -> bool:
    """Returns True if unused methods of a class may be left out. That is so in a shared module if no base class is from
    another project, whose code may call any method."""
    uses = (use for base in node.bases for use in _uses_in(module, base))
    return module.shared and not any(isinstance(use.thing, Import) for use in uses)


# -- text


def text_of(statement: Statement, kept: Collection[Piece], names: Mapping[Thing, str]) -> str:
    """Returns the source of a statement, with only the pieces in ``kept``, and with the names that definitions have in
    the script."""
    node, module = statement.node, statement.module
    if _is_read_from_file(module, node):
        return "\n".join(_values(module, node, names))
    first = _first_line(module, node)
    lines = dict(enumerate(module.lines[first - 1 : node.end_lineno], first))
    renamed = [(node.lineno, node.name)] if isinstance(node, _Named) else []
    every = (each for each in ast.walk(node) if isinstance(each, ast.Global))
    for number, name in [*renamed, *((each.lineno, name) for each in every for name in each.names)]:
        new = names.get(Definition(module, name), name).encode()
        pattern = rf"((?:def|class|global|,)\s+){name}\b".encode()
        lines[number] = re.sub(pattern, rb"\1" + new, lines[number], count=1)
    uses = {(use.node.lineno, use.node.col_offset): use for piece in kept for use in piece.uses}
    for (number, start), use in sorted(uses.items(), key=itemgetter(0), reverse=True):
        line = lines[number]
        lines[number] = line[:start] + names[use.thing].encode() + line[use.node.end_col_offset :]
    for each in filter(_is_case, getattr(node, "decorator_list", ())):
        _drop(lines, each.lineno, each)
    for before, each in zip([node, *getattr(node, "body", ())], getattr(node, "body", ())):
        if any(piece.node is each and piece not in kept for piece in statement.pieces):
            after = (before.end_lineno or 0) + 1
            _drop(lines, after if before is not node else _first_line(module, each), each)
    return b"\n".join(lines.values()).decode()


def _drop(lines: dict[int, bytes], first: int, last: ast.AST) -> None:
    for number in range(first, getattr(last, "end_lineno", first) + 1):
        del lines[number]


def _first_line(module: Module, node: ast.stmt) -> int:
    """Returns the number of the first line of a statement, including the decorators of a definition and the comment
    above an assignment."""
    if isinstance(node, _Named):
        return min([node.lineno, *(each.lineno for each in node.decorator_list)])
    first = node.lineno
    while first > 1 and module.lines[first - 2].startswith(b"#"):
        first -= 1
    return first


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
    """Yields assignments that bind the names which a statement binds to their current values, written as literals.
    Raises NotCarried if a value cannot be written as a literal."""
    for name in bound_in([node]):
        value = getattr(importlib.import_module(module.name), name)
        value = dict(value) if isinstance(value, MappingProxyType) else value
        text = pprint.pformat(value, width=100, compact=True)
        if isinstance(value, frozenset) and "\n" not in text:  # pprint sorts only what it wraps
            text = (
                f"frozenset({{{', '.join(map(repr, sorted(value)))}}})" if value else "frozenset()"
            )
        try:
            ast.literal_eval(re.sub(r"^frozenset\((.*)\)$", r"\1", text, flags=re.DOTALL))
        except ValueError as error:
            raise NotCarried(
                f"{name} of {module.name} is read from a file and cannot be written as a literal: {error}"
            ) from error
        yield f"{names[Definition(module, name)]} = {text}"
