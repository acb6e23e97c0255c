"""The wrapped device as a rig for trials (tests/trials.py): what is run on it."""

from __future__ import annotations

from tests import trials
from tests.trials import Item
from tests.wrapped.descriptor import DESCRIPTOR
from tests.wrapped.faults import planted, watched

#: Ops whose cells all pass on the CPU's kernels, with what the faults are planted in among them.
ITEMS: tuple[Item, ...] = (
    *(
        (op, "float32")
        for op in (
            "neg", "exp", "add", "sub", "mul", "atan2", "copysign", "maximum", "fmax", "clamp", "where",
            "clone", "contiguous", "empty_like", "fill", "cat", "index_select",
            "narrow", "select", "transpose", "diagonal",
            "as_strided", "as_strided_copy", "as_strided_scatter", "new_empty_strided",
            "sum", "mean", "prod", "amax", "sort", "cummax", "nanmedian",
            "mm", "bmm", "addmm", "baddbmm",
            "nn.functional.conv2d", "nn.functional.avg_pool2d",
        )
    ),
    ("exp", "int64"), ("add", "int64"), ("mul", "int64"),
    ("logical_not", "bool"), ("logical_and", "bool"), ("as_strided", "bool"), ("as_strided_copy", "bool"),
    ("conj", "complex64"),
    ("transpose", "complex64"),
)  # fmt: skip

RIG = trials.Rig(
    descriptor=DESCRIPTOR,
    items=ITEMS,
    planted=planted,
    watched=watched,
    places=lambda fault: frozenset(fault.kernels),
    # Only the fifth sample of add has two operands of one shape, which broadcasting of self needs.
    more_samples={"add": 6},
)
