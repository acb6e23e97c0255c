"""A device that works within its session only, which is also a mode: it makes what nobody placed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import strange
import torch
from torch.overrides import TorchFunctionMode

_open = False


def before(op: Any, args: Any, kwargs: Any) -> None:
    if not _open:
        raise RuntimeError("use strange_session.session()")


class Here(TorchFunctionMode):
    """Makes tensors on the device, unless another is named."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.zeros, torch.ones, torch.empty, torch.tensor, torch.arange, torch.full):
            kwargs.setdefault("device", "session")
        return func(*args, **kwargs)


@contextmanager
def session() -> Iterator[None]:
    global _open
    with Here():
        _open = True
        try:
            yield
        finally:
            _open = False


strange.register("session", before=before)
