"""What the wrapped device declares."""

from __future__ import annotations

from devices.descriptor import Descriptor
from tests.wrapped import faults
from tests.wrapped.tensor import from_device, to_device

faults.plant_from_environment()

DESCRIPTOR = Descriptor(
    name="wrapped",
    torch_type="cpu",  # its memory is the CPU's; tensors get there by to_device alone
    title="CPU memory behind a tensor subclass",
    sources=(
        "torch.Tensor._make_subclass",
        "https://docs.pytorch.org/docs/stable/notes/extending.html",
    ),
    capabilities=frozenset({"strides", "storage", "generator", "deterministic_algorithms"}),
    dtypes=frozenset(
        {"bool", "uint8", "int8", "int16", "int32", "int64"}
        | {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
    ),
    to_device=to_device,
    from_device=from_device,
)
