"""Random programs (sequences of device operations) drawn by hypothesis: always the same ones in a plan, new ones in a
random search. Failing programs are shrunk and written as straight-line code.

Hypothesis is imported inside functions, because a repro script may contain this module and must run without hypothesis.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec

from conformance.checks.cases.cases import Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotInFlight, NotShown, failure_of
from conformance.checks.cases.execution import PATIENCE
from conformance.checks.cases.program_coverage import Reach
from devices.errors import ConformError

Program = tuple[Any, ...]
_Given = ParamSpec("_Given")

#: The most seconds that a random search spends on shrinking one failing program.
SHRINKING = 120.0


def pinned(programs: int, **more: Any) -> Any:
    """Returns hypothesis settings for a search that depends only on its seed: no database, no deadline, and
    ``programs`` examples."""
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
    """Draws ``programs`` examples from a hypothesis strategy and calls ``holds`` with each. Raises the exception of the
    smallest example that fails."""
    from hypothesis import given
    from hypothesis import seed as seeded

    drawing: Any = given(strategy)
    repeating: Any = seeded(seed)
    repeating(pinned(programs)(drawing(holds)))()


def _nobody(*_: Any) -> None:
    """Does nothing. This is the default callback."""


@dataclass
class Search:
    """A random search through the programs of one case.

    Failures of a ``known`` kind are ignored. After the first failure of another kind only failures of that same kind
    count, so that shrinking keeps the failure. Programs that prove nothing (for example because the work finished too
    early) are counted; they neither fail nor end the search.
    """

    kind_of: Callable[[BaseException], str]  # names the kind of a program's failure
    known: frozenset[str]
    end: float  # time.monotonic() after which no new program begins, except to shrink
    begun: Callable[[], None] = _nobody  # called before every program
    failing: Callable[[Program, BaseException], None] = (
        _nobody  # called with the first program that fails
    )
    programs: int = 0  # number of programs run, without those run to shrink
    unshown: int = 0  # number of those programs that proved nothing
    wanted: str = field(default="", init=False)
    cut: bool = field(default=False, init=False)  # True if shrinking ran out of time

    def takes(self) -> bool:
        """Returns True, and counts the program, if the search has time to run one more program."""
        if time.monotonic() > self.end:
            self.cut = bool(self.wanted)
            return False
        self.begun()
        self.programs += not self.wanted
        return True

    def passes_over(self, program: Program, error: Exception) -> bool:
        """Returns True if the failure ``error`` of a program is to be ignored."""
        if isinstance(error, (NotShown, ConformError)):
            self.unshown += not self.wanted
            return True
        kind = self.kind_of(error)
        if not self.wanted and kind not in self.known:
            self.wanted, self.end = kind, time.monotonic() + SHRINKING
            self.failing(program, error)
        return kind != self.wanted


class Trial:
    """The programs of one case, which are run one after the other."""

    def __init__(self, context: CaseContext, drawn: Drawn) -> None:
        self.context = context
        self.drawn = drawn
        self.count = 0
        self.found: tuple[Program, Exception] | None = None  # the smallest failing program

    def begin(self) -> bool:
        """Counts one more program and returns True. Returns False if the random search is over, so no program may
        run any more."""
        if self.context.search is not None and not self.context.search.takes():
            return False
        self.count += 1
        return True

    def run(self, program: Program, part: Callable[[], Any]) -> bool:
        """Runs a program, or the part of it that was drawn last. Returns whether the program may continue. Raises the
        program's failure."""
        search = self.context.search
        try:
            part()
        except Exception as error:
            if search is not None and search.passes_over(program, error):
                if isinstance(error, NotInFlight):  # later programs use longer work
                    later = [each for each in PATIENCE if each > self.context.patience]
                    self.context.patience = later[0] if later else PATIENCE[-1]
                return False
            self.found = program, error
            raise
        return True

    def fails_alike(self, program: Program, part: Callable[[], Any]) -> bool:
        """Runs a program that is smaller than the failing one. If it fails with the same type of exception, keeps it as
        the failing program and returns True."""
        if self.found is None or not self.begin():
            return False
        before = self.found
        try:
            self.run(program, part)
        except Exception as error:
            if type(error) is type(before[1]):
                return True
            self.found = before  # the smaller program fails in another way
        return False

    def shorten(
        self,
        steps: Sequence[Any],
        whole: Callable[[Sequence[Any]], Program],
        run: Callable[[Sequence[Any]], Any],
    ) -> None:
        """Removes the steps of the failing program that the failure does not need, first many at once and then one by
        one. ``whole`` builds a program from steps; ``run`` runs steps."""
        at_once = max(1, len(steps) // 2)
        while True:
            before = len(steps)
            for place in reversed(range(0, len(steps), at_once)):
                fewer = [*steps[:place], *steps[place + at_once :]]
                if self._is_program(whole(fewer)) and self.fails_alike(
                    whole(fewer), partial(run, fewer)
                ):
                    steps = fewer
            # Repeat one by one until nothing can be removed: removing one step may make another one
            # unnecessary.
            if at_once == 1 and len(steps) == before:
                return
            at_once = max(1, at_once // 2)

    def _is_program(self, program: Program) -> bool:
        try:
            self.drawn.validate(*program)
        except ValueError:
            return False
        return True

    def steered(self, programs: Iterable[Any], holds: Callable[[Any], None]) -> None:
        """Runs ``programs``, which were generated to cover the states and pairs of instructions that the random
        programs missed. Does nothing in a random search (``--explore``)."""
        for program in programs if self.context.search is None else ():
            holds(program)

    def must_have_reached(self, reach: Reach) -> None:
        """Stores the coverage of the drawn programs for the report. Raises NotShown if an entry of the coverage table
        was not reached, which is an error of this suite and not of the device."""
        if self.context.search is None:
            self.context.reached = str(reach)
            if reach.missing:
                raise NotShown(
                    f"the drawn programs do not cover every entry of the coverage table: {reach}"
                )

    def must_have_run(self, programs: int) -> None:
        """Requires that at least ``programs`` programs ran. A random search has no such minimum."""
        if self.context.search is None:
            text = f"{self.count} programs ran; expected {programs}"
            self.context.must(self.count >= programs, text)

    @contextmanager
    def shrunk(self, shorter: Callable[[Program], None] = _nobody) -> Iterator[None]:
        """Returns a context manager for a search: the smallest failing program becomes the failure of the check, and
        the repro script runs that program.

        ``shorter`` may shorten the program further with ``fails_alike``. Raises CheckFailed, or NotShown if the program
        proved nothing.
        """
        from hypothesis import errors
        from msgspec.structs import replace  # not available in a repro script

        try:
            yield
        except Exception as error:
            if self.found is None:
                raise  # the error is not from a program
            if isinstance(self.found[1], (NotShown, ConformError)):
                raise self.found[1] from None
            cut = self.context.search is not None and self.context.search.cut
            sometimes = isinstance(error, errors.Flaky) and not cut
            if not sometimes:
                shorter(self.found[0])
            program, cause = self.found
            self.context.program = program
            how = " (fails only sometimes)" if sometimes else " (not fully shrunk)" if cut else ""
            text = self.drawn.told(*program) + how
            raise CheckFailed(replace(failure_of(cause), program=text)) from None


# -- operations, and straight-line code


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a program: a function that takes the running program (``run``), and its other arguments by name.
    Created by the decorator ``operation``."""

    function: Callable[..., None]
    given: dict[str, Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def literal(self) -> tuple[Any, ...]:
        return self.name, *self.given.values()


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
    """Returns operations as lines of Python, indented by ``depth`` levels: the body of each operation's function with
    the arguments filled in.

    ``run.context`` becomes ``context``. An entry of a table of the run, such as ``run.streams[1]``, becomes a variable
    such as ``s1``; ``names`` maps each table to the prefix of its variables.
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
    """Returns the syntax tree of a literal, or of a lambda that stands on a line of its own."""
    text = inspect.getsource(value).strip().rstrip(",") if callable(value) else repr(value)
    return ast.parse(text, mode="eval").body


class _Filled(ast.NodeTransformer):
    """A transformer of syntax trees that substitutes an operation's arguments into the body of its function."""

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
        """Replaces an ``if`` on an argument by the branch that is taken."""
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
        """Replaces the call of an argument that is a lambda by the lambda's expression."""
        self.generic_visit(node)
        match node.func:
            case ast.Lambda(parameters, expression):
                names = (each.arg for each in parameters.args)
                return self._with(dict(zip(names, node.args, strict=True)), expression)
        return node

    def _with(self, given: Mapping[str, ast.expr], expression: ast.expr) -> ast.expr:
        made: ast.expr = _Filled({**self.given, **given}, self.names).visit(deepcopy(expression))
        return made
