"""Cases about random functions that take one parameter per element, such as a mean: each element is drawn with
its own parameters, whatever the layout of the parameters.

The parameters are chosen so that a sample shows with which parameters it was drawn: probabilities of 0 and 1,
standard deviations that are small compared to the distances of the means, or a single nonzero weight. So one
sample is enough to detect that the parameter of another element was used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import bound, distance
from conformance.suites.random.samplers import KNOWN
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_ROWS, _COLUMNS = 61, 37  # 61 * 37 is 1 modulo 16
_SHAPE = (_ROWS, _COLUMNS)
#: The number of rows whose elements are also drawn one by one.
_SINGLE = 9
#: Samples further from the mean than this many standard deviations are wrong. Among 2,257 normal samples one
#: is that far in one of 10^12 runs.
_FAR = 8.0
_DROPPED = 0.25

Tensors = tuple[torch.Tensor, ...]


def _mixed(count: int, turn: int) -> torch.Tensor:
    """Returns a tensor with a random integer below ``count`` for each element. ``turn`` is the seed of the
    random integers."""
    source = torch.Generator().manual_seed(turn)
    return torch.randint(count, _SHAPE, generator=source)


def _coins(turn: int) -> torch.Tensor:
    """Returns probabilities of 0 and 1. An element that is 0 for ``turn`` 0 is 1 for ``turn`` 1, and the
    reverse."""
    return (_mixed(2, 0) + turn) % 2 * 1.0


def _apart(turn: int) -> torch.Tensor:
    """Returns zeros for ``turn`` 0, so that some parameters are equal, and different numbers from 0 to 1 for
    ``turn`` 1, so that all parameters differ."""
    return turn * torch.arange(_ROWS * _COLUMNS).view(_SHAPE) / (_ROWS * _COLUMNS)


def _means(turn: int) -> torch.Tensor:
    return _mixed(1000, turn) - 400.0 + _apart(turn)


def _deviations(turn: int) -> torch.Tensor:
    return 4.0 ** (_mixed(5, turn) - 3.0) * (1 + _apart(turn))


def _rates(turn: int) -> torch.Tensor:
    return _mixed(6, turn) * 900.0


def _weights(turn: int) -> torch.Tensor:
    """Returns rows of weights. Each row contains one nonzero weight."""
    return torch.nn.functional.one_hot(_mixed(_COLUMNS, turn)[:, 0], _COLUMNS) * 2.0


def _numbers(turn: int) -> torch.Tensor:
    return (_mixed(1000, turn) + 1) / 64


def _near(context: CaseContext, text: str, drawn: torch.Tensor, mean: Any, deviation: Any) -> None:
    """Checks that each element is a normal sample with the mean and standard deviation of that element."""
    off = ((drawn.double() - mean) / deviation).flatten()
    far = float(off.abs().max())
    context.check(
        far <= _FAR,
        f"{text}: a sample is more than {_FAR:g} standard deviations from its mean",
        found=far,
    )
    found = distance(KNOWN["randn"][1], off)
    right = found <= bound(off.numel())
    told = f"{text}: the deviations from the means are not distributed as documented: the Kolmogorov-Smirnov distance is too large"
    context.check(right, told, found=round(found, 4))
    # Due to rounding, one in 600 samples equals a mean of 600 if the standard deviation is smallest.
    same, few = int((off == 0).sum()), max(8, off.numel() // 100)
    context.check(same < few, f"{text}: too many samples equal their mean", found=same)


def _exactly(context: CaseContext, text: str, drawn: torch.Tensor, wanted: torch.Tensor) -> None:
    wrong = int((drawn.double() != wanted).sum())
    context.same(
        wrong,
        0,
        f"{text}: the number of elements whose value is impossible with their parameters is not 0",
    )


def _counted(context: CaseContext, text: str, drawn: torch.Tensor, rates: torch.Tensor) -> None:
    off = (drawn.double() - rates).abs() / rates.clamp(min=1e-9).sqrt()
    far = float(off.max())
    context.check(
        far <= _FAR,
        f"{text}: a sample is more than {_FAR:g} standard deviations from its rate",
        found=far,
    )


def _chosen(context: CaseContext, text: str, drawn: torch.Tensor, weights: torch.Tensor) -> None:
    _exactly(context, text, drawn, weights.argmax(1, keepdim=True).expand(drawn.shape))


def _kept(context: CaseContext, text: str, drawn: torch.Tensor, given: torch.Tensor) -> None:
    """Checks the result of dropout: each element is either 0 or the input element divided by the share of
    elements kept."""
    near = torch.isclose(drawn.double(), given.double() / (1 - _DROPPED), rtol=1e-5)
    wrong = int((~near & (drawn != 0)).sum())
    context.same(
        wrong,
        0,
        f"{text}: some kept elements are not the input divided by the share of elements kept: the number of such elements is not 0",
    )
    found, share = float((drawn != 0).double().mean()), 1 - _DROPPED
    right = abs(found - share) <= bound(drawn.numel())
    context.check(right, f"{text}: the share of elements kept is not {share:g}", found=found)
    some = bool((drawn != 0).any(1).all())  # happens by chance with a probability of 2^-80
    context.check(some, f"{text}: all elements of some row were dropped")


class Drawn(NamedTuple):
    """A function that draws with one set of parameters per element, and the function that checks its samples.
    ``parameters(turn)`` returns the parameters of all elements; ``turn``, 0 or 1, selects one of two sets."""

    parameters: Callable[[int], Tensors]
    draw: Callable[..., torch.Tensor]
    judge: Callable[..., None]
    out: torch.dtype | None = None  # dtype of the ``out=`` tensor, if the function takes one
    by_row: bool = False  # all parameters of a row belong to one result


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


def _laid(context: CaseContext, how: str, tensor: torch.Tensor) -> torch.Tensor:
    """Copies a two-dimensional tensor to the device in the layout named ``how``, such as ``transposed``."""
    there = context.to_device
    if how == "transposed":
        return there(tensor.mT.contiguous()).mT
    if how == "every second":
        return there(torch.stack([tensor, tensor + 1], dim=2))[..., 0]
    if how == "after one element":
        return there(torch.cat([tensor.new_ones(1), tensor.flatten()]))[1:].view(tensor.shape)
    if how == "one row for all rows":
        return there(tensor[:1]).expand(tensor.shape)
    if how == "one column for all columns":
        return there(tensor[:, :1]).expand(tensor.shape)
    return there(tensor)


_ROOMY = ("contiguous", "transposed", "every second", "after one element")
_LAYOUTS = (*_ROOMY, "one row for all rows", "one column for all columns")
#: Different layouts for two parameters: a kernel may wrongly use the strides of one for both.
_DIFFERENT = (
    ("contiguous", "transposed"),
    ("transposed", "contiguous"),
    ("every second", "transposed"),
)


def _held(how: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values that a tensor of parameters contains once ``_laid`` has given it the layout named
    ``how``. Layouts such as ``one row for all rows`` repeat one row or column."""
    part = {"one row for all rows": tensor[:1], "one column for all columns": tensor[:, :1]}
    return part.get(how, tensor).expand(_SHAPE)


@cases("random.distribution", over={f"of_each_{name}": (name,) for name in OF_EACH})
def of_each(context: CaseContext, name: str) -> None:
    """A function draws with one set of parameters per element; the parameters have several layouts, ranks and
    shapes. Each sample fits the parameters of its own element."""
    about = OF_EACH[name]
    torch.manual_seed(20_248)
    count = len(about.parameters(0))
    for layouts in (*((how,) * count for how in _LAYOUTS), *(_DIFFERENT if count > 1 else ())):
        if about.by_row and "one column for all columns" in layouts:
            continue  # all weights of a row would be equal
        for turn in (0, 1):
            given = about.parameters(turn)
            drawn = about.draw(*(_laid(context, how, each) for how, each in zip(layouts, given)))
            text = f"{name} with parameters laid out as: {' and '.join(dict.fromkeys(layouts))}"
            held = (_held(how, each) for how, each in zip(layouts, given))
            about.judge(context, text, context.from_device(drawn), *held)
    for turn in (0, 1):
        _of_other_ranks(context, name, turn)
    if count > 1:
        _broadcast(context, name)


def _of_other_ranks(context: CaseContext, name: str, turn: int) -> None:
    """Checks samples that are drawn with three-dimensional parameters, and samples of one call for each set of
    parameters. If a set of parameters is a whole row, only the samples of one call for each row are checked."""
    about = OF_EACH[name]
    given = about.parameters(turn)
    there = [context.to_device(each) for each in given]
    if not about.by_row:
        shape, kept = (3, _ROWS // 3, _COLUMNS), _ROWS // 3 * 3
        drawn = context.from_device(about.draw(*(each[:kept].view(shape) for each in there)))
        held = [each[:kept] for each in given]
        text = f"{name} with parameters of three dimensions"
        about.judge(context, text, drawn.reshape(kept, _COLUMNS), *held)
        there = [each[:_SINGLE].flatten() for each in there]
        given = tuple(each[:_SINGLE] for each in given)
    single = torch.stack([about.draw(*each) for each in zip(*there)])
    text = f"{name} with one call for each set of parameters"
    about.judge(context, text, context.from_device(single).reshape(given[0].shape[0], -1), *given)


def _broadcast(context: CaseContext, name: str, target: torch.Tensor | None = None) -> None:
    """Checks samples of calls in which one of two parameters is a row or a column that is broadcast. If
    ``target`` is given, the samples are written to it with ``out=``."""
    about = OF_EACH[name]
    one, two = about.parameters(0)
    named = {} if target is None else {"out": target}
    for given in ((one, two[0]), (one[0], two), (one, two[:, :1]), (one[:, :1], two[:1])):
        with warnings.catch_warnings():
            # In binomial, torch itself first gives the result the shape of the first parameter and then
            # resizes it.
            warnings.filterwarnings("ignore", "An output with one or more elements was resized")
            drawn = context.from_device(about.draw(*map(context.to_device, given), **named))
        text = f"{name} with parameters of the shapes {[tuple(each.shape) for each in given]}"
        about.judge(context, text, drawn, *(each.expand(_SHAPE) for each in given))


#: Functions whose out= tensor may grow. On the CPU, `normal` with a tensor of means and a number does not
#: resize its out= tensor; `layout.out_resize` judges that.
_GROWN = ("normal", "normal_of_deviations", "bernoulli", "multinomial")


@cases(
    "random.distribution",
    over={f"into_{name}": (name,) for name, about in OF_EACH.items() if about.out},
)
def into(context: CaseContext, name: str) -> None:
    """A function draws into `out=` tensors of several layouts, and into an empty `out=` tensor that is resized.
    Each sample fits the parameters of its element, and no value of an earlier draw remains."""
    about = OF_EACH[name]
    torch.manual_seed(20_249)
    for how, lies in (*((how, "contiguous") for how in _ROOMY), *zip(_ROOMY, reversed(_ROOMY))):
        for turn in (0, 1):
            given = about.parameters(turn)
            held = torch.full(about.draw(*given).shape, -7, dtype=about.out)
            target = _laid(context, how, held)
            about.draw(*(_laid(context, lies, each) for each in given), out=target)
            text = (
                f"{name}(out=) with parameters laid out as: {lies}, and a target laid out as: {how}"
            )
            about.judge(context, text, context.from_device(target), *given)
    for turn in (0, 1) * 3 if name in _GROWN else ():
        given, grows = about.parameters(turn), torch.empty(0, dtype=about.out).to(context.device)
        about.draw(*map(context.to_device, given), out=grows)
        text = f"{name}(out=) into an empty target"
        about.judge(context, text, context.from_device(grows), *given)
    if len(about.parameters(0)) > 1:
        _broadcast(context, name, target)
