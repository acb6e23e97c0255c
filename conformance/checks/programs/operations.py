"""Operations of random programs, and how they are written as straight-line code."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec

_Given = ParamSpec("_Given")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a program: the function that runs it, and the function's arguments by name. The first argument
    of the function is the running program, ``run``. Operations are created by the decorator ``operation``."""

    function: Callable[..., None]
    given: dict[str, Any]

    @property
    def name(self) -> str:
        return self.function.__name__


def operation(function: Callable[Concatenate[Any, _Given], None]) -> Callable[_Given, Operation]:
    """Decorates a function so that it can be used both in runs and in scripts: ``free(3)`` then returns the Operation
    that calls the function ``free`` with ``(run, 3)``. Raises ValueError if there are too many or too few arguments."""
    _, *names = inspect.signature(function).parameters

    @wraps(function)
    def made(*arguments: _Given.args, **named: _Given.kwargs) -> Operation:
        assert not named
        return Operation(function, dict(zip(names, arguments, strict=True)))

    return made


def perform(run: Any, operations: Iterable[Operation]) -> None:
    for each in operations:
        each.function(run, **each.given)


@operation
def settle(run: Any) -> None:
    run.context.settle()


def straight(operations: Iterable[Operation], names: Mapping[str, str], depth: int) -> str:
    """Returns operations as lines of Python, indented by ``depth`` levels. The lines are the bodies of the operations'
    functions, in which the arguments are replaced by their values.

    ``run.context`` becomes ``context``. An entry of a table of the run, such as ``run.streams[1]``, becomes a variable
    such as ``s1``; ``names`` has the prefix of the variables for each table.
    """
    lines = (ast.unparse(node) for each in operations for node in _body_of(each, names))
    return textwrap.indent("".join(f"{line}\n" for line in lines), "    " * depth)


def _body_of(operation: Operation, names: Mapping[str, str]) -> list[ast.stmt]:
    module = ast.parse(inspect.getsource(operation.function))
    [function] = module.body
    assert isinstance(function, ast.FunctionDef)
    module.body = function.body[ast.get_docstring(function) is not None :]
    given = {name: _expression_of(value) for name, value in operation.given.items()}
    _Filled(given, names).visit(module)
    return ast.fix_missing_locations(module).body


def _expression_of(value: Any) -> ast.expr:
    """Returns the syntax tree of a literal, or of a lambda whose source stands on its own line."""
    text = inspect.getsource(value).strip().rstrip(",") if callable(value) else repr(value)
    return ast.parse(text, mode="eval").body


class _Filled(ast.NodeTransformer):
    """Substitutes an operation's arguments into the syntax tree of its function."""

    def __init__(self, given: Mapping[str, ast.expr], names: Mapping[str, str]) -> None:
        self.given = given
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.given.get(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        match node:
            case ast.Attribute(ast.Name("run"), name):
                return ast.Name(name, node.ctx)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(ast.Attribute(ast.Name("run"), table)) if table in self.names:
                key = ast.literal_eval(self.visit(node.slice))
                parts = map(str, key if isinstance(key, tuple) else (key,))
                return ast.Name(self.names[table] + "_".join(parts), node.ctx)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        """Replaces an ``if`` whose condition is an argument by the branch that is taken."""
        match self.visit(node.test):
            case ast.Constant(holds):
                chosen = ast.Module(node.body if holds else node.orelse, [])
                self.generic_visit(chosen)
                return chosen.body
        return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        """Replaces a list comprehension over an argument by a list with one element per value."""
        match node.generators:
            case [ast.comprehension(ast.Name(each), ast.Name(over))] if over in self.given:
                values = self.given[over]
                assert isinstance(values, ast.Tuple)
                made = (self._with({each: value}, node.elt) for value in values.elts)
                return ast.List(list(made), ast.Load())
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        made = self.generic_visit(node)
        open_ = any(isinstance(each, ast.Name) for each in ast.walk(made))
        return made if open_ else ast.Constant(eval(ast.unparse(made)))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replaces a call of an argument that is a lambda by the expression of the lambda."""
        self.generic_visit(node)
        match node.func:
            case ast.Lambda(parameters, expression):
                names = (each.arg for each in parameters.args)
                return self._with(dict(zip(names, node.args, strict=True)), expression)
        return node

    def _with(self, given: Mapping[str, ast.expr], expression: ast.expr) -> ast.expr:
        made: ast.expr = _Filled({**self.given, **given}, self.names).visit(deepcopy(expression))
        return made
