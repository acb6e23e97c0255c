"""The judge of compile.eager_equals_compiled: compares each compiled call with the eager call on equal inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from conformance.checks.ops.calls import Found, ReferenceParts, Unjudged
from conformance.checks.ops.evidence import OutputFacts
from conformance.suites.compile.compiled_calls import Answer, Compared, Gradient, Pair
from opinfo.compare import SUM_ROUNDINGS, Wrong, difference, raised, tensor_difference
from opinfo.reference import significant


def judge_compiled(evidence: Compared, reference: ReferenceParts) -> Found:
    """Check that a graph was compiled, that a second call on inputs of the same shapes and strides compiled no other
    graph, and that results, gradients, aliasing and changes of inputs are those of eager execution."""
    if evidence.raised is not None and not evidence.pairs:
        yield Unjudged(evidence.raised)
        return
    for turn, pair in enumerate(evidence.pairs):
        which = f"call {turn + 1} of the compiled function"
        for wrong in _pair(pair, reference, first=not turn):
            yield wrong.about(which) if wrong is not None else None
            if wrong is not None:
                return


def _pair(pair: Pair, reference: ReferenceParts, *, first: bool) -> Iterator[Wrong | None]:
    if pair.made.raised is not None:
        subject = pair.made.during
        yield raised(pair.made.raised, "no exception, as in eager execution", subject=subject)
        return
    if first and not pair.graphs:
        yield Wrong("count", "one compiled graph", "none: the call was executed eagerly")
        return
    if pair.repeated and pair.graphs:
        subject = "inputs of the same shapes and strides as before"
        yield Wrong("count", "no further graph", pair.graphs, subject)
        return
    yield from other_outputs(pair, reference)
    yield from changed_later(pair.made, reference)
    yield from other_inputs(pair.eager, pair.made, reference)
    yield from other_gradients(pair, reference)


def other_outputs(pair: Pair, reference: ReferenceParts) -> Iterator[Wrong | None]:
    """Yield the differences between the results of the eager and of the compiled call: structure, number of tensors,
    values, layout and aliasing."""
    eager, made = pair.eager, pair.made
    if eager.form != made.form:
        yield Wrong("count", f"a result of the form {eager.form}", made.form)
        return
    for place, (want, got) in enumerate(zip(eager.outputs, made.outputs)):
        wrong = other_facts(got, want, reference.cloned)
        if wrong is None and not reference.cloned and made.same[place] != eager.same[place]:
            wrong = Wrong("alias", _object(eager.same[place]), _object(made.same[place]))
        if wrong is None and made.shares[place] != eager.shares[place]:
            expected, found = _sharing(eager.shares[place]), _sharing(made.shares[place])
            wrong = Wrong("alias", expected, found)
        if wrong is None and made.requires_grad[place] != eager.requires_grad[place]:
            expected = f"requires_grad={eager.requires_grad[place]}"
            wrong = Wrong("state", expected, f"requires_grad={made.requires_grad[place]}")
        yield wrong.about(f"output {place}") if wrong is not None else None
        if wrong is not None:
            return
    if not reference.unspecified and eager.values:
        yield difference(
            made.values, eager.values, reference.tolerances, roundings=reference.roundings
        )


def changed_later(made: Answer, reference: ReferenceParts) -> Iterator[Wrong | None]:
    """Yield a failure if a further call of the compiled function changed the outputs of the call that is judged."""
    if made.later and not reference.unspecified:
        wrong = difference(made.later, made.values, {})
        yield (
            wrong.about("the result, read again after a further call")
            if wrong is not None
            else None
        )


def other_facts(got: OutputFacts, want: OutputFacts, cloned: bool) -> Wrong | None:
    """Return a failure if dtype, shape, strides, storage offset, conjugate or negative bit, or storage differ;
    otherwise None. If ``cloned``, a tensor that shares memory with an input in eager execution may be a copy."""
    if got.dtype != want.dtype:
        return Wrong("dtype", want.dtype, got.dtype)
    if got.shape != want.shape:
        return Wrong("shape", want.shape, got.shape)
    if cloned and want.storage is not None and got.storage is None:
        return None
    if significant(got.shape, got.stride) != significant(want.shape, want.stride):
        return Wrong("strides", want.stride, got.stride, "strides")
    if (got.conj, got.neg) != (want.conj, want.neg):
        return Wrong("bits", f"conj {want.conj}, neg {want.neg}", f"conj {got.conj}, neg {got.neg}")
    if got.storage != want.storage:
        kind = "alias" if want.storage is None else "not_aliased"
        return Wrong(kind, _storage(want.storage), _storage(got.storage))
    if got.numel and got.offset != want.offset:
        return Wrong("offset", want.offset, got.offset, "storage offset")
    if got.missing_bytes:
        return Wrong("storage", f"a storage of at least {got.needed_bytes} bytes", got.nbytes)
    return None


def _storage(place: int | None) -> str:
    return "a storage that no input has" if place is None else f"the storage of input {place}"


def _object(place: int | None) -> str:
    return "a new tensor" if place is None else f"input {place} itself"


def _sharing(place: int | None) -> str:
    return "a storage of its own" if place is None else f"the storage of output {place}"


def other_inputs(eager: Answer, made: Answer, reference: ReferenceParts) -> Iterator[Wrong | None]:
    """Yield the differences between the inputs after the eager and after the compiled call: storages, shapes, strides
    and version counters."""
    for place, (want, got) in enumerate(zip(eager.after, made.after)):
        wrong = None
        if want is not None and got is not None and not reference.unspecified:
            found = tensor_difference(got, want, reference.tolerances, 0.0)
            wrong = (
                found.about("the storage, compared with that after the eager call")
                if found
                else None
            )
        if wrong is None and made.shapes[place] != eager.shapes[place]:
            expected = "shape {}, strides {}".format(*eager.shapes[place])
            wrong = Wrong("moved", expected, "shape {}, strides {}".format(*made.shapes[place]))
        unseen = eager.wrote[place] and not made.wrote[place] and not reference.cloned
        if wrong is None and unseen:
            found_state = "the version counter unchanged"
            wrong = Wrong("state", "a version counter that rose", found_state)
        yield wrong.about(f"input {place} after the call") if wrong is not None else None


def other_gradients(pair: Pair, reference: ReferenceParts) -> Iterator[Wrong | None]:
    """Yield the differences between the gradients: their values and, if all inputs of the call are row-major, their
    strides. (Torch does not promise the strides of other gradients.) A missing gradient equals zeros."""
    if reference.unspecified:
        return
    eager, made = pair.eager.gradients, pair.made.gradients
    if len(eager) != len(made):
        yield Wrong("count", f"{len(eager)} gradients", len(made))
        return
    for place, (want, got) in enumerate(zip(eager, made)):
        wrong = other_gradient(got, want, pair.row_major, reference)
        yield wrong.about(f"gradient {place}") if wrong is not None else None


def other_gradient(
    got: Gradient | None, want: Gradient | None, strided: bool, reference: ReferenceParts
) -> Wrong | None:
    """Return a failure if a gradient differs from the gradient of eager execution; otherwise None."""
    there = want or got
    if there is None:
        return None
    zeros = Gradient(torch.zeros_like(there.values), there.stride)
    got, want = got or zeros, want or zeros
    wrong = tensor_difference(got.values, want.values, reference.gradient_tolerances, SUM_ROUNDINGS)
    if wrong is None and strided and got.stride != want.stride:
        return Wrong("strides", want.stride, got.stride, "strides")
    # What changes one of them in place, such as clipping, would change both.
    if wrong is None and got.shares is not None and want.shares is None:
        return Wrong("alias", "memory of its own", f"the memory of gradient {got.shares}")
    return wrong
