"""Cases of random on the CPU, with a wrong function in the place of a right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from devices import registry
from opinfo.device import open_device

Draw = Callable[..., torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]


def context() -> CaseContext:
    """What a case is given, on the CPU."""
    return CaseContext(open_device(registry.get("cpu")), "a test")


def changed(fault: Change) -> Draw:
    """A wrong function that changes what the right one draws."""
    return lambda draw, *given, **named: fault(draw(*given, **named))


def assert_seen(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    wrong: Draw,
    case: Callable[..., None],
    *arguments: str,
    match: str | None = None,
    refused: tuple[type[Exception], ...] = (),
) -> None:
    """Asserts that a case fails while ``wrong(function, *given)`` is called in the place of a function."""
    function = getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **named: wrong(function, *given, **named))
    with pytest.raises((CheckFailed, *refused), match=match):
        case(context(), *arguments)
