"""Cases about seeds, generators and the states of generators."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from conformance.checks.behaviour.fresh_process import fresh, source
from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.held_streams import value_behind
from conformance.suites.random.samplers import (
    FILLS,
    PER_TENSOR,
    SAMPLERS,
    VECTORS,
    asking,
    repeated,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_COUNT = 300


def _generator(context: CaseContext, seed: int, index: int = 0) -> torch.Generator:
    return torch.Generator(context.named(index)).manual_seed(seed)


def _draw(
    context: CaseContext,
    generator: torch.Generator | None = None,
    name: str = "rand",
    index: int = 0,
) -> torch.Tensor:
    device = context.named(index) if generator is None else generator.device
    return context.from_device(SAMPLERS[name].vector(_COUNT, device, generator))


@cases("random.reproducible", over=asking(VECTORS))
def same_seed(context: CaseContext, name: str) -> None:
    """Two generators with the same seed draw the same values and end in the same state. A generator with another seed,
    or a second draw, gives different values. The same is true for the default generator after torch.manual_seed."""
    first, second, other = (_generator(context, seed) for seed in (1234, 1234, 4321))
    values = _draw(context, first, name)
    text = f"{name}: the same seed gave different values"
    context.equal(_draw(context, second, name), values, text)
    text = f"{name}: the same seed led to different states after a draw"
    context.equal(second.get_state(), first.get_state(), text)
    _differs(context, _draw(context, other, name), values, f"{name}: another seed")
    _differs(context, _draw(context, first, name), values, f"{name}: a second draw")
    text = f"{name} without a generator: the same seed gave different values"
    values = repeated(context, text, lambda: SAMPLERS[name].vector(_COUNT, context.named()), 1234)
    torch.manual_seed(4321)
    other_seed = f"{name} without a generator: another seed"
    _differs(context, _draw(context, None, name), values, other_seed)


def _differs(context: CaseContext, drawn: torch.Tensor, values: torch.Tensor, what: str) -> None:
    context.check(not torch.equal(drawn, values), f"{what} gave the same values")


@cases("random.reproducible", over=asking(["rand", "randn"], "default_"))
def default(context: CaseContext, name: str) -> None:
    """The default generator is seeded twice with the same seed by torch.manual_seed. It draws the same sequence
    of values both times."""
    torch.manual_seed(99)
    values = [_draw(context, None, name) for _ in range(2)]
    torch.manual_seed(99)
    text = f"{name}: the same seed gave different values"
    for want in values:
        context.equal(_draw(context, None, name), want, text)
    _differs(context, values[1], values[0], f"{name}: a second draw")


@cases("random.reproducible")
def every_bit(context: CaseContext) -> None:
    """Seeds that differ in one of their low 32 bits give different values, and no seed gives one value only. The seed 0
    is one of them."""
    seeds = [0, 1, *(1 + 2**bit for bit in range(1, 32))]
    seen: dict[tuple[float, ...], int] = {}
    for seed in seeds:
        values = tuple(_draw(context, _generator(context, seed))[:8].tolist())
        context.check(len({*values}) > 1, f"all numbers that seed {seed} gave are equal")
        text = f"seeds {seen.get(values)} and {seed} gave the same values"
        context.check(values not in seen, text)
        seen[values] = seed


@cases(
    "random.reproducible",
    requires={"streams"},
    over={"on_two_streams": (True,), "default_on_two_streams": (False,)},
)
def on_two_streams(context: CaseContext, own: bool) -> None:
    """Random numbers are drawn on two streams in turn, the first of which is blocked, and the seed is set again
    after three draws. The values equal those that the same calls draw on one stream."""
    generator = _generator(context, 1) if own else None
    seed = torch.manual_seed if generator is None else generator.manual_seed
    device, streams = context.named(), context.streams()

    def drawn(*order: int) -> list[torch.Tensor]:
        seed(7)
        made = []
        for place in order:
            with streams[place]:
                made.append(SAMPLERS["rand"].vector(_COUNT, device, generator))
            if len(made) == 3:
                seed(8)
        return made

    there = drawn(0, 0, 0, 0)
    context.settle()  # the results are read on another stream
    want = [context.from_device(each) for each in there]
    found = value_behind(context.hold(streams[0], needed=False), lambda: drawn(0, 1, 0, 1))
    context.settle()
    text = "a draw on two streams differs from the same draw on one stream"
    for place, (got, wanted) in enumerate(zip(found, want)):
        context.equal(got, wanted, text, at=f"draw {place}")


@cases("random.reproducible", requires={"streams"})
def state_of_queued_draws(context: CaseContext) -> None:
    """A draw is queued on a blocked stream. Generator.get_state() already returns the state that the generator
    has after the draw."""
    generator, stream = _generator(context, 7), context.stream()
    _draw(context, generator)
    want = generator.get_state()

    def state() -> torch.Tensor:
        generator.manual_seed(7)
        with stream:
            SAMPLERS["rand"].vector(_COUNT, generator.device, generator)
        return generator.get_state()

    found = value_behind(context.hold(stream, needed=False), state)
    context.equal(found, want, "get_state() did not return the state after the queued draw")


@cases("random.reproducible")
def dropout(context: CaseContext) -> None:
    """After the same seed, dropout drops the same elements. After another seed, it drops different elements."""
    ones = context.to_device(torch.ones(_COUNT))
    masks = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        masks.append(context.from_device(torch.nn.functional.dropout(ones, 0.5)))
    context.equal(masks[1], masks[0], "the same seed gave a different mask")
    context.check(not torch.equal(masks[2], masks[0]), "another seed gave the same mask")


@cases("random.reproducible")
def state_round_trip(context: CaseContext) -> None:
    """get_state() returns a uint8 tensor on the CPU. After set_state() with this tensor, the same generator or
    another generator draws the same values again."""
    generator, other = _generator(context, 8), _generator(context, 9)
    _draw(context, generator)
    state = generator.get_state()
    kept = state.clone()
    form = state.dtype, state.device.type
    context.same(form, (torch.uint8, "cpu"), "get_state() did not return a uint8 tensor on the CPU")
    for name in ("rand", "randn", "randint", "bernoulli_"):
        generator.set_state(state)
        values = _draw(context, generator, name)
        generator.set_state(state)
        text = f"{name}: a draw after restoring the state gave different values"
        context.equal(_draw(context, generator, name), values, text)
    context.equal(state, kept, "a state tensor changed after get_state() had returned it")
    for each in (other, generator):
        each.set_state(state)
    text = "the same state gave different values on another generator"
    context.equal(_draw(context, other), _draw(context, generator), text)


@cases("random.reproducible", over=asking(VECTORS, "state_after_"))
def state_between(context: CaseContext, name: str) -> None:
    """A few numbers are drawn, an odd or an even count of them, before get_state(). After set_state() with this state, the
    same generator and another generator draw the same numbers again. The state has everything that the next draw depends
    on. Kernels that make normal numbers in pairs may keep the second number of a pair for the next draw."""
    draw = SAMPLERS[name].vector
    for count in (1, 2, 3, 17):
        generator, other = _generator(context, 8), _generator(context, 9)
        for each in (generator, other):
            draw(1 if each is other else count, context.named(), each)
        state = generator.get_state()
        values = context.from_device(draw(count, context.named(), generator))
        for again, which in ((generator, "the same generator"), (other, "another generator")):
            again.set_state(state)
            found = context.from_device(draw(count, context.named(), again))
            text = f"{name}: {which} drew other numbers after the state was restored"
            context.equal(found, values, text, at=f"{count} numbers before and after the state")


@cases("random.reproducible")
def state_read_again(context: CaseContext) -> None:
    """get_state() directly after set_state() returns the state that was set, also if the generator had another state
    before and after several draws. After one draw it returns another state."""
    generator = _generator(context, 8)
    _draw(context, generator)
    states = [generator.get_state()]
    _draw(context, generator)
    states.append(generator.get_state())
    for state in (*states, *states):
        generator.set_state(state)
        text = "get_state() after set_state() returned another state than the one that was set"
        context.equal(generator.get_state(), state, text)
        _draw(context, generator)
        text = "get_state() after a draw returned the state from before the draw"
        context.check(not torch.equal(generator.get_state(), state), text)


@cases("random.reproducible")
def seeds(context: CaseContext) -> None:
    """initial_seed() returns the seed that was passed to manual_seed(), also after draws. seed() sets a new
    seed and returns it."""
    generator = _generator(context, 77)
    text = "initial_seed() differs from the seed passed to manual_seed()"
    context.same(generator.initial_seed(), 77, text)
    _draw(context, generator)
    context.same(generator.initial_seed(), 77, "initial_seed() changed after a draw")
    new = generator.seed()
    text = "initial_seed() differs from the seed that seed() returned"
    context.same(generator.initial_seed(), new, text)
    context.check(new != 77, "seed() returned the previous seed")


@cases("random.reproducible")
def independent(context: CaseContext) -> None:
    """Draws from one generator do not change another generator or the default generator."""
    want = _draw(context, _generator(context, 3))
    first, second = _generator(context, 3), _generator(context, 4)
    torch.manual_seed(1)
    plain = [_draw(context) for _ in range(2)]
    torch.manual_seed(1)
    for each in plain:
        _draw(context, second)
        context.equal(_draw(context), each, "draws from a generator changed the default generator")
    context.equal(_draw(context, first), want, "draws from other generators changed a generator")


@cases("random.reproducible")
def cloned(context: CaseContext) -> None:
    """Generator.clone_state() returns a generator that continues from the same state, and draws from either
    generator do not change the other one."""
    generator, same = _generator(context, 12), _generator(context, 12)
    want = [_draw(context, same) for _ in range(3)]
    _draw(context, generator)
    clone = generator.clone_state()
    text = "the clone did not continue from the state that the generator had when clone_state() was called"
    for each in want[1:]:
        context.equal(_draw(context, clone), each, text)
    text = "draws from the clone changed the original generator"
    context.equal(_draw(context, generator), want[1], text)


@cases("random.reproducible", requires={"multi_device"}, indices=2)
def independent_indices(context: CaseContext) -> None:
    """Draws on one device index do not change the default generator of another index, and the same seed gives
    the same values on both indices."""
    torch.manual_seed(21)
    want = _draw(context, index=1)
    torch.manual_seed(21)
    for _ in range(3):
        _draw(context, index=0)
    text = "draws on index 0 changed the default generator of index 1"
    context.equal(_draw(context, index=1), want, text)
    mine, theirs = (_draw(context, _generator(context, 21, index)) for index in (0, 1))
    context.equal(theirs, mine, "the same seed gave different values on two device indices")


@cases("random.reproducible", requires={"strides"}, over=asking(FILLS, "strided_"))
def same_layout(context: CaseContext, name: str) -> None:
    """A strided view is filled in place twice after the same seed was set. The values are the same."""

    def base() -> torch.Tensor:
        base = torch.zeros(20, 30, device=context.device)
        SAMPLERS[name].like(base.t()[1::2, ::3], generator=_generator(context, 55))
        return base

    text = f"{name}: the same seed and layout gave different values"
    repeated(context, text, base, seed=55)


@cases("random.reproducible", over=asking(PER_TENSOR, "shaped_"))
def same_shape(context: CaseContext, name: str) -> None:
    """Samples are drawn several times for a tensor of five dimensions, each time after the same seed was set.
    The values are the same."""
    given = torch.full((3, 5, 7, 11, 13), -7.0, device=context.device)
    text = f"{name}: the same seed and shape gave different values"
    repeated(context, text, lambda: SAMPLERS[name].like(given), seed=56, times=3)


def _all(context: CaseContext) -> list[torch.Tensor]:
    """Returns one draw from the default generator of each device index."""
    return [_draw(context, index=index) for index in context.indices]


@cases("random.global_seed")
def every_index(context: CaseContext) -> None:
    """torch.manual_seed seeds the default generators of all device indices, whichever device index is current."""
    drawn = []
    for current in (context.indices[0], context.indices[-1]):
        _all(context)
        with context.on(current) if context.has("multi_device") else nullcontext():
            torch.manual_seed(17)
        drawn.append(_all(context))
    torch.manual_seed(18)
    for index, (first, second, other) in enumerate(zip(*drawn, _all(context))):
        context.equal(second, first, f"index {index}: the same seed gave different values")
        _differs(context, other, first, f"index {index}: another seed")


@cases("random.global_seed")
def by_the_module(context: CaseContext) -> None:
    """The functions of torch.<device> about random numbers agree with those of torch: manual_seed seeds the current index,
    manual_seed_all every index, as torch.manual_seed does. initial_seed returns the seed, seed and seed_all set another one,
    and set_rng_state restores the state that get_rng_state returned. A function that the module does not have is
    left out."""
    module = context.module
    own = context.functions_of_the_module(
        *("manual_seed", "manual_seed_all", "initial_seed", "seed", "seed_all"),
        *("get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all"),
        "default_generators",
    )
    torch.manual_seed(17)
    want = _all(context)
    torch.manual_seed(18)
    if "manual_seed_all" in own:
        module.manual_seed_all(17)
        for index, (got, wanted) in enumerate(zip(_all(context), want)):
            text = f"index {index}: manual_seed_all gave other values than torch.manual_seed"
            context.equal(got, wanted, text)
    for index in context.indices:
        with context.on(index) if context.has("multi_device") else nullcontext():
            _seeded(context, own, index, want)
    states = {"get_rng_state_all", "set_rng_state_all"}
    if states <= own:
        kept = module.get_rng_state_all()
        drawn = _all(context)
        module.set_rng_state_all(kept)
        for index, (got, wanted) in enumerate(zip(_all(context), drawn)):
            context.equal(
                got, wanted, f"index {index}: set_rng_state_all did not restore the state"
            )
    if "seed_all" in own:
        torch.manual_seed(17)
        module.seed_all()
        for index, (got, unwanted) in enumerate(zip(_all(context), want)):
            _differs(context, got, unwanted, f"index {index}: seed_all() after manual_seed(17)")


def _seeded(context: CaseContext, own: set[str], index: int, want: Sequence[torch.Tensor]) -> None:
    """Checks the functions of the device's module that are about the current index. ``want`` are the draws of each index
    after torch.manual_seed(17)."""
    module, at = context.module, f"index {index}"
    if "manual_seed" in own:
        torch.manual_seed(18)
        others = [place for place in context.indices if place != index]
        before = [_draw(context, index=place) for place in others]
        torch.manual_seed(18)
        module.manual_seed(17)
        context.equal(_draw(context, index=index), want[index], f"{at}: manual_seed had no effect")
        for place, unchanged in zip(others, before):
            text = f"manual_seed of index {index} changed the draws of index {place}"
            context.equal(_draw(context, index=place), unchanged, text)
        module.manual_seed(17)
        if "initial_seed" in own:
            context.same(module.initial_seed(), 17, f"{at}: initial_seed() is not the seed")
        if "seed" in own:
            module.seed()
            _differs(context, _draw(context, index=index), want[index], f"{at}: seed()")
            if "initial_seed" in own:
                context.check(module.initial_seed() != 17, f"{at}: seed() kept the seed")
    if {"get_rng_state", "set_rng_state"} <= own:
        state = module.get_rng_state()
        drawn = _draw(context, index=index)
        module.set_rng_state(state)
        context.equal(_draw(context, index=index), drawn, f"{at}: set_rng_state restored nothing")
    if "default_generators" in own:
        # A tuple in torch.cuda, before the first use an empty one; other modules have a function.
        found = module.default_generators
        generator = (found() if callable(found) else found)[index]
        context.same(generator.device, context.named(index), f"{at}: the generator is elsewhere")
        generator.manual_seed(17)
        text = (
            f"{at}: seeding default_generators[{index}] did not seed the draws without a generator"
        )
        context.equal(_draw(context, index=index), want[index], text)


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
def before_use(context: CaseContext) -> None:
    """torch.manual_seed is called before the device is used for the first time. The device then draws the same
    values as after a later call with the same seed."""
    devices = [str(context.at(index)) for index in context.indices]
    first, second = fresh(source(context, _BEFORE, devices=devices))["drawn"]
    for index, device in enumerate(devices):
        text = f"{device}: a seed set before the first use had no effect"
        context.same(first[index], second[index], text)


def _forked(context: CaseContext) -> Any:
    if context.kind == "cpu":  # fork_rng always includes the CPU
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=list(context.indices), device_type=context.kind)


@cases("random.global_seed")
def fork_rng(context: CaseContext) -> None:
    """Draws and seeds inside a torch.random.fork_rng block do not change the generators outside of the block,
    on any device index, even if the block raises an exception."""
    torch.manual_seed(41)
    want = [_all(context) for _ in range(2)]
    torch.manual_seed(41)
    for wants, where in zip(
        want, ("after a fork_rng block", "after a fork_rng block that raised an exception")
    ):
        with suppress(KeyError), _forked(context):
            torch.manual_seed(5)
            _all(context)
            if where == "after a fork_rng block that raised an exception":
                raise KeyError("an exception that this case raises itself")
        for index, (got, wanted) in enumerate(zip(_all(context), wants)):
            text = f"index {index}: the draw {where} differs from the same draw without fork_rng"
            context.equal(got, wanted, text)


@cases("random.global_seed", slow=True, over={"reentrant": (True,), "not_reentrant": (False,)})
def checkpointed(context: CaseContext, reentrant: bool) -> None:
    """torch.utils.checkpoint draws the same random numbers when it recomputes the forward pass for backward,
    and leaves the state of the generator as it was."""
    torch.manual_seed(6)
    x = context.to_device(torch.ones(400)).requires_grad_()

    def drop(value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(value * 2, 0.5)

    y = checkpoint(drop, x, use_reentrant=reentrant)
    torch.manual_seed(12)
    want = [_draw(context) for _ in range(2)]
    torch.manual_seed(12)
    context.equal(
        _draw(context),
        want[0],
        "a draw between forward and backward differs from the draw after setting the same seed",
    )
    y.sum().backward()
    assert x.grad is not None
    # An element that was kept is 4 (2 * 1 / 0.5), and its gradient is then also 4.
    text = "the recomputation for backward used a different dropout mask than forward"
    context.equal(x.grad, y.detach(), text)
    context.equal(_draw(context), want[1], "backward changed the state of the generator")
