"""Reads a module of this project: its definitions and imports, and the global names that each of its statements
uses."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeAlias

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class NotCarried(Exception):
    """The exception raised if a function uses a name whose definition cannot be copied into a script."""


@dataclass(frozen=True, slots=True)
class Import:
    """An imported object and the name to which it is bound. The object is the attribute ``original`` of a module, or
    the module itself if ``original`` is empty."""

    module: str
    original: str
    name: str

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def value(self) -> tuple[str, str]:
        """The imported object, as a pair of its module and its name in the module. ``import a.b`` binds the module
        ``a``."""
        is_plain = not self.original and self.name == self.package
        return self.package if is_plain else self.module, self.original

    def line(self, name: str) -> str:
        """Returns an import statement that binds the imported object to ``name``."""
        original = self.original or self.module
        if self.original or self.value[0] == self.module:
            bound = f"{original} as {name}" if name != original else original
            return f"from {self.module} import {bound}" if self.original else f"import {bound}"
        if name != self.package:
            raise NotCarried(f"the name {self.package} has another meaning in a script")
        return f"import {self.module}"


@dataclass(eq=False)
class Module:
    """A module as a list of its top-level statements and its imports. ``defined`` and ``imported`` map each name to the
    statements and imports that bind it. Statements that bind no name, such as calls, are listed in ``defined`` under
    the name ``owner``, and so are copied together with the definition of this name. Of a class in a ``shared`` module,
    only the methods that are used are copied."""

    name: str
    text: str
    shared: bool
    owner: str = ""
    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, list[Import]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.parse(self.text).body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for each in imports_of(node):
                    self.imported.setdefault(each.name, []).append(each)
            elif not _is_left_out(node):
                for name in sorted({*bound_in([node])}) or [self.owner]:
                    self.defined.setdefault(name, []).append(node)

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines of the module's source as bytes, because the columns of a syntax tree count bytes."""
        return [line.encode() for line in self.text.splitlines()]


def _is_left_out(node: ast.stmt) -> bool:
    """Returns True for docstrings, and for ``if`` blocks that only type checkers read or that run only if the module is
    the main program."""
    if isinstance(node, ast.If):
        return re.search("TYPE_CHECKING|__name__", ast.unparse(node.test)) is not None
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@cache
def given_module(name: str, text: str, owner: str = "") -> Module:
    """Returns a Module with the given name and source text, whose definitions and imports are read from the text."""
    return Module(name, text, False, owner)


@cache
def read_module(name: str) -> Module:
    """Returns the Module for an importable module of this name, with its definitions and imports."""
    # Python may call methods that no text of a suite mentions.
    shared = not name.startswith(("conformance.suites.", "tests."))
    return Module(name, inspect.getsource(importlib.import_module(name)), shared)


@cache
def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what stands before the last dot is no package
        return False


def imports_of(node: ast.AST) -> Iterator[Import]:
    """Yields the imports of an import statement; nothing for other nodes."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, "", alias.asname or alias.name.partition(".")[0])
    elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
        source = "." * node.level + (node.module or "")
        for alias in node.names:
            yield Import(source, alias.name, alias.asname or alias.name)


def bound_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields the names that statements bind in their own scope."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not isinstance(node, ast.Lambda | _Comprehension):
            yield from (each.name for each in imports_of(node))
            if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
                yield node.name
            yield from bound_in(ast.iter_child_nodes(node))


def attributes_in(node: ast.AST) -> Iterator[str]:
    """Yields the names of the attributes that a statement may use. Names in strings count too, because ``attrgetter``
    may read them."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield from each.value.split(".") if re.fullmatch(r"[\w.]+", each.value) else ()


#: Annotations that change what a dataclass makes of a field; dataclasses looks them up by these names.
_MARKS = frozenset({"KW_ONLY", "ClassVar", "InitVar"})


def globals_in(node: ast.AST, local: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Yields the places in which a statement uses or binds a global name of its module. ``local`` has the names that
    have another meaning in the statement. Annotations are left out, because a script does not evaluate them, except for
    the marks that dataclasses look for."""
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Name):
        children = ()
        if node.id not in local:
            yield node
    elif isinstance(node, ast.AnnAssign):
        special = (each for each in ast.walk(node.annotation) if isinstance(each, ast.Name))
        special = (each for each in special if each.id in _MARKS)
        children = filter(None, (node.target, node.value, *special))
    elif isinstance(node, ast.ClassDef):
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            yield from globals_in(each, local)
        yield from _globals_of_class(node, local)
        children = ()
    elif isinstance(node, _Function | _Comprehension):
        inside: Sequence[ast.AST]
        if isinstance(node, _Function):
            for each in (*getattr(node, "decorator_list", ()), *_defaults(node)):
                yield from globals_in(each, local)
            inside = node.body if isinstance(node.body, list) else [node.body]
            arguments = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            every = (inner for each in inside for inner in ast.walk(each))
            outer = {n for each in every if isinstance(each, ast.Global) for n in each.names}
            local = (local | arguments | {*bound_in(inside)}) - outer
        else:
            inside = [*ast.iter_child_nodes(node)]
            local = local | {*bound_in(each.target for each in node.generators)}
        children = inside
    for child in children:
        yield from globals_in(child, local)


def _defaults(node: _Function) -> Iterable[ast.expr]:
    return (*node.args.defaults, *filter(None, node.args.kw_defaults))


def _globals_of_class(node: ast.ClassDef, local: frozenset[str]) -> Iterator[ast.Name]:
    """Yields the uses of global names in the body of a class. A name that the body binds is not global in the rest of
    the body, but methods do not see it."""
    own: frozenset[str] = frozenset()
    for statement in node.body:
        seen = local if isinstance(statement, _Function) else local | own
        found = globals_in(statement, seen)
        yield from (each for each in found if isinstance(each.ctx, ast.Load))
        own |= {*bound_in([statement])}
