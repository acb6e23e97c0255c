"""Programs that are drawn at random, compiled by a right and by a wrong compiler, and compared: whether a mutant of a
compiler can be told from the compiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Any, Final

import torch

#: Programs that are drawn for a mutant.
_PROGRAMS: Final = 24
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


def different(planted: Callable[[], AbstractContextManager[Any]], backend: str, rng: Random) -> str:
    """Says which drawn program a mutant changes; an empty text if none. Raises RuntimeError if no program runs, because a
    mutant would then count as equivalent although nothing was tried."""
    tried = 0
    for number in range(_PROGRAMS):
        seed = rng.randrange(2**32)
        try:
            sound = _left(seed, backend)
        except Exception:  # steps that do not fit: the next program may
            continue
        tried += 1
        with planted():
            try:
                wrong = _left(seed, backend)
            except Exception as error:
                return f"program {number} raises {type(error).__name__}"
        if repr(sound) != repr(wrong):
            return f"program {number} tells it apart"
    if not tried:
        raise RuntimeError(f"none of {_PROGRAMS} drawn programs runs without a mutant")
    return ""


def _program(seed: int) -> Callable[..., Any]:
    def program(x: torch.Tensor, y: torch.Tensor, number: int) -> Any:
        rng, made = Random(seed), [x, y, x * number]
        for _ in range(rng.randint(1, 5)):
            if rng.random() < 0.3:
                made.append(rng.choice(_TWO)(rng.choice(made), rng.choice(made)))
            else:
                made.append(rng.choice(_ONE)(rng.choice(made)))
        if rng.random() < 0.4:
            y.mul_(2)
        return made[3:]

    return program


def _left(seed: int, backend: str) -> list[Any]:
    """What two calls with other sizes, layouts and arguments leave."""
    torch._dynamo.reset()
    compiled = torch.compile(_program(seed), backend=backend, dynamic=bool(seed % 2))
    rng, left = Random(seed + 1), list[Any]()
    for call in range(3):
        torch.manual_seed(call)
        shape = [
            rng.choice((1, 3, 5, 40)) for _ in range(rng.choice((1, 2, 2, 3)) if not call else 2)
        ]
        x = _laid(torch.randn(shape) * 3, rng).requires_grad_(rng.random() < 0.5)
        y = _laid(torch.randn(shape), rng)
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


def _laid(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    kind = rng.randrange(4)
    if kind == 1:
        return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor
    if kind == 2:
        return torch.stack([tensor, tensor], -1)[..., 1]
    if kind == 3:
        return torch.cat([tensor.new_zeros(1), tensor.reshape(-1)])[1:].view(tensor.shape)
    return tensor
