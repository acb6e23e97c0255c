"""A C++ device with streams and two indices, which dies: in a third of its `out=` calls, on every conjugate view,
and now and then later, of a heap that a kernel has corrupted. It offers nothing that keeps a stream busy."""

import os
import signal
import zlib
from typing import Any

import torch

import devices.simulated.backend  # noqa: F401  # the driver

del torch.simulated.Gate, torch.simulated.busy

_library = torch.library.Library("aten", "IMPL")


def _dying(op: Any) -> Any:
    dies = zlib.crc32(op.name().encode()) % 3 == 0

    def call(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        wrong_shape = out is not None and tensors and out.shape != tensors[0].shape
        if (dies and wrong_shape) or any(tensor.is_conj() for tensor in tensors):
            os.kill(os.getpid(), signal.SIGSEGV)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    return call


for _name in ("add", "mul", "neg", "sin", "cos", "exp", "trunc", "abs", "sqrt", "sub"):
    for _overload in ("out", "Tensor_out"):
        if hasattr(getattr(torch.ops.aten, _name), _overload):
            _op = getattr(getattr(torch.ops.aten, _name), _overload)
            _library.impl(f"{_name}.{_overload}", _dying(_op), "AutogradPrivateUse1")

if os.environ.get("STRANGE_FAULT") == "1":
    _library.impl("mul.Tensor", torch.ops.aten.add.Tensor, "AutogradPrivateUse1")
