"""Cases about random functions that are called with special parameters (zero, infinite, NaN, subnormal) for some
elements and with ordinary parameters for all others. With special parameters, often only one result is right."""

from __future__ import annotations

from itertools import product

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import Law, judge_each
from conformance.suites.random.samplers import SAMPLERS, WITH_SPECIAL_PARAMETERS, asking
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: The shape and number of elements: two blocks of sixteen and a tail of three.
_SHAPE, _COUNT = (5, 7), 35
#: The number of draws. A result of 0 or 1 is the same in all of them with a probability of 2^-64.
_TIMES = 64


@cases("random.distribution", over=asking(WITH_SPECIAL_PARAMETERS, "special_"))
def special_parameters(context: CaseContext, name: str) -> None:
    """A function draws for elements some of which have special parameters: zero, infinite, NaN, subnormal or
    large. Each element is drawn with the parameters of that element, in each dtype, with and without `out=`."""
    sampler, special = SAMPLERS[name], SAMPLERS[name].per_element.special
    assert special is not None
    torch.manual_seed(20_253)
    for dtype in (each for each in sampler.dtypes_on(context.descriptor) if each.is_floating_point):
        chosen = special(dtype)
        for turn, out in product(range(len(chosen)), (False, True) if sampler.out else (False,)):
            # Over all turns, each element gets each set of parameters once.
            numbers = (torch.arange(_COUNT) + turn) % len(chosen)
            held = torch.tensor([given for given, _ in chosen], dtype=torch.float64)[numbers]
            tensors = [context.to_device(each.to(dtype).view(_SHAPE)) for each in held.unbind(1)]
            drawn = []
            for _ in range(_TIMES):
                target = torch.full(_SHAPE, -7, dtype=dtype, device=context.device)
                made = sampler.draw_each(*tensors, **({"out": target} if out else {}))
                drawn.append((target if out else made).reshape(-1).clone())
            values = context.from_device(torch.stack(drawn))
            for number, (given, expected) in enumerate(chosen):
                written = ", ".join(f"{each:g}" for each in given)
                text = f"{name}{'(out=)' if out else ''} of {dtype}, elements with the parameters {written} next to elements with other parameters"
                _judge(context, text, expected, values[:, numbers == number])


def _judge(context: CaseContext, text: str, expected: float | Law, values: torch.Tensor) -> None:
    """Checks samples of the elements that have the same parameters."""
    if isinstance(expected, Law):
        judge_each(context, text, expected, values, values.flatten())
        return
    samples, only = values.double(), torch.tensor(expected, dtype=torch.float64)
    wrong = samples[~torch.isclose(samples, only, rtol=0, atol=0, equal_nan=True)]
    wanted = repr(float(expected))
    found = repr(float(wrong[0])) if len(wrong) else wanted
    context.same(found, wanted, f"{text}: a sample is not {expected:g}, the only possible value")
