"""A plugin of pytest that breaks three kernels of torch itself: ``pytest -p tests.dashboard.planted --device cpu``.

The simulated device has planted faults of its own; ``cpu`` and ``lazy`` have none. So that runs of
them with something broken can be looked at too, kernels are replaced here through torch.library:

- ``erf`` on the CPU adds 1 where its input is not contiguous (the reference reads contiguous copies,
  and stays right);
- ``sgn`` on the CPU raises for an input that starts behind its storage's first element;
- ``trunc`` on the lazy device rounds up.
"""

from __future__ import annotations

from typing import Any

import torch

_LIBRARIES: list[Any] = []  # a library takes its kernels back when it is collected


def _erf(x: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = torch.special.erfc(x).neg_().add_(1)
    return whole if x.is_contiguous() else whole.add_(1)


def _sgn(x: torch.Tensor) -> torch.Tensor:
    if x.storage_offset():
        raise RuntimeError("planted: the storage offset is not supported")
    return torch.sign(x) if not x.is_complex() else torch.where(x == 0, x, x / x.abs())


def _trunc(x: torch.Tensor) -> torch.Tensor:
    return torch.ceil(x)


def pytest_configure() -> None:
    """Replace the kernels, in the controller and in every worker."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("erf", _erf, "CPU")
    library.impl("sgn", _sgn, "CPU")
    library.impl("trunc", _trunc, "AutogradLazy")  # the Lazy key is filled later, by its init
    _LIBRARIES.append(library)
