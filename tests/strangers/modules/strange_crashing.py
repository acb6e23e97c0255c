"""A device that dies in a tenth of its ops, and in every `out=` whose target has another shape."""

import os
import signal
import zlib
from typing import Any

import strange
import torch


def before(op: Any, args: Any, kwargs: Any) -> None:
    name = op.name().partition(".")[0].removeprefix("aten::").rstrip("_")
    out = kwargs.get("out")
    wrong_shape = isinstance(out, torch.Tensor) and out.shape != args[0].shape
    if zlib.crc32(name.encode()) % 10 == 7 or (name == "mul" and wrong_shape):
        os.kill(os.getpid(), signal.SIGSEGV)


strange.register("brittle", before=before)
