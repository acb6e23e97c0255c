"""The starting point of the axes: an op and a dtype with the database's samples, and functions that check whether the
CPU accepts a new call."""

from __future__ import annotations

import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import Any

import torch

from opinfo.axes.acceptance_cache import Decisions
from opinfo.compare import (
    DEFAULT_TOLERANCES,
    SUM_ROUNDINGS,
    UNSIGNED,
    Arguments,
    difference,
    replace_tensors,
    tensors_of,
    turned,
)
from opinfo.memory import fresh_memory
from opinfo.reference import EpsilonOf, ValueAnswer, value_answer
from opinfo.samples import Sample, choose, direct_seeding, draw, mutates
from opinfo.subject import Subject
from opinfo.torch_private import without_modes

#: The most elements that all tensors of a new call may have together, and the most that its results may have.
MOST = 2**20
#: The most tensors that a new call may return, since each of them is compared.
_MOST_RESULTS = 64
#: With more terms than this, a sum is exact in 16-bit dtypes only if all terms are 1 or -1.
_NARROW = 300
#: The number of database samples that new calls are made from.
_BASES = 4
#: The number of database samples that plans use.
UPSTREAM = 16


@dataclass
class Basis:
    """The starting point from which the axes make calls of an op with a dtype: the database's samples, and facts
    about the op. Axes get the values for new calls from it, and use it to check whether new calls are usable."""

    subject: Subject
    dtype: str
    drawn: Sequence[Sample]
    families: frozenset[str]
    decisions: Decisions = field(default_factory=Decisions)
    name: str = ""  # the name of the current axis, which is part of the seed
    #: The groups of dimensions that grow together, by the index of the base.
    groups: dict[int, list[tuple[frozenset[Any], float]]] = field(default_factory=dict)
    #: The calls made so far: the database's and those of the axes.
    made: list[Arguments] = field(default_factory=list)
    origins: list[Sample] = field(default_factory=list)  # the database's samples of ``made``
    _generator: torch.Generator = field(default_factory=torch.Generator)
    _results: dict[int, int] = field(default_factory=dict)
    _ascending: dict[tuple[int, int], bool] = field(default_factory=dict)

    @cached_property
    def kind(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def for_axis(self, name: str) -> None:
        """Seeds the random numbers that are drawn from now on. The seed depends only on op, dtype and axis, so the
        numbers are the same in every process."""
        self.name = name
        self._generator.manual_seed(zlib.crc32(f"{self.subject.id} {self.dtype} {name}".encode()))

    @cached_property
    def elementwise(self) -> bool:
        """True if each element of the result depends only on the elements of the inputs at the same position."""
        if self.subject.ufunc or not self.subject.pointwise:
            return self.subject.ufunc in ("unary", "binary")
        # An op may have elementwise and other overloads, as max has.
        for sample in filter(_all_strided, self.drawn[:3]):
            answer = self.answer(sample.call)
            try:
                shape = torch.broadcast_shapes(*(t.shape for t in sample.tensors))
            except RuntimeError:
                return False
            if answer is None or any(t.shape != shape for t in answer):
                return False
        return True

    @cached_property
    def keeps_values(self) -> bool:
        """True if the inputs of new calls must have values of the database's samples, for example because random
        values would make a matrix singular."""
        return "explore.keeps_sizes" in self.families

    @cached_property
    def upstream(self) -> list[Sample]:
        """The database's samples that plans use, before the axes add theirs."""
        return choose(self.drawn, UPSTREAM)

    @cached_property
    def bases(self) -> list[Sample]:
        """The few samples of the database from which new calls are made.

        They have elements in all tensors and in the result, if possible. Samples whose tensors all have several
        elements come first, and among them samples with many dimensions longer than 1. Samples whose result has
        several elements alternate with samples whose result is one number, since a single number cannot show that
        elements are in the wrong position.
        """
        held = [s for s in self.drawn if _all_strided(s) and 0 < s.numel <= MOST]
        held = [s for s in held if all(t.numel() for t in s.tensors)] or held
        while idle := [s for s in choose(held, 4 * _BASES) if self._returned(s) == 0]:
            if len(idle) == len(held):
                break
            held = [s for s in held if s not in idle]
        chosen = choose(held, _BASES)
        several = [s for s in choose(held, 4 * _BASES) if self._returns_several(s)]
        kept = [s for s in chosen if s in several]
        missing = min(_BASES // 2, len(several)) - len(kept)
        if missing > 0:
            kept += choose([s for s in several if s not in chosen], missing)
            others = [s for s in chosen if s not in several]
            chosen = [*kept, *others[: _BASES - len(kept)]]
        fullest = self._fullest(held)
        if fullest and all(len(s.tensors) < len(fullest.tensors) for s in chosen):
            chosen[-1] = fullest

        def order(sample: Sample) -> tuple[bool, int, int]:
            single = any(t.numel() < 2 for t in sample.tensors)
            return single, -max(len(_long(t)) for t in sample.tensors), sample.index

        chosen.sort(key=order)
        tiny = [s for s in chosen if all(t.numel() < 2 for t in s.tensors)]
        many, single = (
            [s for s in chosen if s not in tiny and self._returns_several(s) is wanted]
            for wanted in (True, False)
        )
        return [*(s for pair in zip_longest(many, single) for s in pair if s is not None), *tiny]

    def _fullest(self, held: Sequence[Sample]) -> Sample | None:
        """Returns the sample with the most tensors, if possible one with several elements in each tensor; None if no
        samples are given. The function is needed because few samples have optional operands."""
        most = max((len(s.tensors) for s in held), default=0)
        full = [s for s in held if len(s.tensors) == most]
        whole = [s for s in full if all(t.numel() > 1 for t in s.tensors)]
        return next(iter(choose(whole or full, 1)), None)

    def _returns_several(self, sample: Sample) -> bool:
        """Returns True if a result of the sample has more than one element."""
        return self._returned(sample) > 1

    def _returned(self, sample: Sample) -> int:
        """Returns the number of elements of the sample's largest result; 1 if the call returns no tensor."""
        if sample.index not in self._results:
            answer = self.answer(sample.call)
            self._results[sample.index] = max((t.numel() for t in answer or ()), default=1)
        return self._results[sample.index]

    @cached_property
    def moves(self) -> bool:
        """True if each element of the results is an element of an operand or zero, as for ops that only move or select
        elements."""
        samples = [s for s in self.bases if any(t.dtype == self.kind for t in s.tensors)]
        for sample in samples:
            given = [t.reshape(-1) for t in sample.tensors if t.dtype == self.kind]
            among = torch.cat([*given, torch.zeros(1, dtype=self.kind)])
            results = [t for t in self.answer(sample.call) or () if t.dtype == self.kind]
            if not all(t.layout == torch.strided for t in results) or not results:
                return False
            if not all(bool(torch.isin(t, among).all()) for t in results):
                return False
        return bool(samples)

    @cached_property
    def free(self) -> bool:
        """True if the values of the result are unspecified, as for ``empty``."""
        return "values.free" in self.families

    @cached_property
    def returns_no_tensor(self) -> bool:
        """True if the result is not a tensor, as for ops that compare two whole tensors."""
        answers = [self.answer(sample.call) for sample in self.bases[:1]]
        return any(answer is not None and not answer for answer in answers)

    @cached_property
    def decides(self) -> bool:
        """True if the result is of truth values, as for ops that compare elements or ask what an element is."""
        answers = [self.answer(sample.call) for sample in self.bases[:1]]
        return any(answer and answer[0].dtype == torch.bool for answer in answers)

    @cached_property
    def unique_indices(self) -> bool:
        """True if the op writes to positions given by indices, and the result is undefined if an index occurs twice."""
        return "axes.unique_indices" in self.families

    @cached_property
    def multiplies(self) -> bool:
        """True if the result is a product of matrices or a convolution."""
        return "fp32_precision" in self.families

    @cached_property
    def orders(self) -> bool:
        """True if the result contains indices that depend on the order of the elements, as for ``argsort``. Devices may
        order equal elements differently, so the values of an input must all differ."""
        if self.elementwise or self.dtype == "bool":
            return False
        drawn = self.drawn
        if (
            not (self.kind.is_floating_point or self.kind.is_complex)
            and "float32" in self.subject.dtypes
        ):
            drawn = draw(self.subject, "float32", limit=3)
        for sample in drawn[:3]:
            answer = self.answer(sample.call)
            first = sample.tensors[0].dtype if sample.tensors else None
            if answer and first is not None and (first.is_floating_point or first.is_complex):
                return any(t.dtype in (torch.int64, torch.int32) for t in answer)
        return False

    @cached_property
    def shape_free(self) -> bool:
        """True if the op accepts tensors of any shape, as elementwise ops and copies do."""
        return self.elementwise or self.subject.takes_memory_format

    @staticmethod
    def arguments(base: Sample) -> str:
        """Returns the arguments of a sample's call as text, without the tensors."""
        return repr(replace_tensors((base.call.args, base.call.kwargs), lambda t: t.dim()))

    # -- values

    def pool(self, base: Sample, place: int) -> torch.Tensor:
        """Returns the values that the database uses for tensor number ``place`` of a call, as a one-dimensional
        tensor from which new values can be picked."""
        given = base.tensors[place]
        if given.numel():
            return given.reshape(-1)
        others = (t for t in base.tensors if t.numel() and t.dtype == given.dtype)
        return next(others, given.new_ones(1)).reshape(-1)

    def fill(self, base: Sample, place: int, shape: Sequence[int]) -> torch.Tensor:
        """Returns a tensor of the given shape with values like those that the database uses for tensor number ``place``
        of a call: within the domain of the op, and sorted if the database's values are sorted.

        There are exceptions for tensors that have negative or complex values in the database, if the op is not
        elementwise. Ops that only move elements get fractions in place of real values; all other tensors get whole
        numbers, whose sums are exact.
        """
        given = base.tensors[place]
        signed = not given.is_complex() and given.is_floating_point() and place in self._signed
        if given.dtype == self.kind and self.orders:
            found = self.distinct(shape)
        elif given.dtype == self.kind and signed and not self.elementwise and self.moves:
            drawn = torch.rand(tuple(shape), generator=self._generator, dtype=torch.float64)
            zeros = drawn > 0.98
            return drawn.mul_(17).sub_(8.5).masked_fill_(zeros, 0.0).to(given.dtype)
        elif not self.elementwise and (signed or given.is_complex()):
            return self.whole_numbers(shape, given.dtype)
        else:
            found = self._some_of(self.pool(base, place), shape)
        if found.dim() and self._ascends(base, place):
            found = found.sort(dim=-1).values
        return found.contiguous()

    def _ascends(self, base: Sample, place: int) -> bool:
        key = base.index, place
        if key not in self._ascending:
            self._ascending[key] = is_sorted(base.tensors[place])
        return self._ascending[key]

    @cached_property
    def _signed(self) -> frozenset[int]:
        """The positions of the tensors that have negative elements in any sample of the database."""
        return frozenset(
            place
            for sample in self.drawn
            for place, t in enumerate(sample.tensors)
            if t.is_floating_point() and bool((t < 0).any())
        )

    def whole_numbers(self, shape: Sequence[int], kind: torch.dtype) -> torch.Tensor:
        """Returns a tensor of small whole numbers other than 0. Their sums and products are exact in every order."""
        most = 1 if kind.itemsize <= 2 and max(shape, default=1) > _NARROW else 8
        among = _small_numbers(most, kind)
        found = self._some_of(among, shape)
        return found + 1j * self._some_of(among, shape) if kind.is_complex else found

    def _some_of(self, values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Returns a tensor of the given shape whose elements are picked at random from the one-dimensional tensor
        ``values``."""
        chosen = self.choice(len(values), (torch.Size(shape).numel(),))
        # index_select is twice as fast as indexing, but lacks kernels for some dtypes.
        found = values[chosen] if values.dtype in UNSIGNED else values.index_select(0, chosen)
        return found.reshape(tuple(shape))

    def distinct(self, shape: Sequence[int]) -> torch.Tensor:
        """Returns a tensor of the given shape with values in random order. All values differ, if the dtype has enough
        values, so that no ties occur."""
        count = torch.Size(shape).numel()
        values = torch.randperm(count, generator=self._generator).reshape(tuple(shape))
        unsigned = self.dtype.startswith("uint") or self.dtype == "bool"
        return (values if unsigned else values - count // 2).to(self.kind)

    def choice(self, count: int, shape: Sequence[int]) -> torch.Tensor:
        """Returns a tensor of random whole numbers from 0 to ``count`` - 1."""
        return torch.randint(max(count, 1), tuple(shape), generator=self._generator)

    def permutation(self, count: int) -> torch.Tensor:
        """Returns the numbers from 0 to ``count`` - 1 in random order."""
        return torch.randperm(count, generator=self._generator)

    # -- calls

    def rebuilt(self, base: Sample, tensors: Mapping[int, torch.Tensor]) -> Arguments:
        """Returns the call of a sample with some of its tensors replaced. ``tensors`` has the new tensors by
        position."""
        return self.rebound(
            base.call, [tensors.get(n, each) for n, each in enumerate(base.tensors)]
        )

    def answer(self, call: Arguments) -> list[torch.Tensor] | None:
        """Returns the tensors that the CPU returns for a call; None if it rejects the call or returns too many
        elements."""
        if sum(t.numel() for t in call.tensors) > MOST or self._returns_too_much(call):
            return None
        found = self._reference_answer(call)
        if found.raises is not None:
            return None
        tensors = tensors_of(found.result)
        dense = [t.numel() for t in tensors if t.layout == torch.strided]
        return tensors if sum(dense) <= MOST and len(tensors) <= _MOST_RESULTS else None

    def _returns_too_much(self, call: Arguments) -> bool:
        """Returns True if the result of a call would be too large. The size comes from a call on the meta device, which
        allocates nothing. Only ops that need the check are checked, because the meta device is slow for some ops."""
        if "axes.larger_results" not in self.families:
            return False
        try:
            with asking():
                args, kwargs = call.on([t.to("meta") for t in call.tensors], torch.device("meta"))
                found = tensors_of(self.subject.reference(*args, **kwargs))
        except Exception:  # the meta device cannot answer, so the CPU decides
            return False
        return sum(t.numel() for t in found if t.layout == torch.strided) > MOST

    def refusal(self, call: Arguments) -> BaseException | None:
        """Returns the exception with which the CPU rejects a call as wrong; None if it accepts the call or does not
        implement it."""
        error = self._reference_answer(call).raises
        wrong = (RuntimeError, IndexError, ValueError, TypeError)
        known = isinstance(error, wrong) and not isinstance(error, NotImplementedError)
        return error if known else None

    def _reference_answer(self, call: Arguments) -> ValueAnswer:
        epsilon = EpsilonOf(self.kind) if self.kind.is_floating_point else nullcontext()
        with asking(), epsilon:
            torch.default_generator.manual_seed(0)
            return value_answer(
                self.subject.reference, call.on, call.tensors, mutates=mutates(self.families)
            )

    def accepted(self, call: Arguments) -> Arguments | None:
        """Returns the call if the CPU accepts it and the result depends only on the arguments, else None.

        Some kernels do not check that their arguments fit each other and read beyond the end of a tensor, so that the
        result depends on uninitialized memory.
        """
        if "axes.pairs" in self.families and not _paired(call):
            return None
        if "axes.square" in self.families and not _is_square(call):
            return None
        return call if self.decisions.decide(lambda: self._takes(call)) else None

    def _takes(self, call: Arguments) -> bool:
        if self.elementwise or self.free:
            return self.answer(call) is not None
        answers: list[list[torch.Tensor]] = []
        for byte in (0x00, 0x7F):  # memory of zeros, and of very large numbers
            with fresh_memory(torch.device("cpu"), byte):
                again = self.rebound(call, [each.clone() for each in call.tensors])
                found = self.answer(again)
            if found is None:
                return False
            answers.append(found)
        if self.multiplies and not all(t.numel() for t in answers[0]):
            # oneDNN accepts convolutions with an empty result; torch's own CPU kernels, which float64 uses, reject them.
            wide = [exactly(t) if t.dtype == self.kind else t for t in call.tensors]
            if self.answer(self.rebound(call, wide)) is None:
                return False
        return difference(answers[0], answers[1], {}) is None

    def settled(self, call: Arguments) -> bool:
        """Returns True if the CPU's result of a call is reliable as a reference: it must equal the result in
        float64, the result with operands in a different memory layout, and the result with zeros in place of
        subnormal numbers, which devices may flush to zero."""
        if "axes.unsettled" in self.families:
            return False
        return self.decisions.decide(lambda: self._settles(call))

    def _settles(self, call: Arguments) -> bool:
        found = self.answer(call)
        in_columns = list(map(turned, call.tensors))
        wide = [exactly(t) if t.dtype == self.kind else t for t in call.tensors]
        zeros = [flushed(t, self.kind) if t.dtype == self.kind else t for t in call.tensors]
        if self.returns_no_tensor:
            others = (
                self._reference_answer(self.rebound(call, each))
                for each in (in_columns, wide, zeros)
            )
            number = self._reference_answer(call).result
            return found is not None and all(each.result == number for each in others)
        for tensors in (in_columns, wide, zeros):
            other = self.answer(self.rebound(call, tensors))
            if found and other is None and tensors is in_columns:
                continue  # the op returns a view that is impossible in this layout
            if not found or other is None or len(other) != len(found):
                return False
            same = [want.to(got.dtype) for got, want in zip(found, other)]
            if difference(same, found, DEFAULT_TOLERANCES) is not None:
                return False
        return True

    def is_reliable(
        self, call: Arguments, *, steady: bool, settled: bool, first: Callable[[], bool]
    ) -> bool:
        """Returns True if ``first()`` is true, the CPU accepts a call with results and, if asked for, the result is steady
        and settled; see :meth:`steady` and :meth:`settled`. The answer to all of these is cached."""
        if settled and "axes.unsettled" in self.families:
            return False
        if "axes.pairs" in self.families and not _paired(call):
            return False
        return self.decisions.decide(
            lambda: (
                first()
                and any(t.numel() for t in self.answer(call) or ())
                and self._takes(call)
                and not (steady and not self._stays(call))
                and not (settled and not self._settles(call))
            )
        )

    def tells(self, before: Arguments, call: Arguments) -> bool:
        """Returns True if the CPU accepts a call and its result is reliable, and differs from that of the call
        ``before``, so that a kernel that ignores what was changed fails."""
        if "axes.unsettled" in self.families or (
            "axes.pairs" in self.families and not _paired(call)
        ):
            return False
        return self.decisions.decide(lambda: self._tells(before, call))

    def _tells(self, before: Arguments, call: Arguments) -> bool:
        if not self._takes(call):
            return False
        first, found = self.answer(before), self.answer(call)
        if first is not None and found is not None and difference(first, found, {}) is None:
            return False
        if self.kind.is_floating_point or self.kind.is_complex:
            return self.elementwise or self._settles(call)
        return True  # integers are exact

    def steady(self, call: Arguments) -> bool:
        """Returns True if the CPU's result stays the same, within tolerances, when operand elements change by one rounding
        error."""
        if not (self.kind.is_floating_point or self.kind.is_complex):
            return True
        return self.decisions.decide(lambda: self._stays(call))

    def _stays(self, call: Arguments) -> bool:
        found, step = self.answer(call), torch.finfo(self.kind).eps
        jolted = [
            t * (1 + step * (torch.arange(t.numel()).reshape(t.shape) % 3 - 1)).to(t.dtype)
            if t.dtype == self.kind
            else t
            for t in call.tensors
        ]
        other = self.answer(self.rebound(call, jolted))
        if not found or other is None:
            return False
        return difference(other, found, DEFAULT_TOLERANCES, roundings=SUM_ROUNDINGS) is None

    @staticmethod
    def rebound(call: Arguments, tensors: list[torch.Tensor]) -> Arguments:
        """Returns a copy of a call with the given tensors in place of the call's own tensors."""
        args, kwargs = call.bind(tensors)
        return Arguments(args, kwargs)


@lru_cache(maxsize=64)
def _small_numbers(most: int, kind: torch.dtype) -> torch.Tensor:
    return torch.tensor([*range(-most, 0), *range(1, most + 1)]).to(kind)


_ASKING = threading.local()


@contextmanager
def asking() -> Iterator[None]:
    """Prepares the process for trial calls on the CPU: in the context, gradients, warnings, and the modes of a device's
    module are off. Entering the context is slow, so a caller that makes many trial calls enters it once around all of
    them."""
    if getattr(_ASKING, "now", False):
        yield
        return
    with without_modes(), warnings.catch_warnings(), torch.no_grad(), direct_seeding():
        warnings.simplefilter("ignore")
        _ASKING.now = True
        try:
            yield
        finally:
            _ASKING.now = False


def _paired(call: Arguments) -> bool:
    """Returns True if a call of attention has as many values (in its third tensor) as keys (in its second tensor)."""
    return len({each.shape[-2:-1] for each in call.tensors[1:3]}) == 1


def _is_square(call: Arguments) -> bool:
    """Returns True if each tensor of a call is a matrix, or a batch of matrices, with as many rows as columns."""
    return all(each.dim() > 1 and each.shape[-1] == each.shape[-2] for each in call.tensors)


def flushed(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Returns a tensor with zeros in place of numbers that are subnormal in the given dtype, because a device may
    compute with zeros instead."""
    if not kind.is_floating_point:
        return tensor
    return torch.where(tensor.abs() < torch.finfo(kind).tiny, tensor * 0.0, tensor)


def exactly(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor in float64 (complex128 if it is complex), so that a call with it gives a more exact result to
    compare with. A tensor that already has this dtype is returned with gaps between its elements, so that the kernel uses its code for strided
    elements; a result that changes with that code is not reliable."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    if tensor.dtype == wide:
        return torch.stack((tensor, tensor), -1)[..., 0]
    return tensor.to(wide)


def is_sorted(tensor: torch.Tensor) -> bool:
    """Returns True if the rows of a tensor are sorted in ascending order, as bin boundaries are. Returns False for rows
    with fewer than three elements."""
    if (
        tensor.dim() == 0
        or tensor.shape[-1] < 3
        or tensor.is_complex()
        or tensor.dtype.itemsize < 2
    ):
        return False
    if tensor.dtype in UNSIGNED:
        tensor = tensor.to(torch.float64)
    return bool((tensor[..., 1:] >= tensor[..., :-1]).all()) and bool(
        (tensor[..., -1] > tensor[..., 0]).all()
    )


def _all_strided(sample: Sample) -> bool:
    return bool(sample.tensors) and all(t.layout == torch.strided for t in sample.tensors)


def _long(tensor: torch.Tensor) -> list[int]:
    return [n for n in tensor.shape if n > 1]


#: The calls that an axis makes, all accepted by the CPU, each with the sample that it was made from.
Variations = Iterator[tuple[Sample, Arguments]]
Vary = Callable[[Basis], Variations]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: one property in which samples are varied.

    ``number`` times 1,000 is the index of its first sample. ``finds`` describes the faults that the axis finds, and
    ``bugs`` are public reports of such faults. ``budget`` is the largest number of samples for an op and dtype.
    ``layouts`` are the layouts in which its samples are run; if empty, layouts are drawn at random. For calls with
    several tensors, the last of these layouts is replaced by one of the ``mixed`` layouts, in turn.
    """

    number: int
    name: str
    finds: str
    bugs: tuple[str, ...]
    budget: int
    layouts: tuple[str, ...]
    applies: Callable[[Basis], bool]
    vary: Vary
    mixed: tuple[str, ...] = ()
    whole: int = 0  # how many of the first samples are run in all layouts of the covering set
    writes: int = (
        0  # how many of the first samples are also used for calls that write (out=, in-place)
    )
    # Whether its calls are safe for ops whose CPU kernel does not check that shapes fit each other.
    keeps_shapes: bool = False
    family: str = ""  # the only family of ops that it applies to; empty for all
