"""Marks CPU tensors of the judge that stand for tensors of the device. The judge makes its checks on the CPU, without
the device: a call on marked tensors is answered by the kernel, any other call by the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.kernels.guard_pages import PAGED
from opinfo.compare import tensors_of
from opinfo.torch_private import storage_id

#: Marks of freed storages are dropped whenever this many more were made.
_SWEEP = 4096


class Marks:
    """The storages that stand for memory of the device. A weak reference to each storage prevents its address from
    being reused while it is marked."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}
        self._next = _SWEEP

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a marked copy of a tensor. A tensor next to an inaccessible page is not copied, but marked itself."""
        if tensor.layout != torch.strided:
            raise NotImplementedError("a kernel is called with strided tensors only")
        there = tensor if tensor.data_ptr() in PAGED else tensor.clone()
        self.mark(there)
        return there

    def mark(self, tensor: torch.Tensor) -> None:
        if len(self._known) >= self._next:
            self._known = {k: v for k, v in self._known.items() if not v.expired()}
            self._next = len(self._known) + _SWEEP
        self._known[storage_id(tensor)] = StorageWeakRef(tensor.untyped_storage())

    def has(self, tensor: torch.Tensor) -> bool:
        """Returns True if a tensor lies in a marked storage."""
        strided = tensor.layout == torch.strided and tensor.device.type == "cpu"
        return strided and type(tensor) is torch.Tensor and storage_id(tensor) in self._known


class Spreading(TorchDispatchMode):
    """Marks, within the context, the results of aten ops on marked tensors, and the tensors that such an op writes to.
    A copy that a check makes of a marked tensor is therefore marked, too."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.marks = marks

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = tensors_of((args, kwargs or {}))
        if any(map(self.marks.has, given)):
            written = given[:1] if function._schema.is_mutable else []
            for each in (*tensors_of(result), *written):
                if type(each) is torch.Tensor and each.device.type == "cpu":
                    self.marks.mark(each)
        return result
