"""Arguments for a call of each op in autocast's lists, and of some ops that are in none of the lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from opinfo.device import Device


class Operands:
    """Creates the operands of a call on the device. The dtypes in ``dtypes`` are used one after another, from the
    beginning again when the list ends. ``shift`` selects other values; ``cast``, if set, is the dtype to which they are
    cast."""

    def __init__(
        self,
        device: Device,
        dtypes: Sequence[torch.dtype],
        cast: torch.dtype | None = None,
        shift: int = 0,
    ) -> None:
        self.device, self.dtypes, self.cast, self.shift = device, dtypes, cast, shift
        self.made = 0

    def __call__(self, *shape: int) -> torch.Tensor:
        """Returns an operand of this shape with unsorted values from 0.1 to 0.9 that are not exact in a lower
        precision."""
        made = self.device.to_device(self.values(shape))
        self.made += 1
        return made if self.cast is None else made.to(self.cast)

    def values(self, shape: Sequence[int]) -> torch.Tensor:
        count, start = int(torch.Size(shape).numel()), 7 * self.made + 1 + self.shift
        values = ((torch.arange(count) * 37 + start * 11) % 101).float().mul_(0.8 / 101)
        dtype = self.dtypes[self.made % len(self.dtypes)]
        return values.add_(0.1003).reshape(shape).to(dtype)

    def near(self, *shape: int) -> torch.Tensor:
        """Returns an operand that equals the one before it, of the same shape, in every second element. The others are
        larger by less than a lower precision shows, so that a comparison in a lower precision has another result."""
        self.made -= 1
        values = self.values(shape).reshape(-1)
        self.made += 1
        values[::2] *= 1 + 2.0**-13
        made = self.device.to_device(
            values.reshape(shape).to(self.dtypes[self.made % len(self.dtypes)])
        )
        self.made += 1
        return made if self.cast is None else made.to(self.cast)

    def whole(self, *values: int) -> torch.Tensor:
        """Returns an integer tensor on the device; autocast does not cast integers."""
        return self.device.to_device(torch.tensor(values))


class Leaves(Operands):
    """Creates operands that require gradients, with values multiplied by ``factor``. A cast is part of their autograd
    graph; ``leaves`` keeps the tensors before the cast."""

    def __init__(
        self,
        device: Device,
        dtypes: Sequence[torch.dtype],
        cast: torch.dtype | None = None,
        shift: int = 0,
        factor: float = 1.0,
    ) -> None:
        super().__init__(device, dtypes, cast, shift)
        self.factor = factor
        self.leaves: list[torch.Tensor] = []

    def __call__(self, *shape: int) -> torch.Tensor:
        # A copy, because the cache of cast weights does not take views.
        made = self.device.to_device((self.values(shape) * self.factor).clone()).detach()
        self.made += 1
        self.leaves.append(made.requires_grad_())
        return made if self.cast is None else made.to(self.cast)


Arguments = Callable[[Operands], tuple[Any, ...]]


def _one(t: Operands) -> tuple[Any, ...]:
    return (t(6, 6),)


def _two(t: Operands) -> tuple[Any, ...]:
    return t(6, 6), t(6, 6)


def _compared(t: Operands) -> tuple[Any, ...]:
    return t(6, 6), t.near(6, 6)


def _three(t: Operands) -> tuple[Any, ...]:
    return t(6, 6), t(6, 6), t(6, 6)


def _cell(gates: int, states: int) -> Arguments:
    def cell_operands(t: Operands) -> tuple[Any, ...]:
        hidden: Any = [t(3, 4), t(3, 4)] if states == 2 else t(3, 4)
        return t(3, 5), hidden, t(4 * gates, 5), t(4 * gates, 4), t(4 * gates), t(4 * gates)

    return cell_operands


def _image(*arguments: Any, dims: int = 2) -> Arguments:
    """Returns a function that creates the arguments of an op that takes one image with ``dims`` spatial dimensions.
    ``arguments`` are the op's further arguments."""
    return lambda t: (t(1, 2, *[4] * dims), *arguments)


def _convolution(dims: int, *arguments: Any) -> Arguments:
    return lambda t: (t(1, 2, *[5] * dims), t(2, 2, *[3] * dims), t(2), *arguments)


_CONVOLUTION = _convolution(2, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, True, True)
_MEAN = 1  # the reduction "mean" of a loss (ATen/core/Reduction.h)

#: The arguments of each op, by its name in torch.ops.aten.
ARGUMENTS: Final[dict[str, Arguments]] = {
    # lower
    "_convolution.deprecated": _CONVOLUTION,
    "_convolution": lambda t: (*_CONVOLUTION(t), True),
    "conv1d": _convolution(1),
    "conv2d": _convolution(2),
    "conv3d": _convolution(3),
    "conv_tbc": lambda t: (t(5, 2, 3), t(3, 3, 4), t(4)),
    "conv_transpose1d": _convolution(1),
    "conv_transpose2d.input": _convolution(2),
    "conv_transpose3d.input": _convolution(3),
    "convolution": _convolution(2, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "prelu": lambda t: (t(4, 4), t(1)),
    "addmm": _three,
    "addmv": lambda t: (t(6), t(6, 6), t(6)),
    "addr": lambda t: (t(6, 6), t(6), t(6)),
    "matmul": _two,
    "einsum": lambda t: ("ij,jk->ik", [t(6, 6), t(6, 6)]),
    "mm": _two,
    "mv": lambda t: (t(6, 6), t(6)),
    "linalg_vecdot": _two,
    "linear": lambda t: (t(3, 6), t(5, 6), t(5)),
    "addbmm": lambda t: (t(4, 4), t(2, 4, 4), t(2, 4, 4)),
    "baddbmm": lambda t: (t(2, 4, 4), t(2, 4, 4), t(2, 4, 4)),
    "bmm": lambda t: (t(2, 4, 4), t(2, 4, 4)),
    "chain_matmul": lambda t: ([t(4, 4), t(4, 4), t(4, 4)],),
    "linalg_multi_dot": lambda t: ([t(4, 4), t(4, 4), t(4, 4)],),
    "lstm_cell": _cell(4, 2),
    "gru_cell": _cell(3, 1),
    "rnn_tanh_cell": _cell(1, 1),
    "rnn_relu_cell": _cell(1, 1),
    "scaled_dot_product_attention": lambda t: (
        *(t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8)),
        t(1, 1, 4, 4),
    ),
    # float32
    **dict.fromkeys(
        (
            *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
            *("reciprocal", "rsqrt", "sinh", "tan", "softplus", "nuclear_norm", "pdist"),
        ),
        _one,
    ),
    "pow.Tensor_Scalar": lambda t: (t(6), 1.5),
    "pow.Tensor_Tensor": lambda t: (t(6), t(6)),
    "pow.Scalar": lambda t: (1.5, t(6)),
    "layer_norm": lambda t: (t(3, 6), [6], t(6), t(6)),
    "native_layer_norm": lambda t: (t(3, 6), [6], t(6), t(6), 1e-5),
    "rms_norm": lambda t: (t(3, 6), [6], t(6)),
    "group_norm": lambda t: (t(2, 4, 3), 2, t(4), t(4)),
    "frobenius_norm.dim": lambda t: (t(6, 6), [0, 1]),
    "nuclear_norm.dim": lambda t: (t(6, 6), [0, 1]),
    "norm.Scalar": _one,
    "norm.ScalarOpt_dim": lambda t: (t(6, 6), 2, [0]),
    "cosine_similarity": _two,
    "poisson_nll_loss": lambda t: (t(6, 6), t(6, 6), True, False, 1e-8, _MEAN),
    "cosine_embedding_loss": lambda t: (t(3, 6), t(3, 6), t.whole(1, -1, 1)),
    "nll_loss": lambda t: (t(3, 6), t.whole(0, 2, 5)),
    "nll_loss2d": lambda t: (t(1, 2, 2, 2), t.whole(0, 1, 1, 0).reshape(1, 2, 2)),
    "hinge_embedding_loss": lambda t: (t(3), t.whole(1, -1, 1)),
    **dict.fromkeys(("kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"), _two),
    "margin_ranking_loss": lambda t: (t(3), t(3), t.whole(1, -1, 1)),
    "multilabel_margin_loss": lambda t: (t(3), t.whole(0, 2, -1)),
    "soft_margin_loss": lambda t: (t(3), t.whole(1, -1, 1)),
    "triplet_margin_loss": _three,
    "multi_margin_loss": lambda t: (t(3, 6), t.whole(0, 2, 5)),
    "binary_cross_entropy_with_logits": _two,
    "dist": _two,
    "cdist": _two,
    "renorm": lambda t: (t(6, 6), 2, 0, 1.0),
    "logsumexp": lambda t: (t(6, 6), [1]),
    "upsample_nearest1d": _image([6], dims=1),
    "_upsample_nearest_exact1d": _image([6], dims=1),
    "upsample_nearest2d": _image([6, 6]),
    "_upsample_nearest_exact2d": _image([6, 6]),
    "upsample_nearest3d": _image([6, 6, 6], dims=3),
    "_upsample_nearest_exact3d": _image([6, 6, 6], dims=3),
    "upsample_linear1d": _image([6], False, dims=1),
    "upsample_bilinear2d": _image([6, 6], False),
    "_upsample_bilinear2d_aa": _image([6, 6], False),
    "upsample_trilinear3d": _image([6, 6, 6], False, dims=3),
    "upsample_bicubic2d": _image([6, 6], False),
    "_upsample_bicubic2d_aa": _image([6, 6], False),
    # float32_by_default
    **dict.fromkeys(("prod", "sum", "linalg_vector_norm"), _one),
    "prod.dim_int": lambda t: (t(6, 6), 1),
    "softmax.int": lambda t: (t(6, 6), 1),
    "log_softmax.int": lambda t: (t(6, 6), 1),
    "cumprod": lambda t: (t(6, 6), 1),
    "cumsum": lambda t: (t(6, 6), 1),
    "linalg_matrix_norm": lambda t: (t(6, 6), 1),
    "linalg_matrix_norm.str_ord": lambda t: (t(6, 6), "fro"),
    "sum.dim_IntList": lambda t: (t(6, 6), [1]),
    # promote
    "addcdiv": _three,
    "addcmul": _three,
    "atan2": _two,
    "bilinear": lambda t: (t(3, 4), t(3, 5), t(2, 4, 5), t(2)),
    "cross": lambda t: (t(2, 3), t(2, 3), 1),
    "dot": lambda t: (t(6), t(6)),
    "vdot": lambda t: (t(6), t(6)),
    "grid_sampler": lambda t: (t(1, 2, 4, 4), t(1, 3, 3, 2), 0, 0, False),
    "index_put": lambda t: (t(6), [t.whole(1, 3)], t(2)),
    "tensordot": lambda t: (t(4, 4), t(4, 4), [1], [0]),
    "scatter_add": lambda t: (t(6), 0, t.whole(1, 3), t(2)),
    "cat": lambda t: ([t(6), t(6), t(6)],),
    "stack": lambda t: ([t(6), t(6), t(6)],),
    # refused
    "binary_cross_entropy": _two,
    # unlisted
    **dict.fromkeys(
        (
            *(
                "abs",
                "amax",
                "asinh",
                "atan",
                "ceil",
                "clone",
                "cos",
                "elu",
                "erf",
                "floor",
                "gelu",
            ),
            *("glu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "max", "mean", "min"),
            *("neg", "relu", "round", "sigmoid", "sign", "silu", "sin", "sort", "sqrt"),
            *("tanh", "tril", "trunc", "var"),
        ),
        _one,
    ),
    **dict.fromkeys(
        (
            *("add.Tensor", "div.Tensor", "fmax", "fmin", "logaddexp", "maximum"),
            *("minimum", "mul.Tensor", "rsub.Tensor", "sub.Tensor"),
        ),
        _two,
    ),
    **dict.fromkeys(("eq.Tensor", "ge.Tensor", "lt.Tensor", "ne.Tensor"), _compared),
    "avg_pool2d": _image([2, 2]),
    "batch_norm": lambda t: (t(3, 4), t(4), t(4), None, None, True, 0.1, 1e-5, False),
    "clamp": lambda t: (t(6, 6), 0.2, 0.6),
    "dropout": lambda t: (t(6, 6), 0.5, False),
    "embedding": lambda t: (t(6, 6), t.whole(0, 5, 2)),
    "flip": lambda t: (t(6, 6), [0]),
    "gather": lambda t: (t(6), 0, t.whole(1, 3)),
    "index_select": lambda t: (t(6, 6), 0, t.whole(1, 3)),
    "lerp.Tensor": _three,
    "max_pool2d": _image([2, 2]),
    "roll": lambda t: (t(6), [1]),
    "topk": lambda t: (t(6), 2),
    "where.self": lambda t: (t.whole(1, 0, 1) > 0, t(3), t(3)),
}


def overload(name: str) -> Callable[..., Any]:
    """Returns the op overload for a name in an autocast list, such as "pow.Scalar"; a name without a dot means the
    default overload."""
    packet, _, last = name.partition(".")
    found: Callable[..., Any] = getattr(getattr(torch.ops.aten, packet), last or "default")
    return found
