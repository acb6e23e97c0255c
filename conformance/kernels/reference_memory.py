"""Limits the memory of a reference that the user wrote. The judge adds samples of other sizes to the user's, and a
reference that builds a table of all pairs of elements needs gigabytes for these: without a limit, the system would kill
the judge's process or another one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from conformance.checks.cases.memory import limited
from conformance.kernels.calls_file import arguments_text
from opinfo.compare import tensors_of

#: The memory in bytes that a call of a reference may need, and in double precision, in which it needs twice as much.
LIMIT, WIDE_LIMIT = 2**31, 2**32
#: How much of that is granted to every process in addition to an allowance (conformance/checks/cases/memory.py).
_GRANTED = 2**30
_WIDE = (torch.float64, torch.complex128)
#: The file, among the findings of the judge's process, with the calls that were left out.
_FILE = "left_out.json"


class NeedsTooMuch(RuntimeError):
    """Raised for a call for which the reference needs more memory than it may have."""


@dataclass
class LeftOut:
    """The calls that were left out because the reference needs too much memory for them: the number of elements of each
    by its arguments as text. Later rounds do not ask again whether the reference answers a call, so the calls are kept
    in the folder of the judge's findings."""

    calls: dict[str, int] = field(default_factory=dict)

    def bounded(self, reference: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the reference with a limit on its memory. For a call that needs more, it raises NeedsTooMuch."""

        @functools.wraps(reference, updated=())  # a module has attributes of its own
        def within_limit(*args: Any, **kwargs: Any) -> Any:
            tensors = tensors_of((args, kwargs))
            wide = any(each.dtype in _WIDE for each in tensors)
            try:
                with limited((WIDE_LIMIT if wide else LIMIT) - _GRANTED):
                    return reference(*args, **kwargs)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
            if not wide:  # a call in double precision repeats a call in the dtype that is judged
                size = sum(each.numel() for each in tensors)
                self.calls[arguments_text(args, kwargs)] = size
            raise NeedsTooMuch("the reference needs too much memory for this call")

        return within_limit

    def keep(self, findings: Path) -> None:
        """Adds the calls that earlier rounds left out, and writes all to the folder of the findings."""
        path = findings / _FILE
        if path.exists():
            self.calls = msgspec.json.decode(path.read_bytes(), type=dict[str, int]) | self.calls
        if self.calls:
            findings.mkdir(exist_ok=True)
            path.write_bytes(msgspec.json.encode(self.calls))

    @property
    def note(self) -> str:
        """What a judgement says of the calls; empty if there are none."""
        if not self.calls:
            return ""
        smallest = min(self.calls, key=lambda call: (self.calls[call], call))
        count = len(self.calls)
        calls = "call was" if count == 1 else "calls were"
        return (
            f"{count:,} {calls} left out, because the reference needs more than "
            f"{LIMIT >> 30} GiB of memory; the smallest: ({smallest})"
        )


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)
