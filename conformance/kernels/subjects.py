"""The op or function that a kernel replaces, the kernel itself, and the samples on which it is judged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeGuard

import torch

from conformance.checks.ops.script import public_name
from conformance.kernels import forms
from conformance.kernels.reference_calls import LeftOut, NoAnswer, Trials, refusal
from conformance.kernels.request import Request
from conformance.kernels.targets import OverloadSubject, overload_named, subject_named
from devices.errors import ConformError, in_a_line
from opinfo.axes import further_samples, samples_of
from opinfo.axes.acceptance_cache import Decisions
from opinfo.catalog import dtype_name
from opinfo.encoding import ARGUMENTS, NotEncodable, write_value
from opinfo.plan import plan_spec
from opinfo.reference import value_answer
from opinfo.samples import Sample, choose, draw
from opinfo.subject import Function, Source, Subject
from opinfo.torch_private import has_kernel

#: The first index of the samples whose values are those of another sample in another order.
_REORDERED = 900_000
#: The distance between the indices of the samples of two ops of the database.
_APART = 10_000_000
#: A sample with more elements is run in two layouts only.
_LARGE = 2**15


#: The most samples of a dtype.
_MOST = 150


class NoSamples(ConformError):
    """The error for a kernel for which no sample is known."""

    exit_code = 4


class ReferenceSubject(Subject):
    """A reference function in Python, with the samples that were given for the kernel.

    The user chose the names of the kernel and of its reference. A kernel called ``empty_like`` has nothing to do with the
    op of that name, whose values are not determined."""

    id = "reference"
    names: tuple[str, ...] = ()
    #: It may add many terms, which may cancel: what a rounding of its operands changes is accepted.
    own_families = frozenset({"values.conditioned"})
    runs_on_cpu = True

    def __init__(self, request: Request, left_out: LeftOut) -> None:
        assert request.reference is not None
        self.request, self.left_out = request, left_out
        self.function = self.reference = left_out.bounded(forms.reference_of(request))

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset(self.request.dtypes)

    def raw_samples(self, dtype: torch.dtype) -> Iterator[Any]:
        if self.request.samples is None:
            raise NoSamples(
                f"{self.request.kernel.name}: expected samples for a kernel with a reference, found none: "
                "define a function that yields (args, kwargs)"
            )
        for given in self._given():
            args, kwargs = given if _is_pair(given) else (given, {})
            if not forms.keeps_dtypes(self.request):
                args = tuple(_in_dtype(each, dtype) for each in args)
                kwargs = {name: _in_dtype(each, dtype) for name, each in kwargs.items()}
            first, *rest = args
            yield SimpleNamespace(
                input=first, args=tuple(rest), kwargs=kwargs, output_process_fn_grad=None
            )

    def _given(self) -> Iterator[Any]:
        """Yields what the user's function yields. Raises NoSamples if it raises, or yields anything but arguments."""
        source = self.request.samples
        name = source.name if source is not None else "samples"
        some = False
        try:
            for given in forms.samples_of(self.request):
                some = True
                args = given[0] if _is_pair(given) else given
                if not isinstance(args, (tuple, list)) or not args:
                    raise NoSamples(
                        f"{name}: expected tuples of arguments, or pairs (args, kwargs), found {_kind_of(args)}"
                    )
                yield given
        except ConformError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise NoSamples(f"{name} raised {in_a_line(error)}") from error
        if not some:
            raise NoSamples(f"{name}: expected at least one tuple of arguments, found none")


def _kind_of(value: Any) -> str:
    return "an empty tuple" if value in ((), []) else f"an object of type {type(value).__name__}"


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


class KernelSubject(Subject):
    """A kernel, with the properties of the op or function that it replaces."""

    def __init__(self, base: Subject, kernel: Function, request: Request) -> None:
        self.base, self.request = base, request
        self.function, self.reference = kernel, base.reference
        self.id = base.id
        self.takes_conj_view = base.takes_conj_view and _sees_conjugates(base)
        # A kernel without a name of its own overrides the op, so that the op's function calls it.
        self.shown_as = request.kernel.name or public_name(base.function) or base.id
        self.as_precise_as_cpu = True
        self.nan_policy, self.identity = base.nan_policy, base.identity
        self.promotes_int_to_float = base.promotes_int_to_float

    @property
    def runs_on_cpu(self) -> bool:
        """True, because calls on CPU tensors are answered by the reference and not by the kernel."""
        return True

    @property
    def names(self) -> tuple[str, ...]:
        return self.base.names

    @property
    def own_families(self) -> frozenset[str]:
        return self.base.own_families

    @property
    def dtypes(self) -> frozenset[str]:
        return self.base.dtypes

    @property
    def ufunc(self) -> str:
        return self.base.ufunc

    @property
    def schemas(self) -> tuple[Any, ...]:
        return self.base.schemas

    @property
    def pointwise(self) -> bool:
        return self.base.pointwise

    @property
    def restrides_in_place(self) -> bool:
        return self.base.restrides_in_place

    @property
    def declares_view(self) -> bool:
        return self.base.declares_view

    def tolerance(self, dtype: str, torch_type: str) -> tuple[float, float] | None:
        return self.base.tolerance(dtype, torch_type)

    def written_tensors(self, call: Any) -> frozenset[int]:
        return self.base.written_tensors(call)

    def process_of(self, dtype: str, index: int) -> Function:
        return self.base.process_of(dtype, index)

    def source_of_process(self, dtype: str, index: int) -> Source:
        return self.base.source_of_process(dtype, index)

    def source_of(self, function: Function) -> Source:
        if function is self.function:
            return forms.script_source(self.request)
        if self.request.reference is not None and function is self.reference:
            return forms.reference_source(self.request)
        if function is self.reference:  # it makes each call in a fork first
            function = inspect.unwrap(function)
            name = public_name(function)
            return self.base.source_of(function) if name is None else (name, ())
        return self.base.source_of(function)


def _sees_conjugates(base: Subject) -> bool:
    """Returns True if torch passes lazily conjugated tensors to the kernels of an op, as it does for matrix products. For
    all other ops, it computes the conjugates first."""
    names = [f"{each.name}.{each.overload_name}".rstrip(".") for each in base.schemas]
    return bool(names) and all(has_kernel(name, "Conjugate") for name in names)


def base_of(
    request: Request, left_out: LeftOut | None = None, trials: Trials | None = None
) -> Subject:
    """Returns the op or function that a kernel replaces. Calls that its reference cannot answer are added to ``left_out``;
    with ``trials``, each call is made in a fork first. Raises ConformError if torch does not have the op."""
    base: Subject
    if not request.target:
        base = ReferenceSubject(request, LeftOut() if left_out is None else left_out)
    else:
        overload = overload_named(request.target)
        base = subject_named(request.target) if overload is None else OverloadSubject(overload)
    if trials is not None:
        for each in (base, *getattr(base, "sources", ())):
            each.reference = trials.tried(each.reference)
    return base


def samples_for(
    base: Subject, request: Request, dtype: str, folder: Path | None = None
) -> list[Sample]:
    """Returns the samples on which a kernel is judged in a dtype. They are the samples of the plan quick that the
    reference accepts, and further samples in which the values of another sample are in another order. Answers of the
    CPU to questions about these calls are kept in ``folder``, so that they are asked once for all rounds."""

    def decisions(name: str) -> Decisions:
        return Decisions(None if folder is None else folder / f"{dtype}-{name}")

    found = [each for each in _planned(base, request, dtype, decisions) if _usable(base, each)]
    found = _of_judged_dtypes(found, dtype)
    if not request.layouts:
        found = [replace(each, layouts=("contiguous",)) for each in found]
    found = [_thinned(each) for each in choose(found, _MOST)]
    if not found:
        left_out = base.left_out.notes if isinstance(base, ReferenceSubject) else []
        why = "; ".join([f"the reference accepts no sample in {dtype}", *left_out])
        raise NoSamples(f"{base.id}: {why}")
    further = _further(base, request, dtype, found, decisions("further"))
    return [*found, *further, *_reordered(base, found)]


def _of_judged_dtypes(samples: list[Sample], dtype: str) -> list[Sample]:
    """Returns the samples without those in which an operand has a dtype for which the kernel was not handed in, such as a
    bool beside a float32 in a sum. Operands that have another dtype in a sample of the database, such as masks and
    indices, may have it."""
    others = {
        place
        for each in samples
        for place, tensor in enumerate(each.tensors)
        if not each.axis and dtype_name(tensor.dtype) != dtype
    }
    most = max((len(each.tensors) for each in samples if not each.axis), default=0)
    return [
        each
        for each in samples
        if all(
            place in others or place >= most or dtype_name(tensor.dtype) == dtype
            for place, tensor in enumerate(each.tensors)
        )
    ]


def _further(
    base: Subject, request: Request, dtype: str, samples: list[Sample], decisions: Decisions
) -> Iterator[Sample]:
    """Yields samples of the axes that plans leave out, made from those of ``samples`` that no axis made."""
    drawn = [each for each in samples if not each.axis]
    for each in further_samples(base, dtype, drawn, decisions):
        declared = {dtype_name(t.dtype) for t in each.tensors} <= {*_declared(dtype)}
        if declared and _usable(base, each) and _fits_targets(base, each):
            yield each if request.layouts else replace(each, layouts=("contiguous",))


def _fits_targets(base: Subject, sample: Sample) -> bool:
    """Returns True if a call changes the size of no tensor that it writes to. The memory of a kernel's arguments cannot
    grow."""
    answer = value_answer(base.reference, sample.call.on, sample.tensors, mutates=True)
    written = base.written_tensors(sample.call)
    return all(answer.after[place].shape == sample.tensors[place].shape for place in written)


def _planned(
    base: Subject, request: Request, dtype: str, decisions: Callable[[str], Decisions]
) -> Iterator[Sample]:
    count = plan_spec("quick").samples
    if isinstance(base, OverloadSubject):
        for number, source in enumerate(base.sources):
            if dtype not in source.dtypes:
                continue
            kept = decisions(str(number))
            for sample in samples_of(source, dtype, count, _declared(dtype), decisions=kept):
                for turn, call in enumerate(base.calls_in(sample, source)):
                    index = sample.index + _APART * number + 1_000_000 * turn
                    origin = sample.origin if base.direct else None
                    yield replace(sample, index=index, call=call, origin=origin)
    elif request.target:
        yield from samples_of(base, dtype, count, _declared(dtype), decisions=decisions("own"))
    else:
        drawn = draw(base, dtype)
        yield from (
            _of_the_kind(
                samples_of(base, dtype, count, _declared(dtype), drawn, decisions("own")), drawn
            )
            if request.shapes
            else drawn
        )


def _of_the_kind(samples: list[Sample], drawn: list[Sample]) -> Iterator[Sample]:
    """Yields the samples in ``drawn`` that differ from a sample in ``samples`` only in sizes and values. A kernel need
    not support other numbers of dimensions or other arguments, even if its reference does."""
    kinds = {_kind(each) for each in drawn}
    return (each for each in samples if _kind(each) in kinds)


def _kind(sample: Sample) -> tuple[Any, ...]:
    return sample.call.form, tuple((t.dim(), t.dtype) for t in sample.tensors)


def _declared(dtype: str) -> tuple[str, ...]:
    """Returns the dtypes that tensors of a kernel's arguments may have: the given dtype, and the dtypes of indices and
    masks."""
    return (dtype, "int64", "bool")


def _usable(base: Subject, sample: Sample) -> bool:
    tensors = sample.tensors
    if not tensors or any(each.layout != torch.strided for each in tensors):
        return False
    try:
        write_value(
            [list(sample.call.args), [*map(list, sample.call.kwargs.items())]], ARGUMENTS, id
        )
    except NotEncodable:
        return False
    raised = value_answer(base.reference, sample.call.on, tensors, mutates=True).raises
    # The judge's own samples, of the axes and in another order, include many that a reference refuses.
    is_of_user = not sample.axis and sample.origin is None
    if is_of_user and isinstance(base, ReferenceSubject) and _is_refusal(raised):
        base.left_out.add(sample.call.args, sample.call.kwargs, *refusal(raised))
    return raised is None


def _is_refusal(raised: BaseException | None) -> TypeGuard[BaseException]:
    """Returns True if a reference raised an exception of its own, and not the one of a call that was left out already."""
    return raised is not None and not isinstance(raised, NoAnswer)


def _thinned(sample: Sample) -> Sample:
    if sample.numel <= _LARGE:
        return sample
    return replace(sample, layouts=("contiguous", "transposed"))


def _reordered(base: Subject, samples: list[Sample]) -> Iterator[Sample]:
    """Yields copies of samples whose first tensor has its values in another order, except the first and the last value.
    A kernel that returns a stored result for inputs of the same address, shape, first and last value or sum gives a
    wrong result for the copy."""
    fitting = (
        each
        for each in samples
        if each.tensors[0].is_floating_point() and 8 <= each.tensors[0].numel() <= _LARGE
    )
    for number, sample in zip(range(2), fitting):
        first, *rest = sample.tensors
        flat = first.reshape(-1).clone()
        flat[1:-1] = flat[1:-1].flip(0)
        call = type(sample.call)(*sample.call.bind([flat.reshape(first.shape), *rest]))
        made = replace(
            sample,
            index=_REORDERED + number,
            call=call,
            layouts=("contiguous",),
            origin=sample.drawn,
        )
        if _usable(base, made):
            yield made
