"""Programs that hypothesis draws: the same ones every time in a plan, new ones in a random search. They are shrunk when
they fail, and written as straight-line code.

Hypothesis is imported inside functions: a repro script may carry this module, and needs no hypothesis.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from conformance.checks.cases.attempts import PATIENCE
from conformance.checks.cases.cases import Drawn
from conformance.checks.cases.context import Context
from conformance.checks.cases.endings import CheckFailed, NotInFlight, NotShown, failure_of
from devices.errors import ConformError

Program = tuple[Any, ...]

#: Seconds that random search takes to shrink a program.
SHRINKING = 20.0


def pinned(programs: int, **more: Any) -> Any:
    """Settings of a search that depends only on its seed: no database, no deadline, this many programs."""
    from hypothesis import HealthCheck, Phase, Verbosity, settings

    return settings(
        max_examples=programs,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        **more,
    )


def search(strategy: Any, holds: Callable[[Any], None], seed: int, programs: int) -> None:
    """Try ``holds`` on this many drawn programs. Raises what it raised on the smallest program that fails."""
    from hypothesis import given
    from hypothesis import seed as seeded

    drawing: Any = given(strategy)
    repeating: Any = seeded(seed)
    repeating(pinned(programs)(drawing(holds)))()


def _nobody(*_: Any) -> None:
    """The default callback: does nothing."""


@dataclass
class Search:
    """A random search through the programs of one case.

    Failures of a ``known`` kind are ignored. After the first program that fails in another way, only
    that way counts, so that shrinking keeps the same failure. Programs that show nothing
    are counted; they neither fail nor end the search.
    """

    kind_of: Callable[[BaseException], str]  # the way in which a program failed
    known: frozenset[str]
    end: float  # on time.monotonic(): later no program begins but to shrink
    begun: Callable[[], None] = _nobody  # called before every program
    failing: Callable[[Program, BaseException], None] = _nobody  # called with the first that fails
    programs: int = 0  # that ran, without those of shrinking
    unshown: int = 0  # … and proved nothing
    wanted: str = field(default="", init=False)
    cut: bool = field(default=False, init=False)  # shrinking took too long

    def takes(self) -> bool:
        """Whether one more program is to be run."""
        if time.monotonic() > self.end:
            self.cut = bool(self.wanted)
            return False
        self.begun()
        self.programs += not self.wanted
        return True

    def passes_over(self, program: Program, error: Exception) -> bool:
        """Whether this failure of a program is ignored."""
        if isinstance(error, (NotShown, ConformError)):
            self.unshown += not self.wanted
            return True
        kind = self.kind_of(error)
        if not self.wanted and kind not in self.known:
            self.wanted, self.end = kind, time.monotonic() + SHRINKING
            self.failing(program, error)
        return kind != self.wanted


class Trial:
    """The programs of one case, as they are tried one after the other."""

    def __init__(self, context: Context, drawn: Drawn) -> None:
        self.context = context
        self.drawn = drawn
        self.count = 0
        self.found: tuple[Program, Exception] | None = None  # the last, which is the smallest

    def begin(self) -> bool:
        """Whether one more program is to be run."""
        if self.context.search is not None and not self.context.search.takes():
            return False
        self.count += 1
        return True

    def run(self, program: Program, part: Callable[[], Any]) -> bool:
        """Run a program, or the part that was drawn last; whether it may go on. Raises what failed it."""
        search = self.context.search
        try:
            part()
        except Exception as error:
            if search is not None and search.passes_over(program, error):
                if isinstance(error, NotInFlight):  # later programs get more of it
                    later = [each for each in PATIENCE if each > self.context.patience]
                    self.context.patience = later[0] if later else PATIENCE[-1]
                return False
            self.found = program, error
            raise
        return True

    def fails_alike(self, program: Program, part: Callable[[], Any]) -> bool:
        """Whether a smaller program fails so too: it is then what was found."""
        if self.found is None or not self.begin():
            return False
        before = self.found
        try:
            self.run(program, part)
        except Exception as error:
            if type(error) is type(before[1]):
                return True
            self.found = before  # it fails in another way
        return False

    def must_have_run(self, programs: int) -> None:
        """So many programs are evidence. In a random search each counts for itself."""
        if self.context.search is None:
            text = f"{programs} programs ran; expected {self.count}"
            self.context.must(self.count >= programs, text)

    @contextmanager
    def shrunk(self, shorter: Callable[[Program], None] = _nobody) -> Iterator[None]:
        """Around a search: the smallest program that it found fails the check, and its repro script runs it.

        ``shorter`` makes it shorter still, by ``fails_alike``. Raises CheckFailed, or NotShown where
        nothing was shown by the program.
        """
        from hypothesis import errors
        from msgspec.structs import replace  # no script has it

        try:
            yield
        except Exception as error:
            if self.found is None:
                raise  # not from a program
            if isinstance(self.found[1], (NotShown, ConformError)):
                raise self.found[1] from None
            cut = self.context.search is not None and self.context.search.cut
            sometimes = isinstance(error, errors.Flaky) and not cut
            if not sometimes:
                shorter(self.found[0])
            program, cause = self.found
            self.context.program = program
            how = " (not every time)" if sometimes else " (not fully shrunk)" if cut else ""
            text = self.drawn.told(*program) + how
            raise CheckFailed(replace(failure_of(cause), program=text)) from None


# -- straight-line code


def straight(operations: Iterable[Any], names: Mapping[str, str], depth: int) -> str:
    """Operations as lines of Python, indented so many times: the body of each one's ``do(run)`` with its fields
    filled in.

    ``run.context`` becomes ``context``; what a table of the run holds, such as ``run.streams[1]``, becomes a
    variable, ``s1``, by the prefix that ``names`` has for the table.
    """
    lines = (line for each in operations for line in _lines_of(each, names))
    return textwrap.indent("\n".join(lines), "    " * depth) + "\n"


def _lines_of(operation: Any, names: Mapping[str, str]) -> list[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(type(operation).do)))
    [function] = tree.body
    assert isinstance(function, ast.FunctionDef)
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    filled = _Filled(operation, names)
    found: list[ast.stmt] = []
    for statement in body:
        made = filled.visit(statement)
        found += made if isinstance(made, list) else [made]
    return [ast.unparse(ast.fix_missing_locations(each)) for each in found]


class _Filled(ast.NodeTransformer):
    """Fills an operation's fields into the body of its ``do``."""

    def __init__(self, operation: Any, names: Mapping[str, str]) -> None:
        self.operation = operation
        self.names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if _is_name(node.value, "self"):
            return _literal(getattr(self.operation, node.attr))
        if _is_name(node.value, "run"):
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        table = node.value
        if (
            isinstance(table, ast.Attribute)
            and _is_name(table.value, "run")
            and table.attr in self.names
        ):
            key = ast.literal_eval(self.visit(node.slice))
            parts = map(str, key if isinstance(key, tuple) else (key,))
            return ast.Name(self.names[table.attr] + "_".join(parts), node.ctx)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Any:
        test = self.visit(node.test)
        if not any(isinstance(each, ast.Name) for each in ast.walk(test)):  # it is known
            holds = eval(compile(ast.fix_missing_locations(ast.Expression(test)), "", "eval"))
            chosen = node.body if holds else node.orelse
            made = (self.visit(each) for each in chosen)
            return [one for each in made for one in (each if isinstance(each, list) else [each])]
        return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        [loop] = node.generators
        places = self.visit(loop.iter)
        if not isinstance(places, ast.Tuple) or not isinstance(loop.target, ast.Name):
            return self.generic_visit(node)
        each = loop.target.id  # over a field: one element for each of its values
        elements = []
        for value in places.elts:
            element = ast.parse(ast.unparse(node.elt), mode="eval").body
            elements.append(self.visit(_Renamed(each, value).visit(element)))
        return ast.List(elements, ast.Load())

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        made = self.generic_visit(node)
        assert isinstance(made, ast.JoinedStr)
        parts = [p.value if isinstance(p, ast.FormattedValue) else p for p in made.values]
        if all(isinstance(part, ast.Constant) for part in parts):
            return ast.Constant("".join(str(ast.literal_eval(part)) for part in parts))
        return made

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A field that is a lambda, on a separate line: its expression."""
        function = node.func
        if isinstance(function, ast.Attribute) and _is_name(function.value, "self"):
            given = getattr(self.operation, function.attr)
            text = inspect.getsource(given).strip().rstrip(",")
            defined = ast.parse(text, mode="eval").body
            assert isinstance(defined, ast.Lambda)
            made: Any = defined.body
            for parameter, argument in zip(defined.args.args, node.args, strict=True):
                made = _Renamed(parameter.arg, self.visit(argument)).visit(made)
            return made  # type: ignore[no-any-return]
        return self.generic_visit(node)


class _Renamed(ast.NodeTransformer):
    """Replaces a name by an expression."""

    def __init__(self, name: str, value: ast.AST) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.value if node.id == self.name else node


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _literal(value: Any) -> ast.AST:
    return ast.parse(repr(value), mode="eval").body
