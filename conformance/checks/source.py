"""Helpers that copy statements of modules into repro scripts."""

from __future__ import annotations

import ast


def bound(alias: ast.alias) -> str:
    """Returns the name that an import statement binds for one of its aliases."""
    return alias.asname or alias.name.partition(".")[0]


def names_of(node: ast.stmt) -> list[str]:
    """Returns the names that a module-level statement binds."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [bound(alias) for alias in node.names]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [
        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
    ]


def text_of(node: ast.stmt, lines: list[str]) -> str:
    """Returns the source code of a module-level statement, including the decorators of a definition or the comment
    above an assignment."""
    first = node.lineno
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        first = min([first, *(each.lineno for each in node.decorator_list)])
    else:
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
    return "\n".join(lines[first - 1 : node.end_lineno])
