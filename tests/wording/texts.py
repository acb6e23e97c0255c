"""Finds every text of the project that a user can read: docstrings, messages, data files, templates and pages."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("conformance", "devices", "opinfo", "reports")

#: Besides Python: data with messages and reasons, templates, scripts of the dashboard, C++ with messages.
SUFFIXES = (".toml", ".jinja", ".js", ".cpp", ".h")
#: A literal of fewer words is a name, a key or a piece of code; one without any of these is a list of names.
SENTENCE = 4
_ENGLISH = {"a", "an", "and", "are", "at", "by", "for", "from", "has", "in", "is", "it", "no", "not", "of", "on", "or", "than", "the", "to", "was", "with"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """A text and where it stands. ``kind`` is ``docstring``, ``message`` or ``file`` (one line of a file).

    ``shown`` is the text as its reader meets it: a docstring below the signature of its function, a message with the
    names of the values that are filled in, and after the word of the report before it (``expected``, ``found``, ``at``). It is empty for a line of a file.
    """

    path: Path
    line: int
    kind: str
    text: str
    shown: str = ""

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def user_visible_texts() -> Iterator[Text]:
    """Every text of the four packages, of the pages under ``docs/`` and of those beside README.md."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix == ".py":
                yield from python_texts(path)
            elif path.suffix in SUFFIXES:
                yield from file_lines(path)
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        yield from file_lines(path)
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in {".md", ".yml", ".py"}:
            yield from file_lines(path)


#: In source code only comments and strings are texts; names are not.
_SOURCES = {".js", ".cpp", ".h"}
_IN_SOURCE = re.compile(r'//.*|^\s*\*.*|/\*.*|"(?:[^"\\]|\\.)*"')
#: Names of code in prose.
_CODE = re.compile(r"`[^`]*`")


def file_lines(path: Path) -> Iterator[Text]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = _IN_SOURCE.findall(line) if path.suffix in _SOURCES else [line]
        text = _CODE.sub("`…`", " ".join(found))
        if text.strip():
            yield Text(path, number, "file", text)


def python_texts(path: Path) -> Iterator[Text]:
    """Docstrings, and literals that read like a sentence."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings: set[int] = set()
    for owner, node in _documented(tree):
        docstrings.add(id(node.value))
        text = inspect.cleandoc(_literal(node.value))
        yield Text(path, node.lineno, "docstring", text, f"{owner}\n{text}".strip())
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    roles = _roles(tree)
    for node in ast.walk(tree):
        if id(node) in docstrings or id(node) in parts:
            continue
        text = _literal(node)
        words = text.split()
        if len(words) >= SENTENCE and not _ENGLISH.isdisjoint(words):
            shown = " ".join(filter(None, (roles.get(id(node)), _literal(node, names=True))))
            yield Text(path, getattr(node, "lineno", 0), "message", text, shown)


#: The words of a report before a part of a failure.
_ROLES = {"expected": "expected", "found": "found", "at": "at"}
_OF_WRONG = ("", "expected", "found", "at")


def _roles(tree: ast.Module) -> dict[int, str]:
    """The words that stand before a literal in a report, by the literal: of ``expected=``, ``found=`` and ``at=``, of
    variables of these names, and of the arguments of ``Wrong``."""
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in _ROLES:
            found[id(node.value)] = _ROLES[node.arg]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[id(node.value)] = _ROLES.get(node.targets[0].id, "")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Wrong":
            found |= {id(each): role for each, role in zip(node.args, _OF_WRONG)}
    return found


def _documented(tree: ast.Module) -> Iterator[tuple[str, ast.Expr]]:
    """Each string that is a statement, with what it documents: the definition around it, or the field before it."""
    for parent in ast.walk(tree):
        body: list[ast.stmt] = getattr(parent, "body", [])
        for place, node in enumerate(body if isinstance(body, list) else []):
            if isinstance(node, ast.Expr) and _literal(node.value):
                yield _signature(body[place - 1] if place else parent), node


def _signature(node: ast.AST) -> str:
    """The line that a reader sees above the text; empty for a module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"def {node.name}({ast.unparse(node.args)}){returns}:"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    return ast.unparse(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ""


def _literal(node: ast.AST, names: bool = False) -> str:
    """The text of a literal; each expression of an f-string is written as ``{…}``, with ``names`` as in the source."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(part, names) for part in node.values)
    return ""


def _part(part: ast.expr, names: bool) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    return ast.unparse(ast.JoinedStr([part]))[2:-1] if names else "{…}"
