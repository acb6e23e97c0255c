"""A C++ device with streams and two indices, which dies some three hundred times in a plan: in a third of its ops when the
target of an `out=` has another shape, and for a conjugate view in all of them. It offers nothing that keeps a stream busy."""

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


for _full in torch._C._dispatch_get_all_op_names():
    _name, _, _overload = _full.removeprefix("aten::").partition(".")
    if _full.startswith("aten::") and _overload.endswith("out"):
        _op = getattr(getattr(torch.ops.aten, _name), _overload)
        _library.impl(f"{_name}.{_overload}", _dying(_op), "AutogradPrivateUse1")

if os.environ.get("STRANGE_FAULT") == "1":
    _library.impl("mul.Tensor", torch.ops.aten.add.Tensor, "AutogradPrivateUse1")
