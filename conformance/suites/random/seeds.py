"""Seeds, states and generators."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.device.processes import beginning, fresh, preparation
from conformance.suites.random.distribution import FILLS, KNOWN
from devices.failure import Kind

cases = Cases(Kind.VALUES)


# -- random.reproducible: seeds, states, generators


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
    context.equal(second.get_state(), first.get_state(), f"{name}: one seed, the same state after")
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
    """The default generators of two indices are independent, and one seed has the same effect on both."""
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


# -- random.global_seed: torch.manual_seed, fork_rng and checkpoint


def _rand(context: Context, index: int = 0) -> torch.Tensor:
    device = context.device if context.kind == "cpu" else context.at(index)
    return context.from_device(torch.rand(50, device=device))


@cases("random.global_seed")
def every_index(context: Context) -> None:
    """torch.manual_seed seeds every index, not only the current one."""
    drawn = []
    for current in (context.indices[0], context.indices[-1]):
        for index in context.indices:
            _rand(context, index)
        if context.has("multi_device"):
            with context.on(current):
                torch.manual_seed(17)
        else:
            torch.manual_seed(17)
        drawn.append([_rand(context, index) for index in context.indices])
    for index in context.indices:
        context.equal(drawn[1][index], drawn[0][index], f"index {index} is seeded")
    torch.manual_seed(18)
    for index in context.indices:
        context.check(
            not torch.equal(_rand(context, index), drawn[0][index]),
            f"index {index}: another seed, other values",
        )


_BEFORE = """
{preparation}
torch.manual_seed(29)
{beginning}


def drawn():
    return [torch.rand(4, device=where).tolist() for where in {devices!r}]


first = drawn()
torch.manual_seed(29)
told = {{"drawn": [first, drawn()]}}
"""


@cases("random.global_seed", slow=True)
def before_use(context: Context) -> None:
    """A seed that is given before the device is first used holds."""
    devices = [str(context.at(index)) for index in context.indices]
    code = _BEFORE.format(
        preparation=preparation(context), beginning=beginning(context), devices=devices
    )
    first, second = fresh(code)["drawn"]
    for index, device in enumerate(devices):
        context.same(first[index], second[index], f"{device}: the seed held")


def _forked(context: Context) -> Any:
    if context.kind == "cpu":  # which fork_rng always forks
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=list(context.indices), device_type=context.kind)


@cases("random.global_seed")
def fork_rng(context: Context) -> None:
    """What is drawn inside fork_rng leaves no trace, on any index, even if the block raises."""
    torch.manual_seed(41)
    want = [[_rand(context, index) for index in context.indices] for _ in range(2)]
    torch.manual_seed(41)
    with _forked(context):
        torch.manual_seed(5)
        for index in context.indices:
            _rand(context, index)
    for index in context.indices:
        context.equal(_rand(context, index), want[0][index], f"index {index}, after fork_rng")
    try:
        with _forked(context):
            for index in context.indices:
                _rand(context, index)
            raise KeyError("ours")
    except KeyError:
        pass
    for index in context.indices:
        context.equal(_rand(context, index), want[1][index], f"index {index}, where it raised")


@cases("random.global_seed", slow=True, over={"reentrant": (True,), "not_reentrant": (False,)})
def checkpointed(context: Context, reentrant: bool) -> None:
    """A checkpoint draws the same numbers when it is computed again for backward."""
    torch.manual_seed(6)
    x = context.to_device(torch.ones(400)).requires_grad_()

    def drop(value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(value * 2, 0.5)

    y = checkpoint(drop, x, use_reentrant=reentrant)
    torch.manual_seed(12)
    want = [_rand(context) for _ in range(2)]
    torch.manual_seed(12)
    context.equal(_rand(context), want[0], "numbers are drawn between forward and backward")
    y.sum().backward()
    assert x.grad is not None
    # An element is 4 where it was kept (2 * 1 / 0.5), and its gradient then is 4 too.
    context.equal(x.grad, y.detach(), "gradients and values have one mask")
    context.equal(_rand(context), want[1], "backward leaves the state as it was")
