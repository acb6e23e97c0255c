"""Finds out whether a mutant of training can be observed: makes calls and trainings that the suite does not make, with and
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from opinfo.compare import tensors_of
from tests.planting.calls import Effect
from tests.planting.places import SIMULATED, overload_of, planted

_SHAPES = ((), (1,), (0,), (13,), (2, 6), (4, 1, 3), (2, 3, 2, 5), (70,), (2, 0), (300,))
_DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.float16)
#: Of a list op, so many calls; of a fused one likewise.
ROUNDS = 60


def different(op: str, effect: Callable[[], Effect], rng: Random) -> str:
    """What differs with the mutant, in the first call or training that differs; empty if none differs."""
    seeds = [rng.randrange(1 << 30) for _ in range(ROUNDS)]
    for what, program in programs(op):
        for seed in seeds if what == "a call" else seeds[:3]:
            honest = outcome(program, seed)
            if honest is None:
                continue
            with planted([op], effect()):
                broken = outcome(program, seed)
            if broken is None:
                return f"{what}: it raises"
            if not alike(honest, broken):
                return f"{what}: other values"
    return ""


Program = Callable[[Random], list[torch.Tensor]]


def outcome(program: Program, seed: int) -> list[torch.Tensor] | None:
    torch.manual_seed(0)
    try:
        return [each.detach().cpu().clone() for each in program(Random(seed))]
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None


def alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and bool(
            torch.isclose(
                a, b, rtol=1e-3 if a.itemsize < 4 else 1e-6, atol=1e-9, equal_nan=True
            ).all()
        )
        for a, b in zip(one, other)
    )


def programs(op: str) -> Iterator[tuple[str, Program]]:
    if op.startswith("_foreach_"):
        yield "a call", lambda rng: list_call(op, rng)
    if op.startswith("_fused_"):
        yield "a call", lambda rng: fused_call(op, rng)
    yield "a training", training
    yield "the same twice", twice


def tensor(rng: Random, shape: tuple[int, ...], dtype: torch.dtype, index: int = 0) -> torch.Tensor:
    """A tensor on the device, in a layout drawn at random."""
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    values = (torch.randn(shape, generator=generator, dtype=torch.float64) * 2).to(dtype)
    if values.numel() and dtype.is_floating_point and rng.random() < 0.1:
        values.view(-1)[rng.randrange(values.numel())] = rng.choice(
            (float("nan"), float("inf"), 0.0)
        )
    there = values.to(f"{SIMULATED}:{index}")
    layout = rng.random()
    if layout < 0.2 and len(shape) > 1:
        return there.transpose(0, 1).contiguous().transpose(0, 1)
    if layout < 0.4 and shape:
        wide = torch.zeros((*shape[:-1], 2 * shape[-1]), dtype=dtype, device=there.device)
        wide[..., ::2].copy_(there)
        return wide[..., ::2]
    if layout < 0.5 and len(shape) == 4:
        return there.contiguous(memory_format=torch.channels_last)
    if layout < 0.7:
        longer = torch.zeros(there.numel() + 9, dtype=dtype, device=there.device)
        view = longer[5 : 5 + there.numel()].view(shape)
        view.copy_(there)
        return view
    return there


def whole(t: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, as bytes that are written around it count too."""
    return t.detach().as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,), 0)


def shapes(rng: Random) -> list[tuple[int, ...]]:
    kind = rng.random()
    if kind < 0.25:
        return [
            (0,) if rng.random() < 0.2 else (rng.randrange(1, 4),)
            for _ in range(rng.choice((70, 130)))
        ]
    if kind < 0.4:
        return [(5,), (65_536 + rng.randrange(1, 99),), (2, 3)]
    return [rng.choice(_SHAPES) for _ in range(rng.randrange(1, 7))]


def list_call(op: str, rng: Random) -> list[torch.Tensor]:
    """The result of a call, and its arguments afterwards."""
    function, sizes = overload_of(op), shapes(rng)
    dtype = None if rng.random() < 0.2 else rng.choice(_DTYPES)
    kinds = [dtype or rng.choice(_DTYPES) for _ in sizes]
    where = [rng.randrange(2) for _ in sizes] if rng.random() < 0.1 else [0] * len(sizes)
    args: list[Any] = []
    named: dict[str, Any] = {}
    for a in function._schema.arguments:
        kind = str(a.type)
        if kind == "List[Tensor]":
            if op.startswith("_foreach_mm"):
                size = [
                    ((n % 4) + 1, 3) if a.name == "self" else (3, 2) for n, _ in enumerate(sizes)
                ]
            else:
                size = sizes
            args.append([tensor(rng, *each) for each in zip(size, kinds, where)])
        elif kind == "number":
            value = (
                rng.choice((2, 0.5, -1.25, 3))
                if a.name != "ord"
                else rng.choice((1, 2, float("inf")))
            )
            if a.kwarg_only:
                named[a.name] = value
            else:
                args.append(value)
        elif kind == "List[number]":
            args.append([rng.choice((1, 2, 0.5, -0.75, 3)) for _ in sizes])
        elif kind == "Tensor" and a.name == "scalars":
            args.append(torch.tensor([rng.random() for _ in sizes]))
        elif kind == "Tensor":
            args.append(tensor(rng, (), dtype or torch.float32))
    result = function(*args, **named)
    held = [whole(each) for each in tensors_of(args) if each.device.type == SIMULATED]
    made = tensors_of(result)
    for each in made:  # results that lie in other tensors change these
        each.detach().zero_() if rng.random() < 0.3 and each.dtype != torch.bool else None
    return [
        *made,
        *held,
        *[whole(each) for each in tensors_of(args) if each.device.type == SIMULATED],
    ]


def fused_call(op: str, rng: Random) -> list[torch.Tensor]:
    function, sizes = overload_of(op), shapes(rng)
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    args: list[Any] = []
    named: dict[str, Any] = {}
    for a in function._schema.arguments:
        kind = str(a.type)
        if a.name == "state_steps":
            args.append([torch.tensor(float(rng.randrange(1, 9)), device=SIMULATED) for _ in sizes])
        elif a.name in ("exp_avg_sqs", "max_exp_avg_sqs", "state_sums"):
            args.append([tensor(rng, size, dtype).abs() for size in sizes])
        elif "List[Tensor]" in kind:
            args.append([tensor(rng, size, dtype) for size in sizes])
        elif kind == "bool":
            named[a.name] = rng.random() < 0.5
        elif kind == "float":
            named[a.name] = (
                rng.choice((0.0, 0.1, 0.3, 0.9)) if a.name != "eps" else rng.choice((1e-8, 1e-2))
            )
        elif a.name == "lr":
            named[a.name] = torch.tensor(rng.choice((0.1, 0.3)), device=SIMULATED)
        elif a.name == "grad_scale":
            named[a.name] = torch.tensor(4.0, device=SIMULATED) if rng.random() < 0.4 else None
        elif a.name == "found_inf":
            named[a.name] = (
                torch.tensor(float(rng.random() < 0.5), device=SIMULATED)
                if rng.random() < 0.4
                else None
            )
    if named.get("beta1") == 0.0 or named.get("beta2") == 0.0:
        named["beta1"], named["beta2"] = 0.5, 0.7
    function(*args, **named)
    return [whole(each) for each in tensors_of(args)]


def training(rng: Random) -> list[torch.Tensor]:
    """Parameters, gradients and state after a few steps of a small network, with clipping and a scaler."""
    torch.manual_seed(rng.randrange(1000))
    layers = [
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
    ]
    layers += [
        torch.nn.Linear(4 * 9, 20),
        torch.nn.LayerNorm(20),
        torch.nn.GELU(),
        torch.nn.Linear(20, 3),
    ]
    network = torch.nn.Sequential(*layers).to(SIMULATED)
    tokens = torch.nn.Embedding(6, 50).to(SIMULATED)
    attention = torch.nn.MultiheadAttention(50, 5, batch_first=True).to(SIMULATED)
    if rng.random() < 0.5:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameters = [*network.parameters(), *tokens.parameters(), *attention.parameters()]
    kind = rng.choice(("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Rprop", "NAdam"))
    flags = rng.choice(
        ({"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True})
    )
    try:
        made = getattr(torch.optim, kind)(parameters, lr=0.03, weight_decay=0.1, **flags)
    except TypeError:
        made = getattr(torch.optim, kind)(parameters, lr=0.03)
    scaler = torch.amp.GradScaler(SIMULATED, init_scale=16.0)
    losses = []
    for step in range(4):
        made.zero_grad(set_to_none=step % 2 == 0)
        x, t = torch.randn(6, 2, 5, 5).to(SIMULATED), torch.randint(0, 6, (6, 4)).to(SIMULATED)
        rows = attention(tokens(t), tokens(t), tokens(t))[0].mean((1, 2))
        loss = F.cross_entropy(network(x), torch.randint(0, 3, (6,)).to(SIMULATED)) + rows.sum()
        scaler.scale(loss if step != 2 else loss * float("inf")).backward()
        scaler.unscale_(made)
        torch.nn.utils.clip_grad_norm_(parameters, 0.7)
        torch.nn.utils.clip_grad_value_(parameters, 0.2)
        scaler.step(made)
        scaler.update()
        losses.append(loss)
    state = [each for one in made.state.values() for each in tensors_of(dict(one))]
    return [*losses, *parameters, *network.buffers(), *state, torch.tensor(scaler.get_scale())]


def twice(rng: Random) -> list[torch.Tensor]:
    """How far two trainings with the same seed differ."""
    seed = rng.randrange(1 << 30)
    one, two = ([t.detach().cpu().double() for t in training(Random(seed))] for _ in range(2))
    return [
        torch.tensor(
            float(all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, two)))
        )
    ]
