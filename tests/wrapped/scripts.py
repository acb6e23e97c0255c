"""Repro scripts, run in this process against the wrapped device.

A script moves tensors by ``.to(DEVICE)`` and ``.cpu()``, and makes some by ``device=DEVICE``. The wrapped
device's tensors have the CPU as their device, so here these are exchanged for functions that wrap and
unwrap.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tests.wrapped.tensor import from_device, to_device

_EXCHANGED = {
    ".to(DEVICE)": "._to_wrapped()",
    ", device=DEVICE)": ")._made_wrapped()",  # a factory's result
    ".cpu()": "._from_wrapped()",
}


def exit_status(script: str) -> tuple[int, str]:
    """Run a script; its exit status and what it printed. Raises what the script does not catch."""
    for name, other in _EXCHANGED.items():
        script = script.replace(name, other)
    code, said = compile(script, "<repro>", "exec"), io.StringIO()
    with _methods(), settings_kept(), contextlib.redirect_stdout(said):
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit as done:
            return int(done.code or 0), said.getvalue()
    raise AssertionError("a repro script ends with sys.exit, this one did not")


def _made(tensor: torch.Tensor) -> torch.Tensor:
    """What a factory made, on the device; a stride reference's fake tensors stay fake."""
    return tensor if isinstance(tensor, FakeTensor) else to_device(tensor)


@contextlib.contextmanager
def _methods() -> Iterator[None]:
    tensor: Any = torch.Tensor
    tensor._to_wrapped, tensor._made_wrapped, tensor._from_wrapped = to_device, _made, from_device
    try:
        yield
    finally:
        del tensor._to_wrapped, tensor._made_wrapped, tensor._from_wrapped


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """A script sets what it needs of torch, and leaves it so: it has a process of its own otherwise."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    precision = torch.get_float32_matmul_precision()
    settings: Any = torch.utils.deterministic  # a module whose class makes this a property
    filled = settings.fill_uninitialized_memory
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_float32_matmul_precision(precision)
        settings.fill_uninitialized_memory = filled
