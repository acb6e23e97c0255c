"""Programs that are drawn at random, compiled by a right and by a wrong compiler, and compared: whether a mutant of a
compiler can be told from the compiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Any, Final, NamedTuple, Protocol

import torch

#: A mutant counts as equivalent after this many programs that run the mutated code. At most this many programs are tried.
_REACHING: Final = 12
_PROGRAMS: Final = 24
#: Drawn programs whose steps do not fit each other, in a row, after which something must be wrong with the steps.
_UNFIT: Final = 40
#: Steps of a program: each makes a tensor of an earlier one, or of two.
_ONE: Final[tuple[Callable[[Any], Any], ...]] = (
    torch.sin,
    torch.cos,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.abs,
    torch.neg,
    torch.relu,
    torch.floor,
    torch.clone,
    torch.sqrt,
    lambda x: x.pow(2),
    lambda x: 2 ** (x * 0.1),
    lambda x: x.mT,
    lambda x: x[..., 1:],
    lambda x: x[..., ::2] * 1,
    lambda x: x.flip(0),
    lambda x: x.sum(0, keepdim=True) + x,
    lambda x: x.cumsum(0),
    lambda x: x.amax(-1, True) * x,
    lambda x: x.unsqueeze(0) * 1,
    lambda x: x.argmax(0) + x,
    lambda x: x + x.mean(),
    lambda x: x.select(0, 0) + x,
    lambda x: x + 1,
    lambda x: x * 3,
    lambda x: x.to(torch.int64),
    lambda x: x + torch.rand_like(x.float()),
    lambda x: x.var(0) + x,
    lambda x: x.expand(2, *x.shape),
    lambda x: x[:0],
    lambda x: x.reshape(-1),
    lambda x: x * x.shape[0],
)
_TWO: Final[tuple[Callable[[Any, Any], Any], ...]] = (
    torch.add,
    torch.sub,
    torch.mul,
    lambda a, b: a / (b.abs() + 1),
    torch.maximum,
    lambda a, b: torch.where(a > b, a, b),
    lambda a, b: (a >= b) * a,
    lambda a, b: (a < b) * b,
    lambda a, b: torch.cat([a, b]),
    lambda a, b: a @ b.mT,
    torch.remainder,
)

#: Steps that make a graph with an op, forward or backward, beside those above: half of the programs for a mutant of the op begin
#: with one, because a drawn program rarely has it.
_WITH: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **{name: lambda a, b, name=name: getattr(a, name)() for name in (
        "sin", "cos", "exp", "tanh", "sigmoid", "floor", "abs", "neg", "relu", "clone", "sqrt"
    )},
    **{name: lambda a, b, name=name: getattr(a, name)(b) for name in (
        "add", "sub", "mul", "div", "maximum", "remainder"
    )},
    **{name: lambda a, b, name=name: getattr(a, name)(b) * a for name in ("gt", "ge", "lt")},
    **{name: lambda a, b, name=name: getattr(a, name)(-1, True) * b for name in (
        "sum", "mean", "amax"
    )},
    "argmax": lambda a, b: a.argmax(-1, True) + b,
    "flip": lambda a, b: a.flip(0),
    "pow": lambda a, b: a.pow(3) + a.abs().pow(b),
    "cumsum": lambda a, b: a.cumsum(-1),
    "select": lambda a, b: a.select(0, 0) * b.sum(),
    "slice": lambda a, b: a[..., 1:],
    "cat": lambda a, b: torch.cat([a, b]),
    "unsqueeze": lambda a, b: a.unsqueeze(0).expand(2, *a.shape),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "bitwise_left_shift": lambda a, b: torch.bitwise_left_shift(
        a.abs().long(), b.abs().long().clamp(max=5)
    ),
    "mm": lambda a, b: a @ b.mT,
    "addmm": lambda a, b: torch.addmm(a.sum(), _rows(a), _rows(b).mT),
    "convolution": lambda a, b: torch.nn.functional.conv1d(
        _rows(a)[None], _rows(b)[None, :, :1]
    ),
    "var_mean": lambda a, b: torch.var_mean(_rows(a), -1, keepdim=True)[0].sum() * b,
    "index": lambda a, b: a[torch.tensor([0, a.shape[0] - 1])],
    "view": lambda a, b: (a * 1).view(-1) + b.sum(),
}  # fmt: skip


def _rows(x: Any) -> Any:
    return x.reshape(-1, x.shape[-1])


class Reached(Protocol):
    """What counts how often a mutant's code ran and had something to change."""

    @property
    def reached(self) -> int: ...


class Answer(NamedTuple):
    """What drawn programs say of a mutant: which program it changes (empty if none), and how many run its code."""

    differs: str
    reached: int


def compare(
    planted: Callable[[bool], AbstractContextManager[Reached]],
    backend: str,
    rng: Random,
    op: str = "",
) -> Answer:
    """Runs drawn programs with and without a mutant. ``planted(sham)`` plants it, with ``sham`` without an effect; ``op`` is
    the op of the mutant if it has one.

    Raises RuntimeError if a program that runs without the compiler fails with the compiler that is right, or if no program
    fits: a mutant could then count as equivalent although nothing was tried.
    """
    reached = 0
    for number in range(_PROGRAMS):
        first = _WITH.get(op) if number % 2 else None
        seed = _fitting(rng, first)
        with planted(True):
            try:
                sound = _left(seed, backend, first)
            except Exception as error:
                raise RuntimeError(
                    f"the probe fails without a mutant: drawn program {seed} (op {op!r}) runs in eager mode, and its "
                    f"compiled form raises {type(error).__name__}: {error}"
                ) from error
        with planted(False) as state:
            try:
                wrong = _left(seed, backend, first)
            except Exception as error:
                text = f"program {number} raises {type(error).__name__}"
                return Answer(text, reached + (state.reached > 0))
        reached += state.reached > 0
        if repr(sound) != repr(wrong):
            return Answer(f"program {number} tells it apart", reached)
        if reached == _REACHING:
            break
    return Answer("", reached)


def _fitting(rng: Random, first: Callable[[Any, Any], Any] | None) -> int:
    """The seed of a program that runs without a compiler: the steps of others do not fit each other."""
    failures = []
    for _ in range(_UNFIT):
        seed = rng.randrange(2**32)
        try:
            _left(seed, "", first)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}"[:100])
        else:
            return seed
    raise RuntimeError(
        f"none of {_UNFIT} drawn programs runs in eager mode, the last because of {failures[-1]}"
    )


def _program(seed: int, first: Callable[[Any, Any], Any] | None) -> Callable[..., Any]:
    # Drawn here: the seed would be a symbol in a program that is compiled for all sizes.
    rng, steps = Random(seed), list[tuple[Callable[..., Any], list[int]]]()
    if first is not None:
        steps += [(lambda x, y: first(x, y * 1), [0, 1])]  # y may be written below
        steps += [(first, [3, 3])] if rng.random() < 0.5 else [(lambda x: x * 1, [3])]
    for _ in range(rng.randint(1, 5)):
        count = 3 + len(steps)
        if rng.random() < 0.3:
            steps.append((rng.choice(_TWO), [rng.randrange(count), rng.randrange(count)]))
        else:
            steps.append((rng.choice(_ONE), [rng.randrange(count)]))
    writes = rng.random() < 0.4  # fails if y is expanded

    def program(x: torch.Tensor, y: torch.Tensor, number: int) -> Any:
        made = [x, y, x * number]
        for step, places in steps:
            made.append(step(*[made[place] for place in places]))
        if writes:
            y.mul_(2)
        return made[3:]

    return program


def _left(seed: int, backend: str, first: Callable[[Any, Any], Any] | None = None) -> list[Any]:
    """What three calls leave. The second and the third differ in their sizes alone, so that one graph can serve both.
    Without the name of a backend, nothing is compiled."""
    torch._dynamo.reset()
    compiled = _program(seed, first)
    if backend:
        compiled = torch.compile(compiled, backend=backend, dynamic=bool(seed % 2))
    rng, left = Random(seed + 1), list[Any]()
    ranks, sizes = (rng.choice((1, 2, 2, 3)), 2, 2), ((1, 3, 5, 40), (3, 5, 40), (4, 6, 41))
    alone, pair = [(rng.randrange(5), rng.randrange(5), rng.random() < 0.5) for _ in range(2)]
    for call, kinds in enumerate((alone, pair, pair)):
        torch.manual_seed(call)
        shape = [rng.choice(sizes[call]) for _ in range(ranks[call])]
        x = _laid(torch.randn(shape) * 3, kinds[0]).requires_grad_(kinds[2])
        y = _laid(torch.randn(shape), kinds[1])
        made = compiled(x, y, call + 1)
        ends = [each for each in made if each.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])
        after = torch.rand(2)
        for each in (*made, x, y, after, *([x.grad] if x.grad is not None else [])):
            shown = each.detach().double()
            left.append((shown.tolist(), each.stride(), str(each.dtype), each.requires_grad))
        left.append([[a.data_ptr() == b.data_ptr() for a in made] for b in made])
    return left


def _laid(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    if kind == 1:
        return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor
    if kind == 2:
        return torch.stack([tensor, tensor], -1)[..., 1]
    if kind == 3:
        return torch.cat([tensor.new_zeros(1), tensor.reshape(-1)])[1:].view(tensor.shape)
    if kind == 4:
        return tensor[:1].expand(tensor.shape)
    return tensor
