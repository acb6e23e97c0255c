"""A device that has float32 and int32 only; bool results are int32."""

from typing import Any

import strange
import torch
import torch.utils._pytree as pytree

HAS = {torch.float32, torch.int32}


def before(op: Any, args: Any, kwargs: Any) -> None:
    for leaf in pytree.tree_leaves((args, kwargs)):
        dtype = leaf if isinstance(leaf, torch.dtype) else getattr(leaf, "dtype", None)
        if isinstance(leaf, (torch.dtype, strange.Tensor)) and dtype not in HAS:
            raise RuntimeError(f"slim: unsupported dtype {dtype}")


strange.register("slim", before=before)
