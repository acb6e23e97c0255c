"""What is drawn for an element follows the parameters of that element, however these lie in memory.

Parameters are such that a draw tells which it was made with: probabilities of 0 and 1, deviations that are small beside
the distances of the means, a single weight. A parameter of another element is then seen in one draw.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from conformance.suites.random.draws import KNOWN
from conformance.suites.random.laws import bound, distance
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_ROWS, _COLUMNS = 61, 37  # one element is left over of 16
_SHAPE = (_ROWS, _COLUMNS)
#: Rows whose elements are drawn one by one.
_SINGLE = 9
#: Deviations from a mean that no draw has: of 2,257 normal ones, one in 10^12 runs.
_FAR = 8.0
_DROPPED = 0.25

Tensors = tuple[torch.Tensor, ...]


def _mixed(count: int, turn: int) -> torch.Tensor:
    """Whole numbers below ``count`` for each element; other ones in each turn."""
    source = torch.Generator().manual_seed(turn)
    return torch.randint(count, _SHAPE, generator=source)


def _coins(turn: int) -> torch.Tensor:
    """Probabilities of 0 and 1; in the other turn the other ones."""
    return (_mixed(2, 0) + turn) % 2 * 1.0


def _apart(turn: int) -> torch.Tensor:
    """From 0 up to 1, so that all numbers differ; in the other turn zeros, so that some are equal."""
    return turn * torch.arange(_ROWS * _COLUMNS).view(_SHAPE) / (_ROWS * _COLUMNS)


def _means(turn: int) -> torch.Tensor:
    return _mixed(1000, turn) - 400.0 + _apart(turn)


def _deviations(turn: int) -> torch.Tensor:
    return 4.0 ** (_mixed(5, turn) - 3.0) * (1 + _apart(turn))


def _rates(turn: int) -> torch.Tensor:
    return _mixed(6, turn) * 900.0


def _weights(turn: int) -> torch.Tensor:
    """One weight in each row."""
    return torch.nn.functional.one_hot(_mixed(_COLUMNS, turn)[:, 0], _COLUMNS) * 2.0


def _numbers(turn: int) -> torch.Tensor:
    return (_mixed(1000, turn) + 1) / 64


def _near(context: Context, text: str, drawn: torch.Tensor, mean: Any, deviation: Any) -> None:
    """Whether each element is a normal one around its mean."""
    off = ((drawn.double() - mean) / deviation).flatten()
    far = float(off.abs().max())
    context.check(far <= _FAR, f"{text}: no draw is {_FAR:g} deviations off its mean", found=far)
    found = distance(KNOWN["randn"][1], off)
    right = found <= bound(off.numel())
    told = f"{text}: the deviations are distributed as documented"
    context.check(right, told, found=round(found, 4))
    # Of floats beside a mean of 600, one in 600 is the mean where the deviation is least.
    same, few = int((off == 0).sum()), max(8, off.numel() // 100)
    context.check(same < few, f"{text}: nearly no draw is its mean", found=same)


def _exactly(context: Context, text: str, drawn: torch.Tensor, wanted: torch.Tensor) -> None:
    wrong = int((drawn.double() != wanted).sum())
    context.same(wrong, 0, f"{text}: no element is another than its parameters allow")


def _counted(context: Context, text: str, drawn: torch.Tensor, rates: torch.Tensor) -> None:
    off = (drawn.double() - rates).abs() / rates.clamp(min=1e-9).sqrt()
    far = float(off.max())
    context.check(far <= _FAR, f"{text}: no draw is {_FAR:g} deviations off its rate", found=far)


def _chosen(context: Context, text: str, drawn: torch.Tensor, weights: torch.Tensor) -> None:
    _exactly(context, text, drawn, weights.argmax(1, keepdim=True).expand(drawn.shape))


def _kept(context: Context, text: str, drawn: torch.Tensor, given: torch.Tensor) -> None:
    """Whether each element is dropped, or its own divided by the share that is kept."""
    near = torch.isclose(drawn.double(), given.double() / (1 - _DROPPED), rtol=1e-5)
    wrong = int((~near & (drawn != 0)).sum())
    context.same(wrong, 0, f"{text}: what is kept is the element, divided by the share")
    found, share = float((drawn != 0).double().mean()), 1 - _DROPPED
    right = abs(found - share) <= bound(drawn.numel())
    context.check(right, f"{text}: {share:g} are kept", found=found)
    some = bool((drawn != 0).any(1).all())  # else by a chance of 2^-80
    context.check(some, f"{text}: something is kept of each row")


class Drawn(NamedTuple):
    """Draws for each element of its parameters, which differ from turn to turn, and what judges them."""

    parameters: Callable[[int], Tensors]
    draw: Callable[..., torch.Tensor]
    judge: Callable[..., None]
    out: torch.dtype | None = None  # of a target, if ``out=`` takes one
    by_row: bool = False  # an element is drawn for each row, with all its parameters


_FLOAT = torch.float32

OF_EACH: dict[str, Drawn] = {
    "normal": Drawn(lambda n: (_means(n), _deviations(n)), torch.normal, _near, _FLOAT),
    "normal_of_means": Drawn(
        lambda n: (_means(n),),
        lambda mean, **named: torch.normal(mean, 0.25, **named),
        lambda context, text, drawn, mean: _near(context, text, drawn, mean, 0.25),
        _FLOAT,
    ),
    "normal_of_deviations": Drawn(
        lambda n: (_deviations(n),),
        lambda deviation, **named: torch.normal(-3.0, deviation, **named),
        lambda context, text, drawn, deviation: _near(context, text, drawn, -3.0, deviation),
        _FLOAT,
    ),
    "bernoulli": Drawn(lambda n: (_coins(n),), torch.bernoulli, _exactly, _FLOAT),
    "bernoulli_": Drawn(
        lambda n: (_coins(n),),
        lambda p: torch.full(p.shape, -7.0, device=p.device).bernoulli_(p),
        _exactly,
    ),
    "poisson": Drawn(lambda n: (_rates(n),), torch.poisson, _counted),
    "binomial": Drawn(
        lambda n: (_mixed(20, n) * 1.0, _coins(n)),
        torch.binomial,
        lambda context, text, drawn, count, p: _exactly(context, text, drawn, count * p),
    ),
    "multinomial": Drawn(
        lambda n: (_weights(n),),
        lambda weights, **named: torch.multinomial(weights, 5, True, **named),
        _chosen,
        torch.int64,
        by_row=True,
    ),
    "dropout": Drawn(
        lambda n: (_numbers(n),),
        lambda given: torch.nn.functional.dropout(given, _DROPPED),
        _kept,
    ),
}


def _laid(context: Context, how: str, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of two dimensions on the device, laid out so."""
    there = context.to_device
    if how == "transposed":
        return there(tensor.mT.contiguous()).mT
    if how == "every second":
        return there(torch.stack([tensor, tensor + 1], dim=2))[..., 0]
    if how == "after one element":
        return there(torch.cat([tensor.new_ones(1), tensor.flatten()]))[1:].view(tensor.shape)
    if how == "one row for all":
        return there(tensor[:1]).expand(tensor.shape)
    if how == "one column for all":
        return there(tensor[:, :1]).expand(tensor.shape)
    return there(tensor)


_ROOMY = ("contiguous", "transposed", "every second", "after one element")
_LAYOUTS = (*_ROOMY, "one row for all", "one column for all")
#: Layouts of two parameters, each in its own: a kernel may walk through both with the strides of one.
_DIFFERENT = (
    ("contiguous", "transposed"),
    ("transposed", "contiguous"),
    ("every second", "transposed"),
)


def _held(how: str, tensor: torch.Tensor) -> torch.Tensor:
    """The values of a parameter that is laid out so."""
    part = {"one row for all": tensor[:1], "one column for all": tensor[:, :1]}
    return part.get(how, tensor).expand(_SHAPE)


@cases("random.distribution", over={f"of_each_{name}": (name,) for name in OF_EACH})
def of_each(context: Context, name: str) -> None:
    """What is drawn for an element follows the parameters of that element, however they lie in memory."""
    about = OF_EACH[name]
    torch.manual_seed(20_248)
    count = len(about.parameters(0))
    for layouts in (*((how,) * count for how in _LAYOUTS), *(_DIFFERENT if count > 1 else ())):
        if about.by_row and "one column for all" in layouts:
            continue  # all weights of a row would be the same
        for turn in (0, 1):
            given = about.parameters(turn)
            drawn = about.draw(*(_laid(context, how, each) for how, each in zip(layouts, given)))
            text = f"{name} of parameters that lie {' and '.join(dict.fromkeys(layouts))}"
            held = (_held(how, each) for how, each in zip(layouts, given))
            about.judge(context, text, context.from_device(drawn), *held)
    for turn in (0, 1):
        _of_other_ranks(context, name, turn)
    if count > 1:
        _broadcast(context, name)


def _of_other_ranks(context: Context, name: str, turn: int) -> None:
    """Parameters of three dimensions, and single ones; where all of a row are for one element, single rows."""
    about = OF_EACH[name]
    given = about.parameters(turn)
    there = [context.to_device(each) for each in given]
    if not about.by_row:
        shape, kept = (3, _ROWS // 3, _COLUMNS), _ROWS // 3 * 3
        drawn = context.from_device(about.draw(*(each[:kept].view(shape) for each in there)))
        held = [each[:kept] for each in given]
        text = f"{name} of parameters of three dimensions"
        about.judge(context, text, drawn.reshape(kept, _COLUMNS), *held)
        there = [each[:_SINGLE].flatten() for each in there]
        given = tuple(each[:_SINGLE] for each in given)
    single = torch.stack([about.draw(*each) for each in zip(*there)])
    text = f"{name} of parameters one by one"
    about.judge(context, text, context.from_device(single).reshape(given[0].shape[0], -1), *given)


def _broadcast(context: Context, name: str, target: torch.Tensor | None = None) -> None:
    """Of two parameters one is a row, or a column, for all; drawn into a target, or returned."""
    about = OF_EACH[name]
    one, two = about.parameters(0)
    named = {} if target is None else {"out": target}
    for given in ((one, two[0]), (one[0], two), (one, two[:, :1]), (one[:, :1], two[:1])):
        with warnings.catch_warnings():
            # A result that has the shape of the first parameter at first: torch does so itself, in binomial.
            warnings.filterwarnings("ignore", "An output with one or more elements was resized")
            drawn = context.from_device(about.draw(*map(context.to_device, given), **named))
        text = f"{name} of parameters of the shapes {[tuple(each.shape) for each in given]}"
        about.judge(context, text, drawn, *(each.expand(_SHAPE) for each in given))


#: Whose targets grow. `normal` with means and a number does not resize its target on the CPU; `layout.out_resize` asks it.
_GROWN = ("normal", "normal_of_deviations", "bernoulli", "multinomial")


@cases(
    "random.distribution",
    over={f"into_{name}": (name,) for name, about in OF_EACH.items() if about.out},
)
def into(context: Context, name: str) -> None:
    """With `out=` the same is drawn, wherever the target lies or if it grows, and nothing of the draw before is left."""
    about = OF_EACH[name]
    torch.manual_seed(20_249)
    for how, lies in (*((how, "contiguous") for how in _ROOMY), *zip(_ROOMY, reversed(_ROOMY))):
        for turn in (0, 1):
            given = about.parameters(turn)
            held = torch.full(about.draw(*given).shape, -7, dtype=about.out)
            target = _laid(context, how, held)
            about.draw(*(_laid(context, lies, each) for each in given), out=target)
            text = f"{name}(out=) of parameters that lie {lies} into a target that lies {how}"
            about.judge(context, text, context.from_device(target), *given)
    for turn in (0, 1) * 3 if name in _GROWN else ():
        given, grows = about.parameters(turn), torch.empty(0, dtype=about.out).to(context.device)
        about.draw(*map(context.to_device, given), out=grows)
        text = f"{name}(out=) into an empty target"
        about.judge(context, text, context.from_device(grows), *given)
    if len(about.parameters(0)) > 1:
        _broadcast(context, name, target)
