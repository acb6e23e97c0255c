"""Kernels that are right."""

from __future__ import annotations

from typing import Any

import torch

from tests.kernels import native, references
from tests.kernels.entries import Register

right = Register()


@right("aten::softmax.int")
def softmax(x: torch.Tensor, dim: int, dtype: Any = None) -> torch.Tensor:
    x = (x if dtype is None else x.to(dtype)).contiguous()
    if not x.numel():
        return torch.empty_like(x)
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


@right("aten::_softmax")
def fused_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """In C++, along any dimension."""
    if not x.dim():
        return torch.where(x.isnan(), x, torch.ones_like(x))
    moved = x.movedim(dim, -1).contiguous()
    found = torch.empty_like(moved)
    columns = moved.shape[-1]
    if moved.numel():
        native.call("softmax", moved, found, moved.numel() // columns, columns)
    return found.movedim(-1, dim).contiguous()


@right("aten::mm")
def tiled_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In C++, in tiles of 32."""
    a, b = a.contiguous(), b.contiguous()
    found = torch.empty(a.shape[0], b.shape[1])
    native.call("matmul", a, b, found, a.shape[0], a.shape[1], b.shape[1])
    return found


@right(reference=references.layer_norm, samples=references.weighted_with_bias, shapes=False)
def fused_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """In C++."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    found, columns = torch.empty_like(x), weight.numel()
    if x.numel():
        rows = x.numel() // columns
        native.call("layer_norm", x, weight, bias, found, rows, columns, 1e-5)
    return found


@right(reference=references.rms_norm, samples=references.weighted, shapes=False)
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


@right("aten::relu")
def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, torch.where(x.isnan(), x, 0.0))


@right("aten::add.Tensor")
def add(a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return torch.sub(a, b, alpha=-alpha)


@right(reference=references.swiglu, samples=references.pairs)
def swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return x * (gate * torch.sigmoid(gate))


@right(reference=references.row_sum, samples=references.single)
def row_sum(x: torch.Tensor) -> torch.Tensor:
    return x.double().sum(-1).to(x.dtype)


@right("aten::embedding")
def embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    found = weight.contiguous().index_select(0, indices.reshape(-1))
    return found.reshape(*indices.shape, weight.shape[1])


@right("aten::tril")
def tril(x: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    rows = torch.arange(x.shape[-2]).unsqueeze(1)
    keep = torch.arange(x.shape[-1]) - rows <= diagonal
    return torch.where(keep, x, torch.zeros((), dtype=x.dtype)).contiguous()


@right(reference=references.attention, samples=references.heads, shapes=False)
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return softmax(scores, -1) @ v


@right("aten::gelu")
def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    wide = x.double()
    if approximate == "tanh":
        inner = 0.7978845608028654 * (wide + 0.044715 * wide**3)
        found = 0.5 * wide * (1 + torch.tanh(inner))
    else:
        found = 0.5 * wide * (1 + torch.erf(wide * 0.7071067811865476))
    return found.to(x.dtype)


@right("aten::gelu")
def gelu_formula(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """The formula in float32, which cancels below -4, as torch's own gelu does on the CPU."""
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))


@right("aten::gelu")
def gelu_without_cancellation(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """More precise than torch's own gelu on the CPU."""
    if approximate == "tanh":
        return x * torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return x * 0.5 * torch.erfc(-x * 0.7071067811865476)


@right("aten::transpose.int")
def transpose(x: torch.Tensor, dim0: int, dim1: int) -> torch.Tensor:
    """Returns a view, as the op does."""
    order = list(range(x.dim()))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return x.permute(order)


@right("aten::bitwise_and.Tensor", dtypes=("int64",))
def bitwise_and(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ~(~a | ~b)


@right("aten::topk")
def topk(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Two outputs, of which one has indices."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    found = torch.sort(x, dim=dim, descending=largest, stable=True)
    return tuple(each.narrow(dim, 0, k).contiguous() for each in found)


@right("aten::relu_")
def relu_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(relu(x))


@right("aten::add_.Tensor")
def add_in_place(a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    return a.copy_(add(a, b, alpha=alpha))


@right("aten::add.out")
def add_into(
    a: torch.Tensor, b: torch.Tensor, *, alpha: Any = 1, out: torch.Tensor
) -> torch.Tensor:
    return torch.sub(a, b, alpha=-alpha, out=out)


@right("aten::bmm")
def batched_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(a.shape[0], a.shape[1], b.shape[2])
    for number in range(a.shape[0]):
        found[number] = tiled_matmul(a[number], b[number])
    return found


@right("aten::dot")
def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() * b).sum().to(a.dtype)


@right("nn.functional.linear")
def linear(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    found = torch.matmul(x, weight.mT if weight.dim() > 1 else weight)
    return found if bias is None else found + bias


@right("aten::addmm")
def fused_addmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    found = alpha * tiled_matmul(a, b)
    return found if beta == 0 else (beta * x + found).contiguous()


@right("aten::clamp")
def clamp(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    found = x if min is None else torch.where((x >= min) | x.isnan(), x, min)
    found = found if max is None else torch.where((found <= max) | found.isnan(), found, max)
    return torch.empty_like(x, dtype=found.dtype).copy_(found)


@right("aten::clamp.Tensor")
def clamp_tensor(x: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    found = x if min is None else torch.maximum(x, min)
    return found if max is None else torch.minimum(found, max)


@right("aten::linalg_vector_norm")
def vector_norm(
    x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> torch.Tensor:
    every = [*range(x.dim())] if dim is None else dim
    size = (x if dtype is None else x.to(dtype)).double().abs()
    if ord in (float("inf"), float("-inf")):
        found = size.amax(every, keepdim) if ord > 0 else size.amin(every, keepdim)
    elif ord == 0:
        found = (size != 0).sum(every, keepdim)
    else:
        found = size.pow(ord).sum(every, keepdim).pow(1 / ord)
    return found.to(dtype or x.dtype)


@right("aten::slice.Tensor")
def slice_of(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> torch.Tensor:
    """Returns a view, as the op does."""
    size = x.shape[dim]
    first, last = (0 if start is None else start), (size if end is None else end)
    first, last = (min(max(n + size if n < 0 else n, 0), size) for n in (first, last))
    shape, stride = [*x.shape], [*x.stride()]
    shape[dim] = max(0, -(-(last - first) // step))
    offset = x.storage_offset() + first * stride[dim]
    stride[dim] *= step
    return x.as_strided(shape, stride, offset)


@right("aten::mm", dtypes=("complex64",))
def complex_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide = a.to(torch.complex128).unsqueeze(-1) * b.to(torch.complex128)
    return wide.sum(1).to(a.dtype).resolve_conj()


@right("aten::index_put_")
def index_put(
    x: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    return x.copy_(torch.ops.aten._unsafe_index_put(x, indices, values, accumulate))
