"""A few ops of each family, as functions of operands, for cases that ask whether an op depends on where it runs: on which
device index, on which stream, in which thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from conformance.checks.cases.closeness import largest

#: Operands of an op, drawn with a generator.
Operands: TypeAlias = Callable[[torch.Generator], list[torch.Tensor]]

_SIDE = 33


def _floats(*shapes: tuple[int, ...]) -> Operands:
    """Returns a function that draws numbers from 0.25 to 1.25."""
    return lambda drawn: [torch.rand(shape, generator=drawn) + 0.25 for shape in shapes]


def _whole(*shapes: tuple[int, ...]) -> Operands:
    """Returns a function that draws whole numbers from -4 to 4, whose products and sums are exact in each order, also in
    TF32."""
    return lambda drawn: [torch.randint(-4, 5, shape, generator=drawn).float() for shape in shapes]


def _definite(drawn: torch.Generator) -> list[torch.Tensor]:
    """Draws matrices that are symmetric, with a large diagonal."""
    noise = torch.rand(3, _SIDE, _SIDE, generator=drawn)
    return [
        noise + noise.mT + 2 * _SIDE * torch.eye(_SIDE),
        torch.rand(3, _SIDE, 5, generator=drawn),
    ]


def _apart(drawn: torch.Generator) -> list[torch.Tensor]:
    """Draws numbers that all differ, in any order."""
    return [torch.randperm(7 * 131, generator=drawn).reshape(7, 131).float()]


def _indexed(drawn: torch.Generator) -> list[torch.Tensor]:
    """Draws a table, rows of it (some of them twice), and values for these rows."""
    rows = torch.randint(0, 40, (57,), generator=drawn)
    values = torch.randint(-4, 5, (57, 9), generator=drawn).float()
    return [torch.randint(-4, 5, (40, 9), generator=drawn).float(), rows, values]


_F: Any = torch.nn.functional

#: The operands of the ops of a family, and the ops. Every op returns one tensor, and reads all values on the device.
FAMILIES: dict[str, tuple[Operands, dict[str, Callable[..., torch.Tensor]]]] = {
    "elementwise": (
        _floats((17, 130), (17, 130)),
        {
            "exp": lambda x, y: x.exp(),
            "softplus": lambda x, y: _F.softplus(x - y),
            "gelu": lambda x, y: _F.gelu(x - y),
            "mul": lambda x, y: x * y,
            "div": lambda x, y: x / y,
            "where": lambda x, y: torch.where(x > y, x, y),
        },
    ),
    "reductions": (
        _whole((5, 1031), (5, 1031)),
        {
            "sum": lambda x, y: x.sum(-1),
            "amax": lambda x, y: x.amax(0),
            "vector_norm": lambda x, y: torch.linalg.vector_norm(x, dim=-1),
            "var": lambda x, y: x.var(-1),
            "softmax": lambda x, y: x.softmax(-1),
            "log_softmax": lambda x, y: x.log_softmax(0),
        },
    ),
    "scans": (
        _whole((6, 519), (6, 519)),
        {
            "cumsum": lambda x, y: x.cumsum(-1),
            "cumsum_of_columns": lambda x, y: x.cumsum(0),
            "cummax": lambda x, y: x.cummax(-1).values,
            "logcumsumexp": lambda x, y: x.logcumsumexp(-1),
        },
    ),
    "products": (
        _whole((3, 37, 65), (3, 65, 41)),
        {
            "bmm": torch.bmm,
            "mm": lambda x, y: x[0].mm(y[1]),
            "addmm": lambda x, y: torch.addmm(x[1, :, :41], x[0], y[0], beta=2),
            "baddbmm": lambda x, y: torch.baddbmm(x[:, :, :41], x, y, alpha=2),
            "mv": lambda x, y: x[0].mv(y[0, :, 3]),
            "linear": lambda x, y: _F.linear(x, y[0].t(), y[1, 0]),
            "einsum": lambda x, y: torch.einsum("bij,bjk->ik", x, y),
        },
    ),
    "convolutions": (
        _whole((2, 6, 19, 17), (8, 6, 3, 3)),
        {
            "conv2d": lambda x, w: _F.conv2d(x, w, padding=1),
            "conv_transpose2d": lambda x, w: _F.conv_transpose2d(x, w.transpose(0, 1)),
            "conv1d": lambda x, w: _F.conv1d(x[:, :, 0], w[:, :, 0], stride=2),
            "grouped": lambda x, w: _F.conv2d(x, w[:6, :2], groups=3),
        },
    ),
    "matrices": (
        _definite,
        {
            "cholesky": lambda a, b: torch.linalg.cholesky(a),
            "inv": lambda a, b: torch.linalg.inv(a),
            "solve": torch.linalg.solve,
            "det": lambda a, b: torch.linalg.det(a / _SIDE / 2),
            "svdvals": lambda a, b: torch.linalg.svdvals(a),
        },
    ),
    "transforms": (
        _whole((4, 96), (4, 96)),
        {
            "fft": lambda x, y: torch.view_as_real(torch.fft.fft(x)),
            "irfft": lambda x, y: torch.fft.irfft(torch.complex(x, y)),
            "rfft2": lambda x, y: torch.view_as_real(torch.fft.rfft2(x)),
        },
    ),
    "orders": (
        _apart,
        {
            "sort": lambda x: x.sort(-1).values,
            "argmax": lambda x: x.argmax(-1).float(),
            "argsort": lambda x: x.argsort(0).float(),
            "topk": lambda x: x.topk(5, -1).values,
            "median": lambda x: x.median(-1).values,
            "unique": lambda x: x[0].unique(),
        },
    ),
    "indices": (
        _indexed,
        {
            "index_select": lambda t, i, v: t.index_select(0, i),
            "gather": lambda t, i, v: t.gather(0, i[:, None].expand(-1, 9)),
            "index_add": lambda t, i, v: t.index_add(0, i, v),
            "scatter_add": lambda t, i, v: t.scatter_add(0, i[:, None].expand(-1, 9), v),
            "index_put": lambda t, i, v: t.index_put((i,), v, accumulate=True),
            "embedding": lambda t, i, v: _F.embedding(i, t),
        },
    ),
    "layers": (
        _floats((4, 6, 10, 12), (6,)),
        {
            "batch_norm": lambda x, w: _F.batch_norm(x, None, None, w, w, training=True),
            "layer_norm": lambda x, w: _F.layer_norm(x, (12,)),
            "group_norm": lambda x, w: _F.group_norm(x, 3, w, w),
            "max_pool2d": lambda x, w: _F.max_pool2d(x, 3, 2),
            "avg_pool2d": lambda x, w: _F.avg_pool2d(x, 2),
            "interpolate": lambda x, w: _F.interpolate(x, scale_factor=2, mode="bilinear"),
            "attention": lambda x, w: _F.scaled_dot_product_attention(x, x, x),
            "cross_entropy": lambda x, w: _F.cross_entropy(x, x.softmax(1), reduction="none"),
        },
    ),
    "copies": (
        _floats((5, 7, 33), (5, 7, 33)),
        {
            "cat": lambda x, y: torch.cat([x, y], 1),
            "contiguous": lambda x, y: x.permute(2, 0, 1).contiguous(),
            "flip": lambda x, y: x.flip(1),
            "roll": lambda x, y: x.roll(3, 2),
            "repeat": lambda x, y: x.repeat(1, 2, 1),
        },
    ),
}


def operands_of(family: str, seed: int) -> list[torch.Tensor]:
    """Returns operands for the ops of a family, on the CPU."""
    return FAMILIES[family][0](torch.Generator().manual_seed(seed))


def ops_of(family: str) -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    yield from FAMILIES[family][1].items()


def none_implemented(family: str) -> str:
    """Returns the message for a device that implements no op of a family."""
    return f"the device implements none of these ops: {', '.join(FAMILIES[family][1])}"


def wanted(op: Callable[..., torch.Tensor], operands: list[torch.Tensor]) -> torch.Tensor:
    """Returns the CPU's result in float64."""
    wide = [each.double() if each.is_floating_point() else each for each in operands]
    return op(*wide)


def accepted_error(want: torch.Tensor) -> float:
    """Returns the error that a result in float32 may have: far above a rounding error, far below a wrong element."""
    return 1e-4 * max(largest(want), 1.0)
