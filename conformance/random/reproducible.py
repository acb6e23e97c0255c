"""random.reproducible: seeds, states, generators."""

from __future__ import annotations

import torch

from conformance.behaviour.cases import Cases
from conformance.behaviour.context import Context
from conformance.random.draws import FILLS, KNOWN

cases = Cases()

_COUNT = 300


def _generator(context: Context, seed: int, index: int = 0) -> torch.Generator:
    device = context.device if context.kind == "cpu" else context.at(index)
    return torch.Generator(device).manual_seed(seed)


def _draw(context: Context, name: str, generator: torch.Generator | None) -> torch.Tensor:
    device = context.device if generator is None else generator.device
    return context.from_device(KNOWN[name].draw(_COUNT, device, generator))


@cases("random.reproducible", over={name: (name,) for name in KNOWN})
def same_seed(context: Context, name: str) -> None:
    """A seed gives the same values and leaves the same state, and another seed gives others."""
    first, second = _generator(context, 1234), _generator(context, 1234)
    values = _draw(context, name, first)
    context.equal(_draw(context, name, second), values, f"{name}: one seed, the same values")
    context.equal(second.get_state(), first.get_state(), f"{name}: one seed, the same state behind")
    other = _draw(context, name, _generator(context, 4321))
    context.check(not torch.equal(other, values), f"{name}: another seed, other values")
    context.check(
        not torch.equal(_draw(context, name, first), values), f"{name}: drawn again, other values"
    )


@cases("random.reproducible", over={f"default_{name}": (name,) for name in ("rand", "randn")})
def default(context: Context, name: str) -> None:
    """manual_seed makes the default generator repeat itself."""
    torch.manual_seed(99)
    values = [_draw(context, name, None) for _ in range(2)]
    torch.manual_seed(99)
    for want in values:
        context.equal(_draw(context, name, None), want, f"{name}: seeded again, the same values")
    context.check(not torch.equal(*values), f"{name}: drawn again, other values")


@cases("random.reproducible")
def dropout(context: Context) -> None:
    """A seed gives the same dropout."""
    ones = context.to_device(torch.ones(_COUNT))
    masks = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        masks.append(context.from_device(torch.nn.functional.dropout(ones, 0.5)))
    context.equal(masks[1], masks[0], "one seed, the same mask")
    context.check(not torch.equal(masks[2], masks[0]), "another seed, another mask")


@cases("random.reproducible")
def state_round_trip(context: Context) -> None:
    """A state that is given back gives the same values again, on the CPU as bytes."""
    generator = _generator(context, 8)
    _draw(context, "rand", generator)
    state = generator.get_state()
    kept = state.clone()
    context.same(
        (state.dtype, state.device.type), (torch.uint8, "cpu"), "a state is bytes on the CPU"
    )
    for name in ("rand", "randn", "randint", "bernoulli_"):
        generator.set_state(state)
        values = _draw(context, name, generator)
        generator.set_state(state)
        context.equal(_draw(context, name, generator), values, f"{name}: the state gives it again")
    context.equal(state, kept, "a state that was read stays as it is")
    other = _generator(context, 9)
    other.set_state(state)
    generator.set_state(state)
    context.equal(
        _draw(context, "rand", other),
        _draw(context, "rand", generator),
        "a state serves another generator",
    )


@cases("random.reproducible")
def seeds(context: Context) -> None:
    """A generator knows the seed that it was given; seed() gives it another."""
    generator = _generator(context, 77)
    context.same(generator.initial_seed(), 77, "initial_seed is what manual_seed was given")
    _draw(context, "rand", generator)
    context.same(generator.initial_seed(), 77, "and stays when numbers are drawn")
    new = generator.seed()
    context.same(generator.initial_seed(), new, "initial_seed is what seed() returned")
    context.check(new != 77, "seed() gives another seed")


@cases("random.reproducible")
def independent(context: Context) -> None:
    """Generators are independent of one another and of the default one."""
    want = _draw(context, "rand", _generator(context, 3))
    first, second = _generator(context, 3), _generator(context, 4)
    torch.manual_seed(1)
    plain = [_draw(context, "rand", None) for _ in range(2)]
    torch.manual_seed(1)
    for step in range(2):
        _draw(context, "rand", second)
        context.equal(
            _draw(context, "rand", None), plain[step], "no generator moves the default one"
        )
    context.equal(_draw(context, "rand", first), want, "no generator moves another")


@cases("random.reproducible", requires={"multi_device"}, indices=2)
def independent_indices(context: Context) -> None:
    """The default generators of two indices are independent, and one seed serves both alike."""
    torch.manual_seed(21)
    want = context.from_device(torch.rand(_COUNT, device=context.at(1)))
    torch.manual_seed(21)
    for _ in range(3):
        torch.rand(_COUNT, device=context.at(0))
    got = context.from_device(torch.rand(_COUNT, device=context.at(1)))
    context.equal(got, want, "draws on index 0 do not move index 1")
    mine, theirs = (_draw(context, "rand", _generator(context, 21, index)) for index in (0, 1))
    context.equal(theirs, mine, "a seed gives the same values on every index")


@cases("random.reproducible", requires={"strides"}, over={f"strided_{n}": (n,) for n in FILLS})
def same_layout(context: Context, name: str) -> None:
    """The same seed and the same layout give the same values."""
    found = []
    for _ in range(2):
        base = torch.zeros(20, 30, device=context.device)
        FILLS[name](base.t()[1::2, ::3], _generator(context, 55))
        found.append(context.from_device(base))
    context.equal(found[1], found[0], f"{name}: one seed and one layout, the same values")
