"""Compiled programs that compute with numbers: reductions, special values, conversions, sorting."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.compile.comparing import Inputs, compare
from devices.failure import Kind

cases = Cases(Kind.VALUES)

NAN, INF = float("nan"), float("inf")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -2.5, 3.0, 1e-42)


@cases("compile.programs", more=True)
def special_values(context: CaseContext) -> None:
    """Maxima, clamps, comparisons and rounding of NaN, infinities, signed zeros and a subnormal number. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            torch.maximum(x, y),
            x.clamp(-1, 2),
            torch.fmax(x, y),
            x.nan_to_num(1.0, 2.0, 3.0),
            x == y,
            x.isnan(),
            torch.copysign(x, y),
            x.sign() + x.round(),
            functional.relu(x),
            x.amax(0),
            x.argmax(0),
            1 / x,
        )

    compare(
        context,
        program,
        lambda new: (new.of(torch.tensor(SPECIAL)), new.of(torch.tensor(SPECIAL[::-1]).roll(2))),
    )


@cases("compile.programs", more=True)
def pointwise_chain(context: CaseContext) -> None:
    """Many pointwise ops, which a compiler may fuse into one kernel, read the same operands with steps and offsets.
    Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(z: torch.Tensor, y: torch.Tensor) -> Any:
        x = z * 3 - y
        ramps = (z.floor(), z.ceil(), z.trunc(), z.round(), z.abs(), z.neg(), z.sign(), z.frac())
        waves = (z.sin(), z.cos(), z.tanh(), z.sigmoid(), z.erf(), z.atan(), torch.atan2(x, y + 5))
        roots = (z.square() + 1).sqrt(), (z.abs() + 1).log(), z.abs().log1p(), (y + 5).rsqrt()
        growth = z.exp(), z.expm1(), z.pow(3), torch.pow(y.abs() + 1, x * 0.1)
        pairs = (torch.maximum(x, y), torch.minimum(x, y), torch.remainder(z, 2.5), z.fmod(2.5))
        chosen = torch.where(z > 1, x, y), torch.where(z >= 0, y, z), torch.lerp(x, y, 0.3)
        tests = z > y, z >= x, z < y, z <= x, z == x, (z < 0) ^ (x < y)
        return (*ramps, *waves, *roots, *growth, *pairs, *chosen, *tests)

    compare(
        context,
        program,
        lambda new: (
            new(5, 9, layout="transposed+step_inner+offset", grad=True),
            new(5, 9, layout="contiguous+step_inner+offset", grad=True),
        ),
        atol=1e-4,
        rtol=1e-4,
    )


def _operands(new: Inputs) -> tuple[torch.Tensor, ...]:
    """Returns one tensor of each kind for which a kernel may have separate code: a vector with an offset, one
    without elements, a permuted cube, expanded matrices, columns and rows, a float64 tensor, and one with more
    elements than a thread block."""
    return (
        new(7, layout="contiguous+offset", grad=True),
        new(3, 4, 5, layout="transposed", grad=True),
        new(4, 6, layout="contiguous+expand_first", grad=True),
        new(4, 6, layout="contiguous+expand_last+offset", grad=True),
        new(5, 1, layout="contiguous+step_inner", grad=True),
        new(1, 6, layout="contiguous+step_inner+offset", grad=True),
        new(0, 3, grad=True),
        new(3, 5, dtype=torch.float64, layout="transposed+step_inner+offset", grad=True),
        new(40, 41, layout="contiguous+step_inner+offset", grad=True),
    )


def _pointwise(x: torch.Tensor) -> list[torch.Tensor]:
    y = x * 0.5 - 1
    ramps = x.floor(), x.abs(), x.neg(), x.relu(), torch.remainder(x, 2.5), x / 4
    waves = x.sin(), x.cos(), x.tanh(), x.sigmoid(), x.exp()
    real = x.detach().sqrt().nan_to_num()  # a NaN would hide what else is in a sum of results
    roots = real, x.abs().sqrt(), x.pow(3), torch.pow(x.abs() + 1, x * 0.1)
    pairs = x + y, y - x, x * y, y / (x.abs() + 1), torch.maximum(x, y)
    tests = x > y, x >= y, x < y, torch.where(x > 0.5, x, y)
    equal = x.clone()
    ties = x > equal, x < equal, (x >= equal) * y
    return [*ramps, *waves, *roots, *pairs, torch.remainder(y, x.abs() + 1), *tests, *ties]


def _reduced_and_moved(x: torch.Tensor) -> list[torch.Tensor]:
    sums = x.sum(-1), x.mean(-1), x.sum(), x.amax(-1), x.argmax(-1), x.cumsum(-1)
    spread = torch.var_mean(x, -1, correction=0)
    parts = x[..., :-1] * 2, x.select(-1, 0) * 3, x[..., x.new_zeros(2, dtype=torch.int64)]
    moved = x.flip(0), torch.cat([x, x * 2]), x.unsqueeze(0) * 4, x.view(*x.shape, 1) * 5, x.clone()
    return [*sums, *spread, *parts, *moved]


def _multiplied(x: torch.Tensor) -> list[torch.Tensor]:
    y = x * 0.5 - 1
    made = [x @ y.t(), x.t() @ x, torch.addmm(x.sum(), x, y.t())]
    if x.numel():
        made += [functional.conv1d(x[None], y[None, :, :1].expand(2, -1, -1))]
    return made


@cases("compile.programs", more=True)
def pointwise_ops_of_all_operands(context: CaseContext) -> None:
    """Each of many pointwise ops reads operands of all ranks, sizes and layouts and of float64, with gradients. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(*given: torch.Tensor) -> Any:
        return [_pointwise(x) for x in given]

    compare(context, program, _operands, atol=1e-4, rtol=1e-4)


@cases("compile.programs", more=True)
def reductions_and_moves_of_all_operands(context: CaseContext) -> None:
    """Reductions, scans, slices and concatenations read operands of all ranks, sizes and layouts and of float64,
    with gradients. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(*given: torch.Tensor) -> Any:
        return [_reduced_and_moved(x) for x in given]

    compare(context, program, _operands, atol=1e-4, rtol=1e-4)


@cases("compile.programs", more=True)
def products_of_all_operands(context: CaseContext) -> None:
    """Matrix products, with and without a bias, and convolutions of matrices of all sizes and layouts and of
    float64, with gradients. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(*given: torch.Tensor) -> Any:
        return [_multiplied(x) for x in given if x.dim() == 2]

    compare(context, program, _operands, atol=1e-4, rtol=1e-4)


@cases("compile.programs", more=True)
def shifts_of_all_operands(context: CaseContext) -> None:
    """Integer tensors of all ranks, sizes and layouts are shifted bitwise. Each compiled call must leave the same
    outputs, inputs and gradients as the eager call."""

    def program(*given: torch.Tensor) -> Any:
        return [torch.bitwise_left_shift(x, x.flip(0) % 5) for x in given]

    def make(new: Inputs) -> tuple[torch.Tensor, ...]:
        return (
            new(7, dtype=torch.int64, layout="contiguous+offset"),
            new(3, 4, 5, dtype=torch.int64, layout="transposed"),
            new(4, 6, dtype=torch.int64, layout="contiguous+expand_first"),
            new(1, 6, dtype=torch.int64, layout="contiguous+step_inner"),
            new(0, 3, dtype=torch.int64),
            new(40, 41, dtype=torch.int64),
        )

    compare(context, program, make)


@cases("compile.programs", more=True)
def recomputed_ops_of_all_operands(context: CaseContext) -> None:
    """Backward recomputes results of forward, from operands of all ranks, sizes and layouts and of float64. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(
        factor: torch.Tensor, given: list[torch.Tensor], matrices: list[torch.Tensor]
    ) -> Any:
        # The gradient of the factor needs each result.
        def block(x: torch.Tensor) -> list[torch.Tensor]:
            return [each * factor for each in (*_pointwise(x), *_reduced_and_moved(x))]

        def products(x: torch.Tensor) -> list[torch.Tensor]:
            return [each * factor for each in _multiplied(x)]

        return (
            [checkpoint(block, x, use_reentrant=False) for x in given],
            [checkpoint(products, x, use_reentrant=False) for x in matrices],
        )

    def make(new: Inputs) -> tuple[Any, ...]:
        every, wide = "transposed+step_inner+expand_last+offset", torch.float64
        given = new(3, 1, 5, dtype=wide, layout=every, grad=True), new(1030, grad=True)
        matrices = new(40, 30, dtype=wide, layout=every, grad=True), new(5, 1, grad=True)
        empty = new(0, 3, grad=True)
        return new(grad=True), [*given, empty], [*matrices, empty]

    compare(context, program, make, atol=1e-3, rtol=1e-4)


@cases("compile.programs", more=True)
def dimensions_of_one(context: CaseContext) -> None:
    """Reductions, scans, products and concatenations of matrices with one row or one column, and of a single
    element. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(row: torch.Tensor, column: torch.Tensor, one: torch.Tensor) -> Any:
        def of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            means = x.mean(0), x.mean(1, keepdim=True), *torch.var_mean(x, 1, correction=0)
            return (
                *means,
                x.sum(0),
                x.amax(1),
                x.argmax(1),
                x.cumsum(0),
                x.softmax(1),
                x.exp() * x,
            )

        together = torch.cat([row, column.t()]), torch.cat([column, row.t()], 1)
        products = row @ column, column @ row, torch.addmm(one, row, column), row.t() * row
        return (*of(row), *of(column), *together, *products, one.expand(3, 4).sum(0) * 2)

    compare(
        context,
        program,
        lambda new: (
            new(1, 9, grad=True),
            new(9, 1, layout="contiguous+step_inner", grad=True),
            new(1, 1, grad=True),
        ),
        atol=1e-4,
        rtol=1e-4,
    )


@cases("compile.programs", more=True)
def whole_numbers(context: CaseContext) -> None:
    """Integers wrap around, shift, divide towards zero and towards minus infinity, and are summed in int64. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor, small: torch.Tensor) -> Any:
        return (
            torch.div(x, y, rounding_mode="trunc"),
            torch.div(x, y, rounding_mode="floor"),
            torch.remainder(x, y),
            torch.fmod(x, y),
            (small * 100 + 90).sum(0),
            small * 100,
            (x << 3) >> 1,
            x ^ y,
            x.prod(1),
            ~small,
            x.to(torch.uint8),
        )

    def make(new: Any) -> Any:
        x = new(5, 7, dtype=torch.int64, layout="transposed") - 5
        y = new(5, 7, dtype=torch.int64) % 4 - 5
        return x, y, new(40, 6, dtype=torch.int8)

    compare(context, program, make)


@cases("compile.programs", more=True)
def short_floats(context: CaseContext) -> None:
    """float16 and bfloat16 are computed in float32 where eager execution does so, and rounded at the end of each op."""

    def program(h: torch.Tensor, b: torch.Tensor) -> Any:
        return (
            h.exp() * 2 - h,
            b.sum(1),
            (b * b).mean(0),
            h.softmax(1),
            b.cumsum(0),
            h.to(torch.bfloat16) + b,
        )

    compare(
        context,
        program,
        lambda new: (
            new(6, 9, dtype=torch.float16, grad=True),
            new(6, 9, dtype=torch.bfloat16, layout="transposed", grad=True),
        ),
    )


@cases("compile.programs", more=True)
def eight_bit_floats(context: CaseContext) -> None:
    """float8 tensors are converted from and to float32, and copied by views and concatenation. Each compiled call
    must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        y = x.to(torch.float8_e4m3fn)
        z = (x * 3).to(torch.float8_e5m2)
        return y, z.to(torch.float32) + 1, torch.cat([y, y]).to(torch.bfloat16), y.t()

    compare(context, program, lambda new: (new(6, 5),))


@cases("compile.programs", more=True)
def float64_and_constants(context: CaseContext) -> None:
    """float64 keeps its precision, and Python numbers do not change the dtype of a tensor."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        third = 1.0 / 3.0
        return (
            x * third,
            y * third,
            x + 2**53 + 1,
            torch.full((3,), third, dtype=x.dtype, device=x.device) + y[0, :3],
            x.sum() / 7,
        )

    compare(
        context,
        program,
        lambda new: (new(4, 5, dtype=torch.float64), new(4, 5)),
        rtol=1e-7,
        atol=1e-7,
    )


@cases("compile.programs", more=True)
def scans(context: CaseContext) -> None:
    """Cumulative sums, products, maxima and logcumsumexp, along both dimensions of a transposed matrix. Each
    compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        return x.cumsum(0), x.cumsum(1).flip(1), x.cumprod(1), x.cummax(0), x.logcumsumexp(1)

    compare(
        context,
        program,
        lambda new: (new(9, 12, layout="transposed", grad=True),),
        atol=1e-4,
        rtol=1e-4,
    )


@cases("compile.programs", more=True)
def sorted_values(context: CaseContext) -> None:
    """Stable sorts with equal elements, the largest values with their indices, and searchsorted. Each compiled call
    must leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        values, places = torch.sort(i, dim=1, stable=True, descending=True)
        top = torch.topk(x, 3, dim=0)
        borders = torch.sort(x[0]).values.contiguous()
        return (
            values,
            places,
            top.values * 2,
            top.indices,
            torch.searchsorted(borders, x.contiguous()),
            torch.bucketize(x, borders),
        )

    compare(
        context,
        program,
        lambda new: (new(6, 8, layout="transposed"), new(6, 40, dtype=torch.int64)),
    )


@cases("compile.programs", more=True)
def sums_of_squares(context: CaseContext) -> None:
    """Norms, variances and logsumexp, over one dimension and over several. Each compiled call must leave the same
    outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor) -> Any:
        return (
            torch.linalg.vector_norm(x, 2, dim=(0, 2)),
            *torch.var_mean(x, dim=(1, 2), correction=0),
            torch.logsumexp(x, (0, 1)),
            x.softmax(1).log(),
            x.norm(1, dim=2),
            x.std(0),
        )

    compare(
        context,
        program,
        lambda new: (new(4, 5, 6, layout="contiguous+step_inner", grad=True),),
        atol=1e-4,
        rtol=1e-4,
    )


@cases("compile.programs", more=True)
def ties_and_booleans(context: CaseContext) -> None:
    """argmax returns the first of equal maxima, booleans are reduced and counted, and an empty mask selects nothing.
    Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(i: torch.Tensor, flag: torch.Tensor) -> Any:
        return (
            i.argmax(1),
            i.argmin(0),
            i.max(1),
            flag.any(0),
            flag.all(1),
            flag.sum(),
            torch.where(flag, i, -i).amin(0),
            i.masked_fill(flag, 0),
            flag & ~flag,
        )

    compare(
        context,
        program,
        lambda new: (
            new(7, 30, dtype=torch.int64, layout="transposed"),
            new(7, 30, dtype=torch.bool),
        ),
    )


@cases("compile.programs", more=True)
def complex_numbers(context: CaseContext) -> None:
    """Products, absolute values, angles and exponentials of complex numbers, with gradients. Each compiled call must
    leave the same outputs, inputs and gradients as the eager call."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x * y).abs(), torch.view_as_real(x.exp()), (x @ y.t()).angle(), x.sum(0)

    compare(
        context,
        program,
        lambda new: (
            new(3, 4, dtype=torch.complex64, grad=True),
            new(3, 4, dtype=torch.complex64, layout="transposed", grad=True),
        ),
        atol=1e-4,
        rtol=1e-4,
    )


@cases("compile.programs", more=True)
def products(context: CaseContext) -> None:
    """A program computes matrix products of transposed and strided operands, with a bias, in batches, and of
    integers. Each compiled call must leave the same outputs, inputs and gradients as the eager call."""

    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, i: torch.Tensor) -> Any:
        return (
            torch.addmm(c, a, b, beta=0.5),
            torch.baddbmm(c.expand(2, 6, 7), a.expand(2, 6, 5), b.expand(2, 5, 7)),
            a.t() @ c,
            torch.outer(a[0], b[0]),
            i @ i.t(),
            a[1] @ b,
        )

    compare(
        context,
        program,
        lambda new: (
            new(6, 5, layout="transposed", grad=True),
            new(5, 7, layout="contiguous+step_inner", grad=True),
            new(6, 7, grad=True),
            new(4, 5, dtype=torch.int64),
        ),
        atol=1e-4,
        rtol=1e-4,
    )


@cases("compile.programs", more=True)
def tensors_made_inside(context: CaseContext) -> None:
    """arange, full, eye, linspace and zeros_like inside of the program create tensors on the device of an input;
    zeros_like and empty_strided give the strides of eager execution."""

    def program(x: torch.Tensor) -> Any:
        return (
            x + torch.arange(5, device=x.device),
            torch.eye(5, 6, device=x.device).t() * 2,
            torch.zeros_like(x),
            torch.full_like(x, 3).add_(x),
            torch.linspace(0, 1, 5, device=x.device) * x[0],
            torch.empty_like(x).fill_(4),
            torch.empty_strided((5, 6), (1, 5), device=x.device).fill_(2),
            x.new_ones(2, 3),
            torch.tril(torch.ones(5, 5, device=x.device, dtype=torch.bool)),
        )

    compare(context, program, lambda new: (new(6, 5, layout="transposed"),))
