"""Measures to which aten overloads the suite's calls dispatch: runs the checks of ops and the cases in this process, and notes
each overload that reaches the dispatcher below autograd and autocast."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, Final

from torch.utils._python_dispatch import TorchDispatchMode

from conformance.checks.call_hooks import Guard
from conformance.checks.cells import CellRecord
from conformance.checks.ops.modes import Mode
from devices.cell import CallKey
from opinfo.torch_private import running_sequence_number, schema_of

_SPACE: Final = "aten::"


def name_of(overload: Any) -> str:
    """Returns the full name of an overload in ``torch.ops``, such as ``aten::add.Tensor`` and ``aten::relu``."""
    schema = schema_of(overload)
    return f"{schema.name}.{schema.overload_name}".rstrip(".")


class Noted(Guard):
    """A guard of the checks of an op that says in which of three states they are: a call is made whose result is judged,
    its result is judged, or anything else is done.

    ``judged`` has the overloads of the calls by clause, ``reached`` those that anything else called.
    """

    def __init__(self) -> None:
        self.judged: dict[str, set[str]] = {}
        self.reached: set[str] = set()
        self._clauses: tuple[str, ...] = ()
        self._made: set[str] = set()
        self._calls = 0  # nested calls of the function under test

    def begin(
        self, group: Sequence[str], records: Sequence[CellRecord], at_least: float = 0.0
    ) -> None:
        self._forget()

    def call(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        self._forget()
        self._clauses = tuple(clauses)
        return True

    def judging(self, clause: str) -> None:
        self.judged.setdefault(clause, set()).update(self._made)
        self._clauses = ()

    def end(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._made, self._clauses = set(), ()

    def note(self, overload: str) -> None:
        """Notes an overload that reached the dispatcher."""
        if self._clauses and (self._calls or running_sequence_number() is not None):
            self._made.add(overload)
        else:
            self.reached.add(overload)

    def noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that calls ``function``, and while that runs counts as a call under judgement."""

        @wraps(function, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._calls -= 1

        return call

    @property
    def mode(self) -> Mode:
        """The mode in which the frame makes the calls under judgement."""
        return Mode("noted", self.noted)


class Watching(TorchDispatchMode):
    """A dispatch mode that passes the name of each overload of aten to a function."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note = note
        self._names: dict[Any, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = name_of(func)
        if name.startswith(_SPACE):
            self._note(name)
        return func(*args, **(kwargs or {}))
