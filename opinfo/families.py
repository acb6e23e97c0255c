"""The family of an op: ops that share kernels, and so tend to fail together. For grouping reports alone.

A family comes from the kind of database entry (elementwise and reduction ops run through TensorIterator) or
from words in the op's name. Nothing is judged by it.
"""

from __future__ import annotations

import re

#: Namespaces that are one library's worth of kernels.
_NAMESPACES = ("fft", "linalg", "special", "masked", "signal")

#: The first word that an op's last name contains names its family.
_WORDS = (
    ("conv", "conv"),
    ("pool", "pool"),
    ("_norm", "norm"),
    ("norm_", "norm"),
    ("loss", "loss"),
    ("attention", "attention"),
    ("embedding", "embedding"),
    ("interpolate", "resampling"),
    ("upsample", "resampling"),
    ("grid_sample", "resampling"),
    ("pad", "pad"),
    ("softmax", "softmax"),
    ("scatter", "indexing"),
    ("gather", "indexing"),
    ("index", "indexing"),
    ("take", "indexing"),
    ("put", "indexing"),
    ("masked", "indexing"),
    ("addr", "matmul"),
    ("matmul", "matmul"),
    ("mm", "matmul"),
    ("mv", "matmul"),
    ("linear", "matmul"),
    ("as_strided", "as_strided"),
    ("new_", "factory"),
    ("_like", "factory"),
    ("split", "split"),
    ("stack", "cat"),
    ("cat", "cat"),
    ("sort", "sort"),
    ("topk", "sort"),
    ("median", "sort"),
    ("cum", "scan"),
    ("tri", "triangle"),
)


def op_family(op: str, kind: str = "") -> str:
    """The family of the op with this id. ``kind`` is ``unary``, ``binary``, ``reduction`` or empty."""
    if kind in ("unary", "binary"):
        return f"elementwise {kind}"
    if kind:
        return kind
    space, _, rest = op.partition(".")
    if space in _NAMESPACES and rest:
        return space
    name = op.removeprefix("nn.functional.").partition(".")[0]
    for word, family in _WORDS:
        if word in name:
            return family
    return re.sub(r"_copy$|\d*d?$", "", name) or name
