"""Checks of the clause layout.as_strided. Strides with gaps, overlaps and offsets must address the right elements of a
storage, new tensors must get a large enough storage, and requests beyond the storage must raise. Expected values come
from index arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch

from conformance.checks.ops.context import OpContext
from conformance.checks.ops.evidence import facts_of
from conformance.checks.ops.standalone_checks import run
from conformance.suites.layout.reads import outside_storage
from opinfo.compare import Wrong

AS_STRIDED = "layout.as_strided"

#: (size, stride, offset): dense, gaps, transposed, overlapping, expanded, size 1, 0-d, size 0.
_VIEWS = (
    ((3, 4), (4, 1), 0),
    ((3, 4), (10, 2), 1),
    ((4, 3), (1, 5), 7),
    ((5, 3), (2, 1), 3),
    ((4, 3), (0, 1), 2),
    ((2, 1, 3), (9, 100, 2), 5),
    ((), (), 11),
    ((0, 3), (3, 1), 4),
)

#: Shapes of the viewed tensors, of many sizes and ranks. Most sizes are not multiples of usual tile and vector sizes.
_BASES = (
    *((7,), (17,), (65,), (1025,), (3, 1), (3, 1025), (331, 2), (300, 300)),
    *((2, 3, 3), (3, 16, 2), (2, 33, 65), (2, 5, 1, 17), (2, 3, 1, 5, 4)),
)


def as_strided(ctx: OpContext) -> None:
    families = ctx.traits.families
    with ctx.running(AS_STRIDED):
        for number, (size, stride, offset) in enumerate(_VIEWS):
            given: dict[str, Any] = {"size": size, "stride": stride, "dtype": ctx.dtype}
            if "as_strided.read" in families:
                run(ctx, AS_STRIDED, "addresses", addresses, number, offset=offset, **given)
                run(ctx, AS_STRIDED, "of_view", addresses_of_view, number, offset=offset, **given)
                run(ctx, AS_STRIDED, "in_place", restrides, number, offset=offset, **given)
                run(ctx, AS_STRIDED, "set_", set_addresses, number, offset=offset, **given)
            if "as_strided.scatter" in families and not overlaps(size, stride):
                run(ctx, AS_STRIDED, "addresses", scatters, number, offset=offset, **given)
            for family, like in (
                ("as_strided.allocate", False),
                ("as_strided.allocate_like", True),
            ):
                if family in families:
                    run(ctx, AS_STRIDED, "allocates", allocates, number, like=like, **given)
        if "as_strided.read" in families:
            run(ctx, AS_STRIDED, "out_of_range", out_of_range, dtype=ctx.dtype)
            for number, shape in enumerate(_BASES):
                run(ctx, AS_STRIDED, "of_base", reads_base, number, shape=shape, dtype=ctx.dtype)
        if "as_strided.scatter" in families:
            for number, shape in enumerate(_BASES):
                run(ctx, AS_STRIDED, "of_base", writes_base, number, shape=shape, dtype=ctx.dtype)


def overlaps(size: Any, stride: Any) -> bool:
    """Return True if two elements of a view with the given size and stride have the same address."""
    places = element_places(size, stride, 0)
    return len(set(places)) < len(places)


def element_places(size: Any, stride: Any, offset: Any) -> list[int]:
    """Return the storage index of each element of a view, in row-major order."""
    index = torch.full(size, offset)
    for dim, (n, step) in enumerate(zip(size, stride)):
        index = index + (torch.arange(n) * step).view(
            [-1 if d == dim else 1 for d in range(len(size))]
        )
    places: list[int] = index.reshape(-1).tolist()
    return places


def numbered(dtype: Any) -> torch.Tensor:
    """Return a CPU tensor of 60 elements as content of a storage: the numbers 0 to 59, or alternating False and True
    for bool."""
    return (torch.arange(60) % (2 if dtype == "bool" else 60)).to(getattr(torch, dtype))


def misread(got: Any, base: Any, size: Any, stride: Any, offset: Any, what: Any) -> Wrong | None:
    """Return a failure if the elements of ``got``, the result of as_strided on ``base``, differ from those that
    index arithmetic gives for the size, stride and offset; otherwise None. ``what`` names the result in the failure.
    Both tensors are on the CPU."""
    want = base.to(torch.complex64).real[element_places(size, stride, offset)].tolist()
    held = got.to(torch.complex64).real.reshape(-1).tolist()
    return None if held == want else Wrong("values", f"elements {want}", held, what)


def addresses(
    op: Any, move: Any, back: Any, size: Any, stride: Any, offset: Any, dtype: Any
) -> Wrong | None:
    base = numbered(dtype)
    got = back(op(move(base), size, stride, offset))
    if tuple(got.shape) != size:
        return Wrong("shape", f"shape {size}", tuple(got.shape))
    return misread(got, base, size, stride, offset, "")


def addresses_of_view(
    op: Any, move: Any, back: Any, size: Any, stride: Any, offset: Any, dtype: Any
) -> Wrong | None:
    """Call as_strided on a transposed view and on a square matrix. The result must address the storage by the given
    stride, independently of the strides of the input."""
    base = numbered(dtype)
    for what, of in (
        ("as_strided of a transposed view", move(base).view(6, 10).t()),
        ("as_strided of a square matrix", move(base)[:36].view(6, 6)),
    ):
        wrong = misread(back(op(of, size, stride, offset)), base, size, stride, offset, what)
        if wrong is not None:
            return wrong
    return None


def restrides(
    op: Any, move: Any, back: Any, size: Any, stride: Any, offset: Any, dtype: Any
) -> Wrong | None:
    """Call as_strided_ on a vector, a matrix, a transposed view, a square matrix, and a square matrix that starts at
    storage offset 3. The result must have the requested size, stride and storage offset, and address the right
    elements."""
    base = numbered(dtype)
    for shape, start, transposed in (
        ((60,), 0, False),
        ((6, 10), 0, False),
        ((6, 10), 0, True),
        ((6, 6), 0, False),
        ((6, 6), 3, False),
    ):
        view = move(base)[start : start + math.prod(shape)].view(shape)
        if transposed:
            view = view.t()
        view.as_strided_(size, stride, offset)
        made = tuple(view.shape), tuple(view.stride()), view.storage_offset()
        of = "a transposed view" if transposed else f"shape {shape}"
        what = f"as_strided_ of {of}" + (f" from element {start} on" if start else "")
        if made != (size, stride, offset):
            expected = f"size, stride and storage offset {(size, stride, offset)}"
            return Wrong("strides", expected, made, what)
        if (wrong := misread(back(view), base, size, stride, offset, what)) is not None:
            return wrong
    return None


def reads_base(op: Any, move: Any, back: Any, shape: Any, dtype: Any) -> Wrong | None:
    """Call as_strided and as_strided_ on a tensor of the given shape to get two views: all elements with the dimensions
    reversed, and every third element from the second on. The tensor starts at storage offset 0 or 1, consists of every
    second element of its storage, or is transposed; the result must have the right elements in each case.
    Floating-point values include infinity, NaN and -0.0."""
    size = math.prod(shape)
    flat = (torch.arange(2 * size + 1) % (2 if dtype == "bool" else 61)).to(getattr(torch, dtype))
    if flat.dtype.is_floating_point and flat.dtype.itemsize > 1:
        flat[1:5] = torch.tensor([math.inf, -0.0, math.nan, -math.inf])[: len(flat[1:5])]
    steps = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    backwards, thirds = tuple(reversed(range(len(shape)))), flat[1:size:3]
    bases: dict[str, Any] = {
        "": lambda held: held[:size].view(shape),
        " at storage offset 1": lambda held: held[1 : size + 1].view(shape),
        " made of every second element": lambda held: held[1:].view(*shape, 2)[..., 1],
        " that is transposed": lambda held: held[:size].view(shape[::-1]).permute(backwards),
    }
    for given, want in (
        ((tuple(shape[::-1]), tuple(steps[::-1]), 0), flat[:size].view(shape).permute(backwards)),
        ((tuple(thirds.shape), (3,), 1), thirds),
    ):
        for how, base in bases.items():
            for name, call in (("", op), ("as_strided_: ", torch.Tensor.as_strided_)):
                asked = "{}size {}, stride {} and storage offset {}".format(name, *given)
                what = f"{asked} of a tensor of shape {shape}{how}"
                wrong = other_bits(back(call(base(move(flat)), *given)), want, what)
                if wrong is not None:
                    return wrong
    return None


def other_bits(got: Any, want: Any, what: Any) -> Wrong | None:
    """Return a failure that names the first element of ``got`` whose bits differ from ``want``, or the shape of
    ``got`` if the shapes differ; otherwise None. ``what`` names the result in the failure. Both tensors are on the
    CPU."""
    if got.shape != want.shape:
        return Wrong("shape", f"shape {tuple(want.shape)}", tuple(got.shape), what)
    # A tensor of one element is contiguous with any stride, but view(torch.uint8) needs the standard one.
    dense = [t.clone(memory_format=torch.contiguous_format).view(-1) for t in (got, want)]
    held, expected = (t.view(torch.uint8) for t in dense)
    if torch.equal(held, expected):
        return None
    place = int((held != expected).nonzero()[0]) // want.element_size()
    found, wanted = (t[place].item() for t in dense)
    return Wrong("values", wanted, found, f"{what}, element {place}")


def writes_base(op: Any, move: Any, back: Any, shape: Any, dtype: Any) -> Wrong | None:
    """Use as_strided_scatter to replace every third element of a tensor of the given shape, from the second on. The
    bits of the result must be right."""
    most = 2 if dtype == "bool" else 61
    flat = torch.arange(math.prod(shape))
    base, other = ((flat + more) % most for more in (0, 1))
    want = torch.where(flat % 3 == 1, other, base).to(getattr(torch, dtype)).view(shape)
    base, source = (t.to(want.dtype) for t in (base.view(shape), other[1::3]))
    got = back(op(move(base), move(source), tuple(source.shape), (3,), 1))
    what = f"as_strided_scatter to every third element of a tensor of shape {shape}"
    return other_bits(got, want, what)


def set_addresses(
    op: Any, move: Any, back: Any, size: Any, stride: Any, offset: Any, dtype: Any
) -> Wrong | None:
    base = numbered(dtype)
    view = move(torch.empty(0, dtype=base.dtype))
    view.set_(move(base).untyped_storage(), offset, size, stride)
    made = tuple(view.stride()), view.storage_offset()
    if made != (stride, offset):
        return Wrong("strides", f"strides and storage offset {(stride, offset)}", made, "set_")
    return misread(back(view), base, size, stride, offset, "set_")


def scatters(
    op: Any, move: Any, back: Any, size: Any, stride: Any, offset: Any, dtype: Any
) -> Wrong | None:
    values = [1.0 if dtype == "bool" else float(n % 50 + 60) for n in range(60)]
    base = torch.zeros(60).to(getattr(torch, dtype))
    places = element_places(size, stride, offset)
    source = torch.tensor(values[: len(places)]).reshape(size).to(getattr(torch, dtype))
    got = back(op(move(base), move(source), size, stride, offset))
    want = [0.0] * 60
    for place, at in enumerate(places):
        want[at] = values[place]
    held = got.to(torch.complex64).real.tolist()
    return None if held == want else Wrong("values", want, held)


def allocates(
    op: Any, move: Any, back: Any, size: Any, stride: Any, dtype: Any, like: Any
) -> Wrong | None:
    """Create an uninitialised tensor of the given size and stride, by ``new_empty_strided`` if ``like`` is true,
    otherwise by ``empty_strided``. Its dtype, device, shape, strides and storage size must be right, and it must
    contain the values that are copied into it."""
    other = move(torch.zeros(2).to(getattr(torch, dtype)))
    if like:
        made = op(other, size, stride)
    else:
        made = op(size, stride, dtype=other.dtype, device=other.device)
    if made.dtype != other.dtype:
        return Wrong("dtype", other.dtype, made.dtype)
    if made.device != other.device:
        return Wrong("device", other.device, made.device)
    if tuple(made.shape) != size:
        return Wrong("shape", f"shape {size}", tuple(made.shape))
    if tuple(made.stride()) != stride:
        return Wrong("strides", f"strides {stride}", tuple(made.stride()))
    if (wrong := outside_storage(facts_of(made))) is not None:
        return wrong
    if made.numel() and not overlaps(size, stride):
        values = (torch.arange(made.numel()) % 2).reshape(size).to(getattr(torch, dtype))
        made.copy_(move(values))
        held = back(made)
        if not torch.equal(held.to(torch.complex64), values.to(torch.complex64)):
            return Wrong("values", f"{values.tolist()} after copy_", held.tolist())
    return None


def out_of_range(op: Any, move: Any, back: Any, dtype: Any) -> Wrong | None:
    base = move(torch.zeros(12).to(getattr(torch, dtype)))
    for size, stride, offset in (
        ((13,), (1,), 0),
        ((3, 4), (5, 1), 0),
        ((2,), (1,), 11),
        ((2,), (-1,), 5),
    ):
        for name, call in (("", op), ("as_strided_: ", torch.Tensor.as_strided_)):
            try:
                call(base.view(12), size, stride, offset)
            except NotImplementedError:
                raise
            except Exception:  # dispatch.error_inputs judges the exception's type
                continue
            asked = f"{name}size {size}, stride {stride}, storage offset {offset}, in a storage of 12 elements"
            return Wrong("not_raised", "an exception", "no exception", asked)
    return None
