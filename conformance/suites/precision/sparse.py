"""Cases of the clause precision.sparse_and_quantized about sparse tensors: operations on sparse COO and CSR tensors give what the same operations on dense
tensors give.

All values are small whole numbers, so that each order of summation gives the same result, and results are compared
exactly. The references are dense and computed on the CPU in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_NEEDS: dict[str, Any] = {"requires": {"sparse"}}

_LAYOUTS = {"coo": torch.sparse_coo, "csr": torch.sparse_csr}
_OVER = {name: (name,) for name in _LAYOUTS}
_DTYPES = (torch.float32, torch.float64, torch.complex64)


@contextmanager
def _quietly() -> Iterator[None]:
    """Ignores torch's warning that CSR is in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _matrix(seed: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Draws a matrix of whole numbers of which a tenth are not 0. The second row and the third column are empty."""
    made = torch.Generator().manual_seed(seed)
    values = torch.randint(-4, 5, (rows, columns), generator=made)
    values *= torch.rand(rows, columns, generator=made) < 0.1
    values[1], values[:, 2] = 0, 0
    found = values.to(dtype)
    return found * (1 + 2j) if dtype.is_complex else found


def _dense(seed: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    found = torch.randint(-4, 5, (rows, columns), generator=made).to(dtype)
    return found * (2 - 1j) if dtype.is_complex else found


def _put(context: CaseContext, dense: torch.Tensor, layout: str) -> torch.Tensor:
    """Returns a sparse tensor with the values of a dense one, on the device. Its indices and values are copied one by one,
    so that no conversion of the device is needed."""
    if layout == "coo":
        here = dense.to_sparse_coo().coalesce()
        parts = [context.to_device(each) for each in (here.indices(), here.values())]
        return torch.sparse_coo_tensor(parts[0], parts[1], dense.shape).coalesce()
    here = dense.to_sparse_csr()
    parts = [context.to_device(e) for e in (here.crow_indices(), here.col_indices(), here.values())]
    return torch.sparse_csr_tensor(parts[0], parts[1], parts[2], dense.shape)


def _twice(context: CaseContext, dense: torch.Tensor) -> torch.Tensor:
    """Returns a COO tensor that is not coalesced: each value is given as two parts, one of them at the end."""
    here = dense.to_sparse_coo().coalesce()
    indices = torch.cat([here.indices(), here.indices().flip(1)], 1)
    values = torch.cat([here.values() - 3, torch.full_like(here.values(), 3)])
    parts = [context.to_device(each) for each in (indices, values)]
    return torch.sparse_coo_tensor(parts[0], parts[1], dense.shape)


def _read(found: torch.Tensor) -> torch.Tensor:
    """Copies a result to the CPU, and makes it dense there."""
    with _quietly():
        here = found.to("cpu")
        return here if here.layout == torch.strided else here.to_dense()


class _Results:
    """Compares results with those of dense tensors, and collects the names of the operations that the device, or the
    build of torch, does not implement."""

    def __init__(self, context: CaseContext) -> None:
        self.context = context
        self.refused: list[str] = []
        self.tried = 0

    def judge(self, name: str, call: Callable[[], torch.Tensor], want: torch.Tensor) -> None:
        self.tried += 1
        try:
            with _quietly():
                found = call()
        except NotImplementedError:
            self.refused.append(name)
            return
        except RuntimeError as error:
            if "MKL" not in str(error):  # what the CPU's library is needed for
                raise
            self.refused.append(name)
            return
        text = f"{name} differs from the same with dense tensors"
        self.context.assert_close(_read(found), want.to(found.dtype), text)

    def end(self) -> None:
        """Notes what is not implemented. Raises NotImplementedError if nothing is."""
        if len(self.refused) == self.tried:
            raise NotImplementedError(f"the device implements none of: {', '.join(self.refused)}")
        if self.refused:
            self.context.note(f"the device does not implement: {', '.join(self.refused)}")


@cases("precision.sparse_and_quantized", **_NEEDS, over={f"binary_ops_of_{name}": arguments for name, arguments in _OVER.items()})  # fmt: skip
def binary_ops(context: CaseContext, layout: str) -> None:
    """Sums, differences and products of two sparse tensors, of a sparse and a dense tensor, and of a sparse tensor and a
    number equal those of dense tensors, also for COO tensors that are not coalesced."""
    results = _Results(context)
    for dtype in _DTYPES:
        a, b = (_matrix(seed, 37, 65, dtype) for seed in (1, 2))
        d = _dense(3, 37, 65, dtype)
        with _quietly():
            x, y, dense = _put(context, a, layout), _put(context, b, layout), context.to_device(d)
            wide = [each.to(torch.complex128 if dtype.is_complex else torch.float64) for each in (a, b, d)]  # fmt: skip
        p, q, r = wide
        calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...], torch.Tensor]] = {
            "a + b": (lambda x, y: x + y, (x, y), p + q),
            "a.add(b, alpha=3)": (lambda x, y: x.add(y, alpha=3), (x, y), p + 3 * q),
            "a * b": (lambda x, y: x * y, (x, y), p * q),
            "a * dense": (lambda x, d: x * d, (x, dense), p * r),
            "dense + a": (lambda x, d: d + x, (x, dense), r + p),
            "a * 3": (lambda x: x * 3, (x,), p * 3),
            "-a": (lambda x: -x, (x,), -p),
            "a.to_dense()": (lambda x: x.to_dense(), (x,), p),
            "a.sum()": (lambda x: x.sum(), (x,), p.sum()),
            "a.t()": (lambda x: x.t(), (x,), p.t()),
        }
        if layout == "coo":
            twice, mostly_empty = _twice(context, a), context.to_device(a)
            calls |= {  # a difference and a quotient of CSR tensors are not implemented in torch
                "a - b": (lambda x, y: x - y, (x, y), p - q),
                "a / 2": (lambda x: x / 2, (x,), p / 2),
                "coalesce() of a tensor with duplicates": (lambda t: t.coalesce(), (twice,), p),
                "to_dense() of a tensor with duplicates": (lambda t: t.to_dense(), (twice,), p),
                "a + b with duplicates": (lambda t, y: t + y, (twice, y), p + q),
                "a * b with duplicates": (lambda t, y: t * y, (twice, y), p * q),
                "dense + a with duplicates": (lambda t, d: d + t, (twice, dense), r + p),
                "dense.to_sparse()": (lambda d: d.to_sparse(), (mostly_empty,), p),
            }
        for name, (call, operands, want) in calls.items():
            about = f"{name} in {layout.upper()} and {dtype}"
            results.judge(about, partial(call, *operands), want)
    results.end()


@cases("precision.sparse_and_quantized", **_NEEDS, over={f"products_of_{name}": arguments for name, arguments in _OVER.items()})  # fmt: skip
def products(context: CaseContext, layout: str) -> None:
    """Products of a sparse matrix with a dense matrix, a vector and a sparse matrix equal those of dense matrices, with beta
    and alpha, for dense operands stored by rows and by columns, and for COO matrices that are not coalesced."""
    results = _Results(context)
    for dtype in _DTYPES:
        a, b = _matrix(4, 37, 65, dtype), _matrix(5, 65, 41, dtype)
        d, e, v = _dense(6, 65, 41, dtype), _dense(7, 37, 41, dtype), _dense(8, 65, 1, dtype)[:, 0]
        kind = torch.complex128 if dtype.is_complex else torch.float64
        p, q, r, s, u = (each.to(kind) for each in (a, b, d, e, v))
        with _quietly():
            x, y = _put(context, a, layout), _put(context, b, layout)
        dense, other, vector = (context.to_device(each) for each in (d, e, v))
        columns = context.to_device(d.t().contiguous()).t()
        calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...], torch.Tensor]] = {
            "a @ dense": (lambda x, d: x @ d, (x, dense), p @ r),
            "a @ dense by columns": (lambda x, d: x @ d, (x, columns), p @ r),
            "torch.sparse.mm(a, dense)": (lambda x, d: torch.sparse.mm(x, d), (x, dense), p @ r),
            "a @ vector": (lambda x, v: x @ v, (x, vector), p @ u),
            "a @ b": (lambda x, y: x @ y, (x, y), p @ q),
            "torch.addmm(dense, a, dense, beta=2, alpha=3)": (
                lambda x, d, e: torch.addmm(e, x, d, beta=2, alpha=3),
                (x, dense, other),
                2 * s + 3 * (p @ r),
            ),
        }
        if layout == "coo":
            twice = _twice(context, a)
            calls |= {
                "a @ dense with duplicates": (lambda t, d: t @ d, (twice, dense), p @ r),
                "a @ b with duplicates": (lambda t, y: t @ y, (twice, y), p @ q),
            }
        for name, (call, operands, want) in calls.items():
            about = f"{name} in {layout.upper()} and {dtype}"
            results.judge(about, partial(call, *operands), want)
    results.end()


@cases("precision.sparse_and_quantized", **_NEEDS)
def gradients(context: CaseContext) -> None:
    """The gradients of torch.sparse.mm of a COO and a dense matrix are those of the dense product, at the places of the
    sparse matrix."""
    results = _Results(context)
    for dtype in _DTYPES[:2]:
        a, d, g = _matrix(9, 37, 65, dtype), _dense(10, 65, 41, dtype), _dense(11, 37, 41, dtype)
        p, r, s = (each.double() for each in (a, d, g))
        x = _put(context, a, "coo").requires_grad_()
        dense, given = context.to_device(d).requires_grad_(), context.to_device(g)

        def of(which: int, x: Any = x, dense: Any = dense, given: Any = given) -> Any:
            return torch.autograd.grad(torch.sparse.mm(x, dense), [x, dense], given)[which]

        about = f"gradient of torch.sparse.mm in {dtype} with respect to the"
        results.judge(f"{about} sparse operand", partial(of, 0), (s @ r.t()) * (p != 0))
        results.judge(f"{about} dense operand", partial(of, 1), p.t() @ s)
    results.end()
