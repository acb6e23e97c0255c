"""When a mutant is wrong: each axis is a set of conditions on a call. :mod:`tests.mutation.effects` says what is wrong then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from tests.planting.calls import KernelCall

Condition = Callable[[KernelCall], bool]


@dataclass(frozen=True, slots=True)
class Facts:
    """What calls of upstream's samples show about the overloads that a mutant replaces."""

    operands: int  # tensors that a call is given, at most: those that it reads first
    reads: int  # those that it only reads
    forms: frozenset[str]  # functional, in-place, out
    outputs: int
    view: bool
    random: bool
    arguments: tuple[str, ...]  # those that take no tensor
    indices: tuple[int, ...]  # operands of int64 among others of other dtypes
    floating: tuple[int, ...]
    dtypes: tuple[str, ...]  # of the op
    dims: tuple[str, ...]  # arguments that name dimensions
    updates: bool  # it takes statistics that it may update
    long: bool  # some operand has a dimension longer than 1
    types: frozenset[str]  # of the arguments, as schemas name them


#: By axis: the condition and its label, drawn for an op; None where the axis means nothing to it.
Drawn = tuple[str, Condition] | None
AXES: dict[str, Callable[[Facts, Random], Drawn]] = {}


def axis(name: str) -> Callable[[Any], Any]:
    def known(function: Any) -> Any:
        AXES[name] = function
        return function

    return known


def shapes(call: KernelCall) -> list[tuple[int, ...]]:
    return [tuple(each.tensor.shape) for each in call.operands]


def pick(facts: Facts, rng: Random) -> int:
    return rng.randrange(facts.operands)


@axis("any call")
def any_call(facts: Facts, rng: Random) -> Drawn:
    return "always", lambda call: True


@axis("rank")
def rank(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    least = rng.choice([0, 1, 2, 3, 4, 5])
    if least < 3:
        return f"rank {least}", lambda call: any(len(s) == least for s in shapes(call))
    return f"rank ≥ {least}", lambda call: any(len(s) >= least for s in shapes(call))


@axis("extent")
def extent(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    how = rng.choice([16, 32, 64, 256, 1024, 4096, "odd", "1"])
    if how == "odd":
        return "odd extent > 16", lambda c: any(n % 2 and n > 16 for s in shapes(c) for n in s)
    if how == "1":
        return "size 1 beside longer", lambda c: any(1 in s and max(s) > 1 for s in shapes(c))
    limit = int(how)
    return f"extent > {limit}", lambda call: any(n > limit for s in shapes(call) for n in s)


@axis("size")
def size(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    limit = rng.choice([64, 256, 1024, 4096, 65536])
    return f"more than {limit} elements", lambda call: any(
        each.tensor.numel() > limit for each in call.operands
    )


@axis("alignment")
def alignment(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k, mod = pick(facts, rng), rng.choice(["any", 8, 4])

    def condition(call: KernelCall) -> bool:
        operand = call.operand(k)
        if operand is None or operand.tensor.device.type == "cpu" or not operand.tensor.numel():
            return False
        at = operand.tensor.data_ptr() % 16
        return at != 0 if mod == "any" else at == mod

    return f"operand {k} starts {mod} bytes past 16", condition


def dense(t: torch.Tensor) -> bool:
    return t.is_contiguous()


@axis("layout of one operand")
def layout(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k = pick(facts, rng)
    how = (
        rng.choice(["alone", "not contiguous", "others"])
        if facts.operands > 1
        else "not contiguous"
    )

    def condition(call: KernelCall) -> bool:
        operand = call.operand(k)
        if operand is None:
            return False
        rest = [each.tensor for n, each in enumerate(call.operands) if n != k]
        here = not dense(operand.tensor)
        if how == "not contiguous":
            return here
        if how == "alone":
            return here and all(map(dense, rest))
        return here and any(
            not dense(t)
            and t.shape == operand.tensor.shape
            and t.stride() != operand.tensor.stride()
            for t in rest
        )

    name = {"others": "differently from others"}.get(how, how)
    return f"operand {k} strided {name}", condition


@axis("permutation")
def permutation(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k = pick(facts, rng)
    how = rng.choice(
        ["cyclic", "reversed", "step 2", "step 3", "stride 0 in the middle", "channels last"]
    )

    def condition(call: KernelCall) -> bool:
        operand = call.operand(k)
        if operand is None or operand.tensor.dim() < 1 or not operand.tensor.numel():
            return False
        t = operand.tensor
        kept = [d for d in range(t.dim()) if t.shape[d] > 1]
        order = sorted(range(len(kept)), key=lambda i: -t.stride(kept[i]))
        if how == "cyclic":
            return len(order) > 2 and any(order[order[i]] != i for i in range(len(order)))
        if how == "reversed":
            return len(order) > 1 and order == list(range(len(order)))[::-1]
        if how.startswith("step"):
            return bool(kept) and t.stride(kept[-1]) == int(how[-1])
        if how.startswith("stride"):
            return any(t.stride(d) == 0 for d in kept[1:-1])
        return (
            t.dim() in (4, 5)
            and not dense(t)
            and t.is_contiguous(
                memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d
            )
        )

    return f"operand {k}: {how}", condition


@axis("variant")
def variant(facts: Facts, rng: Random) -> Drawn:
    if len(facts.forms) < 2:
        return None
    form = rng.choice(sorted(facts.forms))
    return f"{form} only", lambda call: call.form == form


@axis("again")
def again(facts: Facts, rng: Random) -> Drawn:
    how = rng.choice(
        ["second call with these shapes", "every third call", "after a larger call", "same address"]
    )
    if how != "every third call" and not facts.operands:
        return None
    seen: dict[Any, int] = {}

    def condition(call: KernelCall) -> bool:
        key: Any = how
        if how.startswith("second"):
            key = tuple(shapes(call))
        elif how == "same address":
            key = tuple(o.tensor.data_ptr() for o in call.read if o.tensor.device.type != "cpu")
        elif how.startswith("after"):
            total = sum(o.tensor.numel() for o in call.operands)
            before, seen["last"] = seen.get("last", 0), total
            return before > total > 0
        seen[key] = seen.get(key, 0) + 1
        return seen[key] % 3 == 0 if how == "every third call" else seen[key] == 2

    return how, condition


@axis("dtype")
def dtype(facts: Facts, rng: Random) -> Drawn:
    known = [d for d in ("float32", "bool", "int64", "bfloat16", "complex64") if d in facts.dtypes]
    if not facts.operands or len(known) < 2:
        return None
    kind = getattr(torch, rng.choice(known))
    return f"{kind}"[6:], lambda call: any(o.tensor.dtype == kind for o in call.operands[:1])


#: Classes of values, by name.
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": torch.isnan,
    "infinity": torch.isinf,
    "-0": lambda t: (t == 0) & torch.signbit(t),
    "zero": lambda t: t == 0,
    "negative": lambda t: t < 0,
    "large": lambda t: t.abs() > 100,
    "subnormal": lambda t: (t != 0) & (t.abs() < torch.finfo(t.dtype).tiny),
    "half": lambda t: (t.abs() % 1) == 0.5,
    "beyond 2^24": lambda t: t.abs() > 2**24,
    "beyond 2^53": lambda t: t.abs() > 2**53,
    "the end of the dtype": lambda t: (
        (t == torch.iinfo(t.dtype).min) | (t == torch.iinfo(t.dtype).max)
    ),
}
FLOATING = ("NaN", "infinity", "-0", "zero", "negative", "large", "subnormal", "half")
INTEGER = ("beyond 2^24", "beyond 2^53", "the end of the dtype", "negative", "zero")


def comparable(t: torch.Tensor) -> torch.Tensor:
    """The values, in a dtype that the CPU can compare: it has no comparison kernels for most unsigned dtypes."""
    return t if t.is_floating_point() or t.dtype.is_signed else t.double()


def holds(t: torch.Tensor, what: str) -> torch.Tensor | None:
    """Which elements belong to a class of values, on the CPU. None if the dtype has no such values."""
    t = t.cpu()
    fits = (
        t.is_floating_point()
        if what in FLOATING[:3] + FLOATING[5:]
        else not (t.dtype == torch.bool or t.is_complex())
    )
    if what in INTEGER[:3]:
        fits = t.dtype == torch.int64
    if not fits or t.dtype.itemsize == 1:
        return None
    return VALUES[what](comparable(t))


@axis("values")
def values(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k = pick(facts, rng)
    what = rng.choice(FLOATING if k in facts.floating else INTEGER)

    def condition(call: KernelCall) -> bool:
        operand = call.operand(k)
        found = holds(operand.tensor, what) if operand is not None else None
        return found is not None and bool(found.any())

    return f"operand {k} holds {what}", condition


@axis("broadcast")
def broadcast(facts: Facts, rng: Random) -> Drawn:
    if facts.operands < 2:
        return None
    how = rng.choice(["ranks differ", "size 1 against longer", "both ways"])

    def condition(call: KernelCall) -> bool:
        found = [s for s in shapes(call) if s]
        if len(found) < 2:
            return False
        if how == "ranks differ":
            return len({len(s) for s in found}) > 1
        a, b = found[:2]
        pairs = list(zip(a[::-1], b[::-1]))
        left, right = any(m == 1 < n for m, n in pairs), any(n == 1 < m for m, n in pairs)
        return (left and right) if how == "both ways" else (left or right)

    return how, condition


@axis("mixed operands")
def mixed(facts: Facts, rng: Random) -> Drawn:
    if facts.operands < 2:
        return None
    how = rng.choice(["dtypes differ", "a 0-d operand", "a Python scalar"])

    def condition(call: KernelCall) -> bool:
        tensors = [each.tensor for each in call.operands]
        if how == "dtypes differ":
            return len({t.dtype for t in tensors}) > 1
        if how == "a 0-d operand":
            return (
                len(tensors) > 1
                and any(not t.dim() for t in tensors)
                and any(t.dim() for t in tensors)
            )
        return any(
            isinstance(v, (int, float, complex)) for n, v in call.values.items() if n == "other"
        )

    return how, condition


@axis("out=")
def out(facts: Facts, rng: Random) -> Drawn:
    if "out" not in facts.forms:
        return None
    how = rng.choice(["is an input", "strided", "grows", "0-d", "one element", "offset"])

    def condition(call: KernelCall) -> bool:
        targets = call.out
        if not targets:
            return False
        t = targets[0]
        if how == "is an input":
            held = t.untyped_storage().data_ptr()
            return bool(held) and any(
                o.tensor.untyped_storage().data_ptr() == held for o in call.read
            )
        if how == "strided":
            return not dense(t)
        if how == "grows":
            return not t.numel()
        if how == "offset":
            return t.storage_offset() > 0
        return not t.dim() if how == "0-d" else t.dim() > 0 and t.numel() == 1

    return f"out= {how}", condition


@axis("empty")
def empty(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    k = pick(facts, rng)

    def condition(call: KernelCall) -> bool:
        operand = call.operand(k)
        return operand is not None and not operand.tensor.numel()

    return f"operand {k} is empty", condition


@axis("argument")
def argument(facts: Facts, rng: Random) -> Drawn:
    if not facts.arguments:
        return None
    name = rng.choice(facts.arguments)
    how = rng.choice(["not the default", "negative", "zero", "large", "not whole"])

    def condition(call: KernelCall) -> bool:
        value = call.values.get(name)
        if value is None:
            return False
        if how == "not the default":
            default = next((a.default_value for a in call.schema.arguments if a.name == name), None)
            return bool(value != default)
        each = value if isinstance(value, (list, tuple)) else [value]
        numbers = [n for n in each if isinstance(n, (int, float)) and not isinstance(n, bool)]
        if how == "negative":
            return any(n < 0 for n in numbers)
        if how == "zero":
            return any(n == 0 for n in numbers)
        if how == "large":
            return any(abs(n) > 8 for n in numbers)
        return any(isinstance(n, float) and n == n and n % 1 != 0 for n in numbers)

    return f"{name} {how}", condition


@axis("tail")
def tail(facts: Facts, rng: Random) -> Drawn:
    """The number of elements that a loop with a given step leaves over."""
    if not facts.operands:
        return None
    step, left = rng.choice([(8, "some"), (32, "some"), (64, "none"), (16, "one"), (4, "three")])
    counts = {"some": range(1, step), "none": (0,), "one": (1,), "three": (3,)}[left]

    def condition(call: KernelCall) -> bool:
        found = [each.tensor.numel() for each in call.operands[:1]]
        return any(n > step and n % step in counts for n in found)

    return f"{left} left over of {step}", condition


@axis("matrix")
def matrix(facts: Facts, rng: Random) -> Drawn:
    if not facts.operands:
        return None
    ways = ["square", "tall", "wide", "one row", "one column", "with a corner of tiles left over"]
    k, how = pick(facts, rng), rng.choice(ways)

    def condition(call: KernelCall) -> bool:
        operand = call.operand(k)
        if operand is None or operand.tensor.dim() < 2:
            return False
        m, n = operand.tensor.shape[-2:]
        if how.startswith("one"):
            return (m == 1 < n) if how == "one row" else (n == 1 < m)
        if "tiles" in how:
            return min(m, n) > 128 and all(extent % 128 for extent in (m, n))
        return {"square": m == n > 1, "tall": m > n > 1, "wide": n > m > 1}[how]

    return f"operand {k} {how}", condition


@axis("batch")
def batch(facts: Facts, rng: Random) -> Drawn:
    """The number of rows before the last dimension."""
    if not facts.operands:
        return None
    how = rng.choice(
        ["one row", "more than 8 rows", "more than 300 rows", "two leading dimensions"]
    )

    def condition(call: KernelCall) -> bool:
        for t in (each.tensor for each in call.operands[:1]):
            rows = t.numel() // t.shape[-1] if t.dim() and t.shape[-1] else 0
            if how == "two leading dimensions":
                return t.dim() > 2 and min(t.shape[:2]) > 1
            return rows == 1 if how == "one row" else rows > (8 if "8" in how else 300)
        return False

    return how, condition


@axis("which dimension")
def which_dimension(facts: Facts, rng: Random) -> Drawn:
    if not facts.dims or not facts.operands:
        return None
    name, how = rng.choice(facts.dims), rng.choice(["first", "middle", "last", "negative", "two"])

    def condition(call: KernelCall) -> bool:
        value, operand = call.values.get(name), call.operand(0)
        rank = operand.tensor.dim() if operand is not None else 0
        dims = value if isinstance(value, (list, tuple)) else [value]
        if not dims or not all(type(d) is int for d in dims) or rank < 2:
            return False
        if how == "two":
            return len(dims) > 1
        if how == "negative":
            return any(d < 0 for d in dims)
        places = {d % rank for d in dims}
        here = {"first": {0}, "last": {rank - 1}, "middle": set(range(1, rank - 1))}[how]
        return bool(places & here)

    return f"{name}: {how}", condition


@axis("absent operand")
def absent(facts: Facts, rng: Random) -> Drawn:
    """An optional tensor is given or absent."""
    how = rng.choice(["no", "an"])

    def condition(call: KernelCall) -> bool:
        values = [
            call.values[a.name] for a in call.schema.arguments if str(a.type) == "Optional[Tensor]"
        ]
        given = [isinstance(each, torch.Tensor) for each in values]
        return bool(given) and (not all(given) if how == "no" else any(given))

    if "Optional[Tensor]" not in facts.types:
        return None
    return f"{how} optional tensor", condition


@axis("lists")
def lists(facts: Facts, rng: Random) -> Drawn:
    """The number of tensors in a list."""
    if "List[Tensor]" not in facts.types:
        return None
    how = rng.choice(["one", "two", "more than two", "of different shapes"])

    def condition(call: KernelCall) -> bool:
        held = [v for v in call.values.values() if isinstance(v, (list, tuple)) and v]
        found = [v for v in held if all(isinstance(t, torch.Tensor) for t in v)]
        if how == "of different shapes":
            return any(len({t.shape for t in v}) > 1 for v in found)
        return any(min(len(v), 3) == ("one", "two", "more than two").index(how) + 1 for v in found)

    return f"a list {how}", condition


@axis("uniform values")
def uniform(facts: Facts, rng: Random) -> Drawn:
    """A property that all elements of an operand share."""
    if not facts.operands:
        return None
    k, how = (
        pick(facts, rng),
        rng.choice(["positive", "negative", "sorted", "distinct", "repeated"]),
    )

    def condition(call: KernelCall) -> bool:
        operand = call.operand(k)
        if operand is None or operand.tensor.numel() < 3 or operand.tensor.numel() > 4096:
            return False
        t = operand.tensor.cpu().reshape(-1)
        if t.is_complex() or t.dtype == torch.bool or t.dtype.itemsize == 1:
            return False
        t = comparable(t)
        if how in ("positive", "negative"):
            return bool((t > 0).all() if how == "positive" else (t < 0).all())
        if how == "sorted":
            return bool((t[1:] >= t[:-1]).all())
        few = len(t.unique()) < len(t)
        return few if how == "repeated" else not few

    return f"operand {k}: all {how}", condition


@axis("lazy bits")
def lazy_bits(facts: Facts, rng: Random) -> Drawn:
    """Operands are views with the conj or the neg bit set."""
    if not facts.operands or "complex64" not in facts.dtypes:
        return None
    k = pick(facts, rng)

    def condition(call: KernelCall) -> bool:
        operand = call.operand(k)
        return operand is not None and (operand.tensor.is_conj() or operand.tensor.is_neg())

    return f"operand {k} lazily conjugated or negated", condition
