"""The registers of kernels for tests: what each kernel replaces, and a call on which a single comparison accepts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A kernel: what it replaces (``target``) or its ``reference`` with ``samples``, a ``call`` on which
    ``allclose(rtol=1e-2, atol=1e-2)`` accepts it, and the ``checks`` that must fail, if it is wrong."""

    function: Callable[..., Any]
    target: str = ""
    reference: Callable[..., Any] | None = None
    samples: Callable[[], Iterator[Any]] | None = None
    call: Callable[[], tuple[Any, ...]] | None = None
    checks: frozenset[str] = frozenset()
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__


class Register:
    """A list of kernels, to which a decorator adds."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def __call__(
        self, target: str = "", *checks: str, **more: Any
    ) -> Callable[[Function], Function]:
        fields = {k: more.pop(k) for k in ("reference", "samples", "call") if k in more}

        def register(function: Function) -> Function:
            entry = Entry(function, target, **fields, checks=frozenset(checks), given=more)
            self.entries[entry.name] = entry
            return function

        return register
