"""The expected result of a call, in named parts. A part is computed when a judge (a function that judges a call for one
clause) first reads it. Repro scripts contain the parts that their judge reads."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from conformance.checks.ops.calls import (
    Laid,
    elements_named,
    repeated,
)
from conformance.checks.ops.masked_scores import with_masked_scores
from conformance.checks.ops.roundings import allowance, exact_answer
from conformance.checks.ops.script import literal
from opinfo.compare import SUM_ROUNDINGS
from opinfo.reference import (
    OutputSpec,
    StrideAnswer,
    StrideOracle,
    ValueAnswer,
    value_answer,
)
from opinfo.samples import Sample, Traits
from opinfo.subject import Subject

#: One call in this many takes its strides from FakeTensor even if the meta device has an answer.
_SPOT = 50


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a Reference for which a script needs more than a literal: its ``value`` or a function that computes the
    value, the source ``code`` (or a function that writes the code), and the ``functions`` that the code uses."""

    value: Any
    code: str | Callable[[], str]
    functions: tuple[Any, ...]


#: The answer when nothing was computed.
NO_ANSWER = ValueAnswer(None)


class Expecting(Protocol):
    """The attributes of the OpContext that a Reference needs: the op and dtype with its traits, the tolerances, and the
    methods that return the results of the CPU, the meta device and FakeTensor."""

    subject: Subject
    dtype: str
    traits: Traits
    mutates: bool
    has_exact: bool

    @property
    def reference_name(self) -> str: ...

    @property
    def tolerances(self) -> dict[str, tuple[float, float]]: ...

    @property
    def gradient_tolerances(self) -> dict[str, tuple[float, float]]: ...

    def expected(self, laid: Laid) -> ValueAnswer: ...

    def apart(self, laid: Laid) -> bool: ...

    def is_free(self, sample: Sample) -> bool: ...

    def mutable_inputs(self, sample: Sample) -> frozenset[int]: ...

    def stride_answer(self, laid: Laid, *, where: StrideOracle = "device") -> StrideAnswer: ...


class Reference:
    """The expected result of a call, in named parts. Each part is computed when a judge first reads it.

    A repro script contains the parts that its judge reads. ``parts`` adds parts to those defined here; if a part is a
    function, the function is called to compute the part.
    """

    def __init__(self, ctx: Expecting, laid: Laid, **parts: Any) -> None:
        self.ctx, self.laid = ctx, laid
        self._parts = parts
        self._value: ValueAnswer | None = None
        self._answer: StrideAnswer | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            part = self._parts[name]
        except KeyError:
            raise AttributeError(name) from None
        found = part.value if isinstance(part, Part) else part
        self.__dict__[name] = found = found() if callable(found) else found
        return found

    def frozen(self, name: str) -> Any:
        """Returns the value of the part called ``name``, in a form that can be written to a file."""
        if name == "process" and self.process is not None:
            return self.ctx.subject.process_of(self.ctx.dtype, self.laid.sample.drawn)
        return getattr(self, name)

    def source(self, name: str) -> tuple[str, tuple[Any, ...]]:
        """Returns the source text by which a script defines a part, and the functions and classes that the text uses."""
        part = self._parts.get(name)
        if isinstance(part, Part):
            return part.code if isinstance(part.code, str) else part.code(), part.functions
        sample = self.laid.sample
        if name == "value":
            mutates = ", mutates=True" if self.ctx.mutates else ""
            text = f"value_answer({self.ctx.reference_name}, arguments, repeated(values, geometries){mutates})"
            return text, (value_answer, repeated)
        if name == "process" and self.process is not None:
            return self.ctx.subject.source_of_process(self.ctx.dtype, sample.drawn)
        if name == "named" and self.named is not None:
            operand = "repeated(values, geometries)[0]"
            text = f"lambda result: elements_named(result, {operand}, {self._along})"
            return text, (elements_named, repeated)
        if name == "exact" and self.ctx.has_exact:
            text = (
                f"exact_answer({self.ctx.reference_name}, arguments, repeated(values, geometries))"
            )
            return text, (exact_answer, repeated)
        if name == "masking" and self.masking is not None:
            text = f"lambda read, want: with_masked_scores(read, want, arguments, repeated(values, geometries), {self.tolerances!r})"
            return text, (with_masked_scores, repeated)
        if name == "allowed" and self.conditioned:
            process, functions = self.source("process")
            text = f"allowance({self.ctx.reference_name}, arguments, repeated(values, geometries), {process})"
            return text, (allowance, repeated, *functions)
        found = getattr(self, name)
        classes = (OutputSpec,) if "OutputSpec(" in repr(found) else ()
        if found is NO_ANSWER:
            return "ValueAnswer(None)", (ValueAnswer,)
        return literal(found), classes

    @property
    def tolerances(self) -> dict[str, tuple[float, float]]:
        return self.ctx.tolerances

    @property
    def gradient_tolerances(self) -> dict[str, tuple[float, float]]:
        return self.ctx.gradient_tolerances

    @property
    def roundings(self) -> float:
        """The accepted error of an element, as a number of roundings of the largest element (see
        ``opinfo.compare.difference``)."""
        return SUM_ROUNDINGS if "values.sums" in self.families else 0.0

    @property
    def process(self) -> Callable[[Any], Any] | None:
        """A function that extracts the part of a result that the inputs determine, for example without the signs of
        eigenvectors; None if they determine the whole result."""
        return self.laid.sample.process if "values.not_unique" in self.families else None

    @property
    def conditioned(self) -> bool:
        """True if rounding errors of the operands may change the result by more than the tolerances."""
        return "values.conditioned" in self.families

    @property
    def unordered(self) -> bool:
        """True if the op promises no order of the elements of a row of its result."""
        return "values.unordered" in self.families

    @property
    def allowed(self) -> list[torch.Tensor]:
        """The accepted error of each tensor of the result, element by element, for an ill-conditioned op; empty for
        other ops."""
        if not self.conditioned:
            return []
        sample = self.laid.sample
        values = repeated(sample.tensors, self.laid.geometries)
        return allowance(self.ctx.subject.reference, sample.call.on, values, self.process)

    @property
    def exact(self) -> ValueAnswer:
        """The CPU's result in float64 or complex128; NO_ANSWER if the dtype is neither floating-point nor complex."""
        if not self.ctx.has_exact:
            return NO_ANSWER
        sample = self.laid.sample
        values = repeated(sample.tensors, self.laid.geometries)
        return exact_answer(self.ctx.subject.reference, sample.call.on, values)

    @property
    def named(self) -> Callable[[Any], Any] | None:
        """A function that replaces the indices in a result by the elements that they point to, for a call in which the
        index of any of several equal elements is right; None for other calls."""
        if not self.families & {"values.any_index", "values.of_any"}:
            return None
        if "values.of_any" in self.families and (self._is_stable or self.ctx.apart(self.laid)):
            return None
        operand = repeated(self.laid.sample.tensors, self.laid.geometries)[0]
        return partial(elements_named, operand=operand, dim=self._along)

    @property
    def masking(self) -> Callable[[Any, Any], Any] | None:
        """A function ``(read, want)`` that replaces elements of a result which are right although they differ from the CPU's,
        for an attention with removed keys that are not finite; None for other ops."""
        if "values.masked" not in self.families:
            return None
        sample = self.laid.sample
        values = repeated(sample.tensors, self.laid.geometries)
        return partial(
            with_masked_scores,
            arguments=sample.call.on,
            values=values,
            tolerances=self.tolerances,
        )

    @property
    def _is_stable(self) -> bool:
        return bool(self.laid.sample.call.kwargs.get("stable"))

    @property
    def _along(self) -> int:
        """The dimension of a reduction, from the call's arguments. In ops such as topk, the argument ``k`` precedes the
        dimension."""
        args, kwargs = self.laid.sample.call.args, self.laid.sample.call.kwargs
        place = 2 if "values.of_k" in self.families else 1
        return int(args[place] if len(args) > place else kwargs.get("dim", -1))

    @property
    def families(self) -> frozenset[str]:
        return self.ctx.traits.families

    @property
    def free(self) -> bool:
        """True if the inputs do not determine the values of the result, as for random numbers."""
        return self.ctx.is_free(self.laid.sample)

    @property
    def signed(self) -> bool:
        """True if the signs of zeros are judged, because a standard defines them for this op."""
        sample = self.laid.sample
        return sample.axis == "special values" and "zeros.signed" in self.families

    @property
    def mutable(self) -> frozenset[int]:
        return self.ctx.mutable_inputs(self.laid.sample)

    # Not cached_property, which takes a lock: these are read a hundred thousand times.
    @property
    def value(self) -> ValueAnswer:
        if self._value is None:
            self._value = self.ctx.expected(self.laid)
        return self._value

    @property
    def _fake(self) -> StrideAnswer:
        if self._answer is None:
            self._answer = self.ctx.stride_answer(self.laid)
        return self._answer

    @property
    def raises(self) -> bool:
        """True if FakeTensor rejects this call both for the device and for a neutral device type. A rejection for the
        device alone does not count, because FakeTensor may run the vendor's own Python code, and that code may be
        wrong. If the meta device accepts the call, FakeTensor is not run, because the meta device is faster and agrees
        with FakeTensor except for known ops."""
        known = "strides.not_of_meta" in self.families
        if not known and self.ctx.stride_answer(self.laid, where="meta").outputs is not None:
            return False
        return self._fake.raises is not None and (
            self.ctx.stride_answer(self.laid, where="elsewhere").raises is not None
        )

    @property
    def specs(self) -> tuple[OutputSpec, ...] | None:
        """The shapes and strides of FakeTensor's outputs; None if FakeTensor returns none."""
        return self._fake.outputs

    @property
    def meta_specs(self) -> tuple[OutputSpec, ...] | None:
        """The shapes and strides of the outputs on the meta device, which is faster than FakeTensor. None if the meta
        device returns none, or if FakeTensor must be used: for ops where both are known to differ, and for one call in
        50 of every op, to notice new differences."""
        spot = zlib.crc32(f"{self.laid.sample.index} {self.laid.case.id}".encode()) % _SPOT == 0
        if spot or "strides.not_of_meta" in self.families:
            return None
        return self.ctx.stride_answer(self.laid, where="meta").outputs

    @property
    def other_specs(self) -> tuple[OutputSpec, ...] | None:
        """The shapes and strides of the outputs on the meta device, for a call whose outputs differ from all other
        references. None if the meta device returns none, or if its kernel is known to be written for the CPU."""
        if "strides.of_no_backend" in self.families:
            return None
        return self.ctx.stride_answer(self.laid, where="meta").outputs
