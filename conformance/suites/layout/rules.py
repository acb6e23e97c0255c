"""Checks of documented rules, made on small tensors that are built for each rule (see
:mod:`conformance.checks.ops.standalone_checks`)."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from conformance.checks.ops.context import OpContext
from conformance.checks.ops.script import NotApplicable, NotForThisDevice
from conformance.checks.ops.standalone_checks import run
from opinfo.compare import Wrong, raised

MEMORY_FORMAT, TYPE_PROMOTION = "layout.memory_format", "layout.type_promotion"
SPECIAL_VALUES = "layout.special_values"
BETA_ZERO, EMPTY_REDUCE = "layout.beta_zero", "layout.empty_reduce"


#: Dtypes in which the result of a division by zero is undefined.
INTEGERS = frozenset({"uint8", "int8", "int16", "int32", "int64"})


def other_arguments(ctx: OpContext) -> tuple[Any, ...]:
    """Return the arguments that a unary op takes after its input, for example the order of ``polygamma`` or the value
    of ``fill``. The first sample whose only tensor is the input provides them."""
    for sample in ctx.samples:
        if len(sample.tensors) == 1 and sample.call.args[0] is sample.tensors[0]:
            return tuple(sample.call.args[1:])
    return ()


# -- layout.memory_format: ops that take ``memory_format`` honour it
# (https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-memory-format).

#: Sizes of the input and orders of its dimensions in memory. All are dense, so preserve_format has one right answer.
_DENSE_4D = ((2, 3, 4, 5), ((0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)))
_DENSE_5D = ((2, 3, 2, 4, 5), ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0)))


def memory_format(ctx: OpContext) -> None:
    """Call the op with every memory format: with the 2d formats on dense inputs of rank 4 in four orders of their
    dimensions, and with ``channels_last_3d`` on dense inputs of rank 5 in two orders. The result must have the
    strides of the format and the values of the input."""
    families = ctx.traits.families
    extras: list[tuple[Any, ...]] = [()]
    if "memory_format.needs_value" in families:
        extras = [(1,)]
    elif "memory_format.needs_dtype" in families:
        # Convert to the input's own dtype (no conversion needed) and to another dtype.
        other = torch.float64 if ctx.dtype != "float64" else torch.float32
        extras = [(getattr(torch, ctx.dtype),), (other,)]
    formats = ["contiguous_format", "channels_last", "preserve_format"]
    if "memory_format.no_preserve" in families:
        formats.remove("preserve_format")
    given: dict[str, Any] = {
        "dtype": ctx.dtype,
        "copies": "memory_format.no_values" not in families,
    }
    with ctx.running(MEMORY_FORMAT):
        for names, (size, orders) in ((formats, _DENSE_4D), (["channels_last_3d"], _DENSE_5D)):
            for extra, (number, order), name in product(extras, enumerate(orders), names):
                label = name if name.endswith("_format") else f"{name}_format"
                given |= {"size": size, "order": order, "name": name, "extra": extra}
                run(ctx, MEMORY_FORMAT, label, honours, number, **given)


def honours(
    op: Any,
    move: Any,
    back: Any,
    size: Any,
    order: Any,
    name: Any,
    dtype: Any,
    extra: Any,
    copies: Any,
) -> Wrong | None:
    values = (torch.arange(torch.Size(size).numel()) % 2).reshape(size)
    values = values.to(getattr(torch, dtype))
    stride, step = [0] * len(size), 1
    for dim in reversed(order):
        stride[dim] = step
        step *= size[dim]
    given = move(torch.empty_strided(size, stride, dtype=values.dtype).copy_(values))
    got = op(given, *extra, memory_format=getattr(torch, name))
    strides = f"for an input of strides {tuple(given.stride())}"
    if name == "preserve_format":
        if tuple(got.stride()) != tuple(given.stride()):
            return Wrong(
                "strides", f"the input's strides {tuple(given.stride())}", tuple(got.stride()), name
            )
    elif not got.is_contiguous(memory_format=getattr(torch, name)):
        return Wrong("strides", f"strides of {name} {strides}", tuple(got.stride()))
    if copies:
        held, want = back(got).to(torch.complex64), values.to(got.dtype).to(torch.complex64)
        if not torch.equal(held, want):
            return Wrong("values", "a copy of the input's values", "different values", name)
    return None


# -- layout.type_promotion: result dtypes for mixed dtypes, 0-d tensors and Python scalars; 64-bit integers keep all
# bits (https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc). The reference for the dtype
# is the meta device, which agreed with FakeTensor in 25,200 calls of all binary ops, dtypes and scalars. If the device
# is not the CPU, the dtype that eager CPU gives is accepted too.

_OTHERS = ("bool", "uint8", "int64", "bfloat16", "float32", "float64", "complex64")
_SCALARS: tuple[Any, ...] = (True, 2, 0.5, 0.5j)


def type_promotion(ctx: OpContext) -> None:
    """Check the result dtype of a binary op for tensors of several dtypes and for Python scalars, or check that a unary
    op promotes integers to floating point."""
    with ctx.running(TYPE_PROMOTION):
        if ctx.traits.ufunc == "unary":
            extra = other_arguments(ctx)
            run(ctx, TYPE_PROMOTION, "int_to_float", int_to_float, dtype=ctx.dtype, extra=extra)
            return
        declared = sorted(ctx.device.descriptor.dtypes)
        # Some ops take only two operands of the same dtype.
        others = [each for each in dict.fromkeys((ctx.dtype, *_OTHERS)) if each in declared]
        operands: list[tuple[str, Any]] = [
            (form, other) for other in others for form in ("tensors", "0-d")
        ]
        if ctx.traits.takes_python_scalar:
            operands += [("python_scalar", scalar) for scalar in _SCALARS]
        given: dict[str, Any] = {"dtype": ctx.dtype, "fake_only": ctx.device.fake_only}
        given["declared"] = declared
        for number, (form, other) in enumerate(operands, 1):
            run(ctx, TYPE_PROMOTION, form, promotes, number, other=other, form=form, **given)
        if ctx.traits.takes_python_scalar and ctx.dtype == "int64":
            run(ctx, TYPE_PROMOTION, "int64_bits", keeps_bits)


def promotes(
    op: Any, move: Any, back: Any, dtype: Any, other: Any, form: Any, fake_only: Any, declared: Any
) -> Wrong | None:
    """Return a failure if the dtype of the result is neither the meta device's nor eager CPU's; otherwise None.
    If ``fake_only`` is true, only the meta device's dtype is accepted. ``other`` is the dtype of the second operand, or
    a Python scalar. Result dtypes that the descriptor does not declare are not checked."""
    left, is_tensor = torch.tensor([1, 1, 2, 3]).to(getattr(torch, dtype)), form != "python_scalar"
    if is_tensor:
        right = torch.tensor([1, 1, 1, 2] if form == "tensors" else 1).to(getattr(torch, other))
        what = f"{dtype} with {other} ({form})"
    else:
        right, what = other, f"{dtype} with the Python scalar {other!r}"
    try:
        want = op(left.to("meta"), right.to("meta") if is_tensor else right).dtype
    except Exception as exc:
        raise NotApplicable("the meta device refuses the operands") from exc
    if str(want).removeprefix("torch.") not in declared:
        raise NotForThisDevice("the result has a dtype that the descriptor does not declare")
    try:
        got = back(op(move(left), move(right) if is_tensor else right))
    except Exception as exc:  # any type: a vendor's framework may raise exceptions of its own
        try:
            op(left, right)
        except Exception:
            # The clause only judges results, not refusals.
            raise NotApplicable("the CPU refuses the operands too") from exc
        if isinstance(exc, NotImplementedError):
            raise
        return raised(exc, f"a result of dtype {want}", subject=what)
    if got.dtype != want and (fake_only or got.dtype != op(left, right).dtype):
        return Wrong("dtype", want, got.dtype, what)
    return None


def keeps_bits(op: Any, move: Any, back: Any) -> Wrong | None:
    big = 2**53 + 1  # the first integer that float64 cannot hold
    left = torch.tensor([0, 1, 2**53, 2**53 + 1, -(2**53) - 1])
    try:
        # Try a small operand first: an op may loop as many times as its operand says.
        if op(left, torch.ones_like(left)).dtype not in (torch.int64, torch.bool):
            raise NotApplicable("the op computes in floating point")
        want = op(left, torch.full_like(left, big))
    except RuntimeError as exc:
        raise NotApplicable("the CPU refuses the operands") from exc
    got = back(op(move(left), big))
    wanted, what = (
        f"{want.tolist()}, as for a tensor operand",
        f"a call with the Python scalar {big}",
    )
    return None if torch.equal(got, want) else Wrong("values", wanted, got.tolist(), what)


def int_to_float(op: Any, move: Any, back: Any, dtype: Any, extra: Any) -> Wrong | None:
    values = torch.tensor([0, 1, 1, 0] if dtype == "bool" else [1, 1, 2, 3])
    values = values.to(getattr(torch, dtype))
    try:
        want = op(values.to(torch.get_default_dtype()), *extra)
    except (RuntimeError, ValueError) as exc:
        raise NotApplicable("the input is outside the op's domain") from exc
    got = back(op(move(values), *extra))
    if got.dtype != torch.get_default_dtype():
        return Wrong("dtype", torch.get_default_dtype(), got.dtype, f"{dtype} input")
    return None if is_close(got, want, atol=1e-6) else Wrong("values", want.tolist(), got.tolist())


# -- layout.special_values: documented rules only: NaN, infinities, and bool bytes other than 0 and 1.


def special_values(ctx: OpContext) -> None:
    families, policy = ctx.traits.families, ctx.subject.nan_policy
    with ctx.running(SPECIAL_VALUES):
        if ctx.dtype == "bool":
            binary = ctx.traits.ufunc == "binary"
            extra = () if binary else other_arguments(ctx)
            run(ctx, SPECIAL_VALUES, "bool_bytes", bool_bytes, binary=binary, extra=extra)
            return
        if "special.divides" in families and ctx.dtype in INTEGERS:
            run(ctx, SPECIAL_VALUES, "zero_divisor", zero_divisors, dtype=ctx.dtype)
            return
        extra = (2.0,) if "reduce.needs_order" in families else ()
        propagates = policy == "propagate" or "special.nan_reduce" in families
        omits = policy == "omit" or "special.nan_omit" in families
        rules: tuple[tuple[bool, Any, dict[str, Any]], ...] = (
            (propagates, reduces_nan, {"omits": False, "extra": extra}),
            (omits, reduces_nan, {"omits": True, "extra": extra}),
            ("special.nan_binary" in families, binary_nan, {"ignores": False}),
            ("special.nan_ignore" in families, binary_nan, {"ignores": True}),
            ("special.nan_clamp" in families, clamps_nan, {}),
            ("special.nan_scan" in families, scans_nan, {}),
            ("special.nan_last" in families, sorts_nan_last, {}),
        )
        for number, strided in enumerate((False, True)):
            for holds, check, given in rules:
                if holds:
                    name = "nan_strided" if strided else "nan"
                    name = "nan_last" if check is sorts_nan_last else name
                    given = {"dtype": ctx.dtype, "strided": strided, **given}
                    run(ctx, SPECIAL_VALUES, name, check, number, **given)


def zero_divisors(op: Any, move: Any, back: Any, dtype: Any) -> Wrong | None:
    """Divide integers, two of them by zero. For a zero divisor, an exception (ZeroDivisionError on the CPU) and any
    value (as on CUDA) are both accepted. The quotients by other divisors must be right, and the process must not
    crash."""
    left, right = (
        torch.tensor(values).to(getattr(torch, dtype)) for values in ([7, 9, 0, 5], [0, 2, 0, 3])
    )
    try:
        got = back(op(move(left), move(right)))
    except (RuntimeError, ZeroDivisionError):
        return None
    want = op(left[1::2], right[1::2])
    same = tuple(got.shape) == (4,) and torch.equal(got[1::2], want)
    return (
        None
        if same
        else Wrong(
            "values",
            want.tolist(),
            got[1::2].tolist(),
            "the results for the operand pairs (9, 2) and (5, 3)",
        )
    )


def bool_bytes(op: Any, move: Any, back: Any, binary: Any, extra: Any) -> Wrong | None:
    # c10/util/Load.h: a bool is loaded as "any byte that is not zero is true".
    odd = move(torch.tensor([0, 1, 2, 255, 0, 128], dtype=torch.uint8)).view(torch.bool)
    plain = torch.tensor([False, True, True, True, False, True])
    other = torch.tensor([True, False, True, True, False, False])
    try:
        want = op(plain, other) if binary else op(plain, *extra)
    except (RuntimeError, TypeError) as exc:
        raise NotApplicable("the op is not defined for bool") from exc
    got = back(op(odd, move(other)) if binary else op(odd, *extra))
    if got.dtype == torch.bool:
        # Any non-zero output byte counts as true: the check is about reading such bytes, not about writing them.
        got = got.view(torch.uint8).bool()
    if want.dtype == torch.complex32:  # has no comparison kernels
        want = want.to(torch.complex64)
    what = "bytes [0, 1, 2, 255, 0, 128] as bool"
    return None if is_close(got, want) else Wrong("values", want.tolist(), got.tolist(), what)


def is_close(got: torch.Tensor, want: torch.Tensor, atol: float = 1e-8) -> bool:
    """Return True if two CPU tensors have the same shape and close values. Dtypes may differ, because layout.values
    judges them."""
    if got.shape != want.shape:
        return False
    got = got.to(want.dtype)
    return torch.equal(got, want) or torch.allclose(got, want, atol=atol, equal_nan=True)


def spread(values: torch.Tensor, move: Any, strided: Any) -> torch.Tensor:
    """Return a copy of the values on the device. If ``strided`` is true, the copy consists of every second element of a
    larger tensor."""
    there: torch.Tensor = move(values.repeat_interleave(2, -1) if strided else values)
    return there[..., ::2] if strided else there


def reduces_nan(
    op: Any, move: Any, back: Any, dtype: Any, strided: Any, omits: Any, extra: Any
) -> Wrong | None:
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, float("nan"), 3.0, 4.0]])
    given = spread(values.to(getattr(torch, dtype)), move, strided)
    try:
        got = op(given, *extra, dim=1)
    except TypeError:
        got = op(given, *extra)
    got = back(got[0] if isinstance(got, (tuple, list)) else got)
    last = bool(torch.isnan(got.reshape(-1)[-1]))
    if last == omits:
        rule = (
            "no NaN in the result, because NaN is ignored"
            if omits
            else "NaN for the row with a NaN"
        )
        return Wrong("values", f"{rule}, as documented", got.tolist())
    if got.dim() and bool(torch.isnan(got[0])):
        return Wrong("values", "no NaN for the row without a NaN", got.tolist())
    return None


def nan_at(got: Any, want: Any) -> Wrong | None:
    """Return a failure if NaN is at unexpected positions of ``got``; otherwise None. ``want`` contains 1 where NaN
    is expected and 0 elsewhere. The failure shows the first five positions."""
    want, held = [bool(each) for each in want], got.isnan().tolist()
    text = "{} as the first values of isnan()"
    return None if held == want else Wrong("values", text.format(want[:5]), held[:5])


def binary_nan(
    op: Any, move: Any, back: Any, dtype: Any, strided: Any, ignores: Any
) -> Wrong | None:
    nan = float("nan")
    left = torch.tensor([nan, 1.0, nan, 2.0, float("inf")] * 4).to(getattr(torch, dtype))
    right = torch.tensor([1.0, nan, nan, 3.0, -float("inf")] * 4).to(getattr(torch, dtype))
    got = back(op(spread(left, move, strided), spread(right, move, strided)))
    return nan_at(got, ([0, 0, 1, 0, 0] if ignores else [1, 1, 1, 0, 0]) * 4)


def clamps_nan(op: Any, move: Any, back: Any, dtype: Any, strided: Any) -> Wrong | None:
    values = torch.tensor([float("nan"), -1.0, 0.5, 2.0, float("inf")] * 4)
    bound = move(torch.full((20,), 0.25).to(getattr(torch, dtype)))
    got = back(op(spread(values.to(getattr(torch, dtype)), move, strided), bound))
    return nan_at(got, [1, 0, 0, 0, 0] * 4)


def scans_nan(op: Any, move: Any, back: Any, dtype: Any, strided: Any) -> Wrong | None:
    values = torch.tensor([1.0, 2.0, float("nan"), 4.0, 0.5]).to(getattr(torch, dtype))
    got = op(spread(values, move, strided), 0)
    return nan_at(back(got[0] if isinstance(got, (tuple, list)) else got), [0, 0, 1, 1, 1])


def sorts_nan_last(op: Any, move: Any, back: Any, dtype: Any, strided: Any) -> Wrong | None:
    nan = float("nan")
    values = torch.tensor([2.0, nan, -1.0, float("inf"), nan, 0.5]).to(getattr(torch, dtype))
    got = op(spread(values, move, strided))
    if isinstance(got, torch.Tensor) and got.dtype == torch.int64:  # argsort
        ordered = values[back(got)]
    else:
        ordered = back(got[0] if isinstance(got, (tuple, list)) else got)
    want = "[-1.0, 0.5, 2.0, inf, nan, nan]"
    return None if str(ordered.tolist()) == want else Wrong("values", want, ordered.tolist())


# -- layout.beta_zero: with beta = 0 the input is not read.

#: Shapes of (input, first factor, second factor) by the name of the op's family.
_SHAPES = {
    "beta_zero.mm": ((4, 5), (4, 3), (3, 5)),
    "beta_zero.mv": ((4,), (4, 3), (3,)),
    "beta_zero.outer": ((4, 5), (4,), (5,)),
    "beta_zero.bmm": ((2, 4, 5), (2, 4, 3), (2, 3, 5)),
    "beta_zero.sum_bmm": ((4, 5), (2, 4, 3), (2, 3, 5)),
}


def beta_zero(ctx: OpContext) -> None:
    """Call the op with ``beta=0`` on an input full of NaN or infinity, which must not affect the result, and on
    matrices whose inner dimension K has size 0, for which every element of ``out=`` must be overwritten."""
    with ctx.running(BETA_ZERO):
        for family, shapes in _SHAPES.items():
            if family not in ctx.traits.families:
                continue
            given: dict[str, Any] = {"shapes": shapes, "dtype": ctx.dtype}
            for number, poison in enumerate((float("nan"), float("inf"))):
                run(ctx, BETA_ZERO, "beta_zero", ignores_input, number, poison=poison, **given)
            if family != "beta_zero.outer" and ctx.subject.has_out:
                run(ctx, BETA_ZERO, "k_zero", overwrites, **given)


def ignores_input(
    op: Any, move: Any, back: Any, shapes: Any, dtype: Any, poison: Any
) -> Wrong | None:
    kind = getattr(torch, dtype)
    if not (kind.is_floating_point or kind.is_complex):
        # Integers and bool have no NaN; a large input must be ignored all the same.
        poison = True if kind == torch.bool else torch.iinfo(kind).max
    first = (torch.arange(torch.Size(shapes[1]).numel()) % 3).reshape(shapes[1]).to(kind)
    second = (torch.arange(torch.Size(shapes[2]).numel()) % 2).reshape(shapes[2]).to(kind)
    want = op(torch.zeros(shapes[0], dtype=kind), first, second, beta=0)
    full = move(torch.full(shapes[0], poison, dtype=kind))
    got = back(op(full, move(first), move(second), beta=0))
    what = f"beta = 0 and an input full of {poison}"
    return None if is_close(got, want) else Wrong("values", want.tolist(), got.tolist(), what)


def overwrites(op: Any, move: Any, back: Any, shapes: Any, dtype: Any) -> Wrong | None:
    kind = getattr(torch, dtype)
    inner = [list(shapes[1]), list(shapes[2])]
    inner[0][-1] = 0
    inner[1][-2 if len(inner[1]) > 1 else 0] = 0
    stale = 7 if not kind.is_floating_point and not kind.is_complex else float("nan")
    out = move(torch.full(shapes[0], stale, dtype=kind))
    given = move(torch.ones(shapes[0], dtype=kind))
    first, second = (move(torch.zeros(shape, dtype=kind)) for shape in inner)
    op(given, first, second, beta=0, out=out)
    held = back(out)
    same = torch.equal(held, torch.zeros(shapes[0], dtype=kind))
    what = "out= of a product with inner dimension 0 and beta = 0"
    return None if same else Wrong("values", "zeros", held.tolist(), what)


# -- layout.empty_reduce: a reduction of an empty tensor gives the op's identity, or raises as the CPU does.


def empty_reduce(ctx: OpContext) -> None:
    """Reduce a tensor of shape (2, 0, 3) over dimension 1, and a tensor of shape (0,) over all dimensions. The
    result must be the op's identity. If the op has none, it must give the CPU's result, or raise as the CPU does."""
    with ctx.running(EMPTY_REDUCE):
        given: dict[str, Any] = {
            "dtype": ctx.dtype,
            "identity": ctx.subject.identity,
            "fake_only": ctx.device.fake_only,
            "extra": (2.0,) if "reduce.needs_order" in ctx.traits.families else (),
        }
        run(ctx, EMPTY_REDUCE, "dim", reduces_nothing, 0, size=(2, 0, 3), dim=1, **given)
        run(ctx, EMPTY_REDUCE, "all", reduces_nothing, 1, size=(0,), dim=None, **given)


def reduces_nothing(
    op: Any,
    move: Any,
    back: Any,
    size: Any,
    dim: Any,
    dtype: Any,
    identity: Any,
    fake_only: Any,
    extra: Any,
) -> Wrong | None:
    empty = torch.zeros(size, dtype=getattr(torch, dtype))
    over = {} if dim is None else {"dim": dim}
    try:
        want, refused = op(empty, *extra, **over), None
    except Exception as exc:
        want, refused = None, exc
    if dim is None and isinstance(refused, TypeError):
        raise NotApplicable("the op cannot be called without the argument dim")
    try:
        got = back(op(move(empty), *extra, **over))
    except Exception as exc:
        if isinstance(exc, NotImplementedError) and not refused:
            raise
        if identity is not None:
            return raised(exc, f"the identity {identity}")
        return None if fake_only or refused else raised(exc, f"{want}, as on the CPU")
    if dim is not None and tuple(got.shape) != (2, 3):
        return Wrong("shape", "shape (2, 3)", tuple(got.shape))
    if identity is not None:
        same = bool((got == identity).all())
        return None if same else Wrong("values", f"the identity {identity}", got.tolist())
    if fake_only:
        # The op declares no identity, so a finite number would be invented; NaN and infinity are accepted.
        made_up = got.is_floating_point() and bool(got.isfinite().any())
        rule = "NaN, infinity or an exception, because the op has no identity"
        return Wrong("not_raised", rule, got.tolist()) if made_up else None
    if refused:
        return Wrong("not_raised", f"{type(refused).__name__}, as on the CPU", got.tolist())
    return None if is_close(got, want) else Wrong("values", want.tolist(), got.tolist())
