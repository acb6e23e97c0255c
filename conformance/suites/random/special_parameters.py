"""Cases about random functions that are called with special parameters (zero, infinite, NaN, subnormal) for some
elements and with ordinary parameters for all others. With special parameters, often only one result is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import (
    Law,
    coin_law,
    judge_each,
    normal_law,
    poisson_law,
    shares_law,
)
from conformance.suites.random.dtypes_and_layouts import DTYPES
from conformance.suites.random.per_element import OF_EACH
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: The parameters of an element, and the right result: a single number, or a distribution.
Chosen = tuple[tuple[float, ...], "float | Law"]


def _normal(dtype: torch.dtype) -> list[Chosen]:
    about = torch.finfo(dtype)
    wide: list[Chosen] = [((0, 1e6), normal_law(0, 1e6))] if about.max > 1e9 else []
    return [
        ((math.inf, 1), math.inf),
        ((-math.inf, 0.5), -math.inf),
        ((math.nan, 2), math.nan),
        ((-0.0, 0), 0),
        ((1.5, 0), 1.5),
        ((-300, 0), -300),
        ((about.max, 0), about.max),
        ((about.tiny / 2, 1), normal_law(0, 1)),
        ((-2.5, 0.5), normal_law(-2.5, 0.5)),
        ((512, 200), normal_law(512, 200)),
        *wide,
    ]


def _of_means(dtype: torch.dtype) -> list[Chosen]:
    means = [(each, found) for (each, _), found in _normal(dtype)[:3]]
    near = (torch.finfo(dtype).tiny / 2, -0.0, 0.5, -2.5, 3.0)
    return [
        *(((each,), found) for each, found in means),
        *(((each,), normal_law(each, 0.25)) for each in near),
    ]


def _of_deviations(dtype: torch.dtype) -> list[Chosen]:
    wide = (1e6,) if torch.finfo(dtype).max > 1e9 else ()
    return [
        ((0,), -3),
        ((-0.0,), -3),
        ((torch.finfo(dtype).tiny / 2,), -3),
        *(((each,), normal_law(-3, each)) for each in (0.5, 2.5, 300, *wide)),
    ]


def _nothing(dtype: torch.dtype) -> tuple[float, ...]:
    """Returns parameters for which every sample is 0: zeros, and a subnormal number. The subnormal number is
    left out for float16, where it is 3e-5 and may give a nonzero sample."""
    least = torch.finfo(dtype).tiny / 2
    return (0, -0.0, least) if least < 1e-30 else (0, -0.0)


def _coins(dtype: torch.dtype) -> list[Chosen]:
    few: list[Chosen] = [((each,), 0) for each in _nothing(dtype)]
    return [*few, ((1,), 1), ((0.5,), coin_law(0.5))]


def _rates(dtype: torch.dtype) -> list[Chosen]:
    few: list[Chosen] = [((each,), 0) for each in _nothing(dtype)]
    return [*few, *(((each,), poisson_law(each)) for each in (0.5, 2.5, 300))]


def _counts(dtype: torch.dtype) -> list[Chosen]:
    halves = shares_law(*(math.comb(10, k) / 1024 for k in range(11)))
    few = torch.finfo(dtype).tiny / 2
    one: list[Chosen] = [((0, 0.5), 0), ((7, 0), 0), ((8, -0.0), 0), ((300, 1), 300), ((9, few), 0)]
    return [*one, ((10, 0.5), halves), ((300, 0.5), normal_law(150, math.sqrt(75)))]


#: For each function of :data:`OF_EACH`: parameters in a dtype, with the right results.
SPECIAL: dict[str, Callable[[torch.dtype], list[Chosen]]] = {
    "normal": _normal,
    "normal_of_means": _of_means,
    "normal_of_deviations": _of_deviations,
    "bernoulli": _coins,
    "bernoulli_": _coins,
    "poisson": _rates,
    "binomial": _counts,
}

#: The shape and number of elements: two blocks of sixteen and a tail of three.
_SHAPE, _COUNT = (5, 7), 35
#: The number of draws. A result of 0 or 1 is the same in all of them with a probability of 2^-64.
_TIMES = 64


class _Group(NamedTuple):
    """A group of elements that have the same parameters, with the right result for these parameters."""

    given: tuple[float, ...]
    expected: float | Law
    places: torch.Tensor


def _turns(chosen: list[Chosen]) -> Iterator[list[_Group]]:
    """Yields several divisions of the elements into groups. Over all divisions, each element gets each set of
    parameters once."""
    for turn in range(len(chosen)):
        numbers = (torch.arange(_COUNT) + turn) % len(chosen)
        yield [
            _Group(*each, (numbers == number).nonzero().flatten())
            for number, each in enumerate(chosen)
        ]


@cases("random.distribution", over={f"special_{name}": (name,) for name in SPECIAL})
def special_parameters(context: CaseContext, name: str) -> None:
    """A function draws for elements some of which have special parameters: zero, infinite, NaN, subnormal or
    large. Each element is drawn with the parameters of that element, in each dtype, with and without `out=`."""
    about = OF_EACH[name]
    torch.manual_seed(20_253)
    for dtype in (getattr(torch, d) for d in DTYPES[name] if d in context.descriptor.dtypes):
        if not dtype.is_floating_point:
            continue
        for groups in _turns(SPECIAL[name](dtype)):
            given = _spread(context, groups, dtype)
            ways = [False, True] if about.out is not None else [False]
            for out in ways:
                drawn = []
                for _ in range(_TIMES):
                    target = torch.full(_SHAPE, -7, dtype=dtype, device=context.device)
                    made = about.draw(*given, **({"out": target} if out else {}))
                    drawn.append((target if out else made).reshape(-1).clone())
                text = f"{name}{'(out=)' if out else ''} of {dtype}"
                values = context.from_device(torch.stack(drawn))
                for group in groups:
                    _judge_group(context, text, group, values[:, group.places])


def _spread(context: CaseContext, groups: list[_Group], dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns the parameters of all elements as tensors on the device, one tensor for each parameter of the
    function."""
    held = []
    for place in range(len(groups[0].given)):
        parameters = torch.empty(_COUNT, dtype=torch.float64)
        for group in groups:
            parameters[group.places] = float(group.given[place])
        held.append(context.to_device(parameters.to(dtype).view(_SHAPE)))
    return held


def _judge_group(context: CaseContext, text: str, group: _Group, values: torch.Tensor) -> None:
    given = ", ".join(f"{each:g}" for each in group.given)
    text = f"{text}, elements with the parameters {given} next to elements with other parameters"
    if isinstance(group.expected, Law):
        judge_each(context, text, group.expected, values, values.flatten())
        return
    numbers, expected = values.double(), torch.tensor(group.expected, dtype=torch.float64)
    wrong = numbers[~torch.isclose(numbers, expected, rtol=0, atol=0, equal_nan=True)]
    wanted = repr(float(group.expected))
    found = wanted if not len(wrong) else repr(float(wrong[0]))
    context.same(
        found, wanted, f"{text}: a sample is not {group.expected:g}, the only possible value"
    )
