"""The table of samplers: each random function, how it is called, and the documented distribution of its samples.

To add a random function, add one row. The check functions select the rows that fit them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any

import torch

from conformance.checks.cases.context import CaseContext
from conformance.suites.random.distributions import (
    Law,
    binomial_law,
    cauchy_law,
    coin_law,
    complex_normal_law,
    exponential_law,
    geometric_law,
    integers_law,
    log_normal_law,
    normal_law,
    poisson_law,
    shares_law,
    uniform_law,
)
from conformance.suites.random.parameters import (
    COINS,
    COUNTS,
    DEVIATIONS,
    DROPPED,
    MEANS,
    NORMAL,
    NOTHING,
    NUMBERS,
    RATES,
    WEIGHTS,
    Parameters,
)
from devices.descriptor import Descriptor

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_OR_COMPLEX = (*_FLOATS, "complex64")
_OR_SIGNED = (*_FLOATS, "int64", "int32", "int16", "int8")
_OR_INTEGERS = (*_OR_SIGNED, "uint8")

Draw = Callable[..., torch.Tensor]


class Form(Enum):
    """The ways to call a function so that it draws one sample per element of a tensor ``x``."""

    FILL = "x.normal_(1, 2)"
    LIKE = "torch.randn_like(x)"
    SHAPE = "torch.randn(x.shape)"
    PARAMETERS = "torch.normal(means, deviations)"
    OTHER = "a call that is none of the above"


FILL, LIKE, SHAPE, PARAMETERS, OTHER = Form


@dataclass(frozen=True, slots=True)
class Sampler:
    """A row of the table: a random function, the arguments with which most cases call it, and what is documented
    about its samples."""

    name: str
    form: Form
    family: Callable[..., Law]  # returns the documented distribution for given arguments
    arguments: tuple[float, ...] = ()
    others: tuple[tuple[float, ...], ...] = ()  # negative, zero, large, fractional and omitted
    _: KW_ONLY
    call: str = ""  # the name of the function, if it is not `name`
    dtype: torch.dtype = torch.float32  # of vectors
    dtypes: tuple[str, ...] = _FLOATS  # which the function accepts on the CPU
    #: Mean and standard deviation of the real and the imaginary part, if these are not distributed like real samples.
    parts: tuple[tuple[float, float], ...] = ()
    vectors: Draw | None = None  # for OTHER: vectors(count, device, *arguments, generator=)
    each: Parameters = NOTHING  # one set for each element
    draws_each: Draw | None = None  # for OTHER: draws_each(*parameters, out=)
    out: torch.dtype | None = None  # dtype of the ``out=`` tensor for parameters, if there is one
    grows: bool = True  # an empty ``out=`` tensor is resized
    by_row: bool = False  # all parameters of a row belong to one result

    @property
    def law(self) -> Law:
        """The documented distribution of samples that are drawn with ``arguments``."""
        return self.family(*self.arguments)

    def laws(self, dtype: torch.dtype) -> list[Law]:
        """Returns the distribution of the samples. For a complex dtype, returns the distributions of the real part and
        of the imaginary part."""
        if dtype.is_complex and self.parts:
            return [complex_normal_law(*each) for each in self.parts]
        return [self.law] * (2 if dtype.is_complex else 1)

    def dtypes_on(self, device: Descriptor) -> list[torch.dtype]:
        """Returns the dtypes that the function accepts and that the descriptor ``device`` declares."""
        return [getattr(torch, each) for each in self.dtypes if each in device.dtypes]

    @property
    def draws_vectors(self) -> bool:
        """True if there are cases that draw vectors of samples with this function. False for functions that take no
        generator, and for rows that repeat the function of another row in a different form of call."""
        if self.form is PARAMETERS:
            return all(map(callable, self.each.makers))
        return self.form in (FILL, SHAPE) or self.vectors is not None

    @property
    def _function(self) -> Draw:
        found: Draw = getattr(torch.Tensor if self.form is FILL else torch, self.call or self.name)
        return found

    def draw(self, x: torch.Tensor, *numbers: float, **named: Any) -> torch.Tensor:
        """Draws one sample per element of ``x``, with ``numbers`` as arguments of the function. The samples are written
        to ``x`` if the function fills a tensor, otherwise to a new tensor with the shape and dtype of ``x``."""
        if self.form in (FILL, LIKE):
            return self._function(x, *numbers, **named)
        return self._function(*numbers, x.shape, dtype=x.dtype, device=x.device, **named)

    def like(self, x: torch.Tensor, **named: Any) -> torch.Tensor:
        """Draws one sample per element of ``x`` with the arguments of this row. An argument that the function takes as
        a tensor of parameters is passed as a tensor that contains the same number everywhere."""
        if self.form is not PARAMETERS:
            return self.draw(x, *self.arguments, **named)
        given = zip(self.arguments, self.each.makers)
        made = (torch.full_like(x, each) if callable(maker) else each for each, maker in given)
        return self._function(*made, **named)

    def vector(
        self, count: int, device: torch.device, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Draws ``count`` samples, with the default generator if none is given."""
        named = {} if generator is None else {"generator": generator}
        if self.vectors is not None:
            return self.vectors(count, device, *self.arguments, **named)
        if self.form is SHAPE:  # of the dtype that the function chooses
            return self._function(*self.arguments, (count,), device=device, **named)
        return self.like(torch.empty(count, device=device, dtype=self.dtype), **named)

    def draw_each(self, *tensors: torch.Tensor, **named: Any) -> torch.Tensor:
        """Draws samples with parameters that differ from element to element. ``tensors`` contains the parameters."""
        given = self.each.arguments(tensors)
        if self.form is FILL:
            first = given[0]
            given.insert(0, torch.full(first.shape, -7.0, device=first.device))
        return (self.draws_each or self._function)(*given, **named)


def _narrow(count: int, device: torch.device, *given: float, **named: Any) -> torch.Tensor:
    return torch.empty(count, device=device).normal_(*given, **named)


def _categories(count: int, device: torch.device, *weights: float, **named: Any) -> torch.Tensor:
    held = torch.tensor(weights, dtype=torch.float32).to(device)
    return torch.multinomial(held, count, True, **named)


def _tenths(count: int, device: torch.device, low: int, high: int, **named: Any) -> torch.Tensor:
    """Draws a permutation of ``count`` numbers and maps them to integers from ``low`` to ``high`` - 1. All integers
    occur equally often, because the permutation contains every number once."""
    return torch.randperm(count, device=device, **named) * (high - low) // count + low


def _five_categories(weights: torch.Tensor, **named: Any) -> torch.Tensor:
    return torch.multinomial(weights, 5, True, **named)


def _dropout(given: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(given, DROPPED)


_F32, _I64 = torch.float32, torch.int64
_RANGES = ((7,), (-20, 300), (-(2**40), 2**41))

# The columns are: name, form, distribution, arguments, other arguments.
# fmt: off
_ROWS = (
    Sampler("rand", SHAPE, uniform_law, dtypes=_OR_COMPLEX),
    Sampler("randn", SHAPE, normal_law, dtypes=_OR_COMPLEX, parts=((0, 1), (0, 1))),
    Sampler("randint", SHAPE, integers_law, (-3, 9), _RANGES, dtype=_I64, dtypes=_OR_SIGNED),
    Sampler("rand_like", LIKE, uniform_law, dtypes=_OR_COMPLEX),
    Sampler("randn_like", LIKE, normal_law, dtypes=_OR_COMPLEX, parts=((0, 1), (0, 1))),
    Sampler("randint_like", LIKE, integers_law, (-3, 9), _RANGES, dtype=_I64, dtypes=_OR_SIGNED),
    Sampler("uniform_", FILL, uniform_law, (2.25, 5.5), ((), (-5.5, -2.25), (-20, 300.5), (0, 1e6)),
            dtypes=_OR_COMPLEX),
    # Both parts have the mean, see aten/src/ATen/native/DistributionTemplates.h.
    Sampler("normal_", FILL, normal_law, (1, 2.5), ((), (-2.5,), (300.5, 20), (0, 1e6)),
            dtypes=_OR_COMPLEX, parts=((1, 2.5), (1, 2.5))),
    Sampler("normal_narrow", OTHER, normal_law, (-2, 0.25), vectors=_narrow),
    Sampler("normal", PARAMETERS, normal_law, (1, 2.5), ((-2.5, 20), (300.5, 0.25)),
            each=NORMAL, out=_F32),
    # The means are real. On the CPU, out= is not resized; `layout.out_resize` judges that.
    Sampler("normal_of_means", PARAMETERS, normal_law, (1, 2.5), call="normal",
            dtypes=_OR_COMPLEX, parts=((1, 2.5), (0, 2.5)), each=MEANS, out=_F32, grows=False),
    Sampler("normal_of_deviations", PARAMETERS, normal_law, (1, 2.5), call="normal",
            each=DEVIATIONS, out=_F32),
    Sampler("exponential_", FILL, exponential_law, (2.5,), ((20.5,), (1,), (0.25,), (1e-6,))),
    Sampler("log_normal_", FILL, log_normal_law, (0.5, 0.75),
            ((), (-0.5, 0.25), (9.5, 0.5), (0, 1))),
    Sampler("cauchy_", FILL, cauchy_law, (0.75, 1.5), ((), (-20.5, 0.25), (300, 12))),
    Sampler("geometric_", FILL, geometric_law, (0.3,), ((0.9,), (0.5,), (0.04,)),
            dtypes=_OR_INTEGERS),
    Sampler("bernoulli_", FILL, coin_law, (0.3,), ((), (0.95,), (0,), (1,)),
            dtypes=(*_OR_INTEGERS, "bool"), each=COINS),
    Sampler("bernoulli", PARAMETERS, coin_law, (0.3,), each=COINS, out=_F32),
    Sampler("random_", FILL, integers_law, (3, 9), ((5,), (0, 2), *_RANGES[1:], ()),
            dtype=_I64, dtypes=_OR_INTEGERS),
    Sampler("multinomial", OTHER, shares_law, (1,) * 7, vectors=_categories,
            each=WEIGHTS, draws_each=_five_categories, out=_I64, by_row=True),
    Sampler("multinomial_weighted", OTHER, shares_law, (3, 1, 0, 4, 2), vectors=_categories),
    Sampler("poisson", PARAMETERS, poisson_law, (4,), each=RATES),
    Sampler("binomial", PARAMETERS, binomial_law, (10, 0.3), dtypes=_FLOATS[:2], each=COUNTS),
    Sampler("randperm", OTHER, integers_law, (0, 10), vectors=_tenths),
    Sampler("dropout", OTHER, coin_law, each=NUMBERS, draws_each=_dropout),
)
# fmt: on

SAMPLERS = {row.name: row for row in _ROWS}


# -- which samplers a check asks
#
# The cells of a plan are hashed in their order, so samplers stand in the order in which their cases were added: those of
# one form after those of another.


def _names(forms: tuple[Form, ...], asked: Callable[[Sampler], object] = bool) -> list[str]:
    return [row.name for form in forms for row in _ROWS if row.form is form and asked(row)]


def _with_parameters() -> list[str]:
    """Returns the names of functions that take one set of parameters per element. A method such as ``bernoulli_`` is
    listed after the function of the same name."""
    names = _names((PARAMETERS, FILL, OTHER), lambda row: row.each.makers)
    functions = [name.rstrip("_") for name in names]
    return sorted(names, key=lambda name: functions.index(name.rstrip("_")))


VECTORS = [row.name for row in _ROWS if row.draws_vectors]
FILLS = _names((FILL,))
PER_TENSOR = _names((LIKE, PARAMETERS, FILL))
PER_TENSOR_OR_SHAPE = [*PER_TENSOR, *_names((SHAPE,))]
WITH_OTHER_ARGUMENTS = _names((FILL, SHAPE, LIKE, PARAMETERS), lambda row: row.others)
WITH_PARAMETERS = _with_parameters()
WITH_TARGETS = [name for name in WITH_PARAMETERS if SAMPLERS[name].out]
WITH_SPECIAL_PARAMETERS = [name for name in WITH_PARAMETERS if SAMPLERS[name].each.special]


def asking(names: list[str], prefix: str = "") -> dict[str, tuple[str]]:
    """Returns the cases of a check that takes the name of a sampler, as the argument ``over`` of ``@cases``: one
    case for each name. The id of the case is the name with the prefix."""
    return {f"{prefix}{name}": (name,) for name in names}


def repeated(
    context: CaseContext, text: str, draw: Callable[[], torch.Tensor], seed: int, times: int = 2
) -> torch.Tensor:
    """Draws several times, each time after the same seed was set, checks that the values are the same, and returns
    them. ``text`` is the message of the failure if they differ."""
    drawn = []
    for _ in range(times):
        torch.manual_seed(seed)
        drawn.append(context.from_device(draw()).clone())
    for again in drawn[1:]:
        context.equal(again, drawn[0], text)
    return drawn[0]
