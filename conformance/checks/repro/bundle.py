"""Copies functions of this project into a script, as text, together with everything of the project that they use.

In a script all definitions are in one module. A definition whose name is already used gets another name. Of a class
that suites share, a method is copied only if its name is mentioned in the script.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from conformance.checks.repro.modules import Import, Module, NotCarried, read_module
from conformance.checks.repro.statements import (
    Definition,
    Piece,
    Statement,
    Thing,
    statements_of,
    text_of,
)

#: Names that mean something else in every script.
_RESERVED = frozenset({*dir(builtins), "DEVICE", "main", "move", "back", "settle"})


@dataclass
class Bundle:
    """The definitions and imports that a repro script needs, and the name that each has in the script."""

    names: dict[Thing, str] = field(default_factory=dict)
    _taken: dict[str, Any] = field(default_factory=dict)  # what has a name
    _statements: dict[ast.stmt, Statement] = field(default_factory=dict)
    _kept: dict[ast.stmt, Piece] = field(default_factory=dict)
    _left_out: dict[str, list[Piece]] = field(default_factory=dict)  # methods, by name
    _attributes: set[str] = field(default_factory=set)  # that something mentions
    _definitions: deque[Definition] = field(default_factory=deque)  # not yet looked at
    _pieces: list[Piece] = field(default_factory=list)  # not yet looked at

    def take(self, functions: Iterable[Any]) -> Bundle:
        """Adds copies of functions and classes, with everything that they use, to the script. Raises NotCarried if a
        definition cannot be copied."""
        plain = [inspect.unwrap(each) for each in functions]
        return self.add(Definition(read_module(each.__module__), each.__name__) for each in plain)

    def add(self, things: Iterable[Thing]) -> Bundle:
        """Adds definitions and imports, with everything that they use, to the script. Raises NotCarried if one cannot
        be copied."""
        for thing in things:
            if isinstance(thing, Definition) and thing.name not in thing.module.defined:
                raise NotCarried(f"{thing.module.name} does not define {thing.name}")
            if self._name(thing) != thing.name:
                raise NotCarried(f"the name {thing.name} has another meaning in a script")
        self._close()
        return self

    def has(self, function: Any) -> bool:
        """Returns True if the script contains the definition of a function or class."""
        return Definition(read_module(function.__module__), function.__name__) in self.names

    def mention(self, attributes: Iterable[str]) -> None:
        """Adds the methods with these names, of the classes in the script, and everything that these methods use.
        (Other methods of shared classes are left out.)"""
        self._mention(attributes)
        self._close()

    def _close(self) -> None:
        while self._pieces or self._definitions:
            if self._pieces:
                self._keep(self._pieces.pop())
                continue
            for statement in statements_of(self._definitions.popleft()):
                if statement.node not in self._statements:
                    self._statements[statement.node] = statement
                    self._pieces += reversed(statement.pieces)

    def _keep(self, piece: Piece) -> None:
        if piece.method and piece.method not in self._attributes:
            self._left_out.setdefault(piece.method, []).append(piece)
            return
        self._kept[piece.node] = piece
        for use in piece.uses:
            self._name(use.thing, ast.unparse(use.node))
        self._mention(piece.attributes)

    def _mention(self, attributes: Iterable[str]) -> None:
        for name in sorted({*attributes} - self._attributes):
            self._attributes.add(name)
            self._pieces += self._left_out.pop(name, ())

    def _name(self, thing: Thing, alias: str = "") -> str:
        """Returns the name that a definition or an import has in the script, and adds it to the script if it is new.
        ``alias`` is the name by which the module that uses it refers to it."""
        if thing not in self.names:
            self.names[thing] = self._free_name(thing, alias)
            if isinstance(thing, Definition):
                self._definitions.append(thing)
        return self.names[thing]

    def _free_name(self, thing: Thing, alias: str) -> str:
        value = thing.value if isinstance(thing, Import) else thing
        home = thing.module if isinstance(thing, Import) else thing.module.name
        others = (f"{thing.name}_{each}" for each in (home.rpartition(".")[2], *range(2, 9)))
        for name in filter(str.isidentifier, (thing.name, alias, *others)):
            if name not in _RESERVED and self._taken.setdefault(name, value) == value:
                return name
        raise NotCarried(f"the name {thing.name} of {home} has another meaning in a script")

    # -- what the script says

    @property
    def imports(self) -> set[str]:
        """The import statements of the script."""
        every = self.names.items()
        return {thing.line(name) for thing, name in every if isinstance(thing, Import)}

    def reads(self, name: str) -> set[str]:
        """Returns the attributes of the variable ``name``, such as ``reference``, that the definitions in the script
        read."""
        return {
            each.attr
            for piece in self._kept.values()
            for each in ast.walk(piece.node)
            if isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Name)
            and each.value.id == name
        }

    def texts(self) -> dict[ast.stmt, str]:
        """Returns the text of each statement. A module comes after the modules that it uses, and the statements of a
        module keep their order."""
        of_module: dict[Module, dict[Statement, list[Piece]]] = {}
        for statement in self._statements.values():
            kept = [each for each in statement.pieces if each.node in self._kept]
            of_module.setdefault(statement.module, {})[statement] = kept
        done: dict[Module, None] = {}  # in order

        def follow(module: Module, above: tuple[Module, ...] = ()) -> None:
            if module in done or module in above:
                return
            uses = (
                use for kept in of_module[module].values() for each in kept for use in each.uses
            )
            for thing in (use.thing for use in uses):
                if isinstance(thing, Definition):
                    follow(thing.module, (*above, module))
            done[module] = None

        for module in of_module:
            follow(module)
        return {
            statement.node: text_of(statement, kept, self.names)
            for module in done
            for statement, kept in sorted(
                of_module[module].items(), key=lambda each: each[0].node.lineno
            )
        }
