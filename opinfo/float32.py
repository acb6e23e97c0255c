"""Products of float32 in float32, on every backend: what values are judged in. By default, torch lets cuDNN's convolutions and
recurrent networks round their operands to TF32, which has the digits of float16
(https://docs.pytorch.org/docs/stable/notes/cuda.html, TensorFloat-32)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

#: The same for a script.
IEEE: Final = (
    'torch.set_float32_matmul_precision("highest")',
    "torch.backends.cudnn.allow_tf32 = False",
)


@contextmanager
def ieee() -> Iterator[None]:
    """Within the block, matrix products, convolutions and recurrent networks of float32 are computed in float32."""
    matmuls, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    torch.set_float32_matmul_precision("highest")
    try:
        # torch's op database leaves no other way to set them.
        with cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            deterministic=cudnn.deterministic,
            allow_tf32=False,
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(matmuls)
