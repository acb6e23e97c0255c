"""Cases about random functions that take one parameter per element, such as a mean. Each element must be drawn with its
own parameters, whatever their layout, also if some of them are special (zero, infinite, NaN, subnormal). With special
parameters, often only one result is right."""

from __future__ import annotations

import warnings
from itertools import product

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import Law, judge_each
from conformance.suites.random.parameters import COLUMNS, ROWS, SHAPE
from conformance.suites.random.samplers import (
    SAMPLERS,
    WITH_PARAMETERS,
    WITH_SPECIAL_PARAMETERS,
    WITH_TARGETS,
    asking,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: The number of rows whose elements are also drawn one by one.
_SINGLE = 9
#: The elements around a tensor of parameters: every function takes this number.
_AROUND = 1.0

_WITHOUT_STRIDE_0 = ("contiguous", "transposed", "contiguous+step_inner", "contiguous+offset")
_LAYOUTS = (*_WITHOUT_STRIDE_0, "contiguous+expand_first", "contiguous+expand_last")
#: Different layouts for two parameters: a kernel may wrongly use the strides of one for both.
_DIFFERENT = (
    ("contiguous", "transposed"),
    ("transposed", "contiguous"),
    ("contiguous+step_inner", "transposed"),
)


@cases("random.distribution", over=asking(WITH_PARAMETERS, "of_each_"))
def of_each(context: CaseContext, name: str) -> None:
    """A function draws samples with one set of parameters per element. The parameters have several layouts, ranks and
    shapes. Each sample fits the parameters of its own element."""
    sampler, about = SAMPLERS[name], SAMPLERS[name].each
    torch.manual_seed(20_248)
    count = len(about.tensors(0))
    for layouts in (*((how,) * count for how in _LAYOUTS), *(_DIFFERENT if count > 1 else ())):
        if sampler.by_row and "contiguous+expand_last" in layouts:
            continue  # all weights of a row would be equal
        for turn in (0, 1):
            given = [
                context.guarded(each, how, around=_AROUND)
                for how, each in zip(layouts, about.tensors(turn))
            ]
            drawn = sampler.draw_each(*(each.view for each in given))
            text = f"{name} with parameters laid out as: {' and '.join(dict.fromkeys(layouts))}"
            about.judge(context, text, context.from_device(drawn), *(each.values for each in given))
    for turn in (0, 1):
        _of_other_ranks(context, name, turn)
    if count > 1:
        _broadcast(context, name)


def _of_other_ranks(context: CaseContext, name: str, turn: int) -> None:
    """Checks samples that are drawn with three-dimensional parameters, and samples that are drawn by a separate call
    for each set of parameters. If a set of parameters is a whole row, only the samples of the separate calls are
    checked."""
    sampler, about = SAMPLERS[name], SAMPLERS[name].each
    given = about.tensors(turn)
    there = [context.to_device(each) for each in given]
    if not sampler.by_row:
        shape, kept = (3, ROWS // 3, COLUMNS), ROWS // 3 * 3
        drawn = context.from_device(sampler.draw_each(*(each[:kept].view(shape) for each in there)))
        held = [each[:kept] for each in given]
        text = f"{name} with parameters of three dimensions"
        about.judge(context, text, drawn.reshape(kept, COLUMNS), *held)
        there = [each[:_SINGLE].flatten() for each in there]
        given = tuple(each[:_SINGLE] for each in given)
    single = torch.stack([sampler.draw_each(*each) for each in zip(*there)])
    text = f"{name} with one call for each set of parameters"
    about.judge(context, text, context.from_device(single).reshape(given[0].shape[0], -1), *given)


def _broadcast(context: CaseContext, name: str, target: torch.Tensor | None = None) -> None:
    """Checks samples of calls with two parameters, one of which is a row or a column that is broadcast. If ``target``
    is given, the samples are written to it with ``out=``."""
    sampler, about = SAMPLERS[name], SAMPLERS[name].each
    one, two = about.tensors(0)
    named = {} if target is None else {"out": target}
    for given in ((one, two[0]), (one[0], two), (one, two[:, :1]), (one[:, :1], two[:1])):
        with warnings.catch_warnings():
            # In binomial, torch itself first gives the result the shape of the first parameter and then
            # resizes it.
            warnings.filterwarnings("ignore", "An output with one or more elements was resized")
            drawn = context.from_device(sampler.draw_each(*map(context.to_device, given), **named))
        text = f"{name} with parameters of the shapes {[tuple(each.shape) for each in given]}"
        about.judge(context, text, drawn, *(each.expand(SHAPE) for each in given))


@cases("random.distribution", over=asking(WITH_TARGETS, "into_"))
def into(context: CaseContext, name: str) -> None:
    """A function draws into `out=` tensors of several layouts, and into an empty `out=` tensor that is resized.
    Each sample fits the parameters of its element, and no value of an earlier draw remains."""
    sampler, about = SAMPLERS[name], SAMPLERS[name].each
    torch.manual_seed(20_249)
    opposite = zip(_WITHOUT_STRIDE_0, reversed(_WITHOUT_STRIDE_0))
    for how, lies in (*((how, "contiguous") for how in _WITHOUT_STRIDE_0), *opposite):
        for turn in (0, 1):
            given = about.tensors(turn)
            held = torch.full(sampler.draw_each(*given).shape, -7, dtype=sampler.out)
            target = context.lay(held, how, around=_AROUND)
            sampler.draw_each(
                *(context.lay(each, lies, around=_AROUND) for each in given), out=target
            )
            text = (
                f"{name}(out=) with parameters laid out as: {lies}, and a target laid out as: {how}"
            )
            about.judge(context, text, context.from_device(target), *given)
    for turn in (0, 1) * 3 if sampler.grows else ():
        given, grows = about.tensors(turn), torch.empty(0, dtype=sampler.out).to(context.device)
        sampler.draw_each(*map(context.to_device, given), out=grows)
        text = f"{name}(out=) into an empty target"
        about.judge(context, text, context.from_device(grows), *given)
    if len(about.tensors(0)) > 1:
        _broadcast(context, name, target)


#: The shape and number of elements of tensors with special parameters: two blocks of sixteen and a tail of three.
_FEW, _FEW_COUNT = (5, 7), 35
#: The number of draws. A result of 0 or 1 is the same in all of them with a probability of 2^-64.
_TIMES = 64


@cases("random.distribution", over=asking(WITH_SPECIAL_PARAMETERS, "special_"))
def special_parameters(context: CaseContext, name: str) -> None:
    """Samples are drawn for tensors in which some elements have special parameters: zero, infinite, NaN, subnormal or
    large. Each element is drawn with its own parameters, in each dtype, with and without `out=`."""
    sampler, special = SAMPLERS[name], SAMPLERS[name].each.special
    assert special is not None
    torch.manual_seed(20_253)
    for dtype in (each for each in sampler.dtypes_on(context.descriptor) if each.is_floating_point):
        chosen = special(dtype)
        for turn, out in product(range(len(chosen)), (False, True) if sampler.out else (False,)):
            # Over all turns, each element gets each set of parameters once.
            numbers = (torch.arange(_FEW_COUNT) + turn) % len(chosen)
            held = torch.tensor([given for given, _ in chosen], dtype=torch.float64)[numbers]
            tensors = [context.to_device(each.to(dtype).view(_FEW)) for each in held.unbind(1)]
            drawn = []
            for _ in range(_TIMES):
                target = torch.full(_FEW, -7, dtype=dtype, device=context.device)
                made = sampler.draw_each(*tensors, **({"out": target} if out else {}))
                drawn.append((target if out else made).reshape(-1).clone())
            values = context.from_device(torch.stack(drawn))
            for number, (given, expected) in enumerate(chosen):
                written = ", ".join(f"{each:g}" for each in given)
                text = f"{name}{'(out=)' if out else ''} of {dtype}, elements with the parameters {written} next to elements with other parameters"
                _judge(context, text, expected, values[:, numbers == number])


def _judge(context: CaseContext, text: str, expected: float | Law, values: torch.Tensor) -> None:
    """Checks ``values``, the samples of the elements that have the same parameters. Every sample must equal
    ``expected`` or, if ``expected`` is a distribution, the samples must be distributed in this way."""
    if isinstance(expected, Law):
        judge_each(context, text, expected, values, values.flatten())
        return
    samples, only = values.double(), torch.tensor(expected, dtype=torch.float64)
    wrong = samples[~torch.isclose(samples, only, rtol=0, atol=0, equal_nan=True)]
    wanted = repr(float(expected))
    found = repr(float(wrong[0])) if len(wrong) else wanted
    context.same(found, wanted, f"{text}: a sample is not {expected:g}, the only possible value")
