"""Finds out whether a mutant can be observed at all: makes calls that the suite does not make, with and without it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import torch

from opinfo.catalog import Op, catalogue
from opinfo.compare import Arguments, replace_tensors, tensors_of
from opinfo.exceptions import exceptions
from opinfo.samples import draw, mutates
from tests.mutation.items import device
from tests.planting.calls import Effect
from tests.planting.places import Planted, planted

ROUNDS = 160
_MOST = 300_000  # elements of one tensor
_EXTENTS = (0, 1, 2, 3, 5, 7, 12, 17, 33, 65, 130, 257, 300, 1025, 2049)
_LONG = (4097, 70_001)  # of elementwise ops and reductions: others may square it
_PAIRS = 20_000_000  # elements of two operands multiplied, at most
#: By bytes of an element: a smaller relative difference is one that references leave open.
_RTOL = {torch.float16: 2e-2, torch.bfloat16: 2e-2, torch.float32: 1e-4, torch.complex64: 1e-4}


#: What draws each element alike: the same draws in other places are as good.
_ALIKE = frozenset(
    {
        *("cauchy", "exponential", "geometric", "log_normal", "normal_", "random", "uniform"),
        *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like"),
    }
)


def draws_alike(overloads: Sequence[str]) -> bool:
    """Whether the two fill a tensor with samples of one distribution, in any order."""
    packets = {name.partition(".")[0] for name in overloads}
    return all(packet in _ALIKE or packet.removesuffix("_") in _ALIKE for packet in packets)


def observable(
    overloads: Sequence[str],
    effect: Effect,
    op_id: str,
    dtypes: Sequence[str],
    rng: Random,
    rounds: int = ROUNDS,
) -> str:
    """What differs with the mutant, in the first call that differs; empty if none differs."""
    op, free = catalogue()[op_id], "empty" in op_id  # memory that nothing was written to
    in_any_order = draws_alike(overloads)
    # What a call updates may not have elements that share an address.
    layouts = _LAYOUTS[:-1] if mutates(exceptions().families_of(op_id)) else _LAYOUTS
    drawn: dict[str, list[Any]] = {}
    with every_warning(), torch.no_grad(), planted(overloads, effect) as run:
        run.switch_off()
        for number in range(rounds):
            dtype = dtypes[0] if number % 3 else rng.choice(list(dtypes))
            if dtype not in drawn:
                drawn[dtype] = draw(op, dtype, 60, seed=number + 1)
            if not drawn[dtype]:
                continue
            sample = rng.choice(drawn[dtype])
            values = varied(sample.tensors, op, rng)
            if values is None:
                continue
            form = rng.choice(("function", "function", "out", "inplace"))
            shaped = [rng.choice(layouts) for _ in values]
            times = 3 if number % 4 == 0 else 1
            plans = (sample.call, values, shaped, form, number)
            try:
                honest = outcome(op, *plans)
            except torch.OutOfMemoryError:  # a result of that shape in such a layout
                continue
            if honest is None:
                continue
            for each in [outcome(op, *plans, run) for _ in range(times)]:
                if each is not None and (found := differing(honest, each, free, in_any_order)):
                    shapes = [tuple(t.shape) for t in values]
                    return f"{found} ({form}, {dtype}, shapes {shapes}, layouts {shaped})"[:300]
    return ""


@contextmanager
def every_warning() -> Iterator[None]:
    """Make torch give each warning every time instead of once, as the first call alone would get it. Nothing is printed."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_warn_always(before)


def varied(tensors: list[torch.Tensor], op: Op, rng: Random) -> list[torch.Tensor] | None:
    """The tensors with other extents and values, for some draws."""
    if any(t.layout != torch.strided for t in tensors):
        return None
    extents = {n for t in tensors for n in t.shape}
    changes = {}
    if extents and rng.random() < 0.7:
        changes[rng.choice(sorted(extents))] = rng.choice(_EXTENTS + (_LONG if op.ufunc else ()))
    leading = rng.choice((0, 0, 0, 1, 2)) if len({t.dim() for t in tensors}) == 1 else 0
    made = []
    alone = rng.random() < 0.3  # of one operand only: broadcasting
    one = rng.randrange(len(tensors)) if tensors else 0
    for place, t in enumerate(tensors):
        shape = [changes.get(n, n) if not alone or place == one else n for n in t.shape]
        shape = [
            rng.choice((2, 3)) for _ in range(leading if not alone or place == one else 0)
        ] + shape
        total = math.prod(shape)
        if total > _MOST:
            return None
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        if total == 0 or t.numel() == 0:
            made.append(torch.zeros(shape, dtype=t.dtype))
            continue
        picked = torch.randint(0, t.numel(), (total,), generator=generator)
        new = t.reshape(-1)[picked].clone()
        if shape == list(t.shape) and rng.random() < 0.5:
            new = t.reshape(-1).clone()
        made.append(sprinkled(new, t, rng).view(shape))
    sizes = sorted(t.numel() for t in made)[-2:]
    if len({t.shape for t in made}) > 1 and math.prod(sizes) > _PAIRS:
        return None
    return made


def sprinkled(flat: torch.Tensor, of: torch.Tensor, rng: Random) -> torch.Tensor:
    """Replace some of the values by special values."""
    if (
        rng.random() < 0.5
        or not len(flat)
        or (flat.dtype.itemsize == 1 and flat.is_floating_point())
    ):
        return flat
    if flat.is_floating_point():
        info = torch.finfo(flat.dtype)
        special = [
            float("nan"),
            float("inf"),
            -float("inf"),
            -0.0,
            0.0,
            0.5,
            1.5,
            -2.5,
            200.0,
            info.tiny / 4,
            info.max,
        ]
        one = rng.choice(special)
        for place in rng.sample(range(len(flat)), min(len(flat), rng.choice((1, 2, 5)))):
            flat[place] = one if rng.random() < 0.7 else rng.choice(special)
        if rng.random() < 0.3:
            flat[-1] = one
    elif flat.dtype == torch.int64:
        low, high = int(of.min()), int(of.max())
        how = rng.choice(("repeat", "negate", "large", "end"))
        if how == "repeat":
            flat[:] = flat[rng.randrange(len(flat))]
        elif how == "negate":
            flat[rng.randrange(len(flat))] *= -1
        elif how == "large" and (low < 0 or high > 3):
            flat[rng.randrange(len(flat))] = rng.choice(
                (2**24 + 1, -(2**24) - 3, 2**53 + 1, -(2**53) - 1)
            )
        elif how == "end" and (low < 0 or high > 3):
            flat[rng.randrange(len(flat))] = rng.choice((2**63 - 1, -(2**63)))
    return flat


_LAYOUTS = (
    "contiguous",
    "contiguous",
    "offset",
    "transposed",
    "cyclic",
    "step 2",
    "step 3",
    "channels last",
    "odd offset",
    "expanded",
)


def laid(t: torch.Tensor, how: str) -> torch.Tensor:
    """The tensor on the device in a given layout, with room around it."""
    if not t.numel():
        return t.to(device().torch_device)
    order = list(range(t.dim()))
    if how == "transposed":
        order = order[::-1]
    elif how == "cyclic":
        order = order[1:] + order[:1]
    elif how == "channels last" and t.dim() in (4, 5):
        order = [0, *order[2:], 1]
    step = {"step 2": 2, "step 3": 3}.get(how, 1)
    offset = {"offset": 8, "odd offset": 1}.get(how, 0)
    stride, run = [0] * t.dim(), step
    for d in reversed(order):
        stride[d] = run
        run *= max(t.shape[d], 1)
    base = torch.zeros(run + offset + 4, dtype=t.dtype, device=device().torch_device)
    view = base.as_strided(t.shape, stride, offset)
    view.copy_(t.to(device().torch_device))
    if how == "expanded" and t.dim() and t.shape[0] > 1:
        return view[:1].expand(t.shape)
    return view


class Outcome:
    """All that can be observed of a call: its results, its inputs afterwards, or the exception."""

    raised: str = ""
    plain: Any = None
    results: list[tuple[Any, ...]]
    storages: list[torch.Tensor]
    warned: int = 0


def outcome(
    op: Op,
    call: Arguments,
    values: list[torch.Tensor],
    shaped: list[str],
    form: str,
    number: int,
    mutant: Planted | None = None,
) -> Outcome | None:
    """Make a call, with a mutant if one is given. None if the op does not have this form."""
    torch.manual_seed(number)
    tensors = [laid(t, how) for t, how in zip(values, shaped)]
    args, kwargs = call.on(tensors, device().torch_device)
    function = op.function
    kwargs = dict(kwargs)
    found = Outcome()
    targets: list[torch.Tensor] = []
    if form == "inplace":
        if op.inplace is None or not tensors or "expanded" in shaped[:1]:
            return None
        function = op.inplace
    elif form == "out":
        if not op.has_out:
            return None
        try:
            cpu_args, cpu_kwargs = call.bind([t.cpu() for t in tensors])
            want = op.function(*cpu_args, **cpu_kwargs)
        except Exception:
            return None
        torch.manual_seed(number)
        if not tensors_of(want) or any(t.layout != torch.strided for t in tensors_of(want)):
            return None
        how = ("contiguous", "transposed", "step 2", "offset", "empty", "input")[number % 6]

        def target(t: torch.Tensor) -> torch.Tensor:
            if how == "empty":
                return torch.empty(0, dtype=t.dtype, device=device().torch_device)
            if (
                how == "input"
                and tensors
                and tensors[0].shape == t.shape
                and tensors[0].dtype == t.dtype
            ):
                return tensors[0]
            return laid(torch.full_like(t, 3), how)

        kwargs["out"] = replace_tensors(want, target)
        targets = tensors_of(kwargs["out"])
    addresses = [t.data_ptr() if t.numel() else 0 for t in targets]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if mutant is not None:
                mutant.switch_on()
            try:
                result = function(*args, **kwargs)
            finally:
                if mutant is not None:
                    mutant.switch_off()
        found.warned = len({str(w.message)[:60] for w in caught})
        found.plain = result if not tensors_of(result) else None
        inputs = {t.untyped_storage().data_ptr(): n for n, t in enumerate(tensors) if t.numel()}
        found.results = []
        for t in tensors_of(result):
            if t.layout != torch.strided:
                found.results.append((t.layout, tuple(t.shape), t.dtype, t.to_dense().cpu()))
                continue
            strides = tuple(s for n, s in zip(t.shape, t.stride()) if n > 1) if t.numel() else ()
            shared = (
                inputs.get(t.untyped_storage().data_ptr())
                if t.numel() and t.device.type != "cpu"
                else None
            )
            where = t.storage_offset() if shared is not None else 0
            held = t.resolve_conj().resolve_neg().cpu()
            found.results.append(
                (t.device.type, tuple(t.shape), t.dtype, strides, shared, where, t.is_conj(), held)
            )
        found.results.append(
            (
                "moved",
                [a == (t.data_ptr() if t.numel() else 0) for a, t in zip(addresses, targets) if a],
            )
        )
    except Exception as error:
        found.raised, found.results = type(error).__name__, []
    found.storages = []
    for t in [*tensors, *targets]:
        whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage())
        found.storages.append(whole.cpu())
    return found


def differing(honest: Outcome, other: Outcome, free: bool, in_any_order: bool = False) -> str:
    """What differs between two outcomes; empty if nothing does."""

    def unlike(a: torch.Tensor, b: torch.Tensor) -> bool:
        return unequal(in_order(a), in_order(b)) if in_any_order else unequal(a, b)

    if honest.raised != other.raised:
        return f"raised {other.raised or 'nothing'} and not {honest.raised or 'nothing'}"
    if honest.warned != other.warned:
        return "other warnings"
    if not free and repr(honest.plain) != repr(other.plain):
        return "another plain result"
    if len(honest.results) != len(other.results):
        return "another number of results"
    for one, two in zip(honest.results, other.results):
        plain = [x for x in one if not isinstance(x, torch.Tensor)]
        if plain != [x for x in two if not isinstance(x, torch.Tensor)]:
            return (
                f"{two} and not {one}" if len(str(one)) < 100 else "other strides, dtype or alias"
            )
        for a, b in zip(one, two):
            if isinstance(a, torch.Tensor) and not free and unlike(a, b):
                return "other values"
    for place, (a, b) in enumerate(zip(honest.storages, other.storages)):
        if not honest.raised and (a.shape != b.shape or (not free and unlike(a, b))):
            return f"other bytes in storage {place}"
    return ""


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in ascending order; complex numbers are sorted as pairs."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten().sort().values


def unequal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype.itemsize == 1 and a.is_floating_point():
        a, b = a.float(), b.float()
    if not (a.is_floating_point() or a.is_complex()):
        return not torch.equal(a, b)
    rtol = _RTOL.get(a.dtype, 1e-6)
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    a, b = a.double(), b.double()
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return True
    if ((a == 0) & (b == 0) & (torch.signbit(a) != torch.signbit(b))).any():
        return True
    a, b = a.nan_to_num(), b.nan_to_num()
    scale = a.abs().max() if a.numel() else 0
    return bool(((a - b).abs() > rtol * a.abs() + 1e-6 * scale).any())
