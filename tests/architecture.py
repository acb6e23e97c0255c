"""The import graph of the four packages, read from their sources: what ``tests/test_architecture.py`` judges.

``python -m tests.architecture`` prints the picture of docs/architecture.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGES = ("conformance", "devices", "opinfo", "reports")

#: The rooms of ``conformance``, the highest first: each may import those after it, and none before it.
ROOMS = (
    "plugin",
    "cli",
    "commands",
    "kernels",
    "locate",
    "run",
    "onboarding",
    "search",
    "coverage",
    "plan",
    "recordings",
    "suites",
    "checks",
    "contract",
    "version",
)


@dataclass(frozen=True, slots=True)
class Module:
    """A module of ours: its dotted name, its file, and the modules of ours that it imports."""

    name: str
    path: Path
    imports: frozenset[str]

    @property
    def room(self) -> str:
        return room_of(self.name)


def room_of(name: str) -> str:
    """``conformance.run.session`` is in the room ``run``; the other packages are one room each."""
    package, _, rest = name.partition(".")
    if package != "conformance":
        return package
    first = rest.partition(".")[0]
    return "plugin" if first.startswith("test_") else first


def sources(package: str) -> list[Path]:
    return sorted((CHECKOUT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, known: Mapping[str, Path] | frozenset[str] = frozenset()) -> Iterator[str]:
    """The full names that a file imports, anywhere in it: inside functions and for type checkers too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module or ""


@cache
def modules() -> dict[str, Module]:
    """Every module of the four packages by name."""
    paths = {name_of(path): path for package in PACKAGES for path in sources(package)}
    return {
        name: Module(name, path, frozenset(i for i in imported(path, paths) if i in paths) - {name})
        for name, path in paths.items()
    }


@cache
def loads() -> dict[str, frozenset[str]]:
    """By module, the modules that it imports or names in a string, such as ``"devices.simulated.autoload:autoload"``, to
    load them late."""
    return {
        name: module.imports | (_named(module.path) & modules().keys()) - {name}
        for name, module in modules().items()
    }


def _named(path: Path) -> frozenset[str]:
    """The strings of a file, up to the first colon, without a dot at the end."""
    constants = (node.value for node in ast.walk(tree(path)) if isinstance(node, ast.Constant))
    return frozenset(
        text.partition(":")[0].rstrip(".") for text in constants if isinstance(text, str)
    )


def cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def room_graph() -> dict[str, frozenset[str]]:
    """By room, the other rooms that its modules import."""
    graph: dict[str, set[str]] = {}
    for module in modules().values():
        if module.room:
            others = {room_of(name) for name in module.imports} - {module.room, ""}
            graph.setdefault(module.room, set()).update(others)
    return {room: frozenset(others) for room, others in graph.items()}


def picture() -> str:
    """The rooms and their arrows as a Mermaid graph. What follows from other arrows is not drawn."""
    graph = room_graph()
    assert not cycles(graph), "rooms that import each other cannot be drawn"

    def reach(room: str) -> set[str]:
        return set(graph[room]).union(*(reach(other) for other in graph[room]))

    lines = ["graph TD"]
    for room in (*ROOMS, "reports", "opinfo", "devices"):
        others = graph.get(room, frozenset())
        drawn = {o for o in others if not any(o in reach(p) for p in others - {o})}
        lines += [f"    {room} --> {other}" for other in sorted(drawn)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(picture(), end="")
