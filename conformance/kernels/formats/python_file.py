"""Reads the names that a Python file defines and uses, without importing the file."""

from __future__ import annotations

import ast
from pathlib import Path

from devices.errors import ConformError


class Unreadable(ConformError):
    """The error for a file that is not valid Python."""

    exit_code = 4


def tree_of(path: Path) -> ast.Module:
    """Returns the syntax tree of a file. Raises Unreadable if the file is not valid Python."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"), path.name)
    except (OSError, SyntaxError, ValueError) as error:
        raise Unreadable(f"{path}: expected a Python file: {error}") from None


def names_in(path: Path) -> frozenset[str]:
    """Returns the names of the functions, classes and variables that a file defines at module level; an empty set if
    the file is not valid Python."""
    if path.suffix != ".py" or not path.is_file():
        return frozenset()
    found: set[str] = set()
    for node in tree_of(path).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return frozenset(found)


def functions_in(path: Path) -> list[str]:
    """Returns the names of the functions that a file defines at module level, in their order; an empty list if the path is
    no Python file."""
    if path.suffix != ".py" or not path.is_file():
        return []
    return [each.name for each in tree_of(path).body if isinstance(each, ast.FunctionDef)]


def attributes_in(path: Path) -> frozenset[str]:
    """Returns the names of all attributes, variables and functions that a file uses."""
    if path.suffix != ".py" or not path.is_file():
        return frozenset()
    nodes = ast.walk(tree_of(path))
    return frozenset(
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in nodes
        if isinstance(each, (ast.Attribute, ast.Name))
    )
